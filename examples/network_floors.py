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
# # A whole network against its floors
#
# How quick could a layer be? It must read its input and its weights and write its output once, and it must do its
# multiply-adds: the longer of the two times is its floor. (Algorithms with fewer multiplications, as Winograd's, are
# another matter, and less exact.) How close a program comes tells whether a layer is worth looking at. This page does
# that for ResNet-50: every convolution is run and timed on the machine at hand, and then modelled for a GPU that need
# not be there.
#
# It uses `benchmarks/` of the checkout, which does the same for 74 layers of many networks.

# %%
import sys
import time
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import ml_dtypes  # noqa: F401  # teaches NumPy the name bfloat16
import numpy as np

import gpuconv

checkout = next(
    folder for folder in (Path.cwd(), *Path.cwd().parents) if (folder / "benchmarks" / "layers.py").is_file()
)
sys.path.append(str(checkout))
from benchmarks.layers import Layer  # noqa: E402
from benchmarks.static_plan import Case, Chooser, plan  # noqa: E402
from gpuconv.cuda import floor  # noqa: E402
from gpuconv.cuda.limits import nearest, representative  # noqa: E402

try:
    place = gpuconv.to_device
    place(np.zeros(1))
    print("on the GPU")
except gpuconv.DeviceError as error:
    place = np.asarray
    print("on the CPU, since", error)

# %% [markdown]
# ## The network
#
# A stem, a pooling, then sixteen blocks of three convolutions each: 1 × 1 to fewer channels, 3 × 3, 1 × 1 to more.
# Their input is added to their output, by way of another 1 × 1 where the shapes differ.


# %%
def conv_layer(name, batch, channels, extent, filters, kernel, stride=1):
    """Describe one convolution as benchmarks/ does."""
    pads = (kernel // 2,) * 4
    x = (batch, channels, extent, extent)
    two = (1, 1)
    return Layer(name, "ResNet-50", "Conv", x, (kernel,) * 2, (stride,) * 2, pads, two, ("fp32",), k_out=filters)


def resnet50(batch):
    """Return the convolutions in order, in a list for each block; the stem is the first block."""
    blocks = [[conv_layer("stem", batch, 3, 224, 64, 7, 2)]]
    channels, extent = 64, 56  # after the pooling
    for stage, (count, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), 1):
        for number in range(count):
            stride, name = (2 if stage > 1 and number == 0 else 1), f"{stage}.{number}"
            block = [
                conv_layer(f"{name} reduce", batch, channels, extent, width, 1),
                conv_layer(f"{name} 3x3", batch, width, extent, width, 3, stride),
                conv_layer(f"{name} expand", batch, width, extent // stride, 4 * width, 1),
            ]
            if number == 0:
                block.append(conv_layer(f"{name} shortcut", batch, channels, extent, 4 * width, 1, stride))
            blocks.append(block)
            channels, extent = 4 * width, extent // stride
    return blocks


blocks = resnet50(batch=1)
layers = [layer for block in blocks for layer in block]
multiply_adds = sum(layer.flops for layer in layers) / 2
print(len(layers), "convolutions,", f"{multiply_adds / 1e9:.2f} G multiply-adds")
assert len(layers) == 53
assert abs(multiply_adds / 4.09e9 - 1) < 0.01  # as the literature has it, without the last matrix product

# %% [markdown]
# ## The rates of this machine
#
# A floor needs two numbers: how many operations the machine makes in a second, and how many bytes it moves. For a CPU
# both are measured here, by matrix products and a copy, the quickest of many: other programs on the machine make
# everything slower, never quicker. They are measured again after the network. For a GPU they are its datasheet's.


# %%
def seconds(function, repeats=5):
    """Return the least time of some calls, after one that does not count."""
    function()
    if place is not np.asarray:
        from cupyx.profiler import benchmark

        return float(benchmark(function, n_repeat=repeats).gpu_times.min())
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def rates():
    """Return operations and bytes per second."""
    if place is not np.asarray:
        from gpuconv.cuda import device

        here = nearest(device.limits(device.current_device()).architecture)
        return here.peak("float32"), here.bandwidth
    squares = [np.ones((extent, extent), np.float32) for extent in (256, 512, 1024)]
    products = [2 * len(square) ** 3 / seconds(lambda square=square: square @ square, 30) for square in squares]
    source = np.ones(2**22, np.float32)
    target = np.empty_like(source)
    return max(products), 2 * source.nbytes / seconds(lambda: np.copyto(target, source), 50)


before = rates()
print(f"{before[0] / 1e9:.0f} GFLOP/s, {before[1] / 1e9:.0f} GB/s")

# %% [markdown]
# ## Running it
#
# Weights are random, of a size that keeps the activations' size. Each convolution is timed on the activations that it
# meets, and its result is compared with sums in float64 at some places, each within its own bound.

# %%
random = np.random.default_rng(0)


def checked(x, w, y, layer):
    """Compare some of a layer's outputs with sums in float64."""
    x = np.pad(x, ((0, 0), (0, 0), *((layer.pads[0],) * 2,) * 2)).astype(np.float64)
    stride, (kernel, _) = layer.strides[0], layer.kernel
    for n, m, row, column in zip(*(random.integers(0, extent, 5) for extent in y.shape), strict=True):
        top, left = row * stride, column * stride
        products = x[n, :, top : top + kernel, left : left + kernel] * w[m].astype(np.float64)
        bound = (products.size + 2) * 2.0**-24 * abs(products).sum()
        assert abs(y[n, m, row, column] - products.sum()) <= bound, layer.id


measured = {}


def run(layer, x):
    """Compute one convolution of x; time it and check it."""
    w = random.standard_normal(layer.w_shape).astype(np.float32) * np.float32(np.sqrt(2 / np.prod(layer.w_shape[1:])))
    attributes = layer.attributes()
    arrays = place(x), place(w)
    y = gpuconv.to_host(gpuconv.conv(*arrays, **attributes))
    measured[layer.id] = seconds(lambda: gpuconv.conv(*arrays, **attributes))
    checked(x, w, y, layer)
    return y


x = run(blocks[0][0], random.standard_normal((1, 3, 224, 224)).astype(np.float32)).clip(0)
x = gpuconv.to_host(gpuconv.max_pool(place(x), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4))
for reduce, middle, expand, *shortcut in blocks[1:]:
    y = run(expand, run(middle, run(reduce, x).clip(0)).clip(0))
    x = ((run(shortcut[0], x) if shortcut else x) + y).clip(0) / np.float32(np.sqrt(2))
print("the last activations:", x.shape, f"mean {x.mean():.3f}")
assert x.shape == (1, 2048, 7, 7)
assert np.isfinite(x).all()


# %% [markdown]
# ## Against the floor


# %%
def floor_seconds(layer, dtype, rate, bandwidth):
    """Return a layer's floor, and whether it is that of memory."""
    work = floor.work(layer.geometry, dtype)
    return work.seconds(rate, bandwidth), work.bytes / bandwidth > work.flops / rate


rate, bandwidth = map(max, zip(before, rates(), strict=True))
floors = {layer.id: floor_seconds(layer, "float32", rate, bandwidth) for layer in layers}
total, least = sum(measured.values()), sum(seconds for seconds, _ in floors.values())
print(f"all convolutions: {total * 1e3:.0f} ms, floor {least * 1e3:.0f} ms: {total / least:.2f} times as long")
for kind in ("stem", "reduce", "3x3", "expand", "shortcut"):
    ratios = [measured[name] / floors[name][0] for name in measured if kind in name]
    print(f"{kind:9} {np.exp(np.mean(np.log(ratios))):.2f} times the floor, {len(ratios)} of them")

# %% [markdown]
# ## A GPU that is not here
#
# The planner has a model of its kernels' times, by which it chooses among them. Against the floors of a datasheet it
# says how much each kernel should leave. Nothing of this is measured: it is what the kernels' tiles, instructions and
# traffic come to. Here for 32 images in bfloat16 on an H200, whose tensor cores are so quick that many layers wait
# for memory.

# %%
h200 = representative("sm_90a")
modelled, floors_there, kernels = {}, {}, {}
for layer in layers:
    case = Case(replace(layer, x=(32, *layer.x[1:])), "bfloat16")
    chooser = Chooser()
    plan(case, h200, chooser)
    modelled[layer.id], kernels[layer.id] = chooser.picked.seconds, chooser.picked.name
    floors_there[layer.id] = floor_seconds(case.layer, "bfloat16", h200.peak("bfloat16"), h200.bandwidth)
    assert modelled[layer.id] > floors_there[layer.id][0]  # no model may be quicker than possible
waiting = sum(by_memory for _, by_memory in floors_there.values())
least_there = sum(least for least, _ in floors_there.values())
print(f"{waiting} of {len(layers)} layers wait for memory")
print(f"model {sum(modelled.values()) * 1e6:.0f} us, floor {least_there * 1e6:.0f} us")
for name in ("stem", "1.1 3x3", "3.1 expand", "4.1 3x3"):
    print(f"{name:11} {kernels[name]}")

# %% [markdown]
# ## The picture
#
# Every convolution in order: its time over its floor's. Blue ones' floors are memory's, red ones' arithmetic's.

# %%
figure, axes = plt.subplots(2, 1, figsize=(12, 6), sharex=True, layout="constrained")
for axis, title, times, least in (
    (axes[0], "measured here, one image in float32", measured, floors),
    (axes[1], "modelled for an H200, 32 images in bfloat16", modelled, floors_there),
):
    names = [layer.id for layer in layers]
    colors = ["tab:blue" if least[name][1] else "tab:red" for name in names]
    axis.bar(names, [times[name] / least[name][0] for name in names], color=colors)
    axis.axhline(1, color="black", linestyle=":")
    axis.set(title=title, ylabel="time over floor")
axes[1].tick_params(axis="x", labelrotation=90, labelsize=7)
plt.show()
