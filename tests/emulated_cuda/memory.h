// The memory of emulated devices: addresses that the host cannot read, with memory of the host behind them.
#ifndef EMULATED_CUDA_MEMORY_H_
#define EMULATED_CUDA_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "emulator/interface.hpp"

namespace emulated {

enum class Kind { kDevice, kManaged, kPinned };

// As the engine has them: of every byte that a kernel may read or write.
constexpr uint8_t kUnwritten = 1;
constexpr uint8_t kWritten = 2;

struct Allocation {
  uint64_t address;      // for kernels; that of the host where it may use the memory too
  size_t size;
  char* host;
  uint8_t* states;       // null: not kept
  Kind kind;
  int device;
  ~Allocation();
};

// What a pointer that was given to a copy leads to.
struct Place {
  char* host;            // null: to no memory
  uint8_t* states;       // null: of the host's own, or not kept
  const Allocation* allocation;
};

class Memory {
 public:
  // Limits what each device has; whether it is kept which bytes were written.
  void Configure(size_t bytes, bool keep_states);

  // Returns null where it does not fit.
  const Allocation* Allocate(size_t size, Kind kind, int device);

  // Whether there was such memory.
  bool Free(uint64_t address);

  // The memory that holds an address, or null.
  const Allocation* Find(uint64_t address);

  Place Locate(const void* pointer, size_t size);
  size_t Total() const { return limit_; }
  size_t Available(int device);

  // What a kernel of a device can reach.
  std::vector<ArrayDescription> Visible(int device, uint32_t peers);

 private:
  std::mutex mutex_;
  std::map<uint64_t, std::unique_ptr<Allocation>> allocations_;
  std::map<int, size_t> used_;
  size_t limit_ = size_t{4} << 30;
  bool keep_states_ = true;
  uint64_t first_ = 0, next_ = 0, end_ = 0;  // addresses that no host memory has
};

// Copies what is known of bytes along with them.
void CopyBytes(const Place& to, const Place& from, size_t size);
void SetBytes(const Place& to, int value, size_t size);

}  // namespace emulated

#endif  // EMULATED_CUDA_MEMORY_H_
