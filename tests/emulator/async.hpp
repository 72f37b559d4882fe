// What happens later: cp.async, mbarriers, TMA copies and the fences that they need.
#pragma once
#include "lanewise.hpp"
#include "memory.hpp"
#include "tensor.hpp"
#include "warps.hpp"

// ---------------------------------------------------------------- cp.async

struct AsyncCopy {
    s64 to_offset, from_offset, to_width, from_width;
};

inline Copy copy_of_lane(Warp& warp, const Instr& instr, int lane)
{
    const auto& copy = instr.as<AsyncCopy>();
    const int bytes = int(warp.lanes<u32>(instr.operand[2])[0]);
    int source_bytes = instr.operand[3] >= 0 ? int(warp.lanes<u32>(instr.operand[3])[lane]) : bytes;
    if (instr.operand[4] >= 0 && (warp.predicate(instr.operand[4]) >> lane & 1)) source_bytes = 0;
    return {u32(base_address(warp, instr.operand[0], copy.to_width, lane) + copy.to_offset),
            base_address(warp, instr.operand[1], copy.from_width, lane) + copy.from_offset,
            bytes, source_bytes, lane, warp.committed[lane], warp.pc};
}

// A source of no bytes may lie anywhere: nothing is read.
inline void land(Warp& warp, const Copy& copy)
{
    char* to = warp.block.shared.data() + copy.to;
    memset(to, 0, copy.bytes);
    if (!copy.source_bytes) return;
    const int pc = std::exchange(warp.pc, copy.pc);
    memcpy(to, global_access(warp, copy.from, copy.source_bytes, false, copy.lane), copy.source_bytes);
    warp.pc = pc;
}

inline void count_copies(Warp& warp, const Instr& instr, u32 mask)
{
    u32 to[LANES] = {}, reading = 0;
    u64 from[LANES] = {};
    int bytes = 4;
    for_lanes(mask, [&](int lane) {
        const Copy copy = copy_of_lane(warp, instr, lane);
        to[lane] = copy.to;
        from[lane] = copy.from;
        bytes = copy.bytes;
        reading |= u32(copy.source_bytes > 0) << lane;
    });
    count_wavefronts(warp, to, mask, bytes);
    if (reading) count_sectors(warp, from, reading, bytes);
}

// Operands: to, from, bytes, source bytes or -1, predicate that ignores the source or -1.
inline void start_copies(Warp& warp, const Instr& instr, u32 mask)
{
    if (warp.launch.options.count) count_copies(warp, instr, mask);
    for_lanes(mask, [&](int lane) {
        Copy copy = copy_of_lane(warp, instr, lane);
        if (copy.source_bytes < 0 || copy.source_bytes > copy.bytes) warp.fail("cp.async source size larger than copy size", lane);
        if (copy.to % copy.bytes || copy.from % copy.bytes) warp.fail("misaligned cp.async", lane);
        shared_bounds(warp, copy.to, copy.bytes, lane);
        if (copy.source_bytes) global_array(warp, copy.from, copy.source_bytes, false, lane);
        shared_in_flight(warp, copy.to, copy.bytes, lane);
        copy.landed = warp.block.lands_at_once();
        if (copy.landed) land(warp, copy);
        warp.copies.push_back(copy);
    });
}

inline void commit_copies(Warp& warp, u32 mask)
{
    for_lanes(mask, [&](int lane) { ++warp.committed[lane]; });
}

// All but the last `keep` groups of the lanes.
inline void wait_for_copies(Warp& warp, u32 mask, int keep)
{
    auto awaited = [&](const Copy& copy) { return (mask >> copy.lane & 1) && copy.group < warp.committed[copy.lane] - keep; };
    for (const Copy& copy : warp.copies) {
        if (!awaited(copy)) continue;
        if (!copy.landed) land(warp, copy);
        shared_landed(warp, copy.to, copy.bytes, copy.lane);
    }
    std::erase_if(warp.copies, awaited);
}

inline void define_copies(Table& table)
{
    table["cp.async"] = {start_copies};
    table["cp.async.commit"] = {[](Warp& warp, const Instr&, u32 mask) { commit_copies(warp, mask); }};
    table["cp.async.wait"] = {[](Warp& warp, const Instr& instr, u32 mask) {
        wait_for_copies(warp, mask, int(warp.lanes<u32>(instr.operand[0])[0]));
    }};
    table["cp.async.wait_all"] = {[](Warp& warp, const Instr&, u32 mask) {
        commit_copies(warp, mask);
        wait_for_copies(warp, mask, 0);
    }};
}

// ---------------------------------------------------------------- mbarriers

struct MbarrierAccess {
    s64 offset, base_width, parity;
};

inline u32 mbarrier_address(Warp& warp, const Instr& instr, int lane)
{
    const auto& access = instr.as<MbarrierAccess>();
    u64 address = base_address(warp, instr.operand[0], access.base_width, lane) + access.offset;
    if (address - SHARED_WINDOW < WINDOW_SIZE) address -= SHARED_WINDOW;
    if (address % 8) warp.fail("misaligned mbarrier", lane);
    shared_bounds(warp, u32(address), 8, lane);
    return u32(address);
}

inline Mbarrier& mbarrier(Warp& warp, const Instr& instr, int lane)
{
    const auto found = warp.block.mbarriers.find(mbarrier_address(warp, instr, lane));
    if (found == warp.block.mbarriers.end() || !found->second.live) warp.fail("mbarrier used before mbarrier.init", lane);
    return found->second;
}

inline void finish_phase(Block& block, Mbarrier& barrier)
{
    if (barrier.pending || barrier.bytes) return;
    barrier.pending = barrier.expected;
    ++barrier.phase;
    barrier.phase_clocks = barrier.clocks;
    ++block.progress;
}

// Operands: barrier, state or -1, count or bytes or -1.
inline void arrive(Warp& warp, const Instr& instr, Mbarrier& barrier, u32 count, int lane)
{
    if (instr.operand[1] >= 0) warp.lanes<u64>(instr.operand[1])[lane] = barrier.phase;
    if (count > barrier.pending) warp.fail("more arrivals at mbarrier than expected", lane);
    barrier.pending -= count;
    ++warp.clock();  // accesses so far come before
    join(barrier.clocks, warp.clocks);
    finish_phase(warp.block, barrier);
}

// Operands: barrier, outcome, state or parity.
inline void wait_for_phase(Warp& warp, const Instr& instr, u32 mask)
{
    bool all = true;
    for_lanes(mask, [&](int lane) {
        const Mbarrier& barrier = mbarrier(warp, instr, lane);
        const bool parity = instr.as<MbarrierAccess>().parity;
        const u32 phase = parity ? warp.lanes<u32>(instr.operand[2])[lane] : u32(warp.lanes<u64>(instr.operand[2])[lane]);
        const bool over = (barrier.phase & 1) != (phase & 1);
        warp.set_predicate(instr.operand[1], 1u << lane, over ? FULL : 0);
        if (over) join(warp.clocks, barrier.phase_clocks);
        all &= over;
    });
    if (!all) warp.state = Warp::SPINNING;
}

template <class F> Execute on_mbarrier(F)  // F: of the warp, the instruction, the barrier and the lane
{
    return [](Warp& warp, const Instr& instr, u32 mask) {
        for_lanes(mask, [&](int lane) { F{}(warp, instr, mbarrier(warp, instr, lane), lane); });
    };
}

inline void define_mbarriers(Table& table)
{
    table["mbarrier.init"] = {[](Warp& warp, const Instr& instr, u32 mask) {
        for_lanes(mask, [&](int lane) {
            const u32 count = warp.lanes<u32>(instr.operand[1])[lane];
            const std::vector<u32> clocks(warp.block.agents);
            warp.block.mbarriers[mbarrier_address(warp, instr, lane)] = {count, count, 0, 0, true, false, clocks, clocks};
        });
    }};
    table["mbarrier.inval"] = {on_mbarrier([](Warp&, const Instr&, Mbarrier& barrier, int) { barrier.live = false; })};
    table["mbarrier.expect_tx"] = {on_mbarrier([](Warp& warp, const Instr& instr, Mbarrier& barrier, int lane) {
        barrier.bytes += warp.lanes<u32>(instr.operand[1])[lane];
    })};
    table["mbarrier.expect_arrive"] = {on_mbarrier([](Warp& warp, const Instr& instr, Mbarrier& barrier, int lane) {
        barrier.bytes += warp.lanes<u32>(instr.operand[2])[lane];
        arrive(warp, instr, barrier, 1, lane);
    })};
    table["mbarrier.arrive"] = {on_mbarrier([](Warp& warp, const Instr& instr, Mbarrier& barrier, int lane) {
        arrive(warp, instr, barrier, instr.operand[2] >= 0 ? warp.lanes<u32>(instr.operand[2])[lane] : 1, lane);
    })};
    table["mbarrier.wait"] = {wait_for_phase, Kind::YIELDING};
}

// ---------------------------------------------------------------- tensor maps

struct TensorMap {  // what arrays.py writes in the place of a CUtensorMap
    static constexpr u32 MAGIC = 0x70616d54;
    u32 magic;
    u8 rank, element, swizzle, im2col;
    u64 address;
    u32 size[5], padding;
    u64 stride[4];                           // bytes, of axes 1 and on
    u16 box[5];
    u8 element_stride[5], more_padding;
    s16 lower[3], upper[3];                  // im2col: corners of the bounding box of pixels; W, H, D
    u16 channels, pixels;
};
static_assert(sizeof(TensorMap) <= 128);

struct TensorAccess {
    s64 shared_offset, map_offset, mbarrier_offset, rank, im2col, offsets;
};

inline TensorMap tensor_map(Warp& warp, u64 address, const TensorAccess& access, int lane)
{
    if (address % 64) warp.fail("tensor map is not 64-byte aligned", lane);
    resolve<GENERIC>(warp, address + 64, 64, false, lane);  // its end must exist, too
    TensorMap map;
    memcpy(&map, resolve<GENERIC>(warp, address, 64, false, lane), sizeof map);
    if (map.magic != TensorMap::MAGIC) warp.fail("not a tensor map", lane);
    if (map.rank != access.rank || map.im2col != access.im2col) warp.fail("tensor map and instruction disagree about rank or mode", lane);
    return map;
}

// The box at some coordinates: rows of consecutive elements along axis 0; address 0 stands for a row outside.
struct Box {
    std::vector<u64> rows;
    int inner;        // elements of a row
    s64 first;        // coordinate along axis 0
    int row_bytes, bytes;
};

inline u64 row_address(const TensorMap& map, const s64* at)
{
    u64 address = map.address;
    for (int axis = 1; axis < map.rank; ++axis) {
        if (at[axis] < 0 || at[axis] >= map.size[axis]) return 0;
        address += at[axis] * map.stride[axis - 1];
    }
    return address;
}

inline std::vector<u64> im2col_rows(const TensorMap& map, const s64* coordinates, const s64* offsets)
{
    std::vector<u64> rows;
    const int last = map.rank - 1;
    s64 base[5];
    std::copy(coordinates, coordinates + map.rank, base);
    for (int pixel = 0; pixel < map.pixels; ++pixel) {
        s64 at[5];
        std::copy(base, base + map.rank, at);
        for (int axis = 1; axis < last; ++axis) at[axis] += offsets[axis - 1];
        rows.push_back(row_address(map, at));
        for (int axis = 1; axis <= last; ++axis) {  // the next base pixel inside the bounding box
            base[axis] += axis == last ? 1 : map.element_stride[axis];
            if (axis == last || base[axis] <= s64(map.size[axis]) - 1 + map.upper[axis - 1]) break;
            base[axis] = map.lower[axis - 1];
        }
    }
    return rows;
}

inline std::vector<u64> tile_rows(const TensorMap& map, const s64* coordinates)
{
    std::vector<u64> rows;
    s64 count[5] = {};
    for (bool more = true; more;) {
        s64 at[5];
        for (int axis = 0; axis < map.rank; ++axis) at[axis] = coordinates[axis] + count[axis] * map.element_stride[axis];
        rows.push_back(row_address(map, at));
        more = false;
        for (int axis = 1; axis < map.rank && !more; ++axis) {
            more = ++count[axis] < map.box[axis];
            if (!more) count[axis] = 0;
        }
    }
    return rows;
}

// Coordinates, then im2col offsets, are the operands from `first_operand` on.
inline Box box_at(Warp& warp, const Instr& instr, const TensorMap& map, int first_operand, int lane)
{
    const auto& access = instr.as<TensorAccess>();
    s64 coordinates[5], offsets[3] = {};
    for (int axis = 0; axis < map.rank; ++axis) coordinates[axis] = warp.lanes<s32>(instr.operand[first_operand + axis])[lane];
    for (int k = 0; k < access.offsets; ++k) offsets[k] = warp.lanes<u16>(instr.operand[first_operand + map.rank + k])[lane];
    Box box;
    box.rows = map.im2col ? im2col_rows(map, coordinates, offsets) : tile_rows(map, coordinates);
    box.inner = map.im2col ? map.channels : map.box[0];
    box.first = coordinates[0];
    box.row_bytes = box.inner * map.element;
    box.bytes = box.row_bytes * int(box.rows.size());
    return box;
}

// F: of the address in shared memory and that in global memory, 0 outside.
template <class F> void for_elements(const TensorMap& map, const Box& box, u32 shared, F f)
{
    for (size_t row = 0; row < box.rows.size(); ++row)
        for (int k = 0; k < box.inner; ++k) {
            const u32 here = swizzled(shared + u32(row) * box.row_bytes + k * map.element, map.swizzle);
            const s64 x = box.first + k;
            const bool inside = box.rows[row] && x >= 0 && x < map.size[0];
            f(here, inside ? box.rows[row] + x * map.element : 0);
        }
}

// ---------------------------------------------------------------- TMA

inline void land_tensor(Warp& warp, const TensorMap& map, const Box& box, u32 to, u32 barrier_address, int pc, int lane)
{
    Block& block = warp.block;
    const int previous = std::exchange(warp.pc, pc);
    for_elements(map, box, to, [&](u32 shared, u64 global) {
        char* memory = block.shared.data() + shared;
        if (global) memcpy(memory, global_access(warp, global, map.element, false, lane), map.element);
        else memset(memory, 0, map.element);
    });
    warp.pc = previous;
    const u32 clock = ++block.tma_clock;
    if (warp.launch.options.check_shared)
        for (u32 granule = block.first_granule(to); granule <= block.last_granule(to, box.bytes); ++granule)
            block.writes[granule] = {clock, u8(block.tma_agent()), 0, 1, LastWrite::LANDED, pc, 0};
    Mbarrier& barrier = block.mbarriers.at(barrier_address);
    barrier.bytes -= box.bytes;
    barrier.clocks[block.tma_agent()] = clock + 1;
    finish_phase(block, barrier);
    ++block.progress;
}

// Operands: to, map, mbarrier, coordinates, offsets.
inline void load_tensor(Warp& warp, const Instr& instr, u32 mask)
{
    const auto& access = instr.as<TensorAccess>();
    Block& block = warp.block;
    for_lanes(mask, [&](int lane) {
        const TensorMap map = tensor_map(warp, warp.lanes<u64>(instr.operand[1])[lane] + access.map_offset, access, lane);
        const u32 to = warp.lanes<u32>(instr.operand[0])[lane] + u32(access.shared_offset);
        const u32 barrier = warp.lanes<u32>(instr.operand[2])[lane] + u32(access.mbarrier_offset);
        if (to % 128) warp.fail("TMA destination is not 128-byte aligned", lane);
        const auto found = block.mbarriers.find(barrier);
        if (found == block.mbarriers.end() || !found->second.live)
            warp.fail("TMA load signals an mbarrier that is not initialised", lane);
        if (!found->second.fenced && warp.launch.options.check_shared)
            warp.report("TMA uses an mbarrier whose initialisation was not fenced (fence.mbarrier_init)");
        Box box = box_at(warp, instr, map, 3, lane);
        shared_bounds(warp, to, box.bytes, lane);
        if (map.swizzle && box.row_bytes > 16 << map.swizzle) warp.fail("TMA box is wider than the swizzle span", lane);
        shared_in_flight(warp, to, box.bytes, lane);
        Warp* issuer = &warp;
        const int pc = warp.pc;
        auto finish = [=, box = std::move(box)] { land_tensor(*issuer, map, box, to, barrier, pc, lane); };
        if (block.lands_at_once()) finish();
        else block.tma.push_back(finish);
    });
}

// Operands: map, from, coordinates.
inline void store_tensor(Warp& warp, const Instr& instr, u32 mask)
{
    const auto& access = instr.as<TensorAccess>();
    Block& block = warp.block;
    for_lanes(mask, [&](int lane) {
        const TensorMap map = tensor_map(warp, warp.lanes<u64>(instr.operand[0])[lane] + access.map_offset, access, lane);
        const u32 from = warp.lanes<u32>(instr.operand[1])[lane] + u32(access.shared_offset);
        if (from % 128) warp.fail("TMA source is not 128-byte aligned", lane);
        const Box box = box_at(warp, instr, map, 2, lane);
        shared_bounds(warp, from, box.bytes, lane);
        if (warp.launch.options.check_shared)
            for (u32 granule = block.first_granule(from); granule <= block.last_granule(from, box.bytes); ++granule) {
                shared_check(warp, granule << block.granule_shift, 1, false, lane);
                proxy_check(warp, granule);
            }
        for_elements(map, box, from, [&](u32 shared, u64 global) {
            if (global) memcpy(global_access(warp, global, map.element, true, lane), block.shared.data() + shared, map.element);
        });
    });
}

inline void fence_mbarriers(Warp& warp)
{
    for (auto& [address, barrier] : warp.block.mbarriers) barrier.fenced = true;
}

inline void fence_proxy(Warp& warp, const Instr&, u32)
{
    fence_mbarriers(warp);
    warp.fence_clocks = warp.clocks;
    warp.fence_clocks[warp.index] = warp.clock() + 1;
    warp.fence_clock = ++warp.clock();
}

inline void define_all_async(Table& table)
{
    define_copies(table);
    define_mbarriers(table);
    table["cp.async.bulk.tensor.load"] = {load_tensor};
    table["cp.async.bulk.tensor.store"] = {store_tensor};
    table["cp.async.bulk.commit"] = table["cp.async.bulk.wait"] = {[](Warp&, const Instr&, u32) {}};
    table["fence.mbarrier_init"] = {[](Warp& warp, const Instr&, u32) { fence_mbarriers(warp); }};
    table["fence.proxy"] = {fence_proxy};
}
