// Schedulers of a block: which warp runs next, and when its TMA copies land. Options::Schedule lists the schedules.
#pragma once
#include "execution.hpp"

// Runs each warp once, in the given order: to the next wait or, with a seed, for a random number of instructions.
// Returns whether any made progress.
inline bool run_warps(Block& block, const std::vector<int>& order)
{
    constexpr u64 LONGEST_QUANTUM = 2000;
    const bool interleave = block.launch.options.seed != 0;
    bool ran = false;
    for (int index : order) {
        Warp& warp = *block.warps[index];
        if (warp.state == Warp::SPINNING) warp.state = Warp::READY;
        if (warp.state != Warp::READY) continue;
        run_warp(warp, interleave ? 1 + block.random() % LONGEST_QUANTUM : ~u64(0));
        ran |= warp.state == Warp::READY || warp.state == Warp::DONE;
    }
    return ran;
}

// Completes barriers of the whole block at which all remaining warps wait, because the other warps have exited.
inline bool complete_barriers(Block& block, int live)
{
    bool any = false;
    for (auto& barrier : block.named) {
        if (!barrier.arrived || !barrier.whole_block || int(barrier.waiting.size()) != live) continue;
        complete_barrier(block, barrier);
        any = true;
    }
    return any;
}

// Completes one TMA load of those in flight.
inline void complete_copy(Block& block, size_t chosen)
{
    const Landing copy = std::move(block.tma[chosen]);
    block.tma.erase(block.tma.begin() + chosen);
    copy.finish();
}

// TMA loads complete in any order. Completes one when no warp can go on; if copies land at random, any number at any
// time.
inline bool complete_tma(Block& block, bool ran)
{
    const Options& options = block.launch.options;
    size_t count = !ran && !block.tma.empty();
    if (options.async_order == Options::RANDOM && !block.tma.empty()) count = std::max(count, block.random() % (block.tma.size() + 1));
    const bool any = options.seed || options.async_order == Options::RANDOM;
    for (size_t k = 0; k < count; ++k) complete_copy(block, any ? block.random() % block.tma.size() : 0);
    return count;
}

// The number of warps that have not exited.
inline int live_warps(const Block& block)
{
    return int(std::count_if(block.warps.begin(), block.warps.end(), [](const Warp* warp) { return warp->state != Warp::DONE; }));
}

// ---------------------------------------------------------------- round robin

// Runs a block's warps in rounds until all have exited; fails with a deadlock after three rounds without progress.
inline void take_turns(Block& block)
{
    std::vector<int> order(block.warp_count);
    std::iota(order.begin(), order.end(), 0);
    u64 seen = ~u64(0);
    int idle = 0;
    for (int live = block.warp_count; live;) {
        if (block.launch.options.seed) std::shuffle(order.begin(), order.end(), block.random);
        bool ran = run_warps(block, order);
        live = live_warps(block);
        ran |= complete_barriers(block, live);
        ran |= complete_tma(block, ran);
        if (block.progress != seen) {
            seen = block.progress;
            idle = 0;
        } else if (!ran && ++idle > 2) {
            deadlock(block);
        }
    }
}

// ---------------------------------------------------------------- priorities

// Whether a warp is runnable: a spinning one is if something has changed since it last tried.
inline bool can_go_on(const Block& block, const Warp& warp)
{
    return warp.state == Warp::READY || (warp.state == Warp::SPINNING && warp.tried_at != block.progress);
}

// Runs a warp until it waits, or until Block::stops makes it return to the scheduler.
inline void step(Block& block, Warp& warp)
{
    warp.state = Warp::READY;
    block.progress_before = block.progress;
    run_warp(warp, ~u64(0));
    if (warp.state == Warp::SPINNING) warp.tried_at = block.progress;
}

// The warps in order of priority.
class Importance {
public:
    explicit Importance(Block& block) : order_(block.warps)
    {
        const Options& options = block.launch.options;
        const auto special = order_.begin() + s64(options.seed % order_.size());
        switch (options.schedule) {
            case Options::FIRST: std::rotate(order_.begin(), special, special + 1); break;
            case Options::LAST: std::rotate(special, special + 1, order_.end()); break;
            case Options::BACKWARDS: std::reverse(order_.begin(), order_.end()); break;
            default:
                std::shuffle(order_.begin(), order_.end(), block.random);
                for (u64& change : changes_) change = block.random() % (16u << block.random() % 8);
        }
    }

    Warp* most_important(const Block& block) const
    {
        const auto found = std::find_if(order_.begin(), order_.end(), [&](const Warp* warp) { return can_go_on(block, *warp); });
        return found == order_.end() ? nullptr : *found;
    }

    // Called after each step of a warp: three times per block, that warp gets the lowest priority (schedule CHANGING).
    void perhaps_change(Warp* warp)
    {
        if (std::find(changes_, std::end(changes_), ++steps_) == std::end(changes_)) return;
        order_.erase(std::find(order_.begin(), order_.end(), warp));
        order_.push_back(warp);
    }

private:
    std::vector<Warp*> order_;
    u64 changes_[3] = {}, steps_ = 0;  // changes_: after how many steps to demote a warp
};

// Always runs the runnable warp of highest priority; when there is none, a barrier completes or a copy lands.
inline void run_by_importance(Block& block)
{
    Importance importance(block);
    block.stops = Block::AT_PROGRESS;
    for (int live = block.warp_count; live; live = live_warps(block)) {
        if (Warp* warp = importance.most_important(block)) {
            step(block, *warp);
            importance.perhaps_change(warp);
            complete_tma(block, true);
        } else if (!complete_barriers(block, live) && !complete_tma(block, false)) {
            deadlock(block);
        }
    }
    block.stops = Block::NEVER;
}

// ---------------------------------------------------------------- one block

// Reports asynchronous operations that are unfinished when the block exits.
inline void check_end(Block& block)
{
    if (!block.launch.options.check_shared) return;
    for (auto& [thread, stores] : block.bulk_stores)
        if (!stores.pending.empty()) block.launch.report("kernel exits while a TMA store still reads its shared memory");
    for (auto& [address, barrier] : block.mbarriers)
        if (barrier.live && barrier.bytes) block.launch.report("kernel exits with bytes outstanding on an mbarrier");
}

// Runs one block from its start to its end.
inline void run_block(Block& block)
{
    reset(block);
    if (block.launch.options.schedule == Options::TURNS) take_turns(block);
    else run_by_importance(block);
    block.launch.early_blocks += block.early;
    check_end(block);
}
