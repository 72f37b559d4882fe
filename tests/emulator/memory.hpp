// Address spaces: where a lane's address leads, and every check of the access.
#pragma once
#include "state.hpp"

// ---------------------------------------------------------------- global memory

// The array that holds the first byte, or null.
inline Array* array_at(Warp& warp, u64 address)
{
    Array* last = warp.last_array;
    if (last && address - last->base < last->size) return last;
    auto& arrays = warp.launch.arrays;
    auto after = std::upper_bound(arrays.begin(), arrays.end(), address,
                                  [](u64 wanted, const Array& array) { return wanted < array.base; });
    return after == arrays.begin() ? nullptr : &*(after - 1);
}

inline Array& global_array(Warp& warp, u64 address, int bytes, bool write, int lane)
{
    Array* array = array_at(warp, address);
    const char* what = write ? "write" : "read";
    if (!array)
        warp.fail(text("global memory out of bounds: ", what, " of ", bytes, " bytes at address ", hex(address)), lane);
    if (address - array->base + bytes > array->size)
        warp.fail(text("global memory out of bounds: ", what, " of ", bytes, " bytes at byte ", s64(address - array->base), " of ",
                       array->name, ", which has ", array->size), lane);
    if (write && !array->writable) warp.fail("write to read-only array " + array->name, lane);
    warp.last_array = array;
    return *array;
}

// Has the byte a value, and does it belong to the array at all?
inline bool state_check(Warp& warp, Array& array, u8* bytes, int count, bool write)
{
    for (int i = 0; i < count; ++i) {
        std::atomic_ref<u8> state(bytes[i]);
        const u8 now = state.load(std::memory_order_relaxed);
        if (now == NOTHING) {
            warp.report(text("global ", write ? "write" : "read", " between the elements of ", array.name));
            return false;
        }
        if (write && now == READ_ONLY) {
            warp.report("write to a read-only part of " + array.name);
            return false;
        }
        if (write) state.store(WRITTEN, std::memory_order_relaxed);
        else if (now == UNWRITTEN) {
            warp.report("uninitialised global read of " + array.name);
            return false;
        }
    }
    return true;
}

// Blocks know of each other's accesses only by atomics with fences of the device: a fence, then an atomic on one side, an
// atomic on the same variable that comes later, then a fence, on the other.
inline bool after(Warp& warp, int its_warp, const Epoch& epoch, int lane)
{
    if (its_warp != warp.index) return epoch.clock < warp.clocks[its_warp];
    return epoch.lanes >> lane & 1 || epoch.clock < warp.converged_clock;
}

inline u64 time_of_write(Warp& warp, int lane) { return u64(warp.clock()) << 32 | u64(warp.index) << 8 | u64(lane); }

inline bool ordered_after_block(Warp& warp, u32 writer, u64 time, int lane)
{
    const u32 clock = u32(time >> 32), its_warp = u32(time >> 8) & 0xffffff;
    for (const Acquired& acquired : warp.block.acquired) {
        if (!after(warp, acquired.warp, acquired.since, lane)) continue;
        const auto found = acquired.known.find(writer - 1);
        if (found != acquired.known.end() && found->second[its_warp].covers(clock, int(time & 0xff))) return true;
    }
    return false;
}

inline void owner_check(Warp& warp, Array& array, Owner* owners, int count, bool write, int lane)
{
    const u32 me = warp.block.number + 1;
    for (int i = 0; i < count; ++i) {
        const u32 writer = owners[i].writer.load(std::memory_order_relaxed);
        const u32 reader = owners[i].reader.load(std::memory_order_relaxed);
        const bool late = writer && writer != me && !ordered_after_block(warp, writer, owners[i].time.load(std::memory_order_relaxed), lane);
        if (late || (write && reader && reader != me)) {
            warp.report("global memory race between blocks on " + array.name);
            return;
        }
        if (write) {
            owners[i].writer.store(me, std::memory_order_relaxed);
            owners[i].time.store(time_of_write(warp, lane), std::memory_order_relaxed);
        } else {
            owners[i].reader.store(reader && reader != me ? ~0u : me, std::memory_order_relaxed);
        }
    }
}

// What this warp, here and now, may tell others: its own accesses, those that it has synchronised with, other blocks'.
inline Known knowledge(Warp& warp, u32 mask)
{
    Known all;
    auto& mine = all[warp.block.number];
    mine.resize(warp.block.warp_count);
    for (int index = 0; index < warp.block.warp_count; ++index) mine[index] = {warp.clocks[index], index == warp.index ? mask : 0};
    for (const Acquired& acquired : warp.block.acquired)
        if (after(warp, acquired.warp, acquired.since, std::countr_zero(mask))) join(all, acquired.known);
    return all;
}

inline void fence_device(Warp& warp, const Instr&, u32 mask)
{
    if (!warp.launch.options.check_global) return;
    if (warp.heard_by & mask) warp.block.acquired.push_back({warp.index, {warp.clock(), warp.heard_by & mask}, warp.heard});
    warp.heard_by &= ~mask;
    if (!warp.heard_by) warp.heard.clear();
    warp.published = knowledge(warp, mask);
    warp.published_by = {warp.clock(), mask};
    ++warp.clock();
}

// An atomic: what is published passes through its variable to those who see it later.
inline void exchange_knowledge(Warp& warp, u64 variable, bool sees, int lane)
{
    Known& flag = warp.launch.flags[variable];
    if (sees && !flag.empty()) {
        join(warp.heard, flag);
        warp.heard_by |= 1u << lane;
    }
    if (after(warp, warp.index, warp.published_by, lane)) join(flag, warp.published);
}

inline char* global_access(Warp& warp, u64 address, int bytes, bool write, int lane, bool atomic = false)
{
    Array& array = global_array(warp, address, bytes, write, lane);
    const u64 offset = address - array.base;
    if (warp.launch.options.check_global) {
        u8* state = array.state ? array.state + offset : nullptr;
        bool known = !state || state_check(warp, array, state, bytes, write && !atomic);
        if (known && state && atomic) known = state_check(warp, array, state, bytes, true);
        if (known && array.owners && !atomic) owner_check(warp, array, array.owners.get() + offset, bytes, write, lane);
    }
    return array.host + offset;
}

// ---------------------------------------------------------------- shared memory

inline void shared_bounds(Warp& warp, u32 address, int bytes, int lane)
{
    const size_t size = warp.block.shared.size();
    if (address < SHARED_BASE || u64(address) + bytes > size)
        warp.fail(text("shared memory out of bounds: ", bytes, " bytes at offset ", s64(address) - SHARED_BASE, ", block has ",
                       size - SHARED_BASE), lane);
}

inline bool ordered_after_write(Warp& warp, const LastWrite& write, int lane)
{
    if (write.agent != warp.index) return write.clock < warp.clocks[write.agent];
    return write.lane == lane || write.clock < warp.converged_clock;
}

inline bool ordered_after_read(Warp& warp, const LastRead& read, int agent, int lane)
{
    if (agent != warp.index) return read.clock - 1 < warp.clocks[agent];
    return read.lane == lane || read.clock - 1 < warp.converged_clock;
}

inline void note_write(Warp& warp, u32 granule, int lane)
{
    Block& block = warp.block;
    LastRead* reads = block.reads_of(granule);
    for (int agent = 0; agent < block.agents; ++agent) {
        if (!reads[agent].clock) continue;
        if (!ordered_after_read(warp, reads[agent], agent, lane)) warp.race("write after read", reads[agent].pc);
        reads[agent].clock = 0;
    }
    block.writes[granule] = {warp.clock(), u8(warp.index), u8(lane), 1, LastWrite::LANDED, warp.pc, 1};
}

inline void note_read(Warp& warp, u32 granule, int lane)
{
    LastRead& mine = warp.block.reads_of(granule)[warp.index];
    const bool with_others = mine.clock == warp.clock() + 1 && mine.lane != lane;
    mine = {warp.clock() + 1, warp.pc, with_others ? LastRead::SEVERAL : u8(lane)};
}

// Has this warp read it before, and nothing changed since?
inline bool read_again(Warp& warp, u32 granule, int lane)
{
    LastRead& mine = warp.block.reads_of(granule)[warp.index];
    if (mine.clock != warp.clock() + 1 || warp.block.writes[granule].flight) return false;
    if (mine.lane != lane) mine.lane = LastRead::SEVERAL;
    return true;
}

// Races, initialisation and copies in flight.
inline void shared_check(Warp& warp, u32 address, int bytes, bool write, int lane)
{
    Block& block = warp.block;
    for (u32 granule = block.first_granule(address); granule <= block.last_granule(address, bytes); ++granule) {
        const LastWrite& last = block.writes[granule];
        if (!write && read_again(warp, granule, lane)) continue;
        if (last.flight == LastWrite::NO_VARIABLE) warp.fail("shared memory access outside every variable", lane);
        if (last.flight == LastWrite::IN_FLIGHT) {
            warp.race(write ? "write while an asynchronous copy is in flight"
                            : "read while an asynchronous copy is in flight (not waited for)", last.pc);
            return;
        }
        if (last.written) {
            if (!ordered_after_write(warp, last, lane)) warp.race(write ? "write after write" : "read after write", last.pc);
        } else if (!write) {
            warp.report("uninitialised shared memory read");
        }
        if (write) note_write(warp, granule, lane);
        else note_read(warp, granule, lane);
    }
}

inline char* shared_access(Warp& warp, u32 address, int bytes, bool write, int lane)
{
    Block& block = warp.block;
    if (address < SHARED_BASE || u64(address) + bytes > block.shared.size()) shared_bounds(warp, address, bytes, lane);
    if (warp.launch.options.check_shared) {
        const bool nothing_new = !write && bytes <= 1 << block.granule_shift && read_again(warp, block.first_granule(address), lane);
        if (!nothing_new) shared_check(warp, address, bytes, write, lane);
    }
    return block.shared.data() + address;
}

// A copy's destination: any access before it landed is a race, whoever makes it.
inline void shared_in_flight(Warp& warp, u32 address, int bytes, int lane)
{
    if (!warp.launch.options.check_shared) return;
    Block& block = warp.block;
    for (u32 granule = block.first_granule(address); granule <= block.last_granule(address, bytes); ++granule) {
        shared_check(warp, granule << block.granule_shift, 1, true, lane);  // ordered after what was there?
        block.writes[granule].flight = LastWrite::IN_FLIGHT;
        block.writes[granule].pc = warp.pc;
    }
}

inline void shared_landed(Warp& warp, u32 address, int bytes, int lane)
{
    if (!warp.launch.options.check_shared) return;
    Block& block = warp.block;
    for (u32 granule = block.first_granule(address); granule <= block.last_granule(address, bytes); ++granule) {
        LastWrite& last = block.writes[granule];
        last = {warp.clock(), u8(warp.index), u8(lane), 1, LastWrite::LANDED, last.pc, 1};
    }
}

// ---------------------------------------------------------------- counting

// Shared memory has 32 banks of 4 bytes; a wavefront serves one word of each.
inline void count_wavefronts(Warp& warp, const u32* addresses, u32 mask, int bytes)
{
    Counters& counters = warp.counters();
    const int lanes_at_once = bytes <= 4 ? 32 : bytes == 8 ? 16 : 8;
    for (int first = 0; first < LANES; first += lanes_at_once) {
        std::vector<u32> words;
        for (int lane = first; lane < first + lanes_at_once; ++lane) {
            if (!(mask >> lane & 1)) continue;
            for (u32 word = addresses[lane] / 4; word <= (addresses[lane] + bytes - 1) / 4; ++word) words.push_back(word);
        }
        if (words.empty()) continue;
        std::sort(words.begin(), words.end());
        words.erase(std::unique(words.begin(), words.end()), words.end());
        int in_bank[32] = {};
        for (u32 word : words) ++in_bank[word % 32];
        counters.shared_wavefronts += *std::max_element(in_bank, in_bank + 32);
        ++counters.shared_ideal;
    }
    ++counters.shared_requests;
}

// Global memory comes in sectors of 32 bytes.
inline void count_sectors(Warp& warp, const u64* addresses, u32 mask, int bytes)
{
    std::vector<u64> sectors;
    for_lanes(mask, [&](int lane) {
        for (u64 sector = addresses[lane] / 32; sector <= (addresses[lane] + bytes - 1) / 32; ++sector) sectors.push_back(sector);
    });
    std::sort(sectors.begin(), sectors.end());
    Counters& counters = warp.counters();
    counters.global_sectors += std::unique(sectors.begin(), sectors.end()) - sectors.begin();
    counters.global_ideal += (std::popcount(mask) * bytes + 31) / 32;
    ++counters.global_requests;
}

// ---------------------------------------------------------------- loads and stores

enum Space { GLOBAL, SHARED, GENERIC, LOCAL, PARAMETER };

inline u64 base_address(Warp& warp, int offset, s64 width, int lane)
{
    return width == 4 ? warp.lanes<u32>(offset)[lane] : warp.lanes<u64>(offset)[lane];
}

template <Space SPACE> inline char* resolve(Warp& warp, u64 address, int bytes, bool write, int lane)
{
    if (address & (bytes - 1)) warp.fail(text("misaligned ", bytes, "-byte access at address ", hex(address)), lane);
    if constexpr (SPACE == GENERIC) {
        if (address - SHARED_WINDOW < WINDOW_SIZE)
            return resolve<SHARED>(warp, address - SHARED_WINDOW, bytes, write, lane);
        if (address - LOCAL_WINDOW < WINDOW_SIZE) return resolve<LOCAL>(warp, address - LOCAL_WINDOW, bytes, write, lane);
        if (address - PARAMETER_WINDOW < WINDOW_SIZE)
            return resolve<PARAMETER>(warp, address - PARAMETER_WINDOW, bytes, write, lane);
    }
    if constexpr (SPACE == SHARED) return shared_access(warp, u32(address), bytes, write, lane);
    if constexpr (SPACE == LOCAL) {
        if (address + bytes > u64(warp.program.local_bytes)) warp.fail("local memory out of bounds", lane);
        return warp.local.data() + size_t(lane) * warp.program.local_bytes + address;
    }
    if constexpr (SPACE == PARAMETER) {
        if (write) warp.fail("write to a kernel parameter", lane);
        if (address + bytes > warp.launch.parameters.size()) warp.fail("kernel parameter out of bounds", lane);
        return warp.launch.parameters.data() + address;
    }
    return global_access(warp, address, bytes, write, lane);
}

struct Access {
    s64 offset, base_width, element, register_width, vector, is_signed;
};

// SIZE: that of element and register, or 0 where they differ.
template <int SIZE, bool LOAD> inline void move_lane(Warp& warp, const Instr& instr, int lane, char* memory)
{
    const auto& access = instr.as<Access>();
    const int element = SIZE ? SIZE : int(access.element);
    const int width = SIZE ? SIZE : int(access.register_width);
    for (int v = 0; v < access.vector; ++v, memory += element) {
        if (instr.operand[1 + v] < 0) continue;
        char* value = warp.registers + instr.operand[1 + v] + lane * width;
        if (!LOAD) {
            memcpy(memory, value, element);
        } else if (element == width) {
            memcpy(value, memory, element);
        } else {
            u64 extended = 0;
            memcpy(&extended, memory, element);
            if (access.is_signed) extended = u64(s64(extended << (64 - 8 * element)) >> (64 - 8 * element));
            memcpy(value, &extended, width);
        }
    }
}

template <Space SPACE, bool LOAD, int SIZE> inline void move_lanes(Warp& warp, const Instr& instr, u32 mask, const u64* addresses)
{
    const auto& access = instr.as<Access>();
    const int bytes = int(access.element * access.vector);
    for_lanes(mask, [&](int lane) {
        move_lane<SIZE, LOAD>(warp, instr, lane, resolve<SPACE>(warp, addresses[lane], bytes, !LOAD, lane));
    });
}

template <Space SPACE> inline void count_access(Warp& warp, const u64* addresses, u32 mask, int bytes)
{
    if (SPACE == GLOBAL) count_sectors(warp, addresses, mask, bytes);
    if (SPACE != SHARED) return;
    u32 narrow[LANES];
    std::copy(addresses, addresses + LANES, narrow);
    count_wavefronts(warp, narrow, mask, bytes);
}

template <Space SPACE, bool LOAD> inline void load_store(Warp& warp, const Instr& instr, u32 mask)
{
    const auto& access = instr.as<Access>();
    u64 addresses[LANES];
    for (int lane = 0; lane < LANES; ++lane)
        addresses[lane] = base_address(warp, instr.operand[0], access.base_width, lane) + access.offset;
    if (warp.launch.options.count) count_access<SPACE>(warp, addresses, mask, int(access.element * access.vector));
    const s64 size = access.element == access.register_width ? access.element : 0;
    if (size == 4) move_lanes<SPACE, LOAD, 4>(warp, instr, mask, addresses);
    else if (size == 2) move_lanes<SPACE, LOAD, 2>(warp, instr, mask, addresses);
    else if (size == 8) move_lanes<SPACE, LOAD, 8>(warp, instr, mask, addresses);
    else move_lanes<SPACE, LOAD, 0>(warp, instr, mask, addresses);
}

// ---------------------------------------------------------------- atomics

struct AtomicAccess {
    s64 offset, base_width, space;  // global, shared, generic
};

inline char* atomic_memory(Warp& warp, const Instr& instr, int bytes, int lane, bool& is_shared)
{
    const auto& access = instr.as<AtomicAccess>();
    u64 address = base_address(warp, instr.operand[0], access.base_width, lane) + access.offset;
    if (address & (bytes - 1)) warp.fail("misaligned atomic", lane);
    const bool in_window = access.space == 2 && address - SHARED_WINDOW < WINDOW_SIZE;
    is_shared = access.space == 1 || in_window;
    if (!is_shared) return global_access(warp, address, bytes, true, lane, true);
    if (in_window) address -= SHARED_WINDOW;
    shared_bounds(warp, u32(address), bytes, lane);
    if (warp.launch.options.check_shared && !warp.block.writes[warp.block.first_granule(u32(address))].written)
        warp.report("uninitialised shared memory read (atomic)");
    return warp.block.shared.data() + address;
}

inline std::mutex atomic_lock;

// F: the new value of the old one and up to two operands.
template <class T, class F> Execute atomic(F)
{
    return [](Warp& warp, const Instr& instr, u32 mask) {
        for_lanes(mask, [&](int lane) {
            bool is_shared;
            char* memory = atomic_memory(warp, instr, sizeof(T), lane, is_shared);
            std::unique_lock guard(atomic_lock, std::defer_lock);
            if (!is_shared && warp.launch.options.threads > 1) guard.lock();
            T old;
            memcpy(&old, memory, sizeof(T));
            const T first = warp.lanes<T>(instr.operand[2])[lane];
            const T second = instr.operands > 3 ? warp.lanes<T>(instr.operand[3])[lane] : first;
            const T now = F{}(old, first, second);
            memcpy(memory, &now, sizeof(T));
            if (!is_shared && warp.launch.options.check_global)
                exchange_knowledge(warp, reinterpret_cast<u64>(memory), instr.operand[1] >= 0, lane);
            if (instr.operand[1] >= 0) warp.lanes<T>(instr.operand[1])[lane] = old;
        });
    };
}
