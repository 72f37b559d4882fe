// Kernels that CuPy's own modules hold as machine code, and launch without looking whether that worked.
#include "device.h"

// In the place of cudaLaunchKernel: whoever waits for the stream is told, instead of finding memory that nobody wrote.
extern "C" cudaError_t emulated_machine_code(const void*, dim3, dim3, void**, size_t, cudaStream_t stream) {
  using namespace emulated;
  return schedule.Enqueue(stream, CurrentDevice(), [] {
    SetError(cudaErrorNotSupported, "cupy.random.Generator draws numbers by kernels of machine code, which cannot be "
                                    "emulated; use cupy.random.RandomState, or draw with NumPy");
    return cudaErrorNotSupported;
  });
}
