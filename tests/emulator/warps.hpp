// Instructions of a whole warp or block: shuffles, votes, reductions, barriers.
#pragma once
#include "lanewise.hpp"
#include "memory.hpp"

struct Shuffle {
    enum Mode : s64 { UP, DOWN, BUTTERFLY, INDEX };
    s64 mode;
};

// The lane that is read, and whether it is in range.
inline std::pair<int, bool> shuffle_source(s64 mode, int lane, u32 b, u32 c)
{
    const int segment = c >> 8 & 31, clamp = c & 31, distance = b & 31;
    const int first = lane & segment, last = first | (clamp & ~segment);
    int from;
    switch (mode) {
        case Shuffle::UP: from = lane - distance; return {from, from >= last};
        case Shuffle::DOWN: from = lane + distance; break;
        case Shuffle::BUTTERFLY: from = lane ^ distance; break;
        default: from = first | (distance & ~segment);
    }
    return {from, from <= last};
}

// Operands: d or -1, p or -1, a, b, c, member mask.
inline void shuffle(Warp& warp, const Instr& instr, u32 mask)
{
    u32 values[LANES], in_range = 0;
    memcpy(values, warp.lanes<u32>(instr.operand[2]), sizeof values);
    const u32 *b = warp.lanes<u32>(instr.operand[3]), *c = warp.lanes<u32>(instr.operand[4]);
    const u32* members = warp.lanes<u32>(instr.operand[5]);
    for_lanes(mask, [&](int lane) {
        auto [from, valid] = shuffle_source(instr.as<Shuffle>().mode, lane, b[lane], c[lane]);
        if (!valid) from = lane;
        else if (!(members[lane] & mask & 1u << from)) warp.fail(text("shfl.sync reads lane ", from, ", which does not take part"), lane);
        if (instr.operand[0] >= 0) warp.lanes<u32>(instr.operand[0])[lane] = values[from];
        in_range |= u32(valid) << lane;
    });
    if (instr.operand[1] >= 0) warp.set_predicate(instr.operand[1], mask, in_range);
}

struct Vote {
    s64 negated;
};

inline u32 votes(Warp& warp, const Instr& instr, u32 mask)
{
    const u32 predicate = warp.predicate(instr.operand[1]);
    return (instr.as<Vote>().negated ? ~predicate : predicate) & mask;
}

inline void define_votes(Table& table)
{
    auto define = [&](const char* key, Execute execute) { table[key] = {execute, Kind::CONVERGED, 2}; };
    define("vote.ballot", [](Warp& warp, const Instr& instr, u32 mask) {
        const u32 ballot = votes(warp, instr, mask);
        for_lanes(mask, [&](int lane) { warp.lanes<u32>(instr.operand[0])[lane] = ballot; });
    });
    define("vote.any", [](Warp& warp, const Instr& instr, u32 mask) {
        warp.set_predicate(instr.operand[0], mask, votes(warp, instr, mask) ? FULL : 0);
    });
    define("vote.all", [](Warp& warp, const Instr& instr, u32 mask) {
        warp.set_predicate(instr.operand[0], mask, votes(warp, instr, mask) == mask ? FULL : 0);
    });
    define("elect.sync", [](Warp& warp, const Instr& instr, u32 mask) {
        const u32 elected = std::countr_zero(mask);
        if (instr.operand[0] >= 0)
            for_lanes(mask, [&](int lane) { warp.lanes<u32>(instr.operand[0])[lane] = elected; });
        warp.set_predicate(instr.operand[1], mask, 1u << elected);
    });
}

template <class T, class F> Execute reduce(F)
{
    return [](Warp& warp, const Instr& instr, u32 mask) {
        const T* values = warp.lanes<T>(instr.operand[1]);
        T result = values[std::countr_zero(mask)];
        for_lanes(mask & (mask - 1), [&](int lane) { result = F{}(result, values[lane]); });
        for_lanes(mask, [&](int lane) { warp.lanes<T>(instr.operand[0])[lane] = result; });
    };
}

inline void define_reductions(Table& table)
{
    auto define = [&](const char* key, Execute execute) { table[key] = {execute, Kind::CONVERGED, 2}; };
    define("redux.add.s32", reduce<u32>([](u32 a, u32 b) { return a + b; }));
    define("redux.add.u32", reduce<u32>([](u32 a, u32 b) { return a + b; }));
    define("redux.min.s32", reduce<s32>([](s32 a, s32 b) { return std::min(a, b); }));
    define("redux.max.s32", reduce<s32>([](s32 a, s32 b) { return std::max(a, b); }));
    define("redux.min.u32", reduce<u32>([](u32 a, u32 b) { return std::min(a, b); }));
    define("redux.max.u32", reduce<u32>([](u32 a, u32 b) { return std::max(a, b); }));
    define("redux.and.b32", reduce<u32>([](u32 a, u32 b) { return a & b; }));
    define("redux.or.b32", reduce<u32>([](u32 a, u32 b) { return a | b; }));
    define("redux.xor.b32", reduce<u32>([](u32 a, u32 b) { return a ^ b; }));
}

// ---------------------------------------------------------------- barriers

inline void join(std::vector<u32>& clocks, const std::vector<u32>& others)
{
    for (size_t agent = 0; agent < clocks.size(); ++agent) clocks[agent] = std::max(clocks[agent], others[agent]);
}

struct BlockReduction {
    enum Operation : s64 { COUNT, AND, OR };
    s64 operation, negated;
};

// Operands of bar.red: d, barrier, count or -1, p.
inline void give_votes(Warp& warp, const NamedBarrier& barrier)
{
    const Instr& instr = *warp.reduction;
    const s64 operation = instr.as<BlockReduction>().operation;
    if (operation == BlockReduction::COUNT) {
        for_lanes(warp.alive, [&](int lane) { warp.lanes<u32>(instr.operand[0])[lane] = barrier.votes; });
    } else {
        const bool outcome = operation == BlockReduction::AND ? barrier.votes == barrier.voters : barrier.votes > 0;
        warp.set_predicate(instr.operand[0], warp.alive, outcome ? FULL : 0);
    }
    warp.reduction = nullptr;
}

// Everyone who waits learns what everyone who arrived did.
inline void complete_barrier(Block& block, NamedBarrier& barrier)
{
    std::vector<u32> all(block.agents, 0);
    for (int index : barrier.arrivals) {
        ++block.warps[index]->clock();
        join(all, block.warps[index]->clocks);
    }
    for (int index : barrier.waiting) {
        Warp& warp = *block.warps[index];
        join(warp.clocks, all);
        warp.converged_clock = warp.clock();
        warp.state = Warp::READY;
        warp.barrier_id = -1;
        if (warp.reduction) give_votes(warp, barrier);
    }
    barrier = {};
    ++block.progress;
}

inline NamedBarrier& named_barrier(Warp& warp, int operand)
{
    const u32 id = warp.lanes<u32>(operand)[0];
    if (id > 15) warp.fail("barrier id out of range");
    return warp.block.named[id];
}

// Threads that take part: those of the operand, or the whole block.
inline void arrive_at_barrier(Warp& warp, const Instr& instr, int id_operand, bool wait)
{
    NamedBarrier& barrier = named_barrier(warp, instr.operand[id_operand]);
    const int count_operand = instr.operand[id_operand + 1];
    const int count = count_operand >= 0 ? int(warp.lanes<u32>(count_operand)[0]) : warp.block.warp_count * LANES;
    if (count % LANES) warp.fail("barrier thread count is not a multiple of the warp size");
    if (barrier.arrived && barrier.count != count) warp.fail("barrier used with different thread counts");
    barrier.count = count;
    barrier.whole_block = count_operand < 0;
    barrier.arrived += LANES;
    barrier.arrivals.push_back(warp.index);
    if (wait) {
        barrier.waiting.push_back(warp.index);
        warp.state = Warp::AT_BARRIER;
        warp.barrier_id = int(&barrier - warp.block.named);
    }
    if (barrier.arrived >= count) complete_barrier(warp.block, barrier);
}

inline void barrier_reduction(Warp& warp, const Instr& instr, u32 mask)
{
    NamedBarrier& barrier = named_barrier(warp, instr.operand[1]);
    const u32 predicate = warp.predicate(instr.operand[3]);
    warp.reduction = &instr;
    barrier.votes += std::popcount((instr.as<BlockReduction>().negated ? ~predicate : predicate) & mask);
    barrier.voters += std::popcount(mask);
    arrive_at_barrier(warp, instr, 1, true);
}

inline void define_all_warps(Table& table)
{
    table["shfl.sync"] = {shuffle, Kind::CONVERGED, 5};
    define_votes(table);
    define_reductions(table);
    table["activemask"] = {[](Warp& warp, const Instr& instr, u32 mask) {
        for_lanes(mask, [&](int lane) { warp.lanes<u32>(instr.operand[0])[lane] = mask; });
    }};
    table["bar.warp.sync"] = {[](Warp& warp, const Instr&, u32 mask) {
        if (mask == warp.alive) warp.converged_clock = ++warp.clock();
    }, Kind::CONVERGED, 0};
    table["bar.sync"] = {[](Warp& warp, const Instr& instr, u32) { arrive_at_barrier(warp, instr, 0, true); }, Kind::BARRIER};
    table["bar.arrive"] = {[](Warp& warp, const Instr& instr, u32) { arrive_at_barrier(warp, instr, 0, false); }, Kind::BARRIER};
    table["bar.red"] = {barrier_reduction, Kind::BARRIER};
    table["fence.device"] = {fence_device};
    table["nop"] = {[](Warp&, const Instr&, u32) {}};
    table["trap"] = {[](Warp& warp, const Instr&, u32 mask) { warp.fail("trap or device-side assert", std::countr_zero(mask)); }};
    table["bra"] = {nullptr, Kind::BRANCH};
    table["exit"] = {nullptr, Kind::EXIT};
}
