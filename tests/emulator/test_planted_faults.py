"""Faults planted into gpuconv's kernels and plans, one for each kind of finding: the emulator reports kind and line.

Tests of the emulator itself (test_faults and test_hopper in emulated_cuda/tests) provoke each finding with kernels of a
few lines. The mutants of `tools.mutation.kernels` judge the problems that are used here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import gpuconv
from gpuconv import CompileError
from gpuconv.cuda.build import kernel_files, structs
from gpuconv.cuda.call import device
from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.gemm import ffma
from gpuconv.cuda.conv.problem import Problem
from tests.emulator import EmulatorError, emulated_cuda
from tests.harness.changed_kernels import changed_kernels, exchanged
from tests.harness.emulated import preferred
from tests.kernels import convolutions, passes, pools, wgmma
from tests.kernels.registry import including
from tests.kernels.specimen import Specimen
from tests.oracle import oracle
from tests.oracle.operands import filled

pytestmark = [pytest.mark.emulator, pytest.mark.usefixtures("cache_of_broken_kernels")]

IMPLICIT, PACK, GATHER = "conv/gemm/implicit_gemm.cuh", "conv/gemm/pack_weights.cu", "conv/gather.cuh"
EPILOGUE, TICKETS, TO_SPACE = "conv/epilogue.cuh", "base/tickets.cuh", "conv/gemm/depth_to_space.cuh"
WHOLE_TILE = "conv/gemm/whole_tile.cuh"
RUN, TILES, SLICES, STRIPS, PIXELS = (
    f"conv/wgmma/{name}.cuh" for name in ("run", "tiles", "slices", "strips", "pixels")
)
PRODUCTS_WAITED = "        products_wait<0>();\n"
FETCHED = "barrier_expect(ring.full(), Tile::kWeightBytes + Tile::kPixelBytes);"
STRIP_READ = "        proxy_fence();\n        __syncwarp(); // all of the warp have read the strip\n"
PIECE = "__syncwarp();\n                if (channels_last)"
MADE = "target = sum;\n    }\n    __syncthreads();"
SOUND = "if (__syncthreads_and(multiplier.sound())) return;"


def of(problems: Sequence[Specimen], part: str) -> Callable[..., Any]:
    """Return the first problem whose kernel has a name that contains `part`."""
    return next(one for one in problems if part in one.kernel)


GEMM = of(convolutions.CONVS, "conv_float32_3d_64x64x16_uniform")
ROWWISE = of(convolutions.CONVS, "conv_float64_3d_16x128x16")
SPLIT = of(convolutions.SPLIT, "conv_float32_3d_64x64x16_uniform_split")
TAPS = of(convolutions.TAP_ROWS, "float16_3d_mma_32x256")
PHASES = of(convolutions.PHASE_ROWS, "float16_3d_mma_16x128")
MMA = of(convolutions.TENSOR, "conv_float16_3d_mma_128x128x32_scalar")
POOL = of(pools.POOLS, "max_pool")
WGMMA = wgmma.WIDE


def every_other_channel(architecture: str | None = None, seed: int = 0) -> None:
    """Copy an x in which every other channel belongs to another array."""
    next(one for one in passes.PASSES if one.layout == "every other channel")(architecture)


@dataclass(frozen=True)
class Fault:
    """A fault that is planted into a kernel by replacing a piece of its source.

    Attributes
    ----------
    name, path : str
        Name of the fault, and file in kernels_cu.
    old, new : str
        The text that is replaced, and its replacement.
    call : callable
        Runs a problem in which the fault shows; other tests check that it is right without the fault.
    message : str
        Regular expression that the error must match.
    at : str
        Part of the source line that the error must name; "" if it need not name one.
    seeds : sequence of int
        Seeds of the scheduler to try; the fault must be found with one of them.
    """

    name: str
    path: str
    old: str
    new: str
    call: Callable[..., Any]
    message: str
    at: str = ""
    seeds: Sequence[int] = (0,)

    def run(self) -> None:
        for seed in self.seeds:
            self.call(None, seed=seed)


FAULTS = (
    # ---- shared memory
    Fault("a barrier is missing", IMPLICIT, "__syncthreads(); // the slice has arrived", "//", GEMM,
          "shared memory race", "rows[i] = *reinterpret_cast<const Vector*>"),
    Fault("a barrier of a warp is missing", EPILOGUE, PIECE, PIECE.replace("__syncwarp();", ""), ROWWISE,
          "shared memory race: read after write", "piece[(row + threadIdx.x"),
    Fault("what others still read is written", "conv/direct/few.cu",
          "__syncthreads(); // all threads have left the weights", "//", of(convolutions.FEW, "float32"),
          "shared memory race: write after read", "weights[i] ="),
    Fault("two threads write one element", "pool/runs.cuh", "* (RUN * step) + between", "* RUN + between",
          of(pools.TILE_POOLS, "float64"), "shared memory race: write after write"),
    Fault("what nobody wrote is read", "conv/gemm/ffma.cuh",
          "fetch_weights(stage, tap_row(taps, next.tap) + next.channel);", ";", GEMM,
          "uninitialised shared memory read", "rows[i] = *reinterpret_cast<const Vector*>"),
    Fault("a variable is too small", PACK, "square[kSquare][kSquare + 1]", "square[kSquare - 1][kSquare + 1]", GEMM,
          "outside every variable", "square[i][along] = found"),
    Fault("more is filled than there is", "conv/gemm/interleaved.cu", "if (threadIdx.x >= phases.divisor) return;",
          "", of(convolutions.INTERLEAVED, "float32_3d_64x64x16"), "shared memory out of bounds", "taps."),
    Fault("sums are made again before all are there", WHOLE_TILE, SOUND, SOUND.replace("__syncthreads_and", ""), TAPS,
          "shared memory race: read after write", "sound<Multiplier>(target)"),
    Fault("sums are read before they are made again", WHOLE_TILE, MADE, MADE.replace("__syncthreads();", ""), TAPS,
          "shared memory race: read after write", "sum += *row"),
    Fault("a copy is not waited for", IMPLICIT, "copy_async_wait<kStages - 2>", "copy_async_wait<kStages - 1>", GEMM,
          "an asynchronous copy is in flight", "rows[i] = *reinterpret_cast<const Vector*>"),
    Fault("one group of copies less is waited for", IMPLICIT, "copy_async_wait<kStages - 2>",
          "copy_async_wait<kStages - 1>", MMA, "an asynchronous copy is in flight"),
    # ---- global memory
    Fault("taps in the padding are read", GATHER, "found = found && inside(coordinate, p.x_extent[axis]);", "", ROWWISE,
          "global memory out of bounds: read of . bytes", "if constexpr (kAsync) copy_async<sizeof(T)>"),
    Fault("channels that are none are written", EPILOGUE, "!exists || m + row >= p.filters", "!exists", ROWWISE,
          "global memory out of bounds: write of . bytes", "= narrow<T>(sum);"),
    Fault("pixels that begin no output are written", "conv/gemm/tap_rows.cu", "|| at.q[2] >= p.width", "", TAPS,
          "global memory out of bounds: write of . bytes", "*target = narrow"),
    Fault("outputs that the padding cuts off are written", TO_SPACE, "inside(origin[axis] + found.phase[axis], ",
          "inside(found.phase[axis], ", PHASES, "global memory out of bounds: write of . bytes", "if (exists) y["),
    Fault("padding that nobody wrote is read", PACK, "m >= p.pitch", "m >= p.filters", ROWWISE,
          "uninitialised global read of weights", "copy_async<16>(shared_address(weight_stage(stage)"),
    Fault("tickets are not set to zero", TICKETS, "first[i] = 0;", ";", SPLIT,
          "uninitialised global read of workspace", "atomicAdd(ticket"),
    Fault("what lies between elements is read", "passes/channels_last.cu", "place - shift + kVector <= p.run",
          "true", every_other_channel, "global read between the elements of x"),
    Fault("an element is left out", "pool/general.cu", "if (output >= p.outputs) return false;",
          "if (output >= p.outputs - 1) return false;", POOL, "1 of .* elements of y, of shape .*, were never written"),
    Fault("two blocks write one element", IMPLICIT, "group, m_tile * Multiplier::kBlockM,",
          "group, m_tile * (Multiplier::kBlockM - 4),", ROWWISE, "race between blocks on y"),
    Fault("a block's sums are not published", TICKETS, "        __threadfence();\n        last = ", "        last = ",
          SPLIT, "race between blocks on workspace", "load_l2(source"),
    Fault("vectors are read wherever they begin", "pool/vectors.cu", "% (kOutputs * S * sizeof(T)) != 0", "% 1 != 0",
          of(pools.VECTOR_POOLS, "float32_3d_vectors_2x2"), "misaligned 16-byte access"),
    Fault("16 bytes are copied wherever rows begin", "conv/gemm/pointwise.cu", "steps % kVector) == 0",
          "steps % kVector) >= 0", of(convolutions.POINTWISE, "float32"), "misaligned cp.async", "copy_async<WIDTH"),
    # ---- barriers and warps
    Fault("one thread waits for the others", "conv/gemm/conv_transpose.cu", "taps);\n    }\n    __syncthreads();",
          "taps);\n    __syncthreads();\n    }", of(convolutions.TRANSPOSED, "float32_3d_16x128x16"),
          "reached by only some lanes", "__syncthreads();"),
    Fault("a kernel stops itself", "conv/wgmma/slices.cu",
          "run_wgmma<Tile, false>(p, &p.problem.taps, Feed(shared), shared",
          "run_wgmma<Tile, false>(p, &p.problem.taps, Feed(shared + 512), shared + 512", WGMMA, "trap"),
    # ---- mbarriers, tensor maps and wgmma
    Fault("more bytes are expected than come", SLICES, FETCHED, FETCHED.replace("Bytes)", "Bytes + 128)"), WGMMA,
          "deadlock"),
    Fault("more registers are taken than there are", RUN, "take_registers<232>", "take_registers<240>", WGMMA,
          "deadlock"),
    Fault("a stage is filled while it is read", SLICES, "            ring.wait_empty();\n            barrier_expect",
          "            barrier_expect", WGMMA, "more arrivals at mbarrier"),
    Fault("mbarriers are not fenced", "conv/wgmma/ring.cuh", "        barrier_fence();\n", "", WGMMA,
          "initialisation was not fenced"),
    Fault("one lane speaks for others that still read", PIXELS, STRIP_READ, "        proxy_fence();\n",
          wgmma.PIXEL_ROWS, "shared memory race: write after read", "__uint_as_float(load_word("),
    Fault("copies do not know what was read before", PIXELS, STRIP_READ, STRIP_READ.replace("proxy_fence();", ""),
          wgmma.PIXEL_PATCHES, r"write over what ordinary loads have read without fence\.proxy\.async"),
    Fault("one group of products less is waited for", SLICES, "products_wait<1>", "products_wait<2>", WGMMA,
          "shared memory race: write after read"),
    Fault("one group of products of strips less is waited for", STRIPS, "products_wait<1>", "products_wait<2>",
          wgmma.ROWS, "shared memory race: write after read"),
    Fault("mbarriers are used before they are there", RUN, "    __syncthreads();\n    if (threadIdx.x / 128 == 2)",
          "    if (threadIdx.x / 128 == 2)", WGMMA, "mbarrier used before mbarrier.init", seeds=range(9)),
    Fault("factors are not waited for", SLICES, "            ring.wait_full();\n", "", WGMMA,
          "wgmma reads data still in flight|uninitialised shared"),
    Fault("factors in registers change too early", PIXELS, "            products_wait<1>();\n", "",
          wgmma.PIXEL_ROWS, "factors of a wgmma that is not waited for"),
    Fault("sums are touched too early", RUN, PRODUCTS_WAITED, "", WGMMA, "sums of a wgmma that is not waited for"),
    Fault("factors of a slice that is not whole change too early", PIXELS, "products_wait<0>();", "",
          wgmma.PIXELS_OF_PARTS, "factors of a wgmma that is not waited for"),
    Fault("products begin unfenced", TILES, "products_begin();\n#pragma", "\n#pragma", WGMMA,
          r"without wgmma\.fence"),
    Fault("products of a slice that is not whole begin unfenced", TILES,
          "products_begin();\n                multiply_step(a, b);", "multiply_step(a, b);", WGMMA,
          r"without wgmma\.fence"),
    Fault("a slice that is not whole has a step less", "conv/wgmma/items.cuh", ": loading.last_steps;",
          ": loading.last_steps - 1;", WGMMA, "elements are wrong"),
    Fault("what is no map is prefetched", RUN, "prefetch_map(p.w_map)",
          "prefetch_map(reinterpret_cast<const CUtensorMap*>(&p)[2])", WGMMA, "not a tensor map"),
    Fault("taps are not counted from the corner", SLICES, "* taps.advance[2 - axis] - loading.lower[2 - axis];",
          "* taps.advance[2 - axis];", wgmma.SMALL, "im2col offset .* out of range|elements are wrong"),
    # ---- results
    Fault("infinities on the padding are not made again", EPILOGUE, "return kRepairs && !finite;", "return false;",
          of(convolutions.CONVS, "conv_float16_3d_64x64x16"), "elements are wrong"),
    Fault("of equal elements the last one has the index", "pool/order.cuh", "return !(later <= best) && best == best;",
          "return !(later < best) && best == best;", of(pools.VECTOR_POOLS, "float32_3d_vectors_2x2"),
          "elements differ"),
)  # fmt: skip


def test_the_text_of_every_fault_is_there() -> None:
    for fault in FAULTS:
        assert exchanged(fault.path, fault.old, fault.new), fault.name


PLANTED = [pytest.param(one, id=one.name, marks=pytest.mark.kernels(*including(one.path))) for one in FAULTS]


@pytest.mark.parametrize("fault", PLANTED)
def test_a_fault_is_reported_with_its_line(fault: Fault) -> None:
    with changed_kernels({fault.path: exchanged(fault.path, fault.old, fault.new)}):
        lines = "|".join(lines_of(fault.at))
        with pytest.raises(AssertionError, match=fault.message) as caught:
            fault.run()
    assert not fault.at or re.search(rf"\b({lines})\b", str(caught.value)), caught.value


def lines_of(part: str) -> list[str]:
    """Return patterns of ``file:line`` for the lines of all kernels that contain `part`, as findings name them."""
    root = kernel_files.folder()
    return [
        rf"{re.escape(path.relative_to(root).as_posix())}:{number}"
        for path in root.rglob("*.cu*")
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1)
        if part in line
    ]


# ---------------------------------------------------------------- plans that do not fit their kernels


def test_a_struct_that_was_read_wrongly_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    variant = ffma.variant("conv", "float32", False, 4, gemm_base.TILES["float32"][1], True)
    common = _described(variant.layout["common"])
    other = {"x_batch": "x_channel", "x_channel": "x_batch"}
    common = np.dtype({**common, "names": [other.get(name, name) for name in common["names"]]})
    wrong = np.dtype({**_described(variant.layout), "formats": [common, variant.layout["taps"]]})
    monkeypatch.setattr(structs, "layout", lambda name, source: wrong)
    with pytest.raises(CompileError, match=r"common\.x_(batch|channel) is not at byte"), emulated_cuda():
        device.load(variant, 0, 0)


def _described(struct: np.dtype[Any]) -> dict[str, Any]:
    assert struct.fields is not None
    formats, offsets = zip(*(struct.fields[name][:2] for name in struct.names or ()), strict=True)
    return {"names": list(struct.names or ()), "formats": formats, "offsets": offsets, "itemsize": struct.itemsize}


@pytest.mark.parametrize(
    ("name", "other", "message"),
    [
        ("x_extent", lambda extents: [n + 1 for n in extents], "out of bounds|elements are wrong"),
        ("pixels", lambda pixels: pixels - 1, "140 of .* elements of y, of shape .*, were never written"),
        ("pitch", lambda pitch: pitch - 1, r"misaligned cp\.async"),
    ],
)
def test_a_wrong_number_in_the_struct_is_noticed(
    name: str, other: Callable[[Any], Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = gemm_base.common
    monkeypatch.setattr(gemm_base, "common", lambda *given: {**right(*given), name: other(right(*given)[name])})
    attributes = {"group": 2, "pads": [1, 1, 1, 1]}
    (x, w, _), _ = filled("conv", (2, 6, 11, 13), (140, 3, 3, 2), attributes, "float32")
    exact = oracle.conv(x, w, **attributes)
    with pytest.raises(AssertionError, match=message), preferred("conv_float32_3d_16x128x16"):
        oracle.assert_close(emulated_conv(x, w, **attributes), exact, "float32")


def emulated_conv(x: Any, w: Any, **attributes: Any) -> Any:
    with emulated_cuda():
        return gpuconv.conv(x, w, **attributes)


def test_buffers_that_the_launch_does_not_provide_are_out_of_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm_base, "_STAGES", 2)
    with pytest.raises(EmulatorError, match=r"shared memory out of bounds: .* bytes at offset"):
        GEMM()


def test_nothing_of_a_broken_plan_stays_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Problem.blocks
    monkeypatch.setattr(Problem, "blocks", lambda problem, *tile: right(problem, *tile) - 1)
    with pytest.raises(EmulatorError, match=r"elements of y, of shape .*, were never written"):
        GEMM()
    with emulated_cuda():
        assert (gpuconv.max_pool(np.ones((1, 1, 4), np.float32), kernel_shape=[2]) == 1).all()
