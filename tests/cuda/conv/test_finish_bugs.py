"""Bugs in where single kernels finish their sums show beside plain calls with the same steps after them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import gpuconv
from tests.emulator import emulated_cuda
from tests.harness.emulated import preferred
from tests.harness.fused import BEYOND_TF32, BeyondTf32, assert_equal, finished
from tests.harness.mutate_kernels import changed_kernels
from tests.harness.test_planted_bugs import exchanged
from tests.oracle.operands import LAYOUTS, values

pytestmark = [pytest.mark.emulator, pytest.mark.usefixtures("cache_of_broken_kernels")]

_PADDED = {"pads": [1, 1, 1, 1]}
_CLIP = ("clip", -1.5, 6)


@dataclass(frozen=True)
class Call:
    """A convolution of whole numbers by one kernel; some of x or w are infinite or NaN where `spoilt` names it."""

    kernel: str
    x_shape: tuple[int, ...]
    w_shape: tuple[int, ...]
    activation: Any = _CLIP
    spoilt: str = ""
    layout: str = "contiguous"
    precision: str = "ieee"
    attributes: dict[str, Any] = field(default_factory=lambda: dict(_PADDED))

    def check(self) -> None:
        """Raise AssertionError where a call makes something else than a plain one and the formula after it."""
        x, w = (
            values("nonfinite" if name == self.spoilt else "integers", seed, shape, "float32")
            for seed, (name, shape) in enumerate({"x": self.x_shape, "w": self.w_shape}.items(), 1)
        )
        b = values("integers", 3, self.w_shape[:1], "float32")
        settings = {**self.attributes, "precision": self.precision}
        with preferred(self.kernel), emulated_cuda() as emulated:
            plain = gpuconv.conv(LAYOUTS[self.layout](x), w, b, **settings, out=self._out(x, w))
            residual = LAYOUTS[self.layout](values("integers", 4, plain.shape, "float32"))
            finish = {"activation": self.activation, "residual": residual}
            y = gpuconv.conv(LAYOUTS[self.layout](x), w, b, **settings, **finish, out=self._out(x, w))
        assert self.kernel in emulated.launches[-1].variant.name
        assert_equal(y, finished(plain, residual, self.activation))

    def _out(self, x: Any, w: Any) -> Any:
        return LAYOUTS[self.layout](np.zeros_like(gpuconv.conv(x, w, **self.attributes)))


GEMM = Call("conv_float32_3d_16x128x16", (1, 3, 9, 8), (20, 3, 3, 3), spoilt="w")
GROUPED = {**_PADDED, "group": 2}
BANDS = Call("conv_bands", (1, 3, 17, 20), (1, 3, 3, 3), spoilt="w")
STEM = Call("conv_stem_float32_3d_32", (1, 3, 9, 40), (40, 3, 3, 3), "relu")
TENSOR = Call("conv_stem_float32_3d_3xtf32", (1, 3, 9, 40), (40, 3, 3, 3), spoilt="x", precision="3xtf32")
DIRECT = Call("depthwise_float32_3d_3x3s1", (1, 2, 9, 36), (2, 1, 3, 3), attributes=GROUPED)
OVER_CHANNELS = Call(
    "depthwise_float32_3d_channels_7s1", (1, 8, 9, 12), (8, 1, 3, 3), spoilt="w", layout="channels last",
    attributes={**_PADDED, "group": 8},
)  # fmt: skip
WIDE = Call("conv_grouped_float32_3d_3xtf32", (1, 16, 9, 32), (16, 8, 3, 3), precision="3xtf32", attributes=GROUPED)

ROUNDED, OF_SPLITS, OF_MATRIX, OF_STEM, OF_GROUPS, OF_PHASES, DISJOINT = BEYOND_TF32

REPAIRED = "finished(p.finish, p.y, sum_inside(window, m) + bias(m), &target)"
ADDED = (
    "if (finish.residual != nullptr) sum += widen(*residual_of(finish, y, target));\n    return activated(finish, sum);"
)

ONLY_FINITE = "if (FINISH && (Multiplier::kExact || finite))"

BUGS: dict[str, tuple[str, str, str, Call | BeyondTf32]] = {
    "activated before the residual": (
        "conv/finish.cuh",
        ADDED,
        ADDED.replace("sum +=", "return activated(finish, sum) +"),
        GEMM,
    ),
    "what is made again is not finished": ("conv/epilogue.cuh", REPAIRED, "sum_inside(window, m) + bias(m)", GEMM),
    "what is made again is finished twice": (
        "conv/epilogue.cuh",
        REPAIRED,
        f"finished(p.finish, p.y, {REPAIRED}, &target)",
        GEMM,
    ),
    "vectors are finished where they are made again": (
        "conv/gemm/stem_mma.cuh",
        "is_finite(out[i]) ? made[i] : out[i]",
        "is_finite(out[i]) ? out[i] : made[i]",
        TENSOR,
    ),
    "the residual is that of the first rows": ("conv/gemm/stem_ffma.cuh", "y + row(k) * p", "y + row(k) % 4 * p", STEM),
    "the repair over bands leaves sums plain": (
        "conv/direct/bands.cu",
        "if (p.finish.any())",
        "if (!REPAIR && p.finish.any())",
        BANDS,
    ),
    "vectors of a row are written plain": ("conv/direct/rows.cu", "if (p.finish.any() && here)", "if (false)", DIRECT),
    "sums over the taps inside are finished twice": (
        "conv/direct/channels.cu",
        "sum_inside(r, c, of_channel) + bias(of_channel), &target)",
        "finished(p.finish, p.y, sum_inside(r, c, of_channel) + bias(of_channel), &target), &target)",
        OVER_CHANNELS,
    ),
    "wide outputs go without their residual": (
        "conv/gemm/grouped.cu",
        "grouped.p.finish.residual == nullptr;",
        "true;",
        WIDE,
    ),
    "relu hides what is to be made again": ("conv/epilogue.cuh", ONLY_FINITE, "if (FINISH)", ROUNDED),
    "relu hides what is to be made again of splits": ("conv/epilogue.cuh", ONLY_FINITE, "if (FINISH)", OF_SPLITS),
    "relu hides what is to be made again of a matrix": ("conv/epilogue.cuh", ONLY_FINITE, "if (FINISH)", OF_MATRIX),
    "relu hides what is to be made again of phases": ("conv/epilogue.cuh", ONLY_FINITE, "if (FINISH)", OF_PHASES),
    "relu hides what is to be made again in vectors": (
        "conv/gemm/stem_mma.cuh",
        "is_finite(out[i]) ? made[i] : out[i]",
        "made[i]",
        OF_STEM,
    ),
    "relu hides what is to be made again in wide outputs": (
        "conv/gemm/grouped.cu",
        "is_finite(sums[k]) ? activated(finish, sums[k]) : sums[k]",
        "activated(finish, sums[k])",
        OF_GROUPS,
    ),
    "relu hides what is to be made again before it is moved": (
        "conv/gemm/depth_to_space.cuh",
        "if (!is_finite(sum)) sum = again(multiplier, at, m);",
        "",
        DISJOINT,
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("path", "old", "new", "call"), BUGS.values(), ids=BUGS)
def test_a_bug_in_one_family_shows(path: str, old: str, new: str, call: Call | BeyondTf32) -> None:
    call.check()
    with changed_kernels({path: exchanged(path, old, new)}), pytest.raises(AssertionError):
        call.check()
