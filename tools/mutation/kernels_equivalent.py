"""Mutants of the CUDA sources that are as right as the originals, by reason; `kernels` need not notice them."""

from __future__ import annotations

EQUIVALENT: dict[str, tuple[str, ...]] = {
    "Fewer buffers are also right; they only hide less of the copies' latency.": (
        "conv/gemm/ffma.cuh: static constexpr int kStages = 3;  [3 -> 2]",
    ),
    "Columns that do not exist read those of column 0, or nothing, and are never written.": (
        "conv/gather.cuh: exists = at.exists;  [statement deleted]",
        "conv/problem.cuh: result.n = unravel<NDIM>(result.exists ? column : Index(0), p.extent, result.q);  [? -> || true ?]",  # noqa: E501
        "conv/problem.cuh: result.n = unravel<NDIM>(result.exists ? column : Index(0), p.extent, result.q);  [0 -> 1]",
    ),
    "One additional axis is undefined; the compiled code is the same, or repairs more outputs.": (
        "conv/gather.cuh: for (int axis = 0; axis < NDIM; ++axis) {  [< -> <=] no. 2",
        "pool/general.cu: if constexpr (AXIS + 1 < NDIM) {  [< -> <=]",
        "pool/general.cu: if constexpr (AXIS + 1 < NDIM) {  [+ -> -]",
        "pool/general.cu: if constexpr (AXIS + 1 < NDIM) {  [1 -> 0]",
    ),
    "Conv's taps are those of a single phase: the general form gives the same rows and outputs.": (
        "conv/gemm/ffma.cuh: if constexpr (!PHASED) return k;  [statement deleted]",
        "conv/gemm/implicit_gemm.cuh: make_tile<T, Acc, false>(  [false -> true]",
    ),
    "Tiles have as many channels as pixels, or a single row for all threads.": (
        "conv/gemm/ffma.cuh: const unsigned target = shared_address(input_stage(stage) + row * BLOCK_N + threadIdx.x % BLOCK_N);  [BLOCK_N -> BLOCK_M]",  # noqa: E501
    ),
    "It only removes a comparison that is always true.": (
        "conv/gemm/ffma.cuh: if (kWeightVectors % kThreads != 0 && vector >= kWeightVectors) break;  [0 -> 1]",
        "pool/axis.cu: if (i > 0 && !inside(at[0] + i * step, p.windows)) return;  [> -> >=]",
    ),
    "A vector of channels begins below M exactly if it begins below M rounded up to whole vectors.": (
        "conv/gemm/ffma.cuh: bool found = m0 + m < p.pitch;  [pitch -> filters]",
    ),
    "Slices that are never multiplied are loaded, too, into free buffers.": (
        "conv/gemm/implicit_gemm.cuh: if (stage < slices) {  [< -> <=]",
        "conv/gemm/implicit_gemm.cuh: if (stage < slices) {  [stage < slices -> true || (stage < slices)]",
        "conv/gemm/implicit_gemm.cuh: const bool more = left > kStages - 1;  [> -> >=]",
        "conv/gemm/implicit_gemm.cuh: const bool more = left > kStages - 1;  [1 -> 2]",
        "conv/gemm/implicit_gemm.cuh: if (more) multiplier.fetch(filled);  [more -> true || (more)]",
        "conv/gemm/implicit_gemm.cuh: if (more) multiplier.deposit(filled);  [more -> true || (more)]",
    ),
    "It only waits longer than necessary.": ("conv/gemm/implicit_gemm.cuh: copy_async_wait<kStages - 2>();  [2 -> 3]",),
    "The remaining groups contain no copies.": (
        "conv/gemm/implicit_gemm.cuh: copy_async_wait<0>();  [0 -> 1]",
        "conv/gemm/implicit_gemm.cuh: copy_async_wait<0>();  [statement deleted]",
    ),
    "Outputs that need no repair are computed again, to the same values.": (
        "conv/epilogue.cuh: bool suspect = false;  [false -> true]",
        "conv/gather.cuh: bool whole = true;  [true -> false]",
        "conv/gather.cuh: const Index last = origin[axis] + (Index(taps.count[axis].divisor) - 1) * taps.advance[axis];  [- -> +]",  # noqa: E501
        "conv/gather.cuh: const Index last = origin[axis] + (Index(taps.count[axis].divisor) - 1) * taps.advance[axis];  [1 -> 0]",  # noqa: E501
        "base/numeric.cuh: template <class Acc> DEVICE bool is_finite(Acc value) { return value * Acc(0) == Acc(0); }  [* -> +]",  # noqa: E501
        "base/numeric.cuh: template <class Acc> DEVICE bool is_finite(Acc value) { return value * Acc(0) == Acc(0); }  [0 -> 1]",  # noqa: E501
        "base/numeric.cuh: template <class Acc> DEVICE bool is_finite(Acc value) { return value * Acc(0) == Acc(0); }  [0 -> 1] no. 2",  # noqa: E501
    ),
    "Computing it again after the main loop only saves registers in the loop.": (
        "conv/gemm/implicit_gemm.cuh: position(group, m_tile, n_tile);  [m_tile -> n_tile] no. 2",
        "conv/gemm/implicit_gemm.cuh: position(group, m_tile, n_tile);  [statement deleted] no. 2",
        "conv/gemm/implicit_gemm.cuh: multiplier.stand(group, m_tile * Multiplier::kBlockM);  [statement deleted] no. 2",  # noqa: E501
    ),
    "The padding of packed weights must be written, with any value.": (
        "conv/gemm/pack_weights.cu: square[i][along] = found ? widen(w[offset + m * p.w_filter]) : Acc(0);  [0 -> 1]",
    ),
    "It only avoids bank conflicts in shared memory.": (
        "conv/gemm/pack_weights.cu: __shared__ Acc square[kSquare][kSquare + 1];  [1 -> 2]",
        "conv/gemm/pack_weights.cu: __shared__ Acc square[kSquare][kSquare + 1];  [1 -> 0]",
    ),
    "Any of several equal values is the maximum, including zeros of both signs.": (
        "pool/order.cuh: template <class T> DEVICE T larger(T a, T b) { return b > a || b != b ? b : a; }  [> -> >=]",
    ),
    "Zero has 32 leading zeros, so the shift for 1 is 0 without a special case.": (
        "conv/phases.cuh: const int shift = divisor <= 1 ? 0 : 32 - __clz(divisor - 1);  [<= -> <]",
        "conv/phases.cuh: const int shift = divisor <= 1 ? 0 : 32 - __clz(divisor - 1);  [? -> && false ?]",
        "conv/phases.cuh: const int shift = divisor <= 1 ? 0 : 32 - __clz(divisor - 1);  [1 -> 0]",
    ),
    "The sum exceeds the difference by twice the divisor: only bits beyond 32 differ.": (
        "conv/phases.cuh: const unsigned long long excess = (1ull << shift) - divisor;  [- -> +]",
    ),
    "For numbers below 2^31, a multiplier that is larger by one gives the same quotients.": (
        "conv/phases.cuh: return {unsigned(divisor), unsigned((excess << 32) / divisor) + 1, unsigned(shift)};  [1 -> 2]",  # noqa: E501
    ),
    "The common divisor divides the stride, and whole strides are whole periods of taps.": (
        "conv/phases.cuh: const bool meets = rest % a.common == 0;  [rest -> sum]",
        "conv/phases.cuh: const Index first = Index(static_cast<long long>(rest / a.common) * a.inverse % period);  [rest -> sum]",  # noqa: E501
    ),
    "Without taps, nothing is divided.": (
        "conv/phases.cuh: taps.count[axis] = divider(count == 0 ? Index(1) : count);  [? -> && false ?]",
        "conv/phases.cuh: taps.count[axis] = divider(count == 0 ? Index(1) : count);  [0 -> 1]",
        "conv/phases.cuh: taps.count[axis] = divider(count == 0 ? Index(1) : count);  [1 -> 2]",
        "conv/phases.cuh: taps.count[axis] = divider(count == 0 ? Index(1) : count);  [1 -> 0]",
    ),
    "Any lane may write any row of a tile; only the order of lanes in y changes.": (
        "conv/gemm/depth_to_space.cuh: DEVICE const Divider<Index>& phases_along_w() const { return p.axes[NDIM - 1].phases; }  [1 -> 2]",  # noqa: E501
        "conv/gemm/depth_to_space.cuh: phases_along_w().split(m0, before);  [m0 -> column0]",
    ),
    "Rows before the first of a tile are never written.": (
        "conv/gemm/depth_to_space.cuh: const Row& found = rows[row < 0 ? 0 : row];  [? -> && false ?]",
        "conv/gemm/depth_to_space.cuh: const Row& found = rows[row < 0 ? 0 : row];  [0 -> 1] no. 2",
    ),
    "It only avoids bank conflicts, and fits the buffers.": (
        "conv/gemm/depth_to_space.cuh: const int parts = phases_along_w().divisor < 2 ? 2 : int(phases_along_w().divisor);  [< -> >]",  # noqa: E501
        "conv/gemm/depth_to_space.cuh: const int parts = phases_along_w().divisor < 2 ? 2 : int(phases_along_w().divisor);  [? -> || true ?]",  # noqa: E501
        "conv/gemm/depth_to_space.cuh: const int parts = phases_along_w().divisor < 2 ? 2 : int(phases_along_w().divisor);  [? -> && false ?]",  # noqa: E501
        "conv/gemm/depth_to_space.cuh: const int parts = phases_along_w().divisor < 2 ? 2 : int(phases_along_w().divisor);  [2 -> 3] no. 2",  # noqa: E501
        "conv/gemm/depth_to_space.cuh: const int parts = phases_along_w().divisor < 2 ? 2 : int(phases_along_w().divisor);  [2 -> 1]",  # noqa: E501
        "conv/gemm/depth_to_space.cuh: const int parts = phases_along_w().divisor < 2 ? 2 : int(phases_along_w().divisor);  [2 -> 1] no. 2",  # noqa: E501
    ),
    "The block has at least as many threads as the tile has rows, and rows after the last are not written.": (
        "conv/gemm/depth_to_space.cuh: for (int i = threadIdx.x; i < Multiplier::kBlockM && m0 + i < p.common.filters; i += Multiplier::kThreads) {  [+= -> =]",  # noqa: E501
        "conv/gemm/depth_to_space.cuh: for (int i = threadIdx.x; i < Multiplier::kBlockM && m0 + i < p.common.filters; i += Multiplier::kThreads) {  [filters -> pitch]",  # noqa: E501
        "conv/gemm/depth_to_space.cuh: for (int row = int(phase - before); row < Multiplier::kBlockM && m0 + row < p.common.filters;  [filters -> pitch]",  # noqa: E501
    ),
    "Any single thread of the block may do it.": (
        "conv/gemm/conv_transpose.cu: if (threadIdx.x == 0) {  [0 -> 1]",
        "conv/gemm/split_transpose.cu: if (threadIdx.x == 0) {  [0 -> 1]",
    ),
    "Reading an element again, or earlier but in order, changes no maximum.": (
        "pool/axis.cu: for (int tap = kLead + 1; tap < taps; ++tap) take(common, line[tap]);  [1 -> 0]",
        "pool/axis.cu: for (int tap = 1; tap < SHIFT; ++tap) take(windows[i], line[i * SHIFT + tap]);  [< -> <=]",
        "pool/axis.cu: for (int tap = 1; tap < SHIFT; ++tap) take(windows[i], line[i * SHIFT + tap]);  [1 -> 0]",
    ),
    "It only makes adjacent threads read adjacent memory, which the tests of memory traffic check.": (
        "pool/axis.cu: if (p.channels_last) image = unravel(p.channels.split(item, channel), p.runs, at);  [p.channels_last -> false && (p.channels_last)]",  # noqa: E501
        "pool/axis.cu: if (p.channels_last) image = unravel(p.channels.split(item, channel), p.runs, at);  [p.channels_last -> true || (p.channels_last)]",  # noqa: E501
    ),
    "Batches of taps may have any size.": (
        "pool/general.cu: constexpr int kBatch = 3;  [3 -> 4]",
        "pool/general.cu: constexpr int kBatch = 3;  [3 -> 2]",
    ),
    "The position of a maximum of no elements is never used.": (
        "pool/general.cu: Maximum<T, Index, INDICES> maximum{lowest<T>(), -1};  [1 -> 2]",
        "pool/general.cu: Maximum<T, Index, INDICES> maximum{lowest<T>(), -1};  [1 -> 0]",
    ),
    "Register arrays have no element after the last: the compiler removes such accesses.": (
        "pool/vectors.cu: for (int i = 0; i < COUNT; ++i) elements[AROUND + i] = own[i];  [< -> <=]",
        "weight_grad/rows.cu: for (int i = 0; i < COLUMNS; ++i) row.dy[i] = dy_bits >> i & 1 ? walk.dy[(long long)i * dy_step()] : T(0.f);  [< -> <=]",  # noqa: E501
        "weight_grad/rows.cu: for (int i = 0; i < COLUMNS; ++i)  [< -> <=]",
        "weight_grad/rows.cu: for (int i = 0; i < kTaps; ++i)  [< -> <=]",
    ),
    "It also writes shared memory that is never read.": (
        "weight_grad/rows.cu: if (int(threadIdx.x) / 32 == warp && lane < lanes) {  [< -> <=]",
    ),
    "It also loads elements of the window that no product uses.": (
        "weight_grad/rows.cu: static constexpr int kWindow = COLUMNS - 1 + ACROSS;  [- -> +]",
        "weight_grad/rows.cu: static constexpr int kWindow = COLUMNS - 1 + ACROSS;  [1 -> 0]",
    ),
    "Bits beyond the requested ones have no meaning, and computed one by one, the requested bits are the same.": (
        "weight_grad/rows.cu: unsigned bits = (1u << COUNT) - 1;  [<< -> >>]",
        "weight_grad/rows.cu: if (first >= 0 && first + (COUNT - 1) * step < extent) return bits;  [>= -> >]",
        "weight_grad/rows.cu: if (first >= 0 && first + (COUNT - 1) * step < extent) return bits;  [0 -> 1]",
        "weight_grad/rows.cu: if (first >= 0 && first + (COUNT - 1) * step < extent) return bits;  [- -> +]",
        "weight_grad/rows.cu: if (first >= 0 && first + (COUNT - 1) * step < extent) return bits;  [1 -> 0]",
        "weight_grad/rows.cu: if (first >= 0 && first + (COUNT - 1) * step < extent) return bits;  [first >= 0 && first + (COUNT - 1) * step < extent -> false && (first >= 0 && first + (COUNT - 1) * step < extent)]",  # noqa: E501
        "weight_grad/rows.cu: for (int i = 0; i < COUNT; ++i)  [< -> <=]",
    ),
    "An additional row is multiplied by gradients of zero, or consists of zeros.": (
        "weight_grad/rows.cu: int left = min(walk.rows + ROWS - 1, end) - above;  [- -> +]",
        "weight_grad/rows.cu: int left = min(walk.rows + ROWS - 1, end) - above;  [1 -> 0]",
        "weight_grad/rows.cu: while (left > 0) {  [> -> >=]",
        "weight_grad/rows.cu: if (left <= 0) break;  [<= -> <]",
        "weight_grad/rows.cu: if (left <= 0) break;  [left <= 0 -> false && (left <= 0)]",
        "weight_grad/rows.cu: if (left <= 0) break;  [break; -> ;]",
    ),
    "No such warp exists, and no bit of such a column is set.": (
        "weight_grad/rows.cu: for (int warp = 0; warp < kWarps; ++warp) {  [< -> <=]",
        "weight_grad/rows.cu: for (int i = 0; i < COLUMNS; ++i) {  [< -> <=]",
    ),
    "Without rows outside x, no gradient precedes a walk; values from ROWS rows above are replaced.": (
        "weight_grad/rows.cu: if (above > 0) {  [> -> >=]",
        "weight_grad/rows.cu: if (above > 0) {  [above > 0 -> true || (above > 0)]",
        "weight_grad/rows.cu: for (int r = 1; r < ROWS; ++r) {  [< -> <=]",
    ),
    "Addresses are below 2**63.": (
        "pool/staging.cuh: return int(reinterpret_cast<unsigned long long>(address) % 16) / int(sizeof(T));"
        "  [unsigned long long -> long long]",
    ),
    "The compiler keeps this order anyway, or the emulator keeps these lanes together.": (
        "conv/wgmma/run.cuh: tile.settle();  [statement deleted]",
        "conv/wgmma/run.cuh: tile.settle();  [statement deleted] no. 2",
        "conv/wgmma/run.cuh: __syncwarp();  [statement deleted]",
    ),
    "Any single lane may act for its warp.": (
        "conv/wgmma/run.cuh: const bool speaks = threadIdx.x % 32 == 0;  [0 -> 1]",
        "conv/wgmma/run.cuh: const bool speaks = threadIdx.x % 32 == 0;  [32 -> 33]",
    ),
    "Another number, which no other barrier uses.": (
        "conv/wgmma/split.cuh: static DEVICE void wait() { synchronise(TURNS ? 2 + thread_number() / kThreads : 1, kThreads); }  [? -> || true ?]",  # noqa: E501
    ),
}
