// How functions of the host that stand in for kernels of machine code use a device's memory: in the order of a stream,
// and with the checks that the engine makes for kernels.
#ifndef EMULATED_CUDA_OPERANDS_H_
#define EMULATED_CUDA_OPERANDS_H_

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "device.h"

namespace emulated {

// Ends the function that made the access.
struct Finding {
  cudaError_t code;
  std::string text;
};

// What one function reads and writes on one device.
class Access {
 public:
  Access(std::string function, int device) : function_(std::move(function)), device_(device) {}

  // Bytes of device memory that were written before. `name` is that of the operand in NVIDIA's documentation.
  const char* Read(const void* address, size_t size, const char* name) {
    const Place place = Located(address, size, name, "read");
    const uint8_t* unwritten = Other(place.states, size, [](uint8_t state) { return state != kUnwritten; });
    if (unwritten != nullptr)
      throw Finding{cudaErrorLaunchFailure, function_ + ": uninitialised global read of " + name + " at " +
                                                Hexadecimal(address, unwritten - place.states)};
    return place.host;
  }

  // Bytes that the function writes now, all of them.
  char* Write(const void* address, size_t size, const char* name) {
    const Place place = Located(address, size, name, "write");
    const uint8_t* fixed = Other(place.states, size, [](uint8_t state) { return state != kReadOnly; });
    if (fixed != nullptr)
      throw Finding{cudaErrorLaunchFailure, function_ + ": write to a read-only part of " + name + " at " +
                                                Hexadecimal(address, fixed - place.states)};
    if (place.states != nullptr) std::memset(place.states, kWritten, size);
    return place.host;
  }

  template <class T> T ReadOne(const T* address, const char* name) {
    T value;
    std::memcpy(&value, Read(address, sizeof(T), name), sizeof(T));
    return value;
  }
  template <class T> void WriteOne(T* address, const T& value, const char* name) {
    std::memcpy(Write(address, sizeof(T), name), &value, sizeof(T));
  }

  int device() const { return device_; }

 private:
  static std::string Hexadecimal(const void* address, size_t offset) {
    char text[32];
    std::snprintf(text, sizeof text, "0x%zx", reinterpret_cast<size_t>(address) + offset);
    return text;
  }

  // The first state that is not as it should be, or null.
  template <class Good> static const uint8_t* Other(const uint8_t* states, size_t size, Good good) {
    if (states == nullptr) return nullptr;
    const uint8_t* end = states + size;
    const uint8_t* found = std::find_if_not(states, end, good);
    return found == end ? nullptr : found;
  }

  bool MayUse(const Allocation& allocation) const {
    return allocation.kind != Kind::kDevice || allocation.device == device_ ||
           (peers[device_] >> allocation.device & 1);
  }

  Place Located(const void* address, size_t size, const char* name, const char* what) const {
    const Place place = memory.Locate(address, size);
    const bool inside = place.host != nullptr && place.allocation != nullptr && MayUse(*place.allocation);
    const uint8_t* outside =
        inside ? Other(place.states, size, [](uint8_t state) { return state != kNothing; }) : nullptr;
    if (!inside || outside != nullptr)
      throw Finding{cudaErrorIllegalAddress, function_ + ": global memory out of bounds: " + what + " of " +
                                                 std::to_string(size) + " bytes of " + name + " at " +
                                                 Hexadecimal(address, outside ? outside - place.states : 0)};
    return place;
  }

  std::string function_;
  int device_;
};

// What a stream may run later: the body, whose findings become an error of CUDA's.
template <class Body> Work Checked(std::string function, int device, Body body) {
  return [function = std::move(function), device, body = std::move(body)] {
    try {
      Access access(function, device);
      body(access);
      return cudaSuccess;
    } catch (const Finding& finding) {
      return Found(finding.code, finding.text);
    }
  };
}

// The libraries' own errors are numbers without a text: it goes to standard error.
inline void Explain(const std::string& text) { std::fprintf(stderr, "emulated_cuda: %s\n", text.c_str()); }

}  // namespace emulated

#endif  // EMULATED_CUDA_OPERANDS_H_
