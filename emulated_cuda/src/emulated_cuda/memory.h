// Memory of emulated devices. Device addresses are in a reserved range that the host cannot access, so host code that
// dereferences a device pointer crashes, as with a GPU; the bytes are in ordinary host memory.
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

// cudaMalloc, cudaMallocManaged, cudaHostAlloc.
enum class Kind { kDevice, kManaged, kPinned };

// The engine's ByteState; kNothing is a byte of no array.
enum ByteState : uint8_t { kNothing, kUnwritten, kWritten, kReadOnly };

// One allocation, or a piece of one (Memory::MakePiece).
struct Allocation {
  uint64_t address;      // as kernels and callers of CUDA see it; the host address if the host may access it
  size_t size;
  char* host;            // host address of the bytes
  uint8_t* states = nullptr;  // ByteState of every byte; null: not tracked
  Kind kind;
  int device;
  std::shared_ptr<const Allocation> block;  // the allocation that this is a piece of; null: none
  uint64_t pieces = 0;   // start of the address range of its pieces; 0: it has none, and is in use as a whole
  mutable const char* name = "device memory";  // for messages

  Allocation(uint64_t address, size_t size, char* host, Kind kind, int device,
             std::shared_ptr<const Allocation> block = nullptr);
  Allocation(const Allocation&) = delete;
  ~Allocation();
};

// All allocations and pieces that can be accessed at some time, sorted by address.
using Reach = std::vector<std::shared_ptr<const Allocation>>;
using ReachPtr = std::shared_ptr<const Reach>;

// The bytes that a pointer of a copy or memset refers to.
struct Place {
  char* host;            // null: no such memory
  uint8_t* states;       // null: ordinary host memory, or not tracked
  const Allocation* allocation;  // null: ordinary host memory
};

// The allocations of all devices.
//
// Work on a stream runs late, but must see the allocations that existed when it was enqueued: CuPy may free memory, and
// allocate it again, before. So each work item stores Now(), and looks up addresses there while it runs (Hindsight).
class Memory {
 public:
  // Sets the size of each device's memory, and whether to track which bytes were written.
  void Configure(size_t bytes, bool keep_states);

  // Returns null if there is not enough memory.
  const Allocation* Allocate(size_t size, Kind kind, int device);

  // The allocation that begins at an address and has not been freed, or null.
  const Allocation* Given(uint64_t address);

  // Frees an allocation; returns false if there is none at that address.
  bool Free(uint64_t address);

  // Gives part of an allocation its own address range, so that accesses beyond an array of a memory pool are found,
  // until it is released. Its bytes are unwritten. Returns its address, which depends only on the place of the part;
  // memory that the host may access keeps its address.
  //
  //   memory of the host:   | array 0 | array 1 | array 2 |          one block of a memory pool
  //   device addresses:     | array 0 |   gap   | array 1 |   gap   | array 2 |   gap   |
  uint64_t MakePiece(uint64_t address, size_t size);
  void ReleasePiece(uint64_t address);

  // The allocation or piece that contains an address, or null.
  const Allocation* Find(uint64_t address);

  // The place of `size` bytes; host memory that is not an allocation is its own place.
  Place Locate(const void* pointer, size_t size);
  size_t Total() const { return limit_; }
  size_t Available(int device);

  // The arrays that a kernel on a device can access; `peers` is the mask of devices whose memory it may access.
  std::vector<ArrayDescription> Visible(int device, uint32_t peers);

  // All memory that can be accessed now.
  ReachPtr Now();

 private:
  // Reserves an unused address range with a gap after it; 0 if none is left.
  uint64_t Reserved(size_t size);

  using Allocations = std::map<uint64_t, std::shared_ptr<Allocation>>;
  std::mutex mutex_;
  Allocations allocations_, pieces_;
  ReachPtr reach_;           // cached result of Now(); null after a change
  std::map<int, size_t> used_;  // bytes, by device
  size_t limit_ = size_t{4} << 30;
  bool keep_states_ = true;
  uint64_t first_ = 0, next_ = 0, end_ = 0;  // the reserved range, and its unused part
};

// While an object of this class exists, this thread sees the memory that existed at some earlier time.
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

// Copies bytes with their states: a copy of an unwritten byte is unwritten. SetBytes marks bytes as written.
void CopyBytes(const Place& to, const Place& from, size_t size);
void SetBytes(const Place& to, int value, size_t size);

}  // namespace emulated

#endif  // EMULATED_CUDA_MEMORY_H_
