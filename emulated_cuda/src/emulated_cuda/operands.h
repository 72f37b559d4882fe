// Checked access to device memory for host functions that replace machine-code kernels (cuBLAS, cuRAND): in stream
// order, with the engine's checks of bounds and initialisation.
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

// Thrown by a failed check; ends the function that made the access.
struct Finding {
  cudaError_t code;
  std::string text;
};

// The reads and writes of one library call on one device.
class Access {
 public:
  Access(std::string function, int device) : function_(std::move(function)), device_(device) {}

  // Returns the host address of bytes that are only read; fails if any is unwritten. `name` is the operand's name in
  // NVIDIA's documentation.
  const char* Read(const void* address, size_t size, const char* name) {
    const Place place = Located(address, size, name, "read");
    const uint8_t* unwritten = Other(place.states, size, [](uint8_t state) { return state != kUnwritten; });
    if (unwritten != nullptr)
      throw Finding{cudaErrorLaunchFailure, function_ + ": uninitialised global read of " + name + " at " +
                                                Hexadecimal(address, unwritten - place.states)};
    return place.host;
  }

  // Returns the host address of bytes that the caller must all write; they count as written from now on.
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

  // Returns the first state for which good(state) is false, or null.
  template <class Good> static const uint8_t* Other(const uint8_t* states, size_t size, Good good) {
    if (states == nullptr) return nullptr;
    const uint8_t* end = states + size;
    const uint8_t* found = std::find_if_not(states, end, good);
    return found == end ? nullptr : found;
  }

  // Whether the device may access an allocation: managed and pinned memory, its own, and that of enabled peers.
  bool MayUse(const Allocation& allocation) const {
    return allocation.kind != Kind::kDevice || allocation.device == device_ ||
           (peers[device_] >> allocation.device & 1);
  }

  // Returns the place of an operand; fails if any of its bytes is out of bounds.
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

// Returns work for a stream that runs body(Access&), and turns a failed check into a CUDA error.
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

// Prints an explanation to standard error, because the libraries' status codes have no text.
inline void Explain(const std::string& text) { std::fprintf(stderr, "emulated_cuda: %s\n", text.c_str()); }

}  // namespace emulated

#endif  // EMULATED_CUDA_OPERANDS_H_
