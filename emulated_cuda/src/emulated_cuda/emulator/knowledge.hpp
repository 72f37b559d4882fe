// Who knows of whose accesses: what lanes tell each other, barriers and, later, other warps.
#pragma once
#include "state.hpp"

inline const Knowledge& known_to(const Warp& warp, int lane) { return warp.apart >> lane & 1 ? *warp.own[lane] : warp.common; }

// Does an access of this agent come before what the lane does now?
inline bool knows(const Warp& warp, int lane, u32 agent, u32 clock)
{
    return agent == warp.thread(lane) || clock < time_of(known_to(warp, lane).times, agent);
}

// Does a proxy fence stand between an access of this thread and what the lane lets the asynchronous proxy do now?
inline bool knows_fenced(const Warp& warp, int lane, u32 thread, u32 clock)
{
    return clock < (thread == warp.thread(lane) ? warp.own_fenced[lane] : time_of(known_to(warp, lane).fenced, thread));
}

// Lanes tell others what they did and know; then the warp's clock must go on.
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

// All lanes know now what each of them did and knew.
inline void converge(Warp& warp)
{
    tell(warp, FULL, warp.common);
    warp.apart = 0;
    warp.converged_clock = ++warp.clock;
}

// As __syncwarp does for its members.
inline void synchronise_lanes(Warp& warp, u32 lanes)
{
    if (lanes == warp.alive) return converge(warp);
    Knowledge all;
    tell(warp, lanes, all);
    ++warp.clock;
    learn(warp, lanes, all);
}

// What the lanes know of generic accesses, their own among them, is known to the asynchronous proxy.
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

// Does the lane come after what some lanes did at once? After one of them is enough.
inline bool comes_after(const Warp& warp, const Deed& deed, int lane)
{
    bool found = false;
    for_lanes(deed.lanes, [&](int other) { found |= knows(warp, lane, u32(deed.warp * LANES + other), deed.clock); });
    return found;
}
