// Runs the warps of a block: lanes that diverge and join again, warps that wait, copies that land.
#pragma once
#include "warps.hpp"

// ---------------------------------------------------------------- one warp

// In the order of ptx.py's SPECIAL_REGISTERS.
inline u32 special_register(const Warp& warp, int number, int lane)
{
    const Launch& launch = warp.launch;
    const Block& block = warp.block;
    const u32 thread = warp.index * LANES + lane, *threads = launch.threads;
    const u32 shared = u32(block.shared.size()) - SHARED_BASE;
    const u32 below = (1u << lane) - 1;
    const u32 values[] = {
        thread % threads[0], thread / threads[0] % threads[1], thread / (threads[0] * threads[1]),
        threads[0], threads[1], threads[2],
        block.index[0], block.index[1], block.index[2],
        launch.grid[0], launch.grid[1], launch.grid[2],
        u32(lane), u32(warp.index),
        below, below << 1 | 1, 1u << lane, ~below, ~(below << 1 | 1),
        0, 0, 0,                                   // clocks, multiprocessor
        launch.dynamic_shared, shared,
        0, 0, 0, 1, 0, 1,                          // a cluster of one block
    };
    return values[number];
}

inline u32 dynamic_start(const Program& program)
{
    const int alignment = program.dynamic_alignment;
    return (SHARED_BASE + program.shared_bytes + alignment - 1) / alignment * alignment;
}

inline s64 preset_value(const Warp& warp, const Preset& preset, int lane)
{
    switch (preset.source) {
        case Preset::SPECIAL: return special_register(warp, int(preset.value), lane);
        case Preset::SHARED_VARIABLE: return SHARED_BASE + preset.value;
        case Preset::DYNAMIC_SHARED: return dynamic_start(warp.program);
        default: return preset.value;
    }
}

inline void reset(Warp& warp)
{
    const Program& program = warp.program;
    constexpr size_t LINE = 64;
    warp.register_storage.assign(program.register_bytes + 2 * LINE, 0);
    const auto start = reinterpret_cast<uintptr_t>(warp.register_storage.data());
    warp.registers = warp.register_storage.data() + (LINE - start % LINE) % LINE;
    warp.local.assign(size_t(program.local_bytes) * LANES, char(0xff));
    for (const Preset& preset : program.presets)
        for (int lane = 0; lane < LANES; ++lane) {
            const s64 value = preset_value(warp, preset, lane);
            memcpy(warp.registers + preset.offset + lane * preset.width, &value, preset.width);
        }
    const u32* threads = warp.launch.threads;
    const int left = int(threads[0] * threads[1] * threads[2]) - warp.index * LANES;
    warp.alive = left >= LANES ? FULL : (1u << left) - 1;
    warp.state = Warp::READY;
    warp.steps = 0;
    warp.fragments = {{0, warp.alive}};
    warp.clocks.assign(warp.block.agents, 0);
    warp.clocks[warp.index] = 1;
    warp.converged_clock = 0;
    warp.copies.clear();
    std::fill(warp.committed, warp.committed + LANES, 0);
    warp.reduction = nullptr;
    warp.wgmma_groups = 0;
    warp.wgmma_fenced = false;
    warp.wgmma_finished = 0;
    warp.sums.assign(program.register_bytes / Warp::REGISTER + 1, 0);
    warp.held_registers = 0;
    warp.fence_clock = 0;
    warp.fence_clocks.clear();
    warp.published.clear();
    warp.published_by = {};
    warp.heard.clear();
    warp.heard_by = 0;
    warp.last_array = nullptr;
}

// Takes the fragment with the lowest pc and what waits or goes on at the same pc.
inline Fragment take_lowest(std::vector<Fragment>& fragments, std::vector<Fragment>& stuck)
{
    auto before = [](const Fragment& a, const Fragment& b) { return a.pc < b.pc; };
    Fragment lowest{std::min_element(fragments.begin(), fragments.end(), before)->pc, 0};
    for (auto* group : {&fragments, &stuck})
        std::erase_if(*group, [&](const Fragment& other) {
            if (other.pc == lowest.pc) lowest.mask |= other.mask;
            return other.pc == lowest.pc;
        });
    return lowest;
}

// Where the fragment may meet others.
inline int next_join(const Warp& warp, const std::vector<Fragment>& stuck, int pc)
{
    int join = INT32_MAX;
    for (const Fragment& other : warp.fragments) join = std::min(join, other.pc);
    for (const Fragment& other : stuck)
        if (other.pc > pc) join = std::min(join, other.pc);
    return join;
}

inline bool lanes_missing(Warp& warp, const Instr& instr, u32 fragment, u32 mask)
{
    if (instr.kind == Kind::YIELDING || (mask == fragment && fragment == warp.alive)) return false;
    const u32 needed = instr.member_mask < 0 ? warp.alive : warp.lanes<u32>(instr.operand[instr.member_mask])[std::countr_zero(mask)];
    if (needed & ~warp.alive) warp.fail("member mask of a .sync instruction names lanes that have exited");
    return needed & ~mask;
}

enum class Next { GO_ON, FRAGMENT_ENDS };

// A branch, an exit or an instruction of several lanes.
inline Next control(Warp& warp, const Instr& instr, Fragment& fragment, u32 mask, std::vector<Fragment>& stuck)
{
    if (!mask) {
        ++fragment.pc;
        return Next::GO_ON;
    }
    if (instr.kind == Kind::BRANCH) {
        const int target = int(instr.attribute[0]);
        if (mask == fragment.mask) {
            const bool back = target <= fragment.pc;
            fragment.pc = target;
            if (!back || stuck.empty()) return Next::GO_ON;
            warp.fragments.push_back(fragment);  // it may come to lanes that wait for it before where it was
            return Next::FRAGMENT_ENDS;
        }
        warp.fragments.push_back({fragment.pc + 1, fragment.mask & ~mask});
        warp.fragments.push_back({target, mask});
        return Next::FRAGMENT_ENDS;
    }
    if (instr.kind == Kind::EXIT) {
        warp.alive &= ~mask;
        fragment.mask &= ~mask;
        ++fragment.pc;
        return fragment.mask ? Next::GO_ON : Next::FRAGMENT_ENDS;
    }
    if (lanes_missing(warp, instr, fragment.mask, mask)) {
        stuck.push_back(fragment);
        return Next::FRAGMENT_ENDS;
    }
    instr.execute(warp, instr, mask);
    if (instr.kind != Kind::RETRYING || warp.state != Warp::SPINNING) ++fragment.pc;
    if (warp.state == Warp::READY) return Next::GO_ON;
    warp.fragments.push_back(fragment);
    return Next::FRAGMENT_ENDS;
}

inline void count_instruction(Warp& warp, u32 mask)
{
    Counters& counters = warp.counters();
    ++counters.instructions;
    counters.lanes += std::popcount(mask);
}

// Runs lanes at the same pc until they meet others, split, have to wait, or the quantum is used up.
inline void run_fragment(Warp& warp, Fragment fragment, std::vector<Fragment>& stuck, u64& quantum)
{
    const Instr* code = warp.program.code.data();
    const bool count = warp.launch.options.count;
    const int join = next_join(warp, stuck, fragment.pc);
    for (;;) {
        const Instr& instr = code[fragment.pc];
        warp.pc = fragment.pc;
        u32 mask = fragment.mask;
        if (instr.predicate >= 0) {
            const u32 guard = warp.predicate(instr.predicate);
            mask &= instr.negated ? ~guard : guard;
        }
        if (count) count_instruction(warp, mask);
        if (instr.kind == Kind::PLAIN) {
            if (mask) instr.execute(warp, instr, mask);
            ++fragment.pc;
        } else if (control(warp, instr, fragment, mask, stuck) == Next::FRAGMENT_ENDS) {
            return;
        }
        if (++warp.steps % 4096 == 0 && warp.steps > warp.launch.options.max_steps)
            warp.fail("instruction limit reached (endless loop?)");
        if (fragment.pc >= join || --quantum == 0) {
            warp.fragments.push_back(fragment);
            return;
        }
    }
}

inline void finish(Warp& warp)
{
    warp.state = Warp::DONE;
    ++warp.block.progress;
    if (!warp.copies.empty()) warp.launch.report("kernel exits with cp.async still in flight");
}

// Lanes that diverge become fragments; the one with the lowest pc runs, which merges them again where they join.
inline void run_warp(Warp& warp, u64 quantum)
{
    std::vector<Fragment> stuck;  // waiting for the rest of the warp
    while (warp.state == Warp::READY && quantum) {
        if (!warp.fragments.empty()) {
            run_fragment(warp, take_lowest(warp.fragments, stuck), stuck, quantum);
        } else if (stuck.empty()) {
            finish(warp);
        } else {
            warp.pc = stuck[0].pc;
            warp.fail("warp-collective or barrier instruction reached by only some lanes of the warp (mask " + hex(stuck[0].mask) + ")");
        }
    }
    warp.fragments.insert(warp.fragments.end(), stuck.begin(), stuck.end());
}

// ---------------------------------------------------------------- one block

inline void reset(Block& block)
{
    const Program& program = block.launch.program;
    block.shared.assign(dynamic_start(program) + block.launch.dynamic_shared, char(0xcd));
    block.granule_shift = std::countr_zero(unsigned(program.granule));
    const size_t granules = (block.shared.size() >> block.granule_shift) + 1;
    block.writes.assign(granules, LastWrite{});
    if (block.launch.options.check_shared) {
        block.reads.assign(granules * block.agents, LastRead{});
        for (auto [offset, size] : program.gaps)
            for (int byte = 0; byte < size; ++byte) block.writes[block.first_granule(SHARED_BASE + offset + byte)].flight = LastWrite::NO_VARIABLE;
    }
    block.mbarriers.clear();
    block.tma.clear();
    block.tma_clock = 0;
    block.free_registers = 0;
    block.acquired.clear();
    for (auto& barrier : block.named) barrier = {};
    for (Warp* warp : block.warps) reset(*warp);
}

[[noreturn]] inline void deadlock(const Block& block)
{
    std::string message = text(block.launch.program.name, ": deadlock in block (", block.index[0], ",", block.index[1], ",", block.index[2], ")");
    for (const Warp* warp : block.warps) {
        if (warp->state == Warp::DONE) continue;
        message += text("\n  warp ", warp->index);
        message += warp->state == Warp::AT_BARRIER ? text(" waits at barrier ", warp->barrier_id) : " spins";
        message += ": " + warp->where(warp->pc);
    }
    throw Error(message);
}

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

// A barrier of the whole block also completes when the remaining threads exit.
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

// The TMA engine completes copies in any order: one when all warps have had their turn, or at random none or several.
inline bool complete_tma(Block& block, bool ran)
{
    const Options& options = block.launch.options;
    size_t count = std::min<size_t>(1, block.tma.size());
    if (options.async_order == Options::RANDOM && !block.tma.empty()) count = block.random() % (block.tma.size() + 1);
    if (!count && !ran && !block.tma.empty()) count = 1;
    for (size_t k = 0; k < count; ++k) {
        const bool any = options.seed || options.async_order == Options::RANDOM;
        const size_t chosen = any ? block.random() % block.tma.size() : 0;
        const auto copy = block.tma[chosen];
        block.tma.erase(block.tma.begin() + chosen);
        copy();
    }
    return count;
}

inline void run_block(Block& block)
{
    reset(block);
    std::vector<int> order(block.warp_count);
    for (int index = 0; index < block.warp_count; ++index) order[index] = index;
    u64 seen = ~u64(0);
    int idle = 0;
    for (int live = block.warp_count; live;) {
        if (block.launch.options.seed) std::shuffle(order.begin(), order.end(), block.random);
        bool ran = run_warps(block, order);
        live = int(std::count_if(order.begin(), order.end(), [&](int index) { return block.warps[index]->state != Warp::DONE; }));
        ran |= complete_barriers(block, live);
        ran |= complete_tma(block, ran);
        if (block.progress != seen) {
            seen = block.progress;
            idle = 0;
        } else if (!ran && ++idle > 2) {
            deadlock(block);
        }
    }
    if (!block.launch.options.check_shared) return;
    for (auto& [address, barrier] : block.mbarriers)
        if (barrier.live && barrier.bytes) block.launch.report("kernel exits with bytes outstanding on an mbarrier");
}
