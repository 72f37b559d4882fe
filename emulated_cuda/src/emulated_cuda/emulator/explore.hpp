// Explicit-state model checking of one small block: runs it in every order of its synchronisation events.
//
// Events are barriers, waits, arrivals, atomics and copies that land. Between events a warp affects others only through
// memory, where the vector clocks find races in whatever order the accesses run, so only orders of events matter. In
// each new state, everything that can happen next is tried: a runnable warp runs to the end of its next event, or one
// copy in flight lands. States are compared by a 64-bit hash of everything that can matter later, shadow state
// included. To return to a state, the block is run again from its start with the same choices.
#pragma once
#include "schedules.hpp"

#include <unordered_set>

// ---------------------------------------------------------------- states

// A 64-bit hash of words and bytes.
class Digest {
public:
    u64 value = 0x9e37'79b9'7f4a'7c15;

    void add(u64 word)
    {
        value = (value ^ word) * 0xff51'afd7'ed55'8ccd;
        value ^= value >> 32;
    }
    void add_bytes(const void* data, size_t size)
    {
        const char* bytes = static_cast<const char*>(data);
        for (; size >= 8; size -= 8, bytes += 8) {
            u64 word;
            memcpy(&word, bytes, 8);
            add(word);
        }
        u64 rest = 0;
        memcpy(&rest, bytes, size);
        add(rest);
    }
    template <class T> void add_all(const T& all) { add_bytes(all.data(), all.size() * sizeof all[0]); }
    void add(const Knowledge& known)
    {
        auto add_times = [&](const Times& times) {  // without trailing zeros, which mean the same as no entry
            size_t size = times.size();
            while (size && !times[size - 1]) --size;
            add_bytes(times.data(), size * sizeof(u32));
        };
        add_times(known.times);
        add_times(known.fenced);
    }
};

// Adds a warp's state: registers, local memory, diverged lanes, knowledge, and pending copies and wgmma groups.
inline void add(Digest& digest, const Warp& warp)
{
    digest.add(u64(warp.state) << 32 | warp.alive);
    digest.add(can_go_on(warp.block, warp));
    for (const Fragment& fragment : warp.fragments) digest.add(u64(fragment.pc) << 32 | fragment.mask);
    digest.add_bytes(warp.registers, warp.program.register_bytes);
    digest.add_all(warp.local);
    digest.add(u64(warp.clock) << 32 | warp.converged_clock);
    digest.add_bytes(warp.released, sizeof warp.released);
    digest.add_bytes(warp.own_fenced, sizeof warp.own_fenced);
    digest.add(warp.common);
    for_lanes(warp.apart, [&](int lane) {
        digest.add(lane);
        digest.add(*warp.own[lane]);
    });
    for (const Copy& copy : warp.copies) digest.add(u64(copy.to) << 32 | u32(copy.lane << 16 | copy.group));
    digest.add_bytes(warp.committed, sizeof warp.committed);
    digest.add(u64(warp.wgmma_groups) << 32 | warp.wgmma_finished);
    digest.add_all(warp.sums);
    digest.add_all(warp.factors);
    digest.add(warp.held_registers);
}

// A hash of the elements of a container, independent of their order.
template <class All, class F> u64 sum_of_digests(const All& all, F f)
{
    u64 sum = 0;
    for (const auto& one : all) {
        Digest digest;
        f(digest, one);
        sum += digest.value;
    }
    return sum;
}

// A hash of a block's state: shared memory, its shadow state, barriers, copies in flight and all warps.
inline u64 digest_of(const Block& block)
{
    Digest digest;
    digest.add_all(block.shared);
    for (const LastWrite& write : block.writes) {
        digest.add(u64(write.clock) << 32 | write.agent);
        digest.add(u64(write.written) << 16 | write.flight << 8 | write.generic);
    }
    for (const LastRead& read : block.reads)
        if (read.clock) digest.add(u64(read.clock) << 32 | read.lanes);
        else digest.add(0);
    digest.add(sum_of_digests(block.older_reads, [](Digest& one, const auto& older) {
        one.add(older.first);
        for (const LastRead& read : older.second) one.add(u64(read.clock) << 32 | read.lanes);
    }));
    digest.add(sum_of_digests(block.mbarriers, [](Digest& one, const auto& entry) {
        const auto& [address, barrier] = entry;
        one.add(u64(address) << 32 | barrier.pending);
        one.add(u64(barrier.bytes) << 32 | barrier.phase << 2 | barrier.live << 1 | u32(barrier.fenced));
        one.add(u64(barrier.landed));
        one.add(barrier.gathered);
        one.add(barrier.passed_on);
    }));
    digest.add(sum_of_digests(block.tma, [](Digest& one, const Landing& copy) {
        one.add(u64(copy.to) << 32 | copy.barrier);
        one.add(copy.pc);
    }));
    for (const NamedBarrier& barrier : block.named) {
        digest.add(u64(barrier.count) << 32 | barrier.arrived);
        digest.add(barrier.gathered);
        for (int warp : barrier.waiting) digest.add(warp);
    }
    digest.add(block.free_registers);
    for (const Warp* warp : block.warps) add(digest, *warp);
    return digest.value;
}

// ---------------------------------------------------------------- orders

// A copy of all writable arrays as they were before the launch, to start each order from.
class Before {
public:
    explicit Before(Launch& launch) : launch_(launch)
    {
        for (const Array& array : launch.arrays) {
            const size_t size = array.writable ? array.size : 0;
            bytes_.emplace_back(array.host, array.host + size);
            states_.emplace_back(array.state, array.state + (array.state ? size : 0));
        }
    }

    void restore()
    {
        for (size_t k = 0; k < bytes_.size(); ++k) {
            std::copy(bytes_[k].begin(), bytes_[k].end(), launch_.arrays[k].host);
            if (launch_.arrays[k].state) std::copy(states_[k].begin(), states_[k].end(), launch_.arrays[k].state);
            launch_.arrays[k].owners.reset();
        }
        launch_.flags.clear();
    }

    u64 digest_of_results() const
    {
        Digest digest;
        for (const Array& array : launch_.arrays)
            if (array.writable) digest.add_bytes(array.host, array.size);
        return digest.value;
    }

private:
    Launch& launch_;
    std::vector<std::vector<char>> bytes_;
    std::vector<std::vector<u8>> states_;
};

// The result of an exploration.
struct Explored {
    s64 states = 0, steps = 0, ends = 0;  // different states; events tried in them; how often the block finished
    s64 complete = 0;                     // 1 if all reachable states were explored
};

// Depth-first search over orders of events.
class Explorer {
public:
    Explorer(Block& block, s64 limit) : block_(block), before_(block.launch), limit_(limit) {}

    // Explores until no new state is left, a check fails, or the limit is reached.
    Explored all()
    {
        std::vector<std::vector<u8>> orders{{}};
        while (!orders.empty() && found_.states < limit_ && block_.launch.reports.empty()) {
            const std::vector<u8> order = std::move(orders.back());
            orders.pop_back();
            follow(order, orders);
        }
        before_.restore();
        block_.stops = Block::NEVER;
        if (block_.launch.reports.empty()) run_block(block_);  // the results are those of any order
        found_.complete = orders.empty() && block_.launch.reports.empty();
        return found_;
    }

private:
    // What may happen next: numbers of runnable warps; from warp_count on, copies in flight.
    std::vector<u8> possible() const
    {
        std::vector<u8> found;
        for (const Warp* warp : block_.warps)
            if (can_go_on(block_, *warp)) found.push_back(u8(warp->index));
        for (size_t k = 0; k < block_.tma.size(); ++k) found.push_back(u8(block_.warp_count + k));
        return found;
    }

    // Runs a warp for one event, or lands a copy.
    void take(u8 choice)
    {
        if (choice < block_.warp_count) step(block_, *block_.warps[choice]);
        else complete_copy(block_, choice - block_.warp_count);
    }

    // Runs the block by the choices of `order`, then by the first possible choice until it finishes or reaches a known
    // state. Adds the alternatives at each new state to `orders`. A choice of 0xff completes barriers after exits.
    void follow(std::vector<u8> order, std::vector<std::vector<u8>>& orders)
    {
        before_.restore();
        reset(block_);
        block_.stops = Block::AT_EVENTS;
        for (size_t k = 0; live_warps(block_); ++k) {
            if (k == order.size()) {
                const std::vector<u8> choices = possible();
                if (choices.empty() && complete_barriers(block_, live_warps(block_))) {
                    order.push_back(0xff);
                    continue;
                }
                if (choices.empty()) deadlock(block_);
                if (!seen_.insert(digest_of(block_)).second) return;
                ++found_.states;
                found_.steps += choices.size();
                for (size_t other = choices.size() - 1; other; --other) {
                    orders.push_back(order);
                    orders.back().push_back(choices[other]);
                }
                order.push_back(choices[0]);
            }
            if (order[k] == 0xff) complete_barriers(block_, live_warps(block_));
            else take(order[k]);
            if (!block_.launch.reports.empty()) return;
        }
        check_end(block_);
        ++found_.ends;
        const u64 results = before_.digest_of_results();
        if (found_.ends > 1 && results != results_) block_.launch.report("results depend on the order of warps and copies");
        results_ = results;
    }

    Block& block_;
    Before before_;
    s64 limit_;
    Explored found_;
    u64 results_ = 0;
    std::unordered_set<u64> seen_;
};
