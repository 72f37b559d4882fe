// Replaces cudaLaunchKernel in a CuPy module (cupy.random._generator_api) whose kernels are machine code.
#include "device.h"

// That module ignores the error of a launch. So the error is returned by the call that waits for the stream, and the
// caller does not go on with memory that no kernel has written.
extern "C" cudaError_t emulated_machine_code(const void*, dim3, dim3, void**, size_t, cudaStream_t stream) {
  using namespace emulated;
  return schedule.Enqueue(stream, CurrentDevice(), [] {
    SetError(cudaErrorNotSupported, "cupy.random.Generator draws numbers by kernels of machine code, which cannot be "
                                    "emulated; use cupy.random.RandomState, or draw with NumPy");
    return cudaErrorNotSupported;
  });
}
