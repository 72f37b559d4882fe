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

// As the engine has them, of every byte: between the elements of an array there is nothing.
enum ByteState : uint8_t { kNothing, kUnwritten, kWritten, kReadOnly };

struct Allocation {
  uint64_t address;      // for kernels; that of the host where it may use the memory too
  size_t size;
  char* host;
  uint8_t* states = nullptr;  // null: not kept
  Kind kind;
  int device;
  std::shared_ptr<const Allocation> block;  // that this is a piece of; null: memory of its own
  uint64_t pieces = 0;   // where pieces of it are seen; 0: it is in use as a whole
  mutable const char* name = "device memory";  // for findings

  Allocation(uint64_t address, size_t size, char* host, Kind kind, int device,
             std::shared_ptr<const Allocation> block = nullptr);
  Allocation(const Allocation&) = delete;
  ~Allocation();
};

// All that can be used at one time, by address.
using Reach = std::vector<std::shared_ptr<const Allocation>>;
using ReachPtr = std::shared_ptr<const Reach>;

// What a pointer that was given to a copy leads to.
struct Place {
  char* host;            // null: to no memory
  uint8_t* states;       // null: of the host's own, or not kept
  const Allocation* allocation;
};

// What is found by an address is what there was when the work that is now done in this thread was given to a stream;
// outside of such work, what there is. So memory can be freed, and given away again, before late work has run.
class Memory {
 public:
  // Limits what each device has; whether it is kept which bytes were written.
  void Configure(size_t bytes, bool keep_states);

  // Returns null where it does not fit.
  const Allocation* Allocate(size_t size, Kind kind, int device);

  // What was allocated at an address and is not freed yet, or null.
  const Allocation* Given(uint64_t address);

  // Whether there was such memory.
  bool Free(uint64_t address);

  // Part of an allocation becomes memory of its own, without values and with nothing beside it, until it is released.
  //
  // Returns its address, which depends on the place alone. Memory that the host may use stays as it is.
  uint64_t MakePiece(uint64_t address, size_t size);
  void ReleasePiece(uint64_t address);

  // The memory that holds an address, or null.
  const Allocation* Find(uint64_t address);

  Place Locate(const void* pointer, size_t size);
  size_t Total() const { return limit_; }
  size_t Available(int device);

  // What a kernel of a device can reach.
  std::vector<ArrayDescription> Visible(int device, uint32_t peers);

  ReachPtr Now();

 private:
  uint64_t Reserved(size_t size);

  using Allocations = std::map<uint64_t, std::shared_ptr<Allocation>>;
  std::mutex mutex_;
  Allocations allocations_, pieces_;
  ReachPtr reach_;           // null: something has changed since it was made
  std::map<int, size_t> used_;
  size_t limit_ = size_t{4} << 30;
  bool keep_states_ = true;
  uint64_t first_ = 0, next_ = 0, end_ = 0;  // addresses that no host memory has
};

// While it lives, this thread sees the memory that there was at one time.
class Hindsight {
 public:
  explicit Hindsight(ReachPtr reach);
  ~Hindsight();
  Hindsight(const Hindsight&) = delete;
  Hindsight& operator=(const Hindsight&) = delete;

 private:
  ReachPtr outer_;
};

extern Memory& memory;

// Copies what is known of bytes along with them.
void CopyBytes(const Place& to, const Place& from, size_t size);
void SetBytes(const Place& to, int value, size_t size);

}  // namespace emulated

#endif  // EMULATED_CUDA_MEMORY_H_
