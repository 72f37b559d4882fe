// Tensor cores: ldmatrix and stmatrix, mma.sync, wgmma. Products are added in the order of k, in the accumulator's type.
#pragma once
#include "lanewise.hpp"
#include "memory.hpp"
#include "numbers.hpp"

// ---------------------------------------------------------------- ldmatrix, stmatrix

struct MatrixAccess {
    s64 offset, base_width, matrices, transposed;
};

// Operands: address, one register per matrix. Lane l gives the address of row l % 8 of matrix l / 8.
template <bool LOAD> void move_matrices(Warp& warp, const Instr& instr, u32 mask)
{
    if (mask != FULL) warp.fail("ldmatrix or stmatrix in divergent code");
    const auto& access = instr.as<MatrixAccess>();
    const int rows = 8 * int(access.matrices);
    u32 addresses[LANES];
    char* row[LANES];
    for (int lane = 0; lane < rows; ++lane)
        addresses[lane] = u32(base_address(warp, instr.operand[0], access.base_width, lane) + access.offset);
    if (warp.launch.options.count) count_wavefronts(warp, addresses, rows == 32 ? FULL : (1u << rows) - 1, 16);
    for (int lane = 0; lane < rows; ++lane) row[lane] = resolve<SHARED>(warp, addresses[lane], 16, !LOAD, lane);
    for (int matrix = 0; matrix < access.matrices; ++matrix) {
        u16* values = warp.lanes<u16>(instr.operand[1 + matrix]);
        for (int k = 0; k < 2 * LANES; ++k) {  // lane k / 2 holds elements k and k + 1
            const int r = access.transposed ? k % 8 : k / 8, c = access.transposed ? k / 8 : k % 8;
            char* memory = row[8 * matrix + r] + 2 * c;
            if (LOAD) memcpy(&values[k], memory, 2);
            else memcpy(memory, &values[k], 2);
        }
    }
}

// ---------------------------------------------------------------- fragments

// Where an element of a fragment is: lane l holds rows l / 4 (+ 8) and consecutive columns from l % 4 on.
struct Place {
    int row, column;
};

// A: M rows of k; several 16-bit elements share a register.
template <int M, int PER_REGISTER> inline Place place_a(int lane, int reg, int element)
{
    constexpr int HALVES = M / 8;
    return {lane / 4 + 8 * (reg % HALVES), (reg / HALVES * 4 + lane % 4) * PER_REGISTER + element};
}

template <class T> inline auto fragment_element(Warp& warp, int reg, int lane, int per_register, int element)
{
    return widen(warp.lanes<T>(reg)[lane * per_register + element]);
}

struct FragmentCounts {
    s64 d, a, b, c;  // registers
};

// Operands: registers of d, a, b, c.
template <class AB, class ACC, int M, int N, int K> void mma(Warp& warp, const Instr& instr, u32 mask)
{
    if (mask != FULL) warp.fail("mma.sync in divergent code");
    using W = decltype(widen(AB{}));
    constexpr int PER_AB = sizeof(AB) >= 4 ? 1 : 4 / sizeof(AB), PER_ACC = sizeof(ACC) == 2 ? 2 : 1;
    const auto& count = instr.as<FragmentCounts>();
    const int *d = instr.operand, *a = d + count.d, *b = a + count.a, *c = b + count.b;
    alignas(64) W rows[M][K], columns[K][N], sums[M][N];
    auto place_c = [](int lane, int reg, int element) {
        const int k = reg * PER_ACC + element;  // two neighbours, then the rows 8 further down
        return Place{lane / 4 + 8 * (k / 2), 2 * (lane % 4) + k % 2};
    };
    for (int lane = 0; lane < LANES; ++lane) {
        for (int reg = 0; reg < count.a; ++reg)
            for (int e = 0; e < PER_AB; ++e) {
                const Place at = place_a<M, PER_AB>(lane, reg, e);
                rows[at.row][at.column] = fragment_element<AB>(warp, a[reg], lane, PER_AB, e);
            }
        for (int reg = 0; reg < count.b; ++reg)
            for (int e = 0; e < PER_AB; ++e)
                columns[(reg * 4 + lane % 4) * PER_AB + e][lane / 4] = fragment_element<AB>(warp, b[reg], lane, PER_AB, e);
        for (int reg = 0; reg < count.d; ++reg)
            for (int e = 0; e < PER_ACC; ++e) {
                const Place at = place_c(lane, reg, e);
                sums[at.row][at.column] = W(fragment_element<ACC>(warp, c[reg], lane, PER_ACC, e));
            }
    }
    for (int m = 0; m < M; ++m)
        for (int k = 0; k < K; ++k)
            for (int n = 0; n < N; ++n) sums[m][n] += rows[m][k] * columns[k][n];
    for (int lane = 0; lane < LANES; ++lane)
        for (int reg = 0; reg < count.d; ++reg)
            for (int e = 0; e < PER_ACC; ++e) {
                const Place at = place_c(lane, reg, e);
                warp.lanes<ACC>(d[reg])[lane * PER_ACC + e] = narrow<ACC>(canonical(sums[at.row][at.column]));
            }
    if (warp.launch.options.count) warp.counters().mma_macs += M * N * K;
}

// ---------------------------------------------------------------- wgmma

inline u32 swizzled(u32 address, int mode)  // 0: not at all, 1: 32 bytes, 2: 64 bytes, 3: 128 bytes
{
    return address ^ ((address >> 7 & ((1u << mode) - 1)) << 4);
}

// A shared-memory matrix descriptor of PTX.
struct Descriptor {
    u32 start, leading, stride;
    int swizzle;

    explicit Descriptor(u64 bits)
        : start((bits & 0x3fff) << 4), leading((bits >> 16 & 0x3fff) << 4), stride((bits >> 32 & 0x3fff) << 4)
    {
        const int mode = int(bits >> 62);
        swizzle = mode == 0 ? 0 : 4 - mode;
    }

    // Address of element (mn, k); mn_major: consecutive along mn instead of k.
    u32 at(int mn, int k, bool mn_major, int element) const
    {
        const int row_bytes = 16 << swizzle, row = row_bytes / element;  // of the pattern's eight rows
        const int along = mn_major ? mn : k, across = mn_major ? k : mn;
        u32 address = start + u32(across % 8) * row_bytes;
        if (swizzle && !mn_major) return swizzled(address + u32(across / 8) * stride + u32(along) * element, swizzle);
        const bool exchanged = !swizzle && mn_major;
        address += u32(across / 8) * (exchanged ? leading : stride) + u32(along / row) * (exchanged ? stride : leading);
        return swizzled(address + u32(along % row) * element, swizzle);
    }
};

// What the asynchronous proxy reads: ordinary writes must have been fenced.
inline void proxy_check(Warp& warp, u32 granule)
{
    const LastWrite& last = warp.block.writes[granule];
    if (!last.generic) return;
    const Warp& writer = *warp.block.warps[last.agent];
    const bool fenced_there = last.clock < writer.fence_clock;
    const bool fenced_here = !warp.fence_clocks.empty() && last.clock < warp.fence_clocks[last.agent];
    if (!fenced_there && !fenced_here)
        warp.launch.report("asynchronous-proxy read of data written by ordinary stores without fence.proxy.async" + warp.here() +
                           "\n    conflicts with " + warp.where(last.pc));
}

// The reads belong to the tensor cores of the warpgroup until wgmma.wait_group.
inline void check_tensor_reads(Warp& warp, std::vector<u32>& granules)
{
    Block& block = warp.block;
    const int tensor = block.tensor_agent(warp.index);
    std::sort(granules.begin(), granules.end());
    granules.erase(std::unique(granules.begin(), granules.end()), granules.end());
    for (u32 granule : granules) {
        const LastWrite& last = block.writes[granule];
        if (last.flight == LastWrite::IN_FLIGHT) warp.race("wgmma reads data still in flight", last.pc);
        else if (!last.written) warp.report("uninitialised shared memory read");
        else if (last.agent != warp.index && last.clock >= warp.clocks[last.agent]) warp.race("read after write", last.pc);
        proxy_check(warp, granule);
        block.reads_of(granule)[tensor] = {warp.wgmma_groups + 1, warp.pc, 0};
    }
}

struct Wgmma {
    s64 d, a, n, immediates, a_in_registers;  // registers of d and a
};

// One warp's quarter: 16 rows of A, all of B.
template <class AB> struct WgmmaTile {
    static constexpr int ELEMENT = sizeof(AB), K = 32 / ELEMENT, PER_REGISTER = 4 / ELEMENT;
    float a[16][K], b[K][256], sums[16][256];
    std::vector<u32> granules;  // that were read

    float fetch(Warp& warp, const Descriptor& matrix, int mn, int k, bool mn_major)
    {
        const u32 address = matrix.at(mn, k, mn_major, ELEMENT);
        if (address < SHARED_BASE || u64(address) + ELEMENT > warp.block.shared.size()) warp.fail("wgmma operand outside shared memory");
        granules.push_back(warp.block.first_granule(address));
        AB value;
        memcpy(&value, warp.block.shared.data() + address, ELEMENT);
        return widen(value);
    }

    void a_from_registers(Warp& warp, const int* registers, int count, float scale)
    {
        for (int lane = 0; lane < LANES; ++lane)
            for (int reg = 0; reg < count; ++reg)
                for (int e = 0; e < PER_REGISTER; ++e) {
                    const Place at = place_a<16, PER_REGISTER>(lane, reg, e);
                    a[at.row][at.column] = scale * fragment_element<AB>(warp, registers[reg], lane, PER_REGISTER, e);
                }
    }

    void a_from_memory(Warp& warp, const Descriptor& matrix, bool mn_major, float scale)
    {
        const int first_row = warp.index % 4 * 16;
        for (int row = 0; row < 16; ++row)
            for (int k = 0; k < K; ++k) a[row][k] = scale * fetch(warp, matrix, first_row + row, k, mn_major);
    }

    void b_from_memory(Warp& warp, const Descriptor& matrix, int count, bool mn_major, float scale)
    {
        for (int n = 0; n < count; ++n)
            for (int k = 0; k < K; ++k) b[k][n] = scale * fetch(warp, matrix, n, k, mn_major);
    }

    void multiply(int count)
    {
        for (int row = 0; row < 16; ++row)
            for (int k = 0; k < K; ++k)
                for (int n = 0; n < count; ++n) sums[row][n] += a[row][k] * b[k][n];
    }
};

// Operands: registers of d, of a (or its descriptor), b, scale of d, immediates.
template <class AB> void wgmma(Warp& warp, const Instr& instr, u32 mask)
{
    if (mask != FULL) warp.fail("wgmma in divergent code");
    if (!warp.wgmma_fenced) warp.report("wgmma.mma_async without wgmma.fence first");
    const auto& shape = instr.as<Wgmma>();
    const int *d = instr.operand, *a = d + shape.d, *b = a + shape.a, *scale_d = b + 1;
    auto immediate = [&](int k) { return k < shape.immediates ? warp.lanes<s32>(scale_d[1 + k])[0] : 0; };
    const float scale_a = immediate(0) < 0 ? -1.f : 1.f, scale_b = immediate(1) < 0 ? -1.f : 1.f;
    auto tile = std::make_unique<WgmmaTile<AB>>();
    if (shape.a_in_registers) tile->a_from_registers(warp, a, int(shape.a), scale_a);
    else tile->a_from_memory(warp, Descriptor(warp.lanes<u64>(a[0])[0]), immediate(2), scale_a);
    const bool b_transposed = immediate(shape.a_in_registers ? 2 : 3);
    tile->b_from_memory(warp, Descriptor(warp.lanes<u64>(b[0])[0]), int(shape.n), b_transposed, scale_b);
    auto for_sums = [&](auto f) {
        for (int reg = 0; reg < shape.d; ++reg)
            for (int lane = 0; lane < LANES; ++lane)
                f(warp.lanes<float>(d[reg])[lane], tile->sums[lane / 4 + 8 * (reg / 2 % 2)][reg / 4 * 8 + lane % 4 * 2 + reg % 2]);
    };
    const bool add = warp.predicate(scale_d[0]) & 1;
    for_sums([&](float& value, float& sum) { sum = add ? value : 0.f; });
    tile->multiply(int(shape.n));
    for_sums([&](float& value, float& sum) { value = canonical(sum); });
    for (int reg = 0; reg < shape.d; ++reg) warp.group_of_sums(d[reg]) = warp.wgmma_groups + 1;
    if (warp.launch.options.count) warp.counters().mma_macs += 16 * shape.n * WgmmaTile<AB>::K;
    if (warp.launch.options.check_shared) check_tensor_reads(warp, tile->granules);
}

// Needs all four warps to have issued the groups.
inline void wgmma_wait(Warp& warp, const Instr& instr, u32)
{
    Block& block = warp.block;
    const u32 keep = warp.lanes<u32>(instr.operand[0])[0];
    const int first = warp.index / 4 * 4;
    for (int k = first; k < std::min(block.warp_count, first + 4); ++k) {
        if (block.warps[k]->state == Warp::DONE || block.warps[k]->wgmma_groups >= warp.wgmma_groups) continue;
        warp.state = Warp::SPINNING;
        return;
    }
    u32& finished = warp.clocks[block.tensor_agent(warp.index)];
    warp.wgmma_finished = std::max(warp.wgmma_finished, warp.wgmma_groups - std::min(keep, warp.wgmma_groups));
    finished = std::max(finished, warp.wgmma_finished);
}

// Operands: registers that are read or written, and that a wgmma adds to somewhere in the kernel.
inline void check_sums(Warp& warp, const Instr& instr, u32)
{
    for (int k = 0; k < instr.operands; ++k) {
        if (warp.group_of_sums(instr.operand[k]) <= warp.wgmma_finished) continue;
        warp.report("sums of a wgmma that is not waited for (wgmma.wait_group)");
        return;
    }
}

// Registers that a warpgroup gets wait until others have given back as many. Operands: registers of a thread.
struct SetRegisters {
    s64 more, at_launch;
};

inline void set_registers(Warp& warp, const Instr& instr, u32)
{
    const auto& set = instr.as<SetRegisters>();
    const s64 wanted = warp.lanes<u32>(instr.operand[0])[0];
    if (!set.at_launch) warp.fail("setmaxnreg in a kernel without __launch_bounds__");
    if (wanted % 8 || wanted < 24 || wanted > 256) warp.fail("setmaxnreg takes multiples of 8 from 24 to 256");
    s64& held = warp.held_registers;
    if (!held) held = set.at_launch;
    if (set.more ? wanted < held : wanted > held) warp.fail(text("setmaxnreg the wrong way: each thread has ", held));
    const s64 missing = (wanted - held) * LANES;
    if (missing > warp.block.free_registers) {
        warp.state = Warp::SPINNING;
        return;
    }
    warp.block.free_registers -= missing;
    held = wanted;
    ++warp.block.progress;
}

inline void define_all_tensor(Table& table)
{
    table["ldmatrix"] = {move_matrices<true>, Kind::CONVERGED};
    table["stmatrix"] = {move_matrices<false>, Kind::CONVERGED};
    table["mma.m16n8k16.f32.bf16.bf16.f32"] = {mma<bf16, float, 16, 8, 16>, Kind::CONVERGED};
    table["mma.m16n8k16.f32.f16.f16.f32"] = {mma<f16, float, 16, 8, 16>, Kind::CONVERGED};
    table["mma.m16n8k16.f16.f16.f16.f16"] = {mma<f16, f16, 16, 8, 16>, Kind::CONVERGED};
    table["mma.m16n8k8.f32.bf16.bf16.f32"] = {mma<bf16, float, 16, 8, 8>, Kind::CONVERGED};
    table["mma.m16n8k8.f32.f16.f16.f32"] = {mma<f16, float, 16, 8, 8>, Kind::CONVERGED};
    table["mma.m16n8k8.f32.tf32.tf32.f32"] = {mma<tf32, float, 16, 8, 8>, Kind::CONVERGED};
    table["mma.m16n8k4.f32.tf32.tf32.f32"] = {mma<tf32, float, 16, 8, 4>, Kind::CONVERGED};
    table["mma.m8n8k4.f64.f64.f64.f64"] = {mma<double, double, 8, 8, 4>, Kind::CONVERGED};
    table["mma.m16n8k4.f64.f64.f64.f64"] = {mma<double, double, 16, 8, 4>, Kind::CONVERGED};
    table["mma.m16n8k8.f64.f64.f64.f64"] = {mma<double, double, 16, 8, 8>, Kind::CONVERGED};
    table["mma.m16n8k16.f64.f64.f64.f64"] = {mma<double, double, 16, 8, 16>, Kind::CONVERGED};
    table["wgmma.f32.bf16"] = {wgmma<bf16>, Kind::CONVERGED};
    table["wgmma.f32.f16"] = {wgmma<f16>, Kind::CONVERGED};
    table["wgmma.f32.tf32"] = {wgmma<tf32>, Kind::CONVERGED};
    table["wgmma.fence"] = {[](Warp& warp, const Instr&, u32) { warp.wgmma_fenced = true; }, Kind::CONVERGED};
    table["wgmma.commit_group"] = {[](Warp& warp, const Instr&, u32) {
        ++warp.wgmma_groups;
        warp.wgmma_fenced = false;
        ++warp.block.progress;
    }, Kind::CONVERGED};
    table["wgmma.wait_group"] = {wgmma_wait, Kind::RETRYING};
    table["sums.check"] = {check_sums};
    table["sums.copy"] = {[](Warp& warp, const Instr& instr, u32) {
        warp.group_of_sums(instr.operand[0]) = warp.group_of_sums(instr.operand[1]);
    }};
    table["setmaxnreg"] = {set_registers, Kind::RETRYING};
}
