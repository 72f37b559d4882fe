"""Run the kernels' numbering of ConvTranspose's phases: each phase once, those with the most taps first."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from gpuconv.cuda.build import params, sources, structs
from gpuconv.cuda.build.variant import index_name
from gpuconv.cuda.call.prepared import contiguous_strides
from gpuconv.cuda.conv import problem as correlation
from gpuconv.cuda.conv.gemm import base as gemm_base
from gpuconv.cuda.conv.gemm import ffma
from gpuconv.rules import geometry as geometries
from tests.emulator import Array, compile_ptx, empty, module

ENTRY = """
extern "C" __global__ void ranks(const TransposedAxis<{index}>* axis, {index}* results)
{{
    for (int rank = threadIdx.x; rank < int(axis->phases.divisor); rank += 32) {{
        Taps<{index}, 1> taps;
        results[2 * rank] = phase_of_rank(*axis, static_cast<{index}>(rank));
        results[2 * rank + 1] = phase_taps(*axis, results[2 * rank], 0, taps);
    }}
}}
"""
AXES = [
    (stride, dilation, kernel, pad)
    for stride, dilation, kernel, pad in product((1, 2, 3, 4, 6, 10), (1, 2, 3, 4, 6), (1, 2, 3, 5, 8), (0, 1, 5))
    if (4 * stride + (kernel - 1) * dilation + 1 - pad) > 0
]


def check(wide: bool) -> None:
    """Raise AssertionError if a phase, its taps or its rank is wrong."""
    index = index_name(wide)
    variant = ffma.variant("conv_transpose", "float32", wide, 4, gemm_base.TILES["float32"][1], True)
    text = sources.source(variant) + ENTRY.format(index=index)
    kernel = module(compile_ptx("ranks", "sm_80", source=text))["ranks"]
    for stride, dilation, k, pad in AXES:
        geometry = geometries.conv_transpose(
            (1, 1, 5), (1, 1, k), None, strides=[stride], dilations=[dilation], pads=[pad, 0]
        )
        size = geometry.y_shape[2]
        found = _run(kernel, geometry, wide)
        phases, counts = found[:, 0].tolist(), found[:, 1].tolist()
        assert sorted(phases) == list(range(min(stride, size)))
        assert counts == [sum((phase + pad - tap * dilation) % stride == 0 for tap in range(k)) for phase in phases]
        if size >= stride:
            assert counts == sorted(counts, reverse=True)


def _run(kernel: Any, geometry: Any, wide: bool) -> Any:
    strides = map(contiguous_strides, (geometry.x_shape, geometry.w_shape))
    index = index_name(wide)
    problem = correlation.of(geometry, "float32", *strides, None, contiguous_strides(geometry.y_shape))
    operands = gemm_base.operands(problem, (1, 1), gemm_base.packed_weights(problem))
    fields = params.pack(structs.layout(f"TransposedAxis<{index}>", "conv/phases.cuh"), operands["axes"][0])
    axis = Array(np.frombuffer(fields, np.uint8).copy(), "axis", writable=False)
    results = empty(2 * problem.phases[0], np.int64 if wide else np.int32, "results")
    kernel(1, 32, [axis, results])
    return results.data.reshape(-1, 2)
