// A stub CUDA runtime and driver: CuPy runs on it as on a machine with one GPU whose kernels take no time.
// Device memory is host memory. Only the functions that CuPy needs for arrays, streams, events and launches are here.

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {
constexpr std::size_t kMemory = std::size_t{1} << 34;
thread_local int current_device = 0;
int devices = 1;
int capability = 90;
std::uint64_t launches = 0;
std::uintptr_t handles = 0x1000;

void* new_handle() { return reinterpret_cast<void*>(handles += 16); }
}  // namespace

extern "C" {

// Settings and counters for benchmarks/host.py.
void no_driver_configure(int count, int compute_capability) {
  devices = count;
  capability = compute_capability;
}
std::uint64_t no_driver_launches() { return launches; }

// The CUDA runtime: these functions replace those that are linked into CuPy.
int no_cudaGetDevice(int* device) {
  *device = current_device;
  return 0;
}
int no_cudaSetDevice(int device) {
  current_device = device;
  return 0;
}
int no_cudaGetDeviceCount(int* count) {
  *count = devices;
  return 0;
}
int no_cudaDeviceGetAttribute(int* value, int attribute, int) {
  switch (attribute) {
    case 16: *value = 132; break;              // multiprocessors
    case 75: *value = capability / 10; break;  // compute capability
    case 76: *value = capability % 10; break;
    case 81: *value = 233472; break;  // shared memory per multiprocessor
    case 97: *value = 232448; break;  // opt-in shared memory per block
    default: *value = 0;
  }
  return 0;
}
int no_cudaGetDeviceProperties(char* properties, int) {
  std::strcpy(properties, "a device that does nothing");  // the name is the first member
  return 0;
}
int no_cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = *total = kMemory;
  return 0;
}
int no_cudaMalloc(void** pointer, std::size_t size) {
  if (size > kMemory) return 2;  // cudaErrorMemoryAllocation
  *pointer = std::aligned_alloc(512, (size + 511) / 512 * 512);
  return 0;
}
int no_cudaFree(void* pointer) {
  std::free(pointer);
  return 0;
}
int no_cudaHostAlloc(void** pointer, std::size_t size, unsigned) { return no_cudaMalloc(pointer, size); }
int no_cudaFreeHost(void* pointer) { return no_cudaFree(pointer); }
int no_cudaMemcpyAsync(void* to, const void* from, std::size_t size, int, void*) {
  std::memcpy(to, from, size);
  return 0;
}
struct PointerAttributes {
  int type, device;
  void *on_device, *on_host;
};
int no_cudaPointerGetAttributes(PointerAttributes* attributes, void* pointer) {
  *attributes = {2, 0, pointer, nullptr};
  return 0;
}
int no_cudaStreamCreateWithPriority(void** stream, unsigned, int) {
  *stream = new_handle();
  return 0;
}
int no_cudaStreamDestroy(void*) { return 0; }
int no_cudaStreamSynchronize(void*) { return 0; }
int no_cudaStreamIsCapturing(void*, int* status) {
  *status = 0;
  return 0;
}
int no_cudaStreamWaitEvent(void*, void*, unsigned) { return 0; }
int no_cudaEventCreateWithFlags(void** event, unsigned) {
  *event = new_handle();
  return 0;
}
int no_cudaEventRecord(void*, void*) { return 0; }
int no_cudaEventQuery(void*) { return 0; }
int no_cudaEventDestroy(void*) { return 0; }

// The CUDA driver, which CuPy loads as libcuda.so.1.
int cuModuleLoadData(void** module, const void*) {
  *module = new_handle();
  return 0;
}
int cuModuleUnload(void*) { return 0; }
int cuModuleGetFunction(void** function, void*, const char*) {
  *function = new_handle();
  return 0;
}
int cuFuncSetAttribute(void*, int, int) { return 0; }
int cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**) {
  ++launches;
  return 0;
}
int cuLaunchKernelEx(const void*, void*, void**, void**) {
  ++launches;
  return 0;
}
}
