// What a launch consists of: the program, the blocks, their warps, and the shadows that the checks keep.
#pragma once
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using s8 = int8_t;
using s16 = int16_t;
using s32 = int32_t;
using s64 = int64_t;

constexpr int LANES = 32;
constexpr u32 FULL = ~0u;
// Where the generic address space shows the others.
constexpr u64 SHARED_WINDOW = 0x0100'0000'0000;
constexpr u64 LOCAL_WINDOW = 0x0200'0000'0000;
constexpr u64 PARAMETER_WINDOW = 0x0300'0000'0000;
constexpr u64 WINDOW_SIZE = 0x0100'0000'0000;
constexpr u32 SHARED_BASE = 1024;  // as on sm_90: the first KiB is not the kernel's

struct Error : std::runtime_error {
    using runtime_error::runtime_error;
};

template <class... Parts> std::string text(const Parts&... parts)
{
    std::ostringstream stream;
    (stream << ... << parts);
    return stream.str();
}

inline std::string hex(u64 value)
{
    std::ostringstream stream;
    stream << "0x" << std::hex << value;
    return stream.str();
}

template <class F> inline void for_lanes(u32 mask, F f)
{
    for (; mask; mask &= mask - 1) f(std::countr_zero(mask));
}

// ---------------------------------------------------------------- the program

struct Warp;
struct Instr;
using Execute = void (*)(Warp&, const Instr&, u32 mask);

enum class Kind : u8 {
    PLAIN,      // each lane for itself
    BRANCH,
    EXIT,
    BARRIER,    // needs all live lanes; may put the warp to sleep
    CONVERGED,  // needs the lanes of its member mask, or all live ones
    YIELDING,   // another warp goes on if it did not succeed
    RETRYING,   // is executed again until it succeeds
};

struct Instr {
    Execute execute;
    Kind kind;
    bool negated;
    int predicate;         // byte offset of the guarding predicate, or -1
    int member_mask;       // which operand is the member mask, or -1: all live lanes
    const int* operand;    // byte offsets into the register file; -1: none
    const s64* attribute;  // numbers that decode.py found in the instruction's text
    int operands;

    // The attributes by name: a struct of s64 in the order of decode.py.
    template <class T> const T& as() const { return *reinterpret_cast<const T*>(attribute); }
};

// A register that is filled before the first instruction.
struct Preset {
    enum Source : s64 { CONSTANT, SPECIAL, SHARED_VARIABLE, DYNAMIC_SHARED };
    int offset, width;
    Source source;
    s64 value;
};

struct Program {
    std::string name;
    std::vector<Instr> code;
    std::vector<int> operands;
    std::vector<s64> attributes;
    std::vector<std::string> texts, lines;
    std::vector<Preset> presets;
    std::vector<std::pair<int, int>> gaps;  // of shared memory, inside no variable: offset, size
    int register_bytes, shared_bytes, dynamic_alignment, local_bytes;
    int granule;                            // bytes of the smallest access to shared memory
};

// ---------------------------------------------------------------- the launch

enum ByteState : u8 { NOTHING, UNWRITTEN, WRITTEN, READ_ONLY };  // NOTHING: between the elements of a strided array

// Which block wrote a byte of global memory and which one read it: its number + 1; ~0 for several readers.
struct Owner {
    std::atomic<u32> writer, reader;
    std::atomic<u64> time;  // of the write: clock, warp, lane
};

// What of a warp's accesses to global memory is known elsewhere: all of earlier clocks, and some lanes' of this one.
struct Epoch {
    u32 clock = 0, lanes = 0;

    bool covers(u32 at, int lane) const { return at < clock || (at == clock && lanes >> lane & 1); }
    void join(const Epoch& other)
    {
        if (other.clock > clock) *this = other;
        else if (other.clock == clock) lanes |= other.lanes;
    }
};
using Known = std::map<u32, std::vector<Epoch>>;  // by block, of each of its warps

inline void join(Known& known, const Known& others)
{
    for (const auto& [block, epochs] : others) {
        auto& mine = known[block];
        mine.resize(std::max(mine.size(), epochs.size()));
        for (size_t warp = 0; warp < epochs.size(); ++warp) mine[warp].join(epochs[warp]);
    }
}

// What a fence of one warp has let it, and whoever synchronises with it later, know of other blocks.
struct Acquired {
    int warp;
    Epoch since;
    Known known;
};

struct Array {
    u64 base, size;
    char* host;
    u8* state;  // of every byte; null: all written
    bool writable;
    std::string name;
    std::unique_ptr<Owner, decltype(&free)> owners{nullptr, free};  // of every byte; only where something can be written
};

struct Options {
    int threads;
    bool check_shared, check_global;
    enum Order : s64 { LATE, AT_ONCE, RANDOM };
    Order async_order; // in which asynchronous copies land, among all else: as late as allowed, at once, at any time
    bool count;
    u64 seed;         // of the scheduler; 0: warps run as far as they can, in order
    u64 max_steps;    // of one warp
};

struct Counters {
    u64 instructions = 0, lanes = 0, mma_macs = 0;
    u64 shared_requests = 0, shared_wavefronts = 0, shared_ideal = 0;
    u64 global_requests = 0, global_sectors = 0, global_ideal = 0;
};

struct Launch {
    const Program& program;
    Options options;
    u32 grid[3], threads[3], dynamic_shared;
    std::vector<char> parameters;
    std::vector<Array> arrays;
    std::map<std::string, u64> reports;  // what was found, and how often
    std::vector<Counters> counters;      // of every instruction
    std::mutex lock;
    std::map<u64, Known> flags{};        // what whoever reads an atomic variable and then fences will know, by address
    std::vector<u32> order{};            // of the blocks; empty: as they are numbered

    void report(const std::string& what)
    {
        constexpr size_t ENOUGH = 64;
        std::lock_guard guard(lock);
        if (reports.size() < ENOUGH || reports.count(what)) ++reports[what];
    }
};

// ---------------------------------------------------------------- shadows of a block

// Races are decided by vector clocks. The agents of a block are its warps, the TMA engine and the tensor cores of each
// warpgroup. An access is before another one if the other's agent has synchronised with a later time of the first.
struct LastWrite {                          // of one granule of shared memory
    enum Flight : u8 { LANDED, IN_FLIGHT, NO_VARIABLE };
    u32 clock;
    u8 agent, lane, written;
    u8 flight;                              // IN_FLIGHT: an asynchronous copy will still write
    int pc;
    u8 generic;                             // by ordinary stores, not by the TMA engine
};

struct LastRead {                           // of one granule by one agent
    static constexpr u8 SEVERAL = 0xff;
    u32 clock;                              // + 1; 0: none since the last write
    int pc;
    u8 lane;
};

struct Mbarrier {
    u32 expected, pending;
    s64 bytes;                              // that TMA copies still have to bring
    u32 phase;
    bool live;
    bool fenced;                            // its initialisation is visible to the TMA engine
    std::vector<u32> clocks, phase_clocks;  // of those who arrived in this phase and in the one before
};

struct NamedBarrier {
    int count = 0, arrived = 0, votes = 0, voters = 0;
    bool whole_block = false;
    std::vector<int> waiting, arrivals;
};

struct Block {
    Launch& launch;
    u32 index[3] = {}, number = 0;
    int warp_count = 0, agents = 0;
    std::vector<char> shared{};
    int granule_shift = 0;
    std::vector<LastWrite> writes{};         // [granule]
    std::vector<LastRead> reads{};            // [granule][agent]
    std::vector<Warp*> warps{};
    std::unordered_map<u32, Mbarrier> mbarriers{};
    NamedBarrier named[16]{};
    u32 tma_clock = 0;
    s64 free_registers = 0;                 // that warps have given back
    u64 progress = 0;                       // counts what may wake another warp
    std::mt19937_64 random{};
    std::deque<std::function<void()>> tma{}; // copies in flight
    std::vector<Counters> counters{};
    std::vector<Acquired> acquired{};

    // Whether a copy that begins lands now.
    bool lands_at_once()
    {
        const auto order = launch.options.async_order;
        return order == Options::AT_ONCE || (order == Options::RANDOM && random() % 2);
    }
    int tma_agent() const { return warp_count; }
    int tensor_agent(int warp) const { return warp_count + 1 + warp / 4; }
    u32 first_granule(u32 address) const { return address >> granule_shift; }
    u32 last_granule(u32 address, int bytes) const { return (address + bytes - 1) >> granule_shift; }
    LastRead* reads_of(u32 granule) { return &reads[size_t(granule) * agents]; }
};

struct Fragment {                           // lanes at the same pc
    int pc;
    u32 mask;
};

struct Copy {                               // one lane's cp.async
    u32 to;
    u64 from;
    int bytes, source_bytes, lane, group, pc;
    bool landed = false;
};

struct Warp {
    enum State { READY, AT_BARRIER, SPINNING, DONE };
    static constexpr int REGISTER = 64;     // bytes of the register file from one register to the next, at least

    Block& block;
    Launch& launch;
    const Program& program;
    int index;
    State state = READY;
    u32 alive = 0;                          // lanes that have not exited
    int pc = 0;                             // of the instruction that is executed
    u64 steps = 0;
    std::vector<Fragment> fragments{};
    std::vector<char> register_storage{}, local{};
    char* registers = nullptr;
    std::vector<u32> clocks{};              // what this warp has synchronised with
    u32 converged_clock = 0;                // of its last synchronisation of all lanes
    std::vector<Copy> copies{};
    int committed[LANES] = {};
    int barrier_id = -1;
    const Instr* reduction = nullptr;       // a bar.red that waits for its result
    u32 wgmma_groups = 0;                   // committed
    bool wgmma_fenced = false;
    u32 wgmma_finished = 0;                 // groups that it has waited for
    std::vector<u32> sums{};                // of each register, the group of the last wgmma that adds to it; 0: none
    std::vector<u32> factors{};             // likewise, of the last one that reads it as an element of its first matrix
    s64 held_registers = 0;                 // of a thread; 0: as many as at the start
    u32 fence_clock = 0;                    // its writes before are visible to the asynchronous proxy
    std::vector<u32> fence_clocks{};
    Known published{};                      // by its last fence of the device, for those who see its atomics after it
    Epoch published_by{};
    Known heard{};                          // from atomics since, for the next one
    u32 heard_by = 0;
    Array* last_array = nullptr;

    template <class T> T* lanes(int offset) { return reinterpret_cast<T*>(registers + offset); }
    u32& predicate(int offset) { return *reinterpret_cast<u32*>(registers + offset); }
    u32& clock() { return clocks[index]; }
    Counters& counters() { return block.counters[pc]; }

    u32& group_of_sums(int offset) { return sums[offset / REGISTER]; }
    u32& group_of_factors(int offset) { return factors[offset / REGISTER]; }

    void set_predicate(int offset, u32 mask, u32 bits)
    {
        u32& value = predicate(offset);
        value = (value & ~mask) | (bits & mask);
    }

    // Source line and instruction, for messages.
    std::string where(int at) const
    {
        const std::string& instruction = program.texts[at];
        const size_t start = instruction[0] == '@' ? instruction.find(' ') + 1 : 0;
        return program.lines[at] + " [" + instruction.substr(0, instruction.find(' ', start)) + "]";
    }
    std::string here() const { return "\n    " + where(pc); }

    [[noreturn]] void fail(const std::string& what, int lane = -1) const
    {
        std::string message = text(program.name, ": ", what, "\n  at ", program.lines[pc], "   [", program.texts[pc], "]\n  block (",
                                   block.index[0], ",", block.index[1], ",", block.index[2], ") warp ", index);
        if (lane >= 0) message += text(" thread ", index * LANES + lane);
        throw Error(message);
    }

    void report(const std::string& what) const { launch.report(what + here()); }

    void race(const std::string& what, int other_pc) const
    {
        launch.report("shared memory race: " + what + here() + "\n    conflicts with " + where(other_pc));
    }
};
