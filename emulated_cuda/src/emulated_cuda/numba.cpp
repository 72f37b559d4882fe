// Driver functions that Numba needs in addition to driver.cpp. They are in a second library, to which NUMBA_CUDA_DRIVER
// points: it has cuInit, which libcuda.so.1 must not have because NVRTC would find it there (see driver.cpp). The
// functions call the emulated runtime.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "device.h"

#define RUNTIME(name) extern "C" decltype(name) emulated_##name;
RUNTIME(cudaMalloc) RUNTIME(cudaMallocManaged) RUNTIME(cudaHostAlloc) RUNTIME(cudaFree) RUNTIME(cudaFreeHost)
RUNTIME(cudaMemGetInfo) RUNTIME(cudaMemset) RUNTIME(cudaMemsetAsync) RUNTIME(cudaMemcpy) RUNTIME(cudaMemcpyAsync)
RUNTIME(cudaStreamCreateWithFlags) RUNTIME(cudaStreamDestroy) RUNTIME(cudaStreamSynchronize)
RUNTIME(cudaStreamAddCallback) RUNTIME(cudaStreamWaitEvent) RUNTIME(cudaEventCreateWithFlags)
RUNTIME(cudaEventDestroy) RUNTIME(cudaEventQuery) RUNTIME(cudaEventRecord) RUNTIME(cudaEventSynchronize)
RUNTIME(cudaEventElapsedTime) RUNTIME(cudaDeviceSynchronize) RUNTIME(cudaDeviceCanAccessPeer)
RUNTIME(cudaDeviceEnablePeerAccess)

namespace emulated {
namespace {
thread_local std::vector<CUcontext> pushed;  // this thread's context stack

CUresult Result(cudaError_t error) { return static_cast<CUresult>(error); }
void* Pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }
CUcontext ContextOf(int device) { return reinterpret_cast<CUcontext>(static_cast<uintptr_t>(device + 1)); }
int DeviceOf(CUcontext context) { return static_cast<int>(reinterpret_cast<uintptr_t>(context)) - 1; }
bool Exists(int device) { return 0 <= device && device < settings.devices; }

// Linker state. There is no linker: a single PTX program is passed through.
struct Link {
  std::string text;
};
}  // namespace

extern "C" {
CUresult cuInit(unsigned) { return CUDA_SUCCESS; }

// ---------------------------------------------------------------- devices and contexts

CUresult cuDeviceGetCount(int* count) {
  *count = static_cast<int>(settings.devices);
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int number) {
  *device = number;
  return Exists(number) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDeviceGetName(char* name, int size, CUdevice) {
  std::snprintf(name, size, "Emulated device");
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  std::memset(uuid->bytes, device + 1, sizeof uuid->bytes);
  return CUDA_SUCCESS;
}
// Attributes have the same numbers in the driver and in the runtime.
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  return static_cast<CUresult>(DeviceAttribute(value, attribute, device));
}
CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice) {
  *major = static_cast<int>(settings.capability) / 10;
  *minor = static_cast<int>(settings.capability) % 10;
  return CUDA_SUCCESS;
}
CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  return Result(emulated_cudaDeviceCanAccessPeer(can, device, peer));
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = ContextOf(device);
  return Exists(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxSetFlags(CUdevice, unsigned) { return CUDA_SUCCESS; }
CUresult cuCtxPushCurrent(CUcontext context) {
  CUcontext current = nullptr;
  cuCtxGetCurrent(&current);
  pushed.push_back(current);
  return cuCtxSetCurrent(context);
}
CUresult cuCtxPopCurrent(CUcontext* context) {
  if (pushed.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  cuCtxGetCurrent(context);
  const CUcontext before = pushed.back();
  pushed.pop_back();
  return cuCtxSetCurrent(before);
}
CUresult cuCtxSynchronize() { return Result(emulated_cudaDeviceSynchronize()); }
CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  return Result(emulated_cudaDeviceEnablePeerAccess(DeviceOf(peer), flags));
}
CUresult cuProfilerStart() { return CUDA_SUCCESS; }
CUresult cuProfilerStop() { return CUDA_SUCCESS; }

// ---------------------------------------------------------------- memory

CUresult cuMemAlloc(CUdeviceptr* address, size_t size) {
  return Result(emulated_cudaMalloc(reinterpret_cast<void**>(address), size));
}
CUresult cuMemAllocManaged(CUdeviceptr* address, size_t size, unsigned flags) {
  return Result(emulated_cudaMallocManaged(reinterpret_cast<void**>(address), size, flags));
}
CUresult cuMemHostAlloc(void** pointer, size_t size, unsigned flags) {
  return Result(emulated_cudaHostAlloc(pointer, size, flags));
}
CUresult cuMemHostGetDevicePointer(CUdeviceptr* address, void* pointer, unsigned) {
  *address = reinterpret_cast<CUdeviceptr>(pointer);
  return CUDA_SUCCESS;
}
CUresult cuMemFree(CUdeviceptr address) { return Result(emulated_cudaFree(Pointer(address))); }
CUresult cuMemFreeHost(void* pointer) { return Result(emulated_cudaFreeHost(pointer)); }
CUresult cuMemGetInfo(size_t* available, size_t* total) { return Result(emulated_cudaMemGetInfo(available, total)); }
CUresult cuMemGetAddressRange(CUdeviceptr* begin, size_t* size, CUdeviceptr address) {
  const Allocation* found = memory.Find(address);
  if (found == nullptr) return CUDA_ERROR_NOT_FOUND;
  if (begin) *begin = found->address;
  if (size) *size = found->size;
  return CUDA_SUCCESS;
}
CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  const Allocation* found = memory.Find(address);
  if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *static_cast<CUcontext*>(value) = ContextOf(found->device); break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(value) = found->kind == Kind::kPinned ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *static_cast<CUdeviceptr*>(value) = address; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *static_cast<int*>(value) = found->device; break;
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}
CUresult cuMemsetD8(CUdeviceptr address, unsigned char value, size_t size) {
  return Result(emulated_cudaMemset(Pointer(address), value, size));
}
CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char value, size_t size, CUstream stream) {
  return Result(emulated_cudaMemsetAsync(Pointer(address), value, size, stream));
}
CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t size) {
  return Result(emulated_cudaMemcpy(Pointer(to), from, size, cudaMemcpyHostToDevice));
}
CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t size) {
  return Result(emulated_cudaMemcpy(to, Pointer(from), size, cudaMemcpyDeviceToHost));
}
CUresult cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t size) {
  return Result(emulated_cudaMemcpy(Pointer(to), Pointer(from), size, cudaMemcpyDeviceToDevice));
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t size, CUstream stream) {
  return Result(emulated_cudaMemcpyAsync(Pointer(to), from, size, cudaMemcpyHostToDevice, stream));
}
CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t size, CUstream stream) {
  return Result(emulated_cudaMemcpyAsync(to, Pointer(from), size, cudaMemcpyDeviceToHost, stream));
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
  return Result(emulated_cudaMemcpyAsync(Pointer(to), Pointer(from), size, cudaMemcpyDeviceToDevice, stream));
}

// Numba looks these functions up when it starts.
CUresult cuIpcGetMemHandle(CUipcMemHandle*, CUdeviceptr) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuIpcOpenMemHandle(CUdeviceptr*, CUipcMemHandle, unsigned) { return CUDA_ERROR_NOT_SUPPORTED; }
CUresult cuIpcCloseMemHandle(CUdeviceptr) { return CUDA_ERROR_NOT_SUPPORTED; }

// ---------------------------------------------------------------- streams and events

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  return Result(emulated_cudaStreamCreateWithFlags(stream, flags));
}
CUresult cuStreamDestroy(CUstream stream) { return Result(emulated_cudaStreamDestroy(stream)); }
CUresult cuStreamSynchronize(CUstream stream) { return Result(emulated_cudaStreamSynchronize(stream)); }
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  return Result(emulated_cudaStreamWaitEvent(stream, event, flags));
}
CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback function, void* data, unsigned flags) {
  const auto same = reinterpret_cast<cudaStreamCallback_t>(function);  // differs only in the type of the error
  return Result(emulated_cudaStreamAddCallback(stream, same, data, flags));
}
CUresult cuEventCreate(CUevent* event, unsigned flags) {
  return Result(emulated_cudaEventCreateWithFlags(event, flags));
}
CUresult cuEventDestroy(CUevent event) { return Result(emulated_cudaEventDestroy(event)); }
CUresult cuEventQuery(CUevent event) { return Result(emulated_cudaEventQuery(event)); }
CUresult cuEventRecord(CUevent event, CUstream stream) { return Result(emulated_cudaEventRecord(event, stream)); }
CUresult cuEventSynchronize(CUevent event) { return Result(emulated_cudaEventSynchronize(event)); }
CUresult cuEventElapsedTime(float* milliseconds, CUevent begin, CUevent end) {
  return Result(emulated_cudaEventElapsedTime(milliseconds, begin, end));
}

// ---------------------------------------------------------------- linking

CUresult cuLinkCreate(unsigned, CUjit_option*, void**, CUlinkState* state) {
  *state = reinterpret_cast<CUlinkState>(new Link);
  return CUDA_SUCCESS;
}
CUresult cuLinkAddData(CUlinkState state, CUjitInputType type, void* data, size_t size, const char*, unsigned,
                       CUjit_option*, void**) {
  std::string& text = reinterpret_cast<Link*>(state)->text;
  if (type == CU_JIT_INPUT_PTX && text.empty()) {
    text.assign(static_cast<const char*>(data), size);
    return CUDA_SUCCESS;
  }
  SetError(CUDA_ERROR_NOT_SUPPORTED, "only one program of PTX can be linked");
  return CUDA_ERROR_NOT_SUPPORTED;
}
CUresult cuLinkComplete(CUlinkState state, void** cubin, size_t* size) {
  std::string& text = reinterpret_cast<Link*>(state)->text;
  *cubin = text.data();
  *size = text.size() + 1;
  return CUDA_SUCCESS;
}
CUresult cuLinkDestroy(CUlinkState state) {
  delete reinterpret_cast<Link*>(state);
  return CUDA_SUCCESS;
}
}  // extern "C"

}  // namespace emulated
