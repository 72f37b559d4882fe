# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # On a GPU
#
# CuPy arrays go in and CuPy arrays come out: the same functions, attributes and results as on the CPU, computed by
# CUDA kernels. This page compares the two sides call by call, looks at what float16, TF32 and channels last cost and
# save, lets `tune` choose a kernel, and replays a network as a CUDA graph.
#
# To run it: `pip install -e ./emulated_cuda -e ".[cuda13,examples]"` in a checkout (on a GPU `cuda12` will do, too),
# then `jupyter lab examples/on_a_gpu.ipynb`. Without a GPU, the same CuPy and the same kernels run on the emulated
# device of the package `emulated_cuda`, instruction by instruction, which takes g++. Then results are those of the
# kernels, and times are modelled.

# %%
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import matplotlib.pyplot as plt
import ml_dtypes  # teaches NumPy the name bfloat16
import numpy as np

import emulated_cuda
import gpuconv
from emulated_cuda.install import hardware

on_gpu = hardware()
if not on_gpu:
    emulated_cuda.install()
print("on the GPU" if on_gpu else "on the emulated device: this machine has no other")

checkout = next(
    folder
    for folder in (Path.cwd(), *Path.cwd().parents)
    if (folder / "benchmarks" / "layers.py").is_file()
)
sys.path.append(str(checkout))

# %% [markdown]
# ## CuPy in, CuPy out
#
# `to_device` and `to_host` copy; everything between them stays on the device. A call launches on CuPy's current
# stream and returns at once. Sums of small integers are exact in any order, so the two sides must agree in every bit.

# %%
random = np.random.default_rng(0)
x = random.integers(-3, 4, (2, 16, 12, 12)).astype(np.float32)
w = random.integers(-3, 4, (24, 16, 3, 3)).astype(np.float32)
there = gpuconv.conv(gpuconv.to_device(x), gpuconv.to_device(w), pads=[1, 1, 1, 1])
pooled, indices = gpuconv.max_pool(
    there, kernel_shape=[2, 2], strides=[2, 2], return_indices=True
)
print(type(there).__module__, there.shape, pooled.dtype, indices.dtype)
here = gpuconv.to_host(there)
assert here.tobytes() == gpuconv.conv(x, w, pads=[1, 1, 1, 1]).tobytes()

# %% [markdown]
# ## GPU against CPU, case by case
#
# Other numbers are rounded, and two correct sums may differ. By how much at most is known: each sum of K terms, whose
# magnitudes add up to S, is within (K + 1)·u·S of the exact one, u = 2⁻²⁴, and is then rounded once to the result's
# type. So every output has its own bound, of the distance between the two sides. MaxPool has no bound: it is exact.


# %%
def normal(*shape, dtype="float32"):
    return random.standard_normal(shape).astype(dtype)


def on_host(name, arrays, attributes):
    """Return the results of a call on the CPU."""
    results = getattr(gpuconv, name)(*arrays, **attributes)
    return results if isinstance(results, tuple) else (results,)


def on_device(name, arrays, attributes):
    """Return the results of the same call on the device."""
    there = [
        gpuconv.to_device(array) if isinstance(array, np.ndarray) else array
        for array in arrays
    ]
    results = getattr(gpuconv, name)(*there, **attributes)
    return tuple(
        map(gpuconv.to_host, results if isinstance(results, tuple) else (results,))
    )


def bound(name, arrays, attributes, y):
    """Return how far the two sides may be apart, output by output."""
    if name.startswith("max"):
        return 0.0
    second = arrays[1]
    terms = {
        "conv": second.size // second.shape[0],
        "conv_transpose": second.size // second.shape[1],
        "conv_input_grad": second.size // second.shape[1],
        "conv_weight_grad": second.size // second.shape[1],
    }[name]
    magnitudes = [
        abs(array).astype(np.float64) if isinstance(array, np.ndarray) else array
        for array in arrays
    ]
    (sums,) = on_host(name, magnitudes, attributes)
    rounding = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}[
        y.dtype.name
    ]  # the sum's own is in the bound
    return 2 * ((terms + 1) * 2.0**-24 * sums + rounding * abs(y.astype(np.float64)))


holes = normal(2, 8, 13, 13)
holes[random.random(holes.shape) < 0.05] = np.nan
ties = random.integers(0, 3, (2, 8, 13, 13)).astype(np.float32)
half = {"dtype": "float16"}
cases = {
    "Conv, 3 × 3": (
        "conv",
        (normal(2, 16, 12, 12), normal(24, 16, 3, 3)),
        {"pads": [1] * 4},
    ),
    "Conv in float16": (
        "conv",
        (normal(2, 16, 12, 12, **half), normal(24, 16, 3, 3, **half)),
        {"pads": [1] * 4},
    ),
    "Conv in bfloat16, NHWC": (
        "conv",
        (
            normal(2, 12, 12, 16, dtype="bfloat16"),
            normal(24, 16, 3, 3, dtype="bfloat16"),
        ),
        {"pads": [1] * 4, "layout": "NHWC"},
    ),
    "Conv, SAME, strides, dilation": (
        "conv",
        (normal(1, 5, 17, 14), normal(7, 5, 3, 2)),
        {"auto_pad": "SAME_LOWER", "strides": [2, 1], "dilations": [1, 3]},
    ),
    "Conv, depthwise": (
        "conv",
        (normal(2, 24, 14, 14), normal(24, 1, 5, 5)),
        {"pads": [2] * 4, "group": 24},
    ),
    "Conv, three axes": ("conv", (normal(1, 4, 6, 7, 8), normal(6, 4, 3, 3, 3)), {}),
    "ConvTranspose": (
        "conv_transpose",
        (normal(2, 8, 7, 7), normal(8, 6, 4, 4)),
        {"strides": [2, 2], "pads": [1] * 4},
    ),
    "gradient of x": (
        "conv_input_grad",
        (normal(2, 12, 7, 7), normal(12, 8, 3, 3), (2, 8, 9, 9)),
        {},
    ),
    "gradient of w": (
        "conv_weight_grad",
        (normal(2, 8, 9, 9), normal(2, 12, 7, 7), (12, 8, 3, 3)),
        {},
    ),
    "MaxPool, NaN": (
        "max_pool",
        (holes,),
        {"kernel_shape": [3, 3], "strides": [2, 2], "return_indices": True},
    ),
    "MaxPool, ties": (
        "max_pool",
        (ties,),
        {"kernel_shape": [3, 3], "pads": [1] * 4, "return_indices": True},
    ),
}
for title, (name, arrays, attributes) in cases.items():
    cpu, gpu = on_host(name, arrays, attributes), on_device(name, arrays, attributes)
    distance = abs(cpu[0].astype(np.float64) - gpu[0].astype(np.float64))
    allowed = bound(name, arrays, attributes, cpu[0])
    assert ((distance <= allowed) | (np.isnan(cpu[0]) & np.isnan(gpu[0]))).all(), title
    assert all((a == b).all() for a, b in zip(cpu[1:], gpu[1:], strict=True)), (
        title
    )  # Indices
    word = (
        "exact"
        if np.nanmax(distance) == 0
        else f"at most {np.max(distance / allowed):.0%} of the bound"
    )
    print(f"{title:30} {cpu[0].size:5} outputs, {word}")

# %% [markdown]
# ## Precision
#
# float32 is IEEE's unless a call allows tensor cores to round its factors: to 11 bits ("tf32"), or in three products
# nearly to all 24 ("3xtf32"). float16 and bfloat16 are summed in float32 and rounded once at the end, which is all of
# their error here. This is how far the worst of some thousand sums is from the exact one, as a share of S.

# %%
x, w = normal(1, 64, 10, 10), normal(64, 64, 3, 3) / 24
ways = {  # dtype, precision, layout
    "float32": ("float32", "ieee", "NCHW"),
    "3xTF32": ("float32", "3xtf32", "NCHW"),
    "TF32": ("float32", "tf32", "NCHW"),
    "float16": ("float16", "ieee", "NCHW"),
    "float16, NHWC": ("float16", "ieee", "NHWC"),
    "bfloat16": ("bfloat16", "ieee", "NCHW"),
}
errors = {}
for title, (dtype, precision, layout) in ways.items():
    narrow = [array.astype(dtype) for array in (x, w)]
    wide = [
        array.astype(np.float64) for array in narrow
    ]  # what is lost before the call is not the call's
    exact = gpuconv.conv(*wide, pads=[1] * 4)
    sums = gpuconv.conv(*map(abs, wide), pads=[1] * 4)
    if layout == "NHWC":
        narrow[0] = np.ascontiguousarray(narrow[0].transpose(0, 2, 3, 1))
    attributes = {"pads": [1] * 4, "layout": layout, "precision": precision}
    (y,) = on_device("conv", narrow, attributes)
    y = (
        y.astype(np.float64).transpose(0, 3, 1, 2)
        if layout == "NHWC"
        else y.astype(np.float64)
    )
    errors[title] = float((abs(y - exact) / sums).max())
    print(f"{title:14} 2^{np.log2(errors[title]):.1f} of S")
assert errors["float32"] <= 577 * 2.0**-24
assert errors["3xTF32"] < 2.0**-18 < errors["TF32"] < 2.0**-10

# %% [markdown]
# ## Which kernel, and how long?
#
# For most calls there are several kernels, and a model of their times chooses. `explain` prints the choice, on any
# machine. Its times are modelled.

# %%
plan = gpuconv.explain(
    "conv",
    (32, 56, 56, 64),
    (64, 64, 3, 3),
    pads=[1] * 4,
    dtype="float16",
    layout="NHWC",
)
assert any(plan.kernel.startswith(launch.variant.name) for launch in plan.launches)

# %% [markdown]
# `tune` measures the candidates on the device instead, and keeps the choice for calls like it. (On the emulated device
# times mean nothing, so here are the names only.)

# %%
arrays = (
    gpuconv.to_device(normal(2, 16, 12, 12)),
    gpuconv.to_device(normal(24, 16, 3, 3)),
)
times = gpuconv.tune("conv", *arrays, pads=[1] * 4)
for kernel in times if on_gpu else sorted(times):
    print(f"{kernel:45}", f"{times[kernel] * 1e6:8.1f} us" if on_gpu else "")
assert list(times.values()) == sorted(times.values())

# %% [markdown]
# ## Speed
#
# One layer of ResNet-50 for 32 images, called in the ways from above. On a GPU its time is measured, and that of
# PyTorch if it is installed, and that of gpuconv on the CPU. Without a GPU you see the modelled time and the shortest
# possible time of an H200, by its datasheet.

# %%
from benchmarks.layers import Layer
from benchmarks.static_plan import Case, planned
from gpuconv.cuda.plan.limits import representative

size, kernel, one = (32, 64, 56, 56), (3, 3), (1, 1)
layer = Layer(
    "3x3", "ResNet-50", "Conv", size, kernel, one, (1,) * 4, one, ("fp32",), k_out=64
)


def measured(dtype, precision, layout):
    """Return the least time of some calls on the GPU, in microseconds."""
    from cupyx.profiler import benchmark

    shape = size if layout == "NCHW" else (32, 56, 56, 64)
    x, w = (
        gpuconv.to_device(normal(*extents).astype(dtype))
        for extents in (shape, layer.w_shape)
    )
    weights, attributes = (
        gpuconv.pack(w),
        {"pads": [1] * 4, "layout": layout, "precision": precision},
    )
    repeated = benchmark(
        lambda: gpuconv.conv(x, weights, **attributes), n_repeat=20, n_warmup=5
    )
    return float(repeated.gpu_times.min()) * 1e6


def by_pytorch(dtype, precision, layout):
    """Return the least time of PyTorch's conv2d, in microseconds, or None."""
    if not find_spec("torch") or precision == "3xtf32":
        return None
    import torch
    from cupyx.profiler import benchmark

    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    form = torch.channels_last if layout == "NHWC" else torch.contiguous_format
    x, w = (
        torch.randn(*extents, device="cuda", dtype=getattr(torch, dtype)).contiguous(
            memory_format=form
        )
        for extents in (size, layer.w_shape)
    )
    repeated = benchmark(
        lambda: torch.nn.functional.conv2d(x, w, padding=1), n_repeat=20, n_warmup=5
    )
    return float(repeated.gpu_times.min()) * 1e6


found = {}
for title, (dtype, precision, layout) in ways.items():
    row = planned(Case(layer, dtype, layout, precision), representative("sm_90a"))
    found[title] = {
        "least possible": row["floor_us"],
        "gpuconv, modelled": row["modelled_us"],
    }
    if on_gpu:
        found[title] = {
            "gpuconv": measured(dtype, precision, layout),
            "PyTorch": by_pytorch(dtype, precision, layout),
        }
    print(
        f"{title:14}",
        ", ".join(f"{name} {us:.1f} us" for name, us in found[title].items() if us),
    )
if on_gpu:
    x, w = normal(*size), normal(*layer.w_shape)
    start = time.perf_counter()
    gpuconv.conv(x, w, pads=[1] * 4)
    print(f"the CPU        {(time.perf_counter() - start) * 1e6:.1f} us, float32")

# %% [markdown]
# ## A CUDA graph
#
# Small layers take the host longer to launch than the device to compute. A graph launches them all at once.
# `gpuconv.graph` calls a function twice, once to compile its kernels and once to capture its launches. The graph owns
# the memory of everything between input and output. Its output is the same array each time.


# %%
def network(x, w):
    """Convolve and pool."""
    between = gpuconv.conv(x, w, pads=[1] * 4)
    return gpuconv.max_pool(between, kernel_shape=[2, 2], strides=[2, 2])


weights = gpuconv.pack(random.integers(-3, 4, (16, 3, 3, 3)).astype(np.float32))
inputs = [random.integers(-9, 10, (2, 3, 16, 16)).astype(np.float32) for _ in range(3)]
w = gpuconv.to_device(weights)
graph = gpuconv.graph(lambda x: network(x, w), gpuconv.to_device(inputs[0]))
replayed = [gpuconv.to_host(graph(gpuconv.to_device(x))) for x in inputs]
for values, result in zip(inputs, replayed, strict=True):
    assert (result == network(values, weights)).all()
print("one launch for the network, three times, as on the CPU")

# %% [markdown]
# ## The picture
#
# On the left the worst error of a sum in each of the ways; on the right the time of the layer. Hatched bars are
# modelled.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
left.barh(list(errors), list(errors.values()), color="tab:green")
left.axvline(2.0**-24, color="black", linestyle=":", label="u = 2⁻²⁴")
left.set(
    xscale="log",
    xlim=1e-8,
    title="worst error, as a share of S",
    xlabel="|y − exact| / S",
)
left.legend(loc="upper right")
programs = list(dict.fromkeys(name for row in found.values() for name in row))
for number, program in enumerate(programs):
    lengths = [row.get(program) or 0 for row in found.values()]
    at = np.arange(len(found)) + 0.4 * (number - 0.5)
    hatch = "///" if "modelled" in program else ""
    right.barh(
        at,
        lengths,
        0.4,
        label=program,
        color=["lightgray", "tab:blue"][number],
        hatch=hatch,
        edgecolor="white",
    )
title = "MEASURED on this GPU" if on_gpu else "MODELLED for an H200, nothing measured"
right.set(title=title, xlabel="microseconds, ResNet-50's 64 × 56 × 56, 32 images")
right.set_yticks(range(len(found)), list(found))
right.legend()
for axis in (left, right):
    axis.invert_yaxis()
plt.show()
