// Vector-clock operations of the race checks: what the lanes of a warp know of accesses by other agents.
//
// Releases (arrivals, barriers) call `tell`, acquires (waits) call `learn`, and the checks ask `knows`. Most lanes of a
// warp know the same, which is stored once in Warp::common; lanes that know more (Warp::apart) have a copy of their
// own.
#pragma once
#include "state.hpp"

// The knowledge of a lane: its own if it has more than the warp has in common.
inline const Knowledge& known_to(const Warp& warp, int lane) { return warp.apart >> lane & 1 ? *warp.own[lane] : warp.common; }

// Returns whether an agent's access at time `clock` happens before what the lane does now.
inline bool knows(const Warp& warp, int lane, u32 agent, u32 clock)
{
    return agent == warp.thread(lane) || clock < time_of(known_to(warp, lane).times, agent);
}

// Returns whether a proxy fence orders a thread's generic access at time `clock` before what the lane now has the
// asynchronous proxy (TMA, wgmma) do.
inline bool knows_fenced(const Warp& warp, int lane, u32 thread, u32 clock)
{
    return clock < (thread == warp.thread(lane) ? warp.own_fenced[lane] : time_of(known_to(warp, lane).fenced, thread));
}

// Release: adds to `others` what the lanes know, and everything that they did until now. The caller must then increment
// the warp's clock, so that later accesses are not included.
inline void tell(Warp& warp, u32 lanes, Knowledge& others)
{
    if (&others != &warp.common) others.join(warp.common);
    for_lanes(lanes & warp.apart, [&](int lane) { others.join(*warp.own[lane]); });
    for_lanes(lanes, [&](int lane) {
        raise(others.times, warp.thread(lane), warp.clock + 1);
        if (warp.own_fenced[lane]) raise(others.fenced, warp.thread(lane), warp.own_fenced[lane]);
        warp.released[lane] = warp.clock;
    });
}

// Acquire: the lanes know what is in `what`.
inline void learn(Warp& warp, u32 lanes, const Knowledge& what)
{
    if (lanes == warp.alive) {
        warp.common.join(what);
        lanes = warp.apart;
    }
    for_lanes(lanes, [&](int lane) {
        if (!(warp.apart >> lane & 1)) warp.own[lane] = std::make_unique<Knowledge>(warp.common);
        warp.apart |= 1u << lane;
        warp.own[lane]->join(what);
    });
}

// Synchronises all lanes of the warp: each knows what every other one did and knew.
inline void converge(Warp& warp)
{
    tell(warp, FULL, warp.common);
    warp.apart = 0;
    warp.converged_clock = ++warp.clock;
}

// __syncwarp(lanes).
inline void synchronise_lanes(Warp& warp, u32 lanes)
{
    if (lanes == warp.alive) return converge(warp);
    Knowledge all;
    tell(warp, lanes, all);
    ++warp.clock;
    learn(warp, lanes, all);
}

// fence.proxy.async by some lanes: covers the generic accesses that they know of, their own included.
inline void fence_for_async_proxy(Warp& warp, u32 lanes)
{
    auto fence = [&](Knowledge& known) {
        Times threads(known.times.begin(), known.times.begin() + std::min<size_t>(known.times.size(), warp.block.warp_count * LANES));
        join(known.fenced, threads);
    };
    if (lanes == warp.alive) fence(warp.common);
    else learn(warp, lanes, {});
    for_lanes(lanes, [&](int lane) {
        if (warp.apart >> lane & 1) fence(*warp.own[lane]);
        warp.own_fenced[lane] = warp.clock + 1;
    });
    ++warp.clock;
}

// Returns whether the lane has synchronised with any of the lanes of `deed` since then.
inline bool comes_after(const Warp& warp, const Deed& deed, int lane)
{
    bool found = false;
    for_lanes(deed.lanes, [&](int other) { found |= knows(warp, lane, u32(deed.warp * LANES + other), deed.clock); });
    return found;
}
