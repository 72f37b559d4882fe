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
# How fast could a layer be? It must read its input and its weights and write its output once, and it must do its
# multiply-adds: the longer of the two times is its floor. (Algorithms with fewer multiplications, like Winograd's, are
# not considered; they are less exact.) The ratio to the floor shows which layers are worth optimizing. This page does
# that for ResNet-50: every convolution is run and checked; times on a CPU were measured and stored; times on a GPU are
# modelled, for a device that need not be present.
#
# To run it: `pip install -e ".[examples]"` in a checkout, then `jupyter lab examples/network_floors.ipynb`. It uses
# `benchmarks/` of the checkout, which does the same for 74 layers of many networks, and its stored results.

# %%
import json
import sys
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import ml_dtypes  # teaches NumPy the name bfloat16
import numpy as np
from matplotlib.patches import Patch

import gpuconv

checkout = next(
    folder
    for folder in (Path.cwd(), *Path.cwd().parents)
    if (folder / "benchmarks" / "layers.py").is_file()
)
sys.path.append(str(checkout))
from benchmarks.layers import Layer
from benchmarks.static_plan import Case, Chooser, plan
from gpuconv.cuda.plan import floor
from gpuconv.cuda.plan.limits import representative

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
# Their input is added to their output, after another 1 × 1 convolution if the shapes differ.


# %%
def conv_layer(name, batch, channels, extent, filters, kernel, stride=1):
    """Describe one convolution as benchmarks/ does."""
    pads = (kernel // 2,) * 4
    x = (batch, channels, extent, extent)
    two = (1, 1)
    return Layer(
        name,
        "ResNet-50",
        "Conv",
        x,
        (kernel,) * 2,
        (stride,) * 2,
        pads,
        two,
        ("fp32",),
        k_out=filters,
    )


def resnet50(batch):
    """Return the convolutions in order, in a list for each block, the stem first."""
    blocks = [[conv_layer("stem", batch, 3, 224, 64, 7, 2)]]
    channels, extent = 64, 56  # after the pooling
    for stage, (count, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), 1):
        for number in range(count):
            stride, name = (2 if stage > 1 and number == 0 else 1), f"{stage}.{number}"
            block = [
                conv_layer(f"{name} reduce", batch, channels, extent, width, 1),
                conv_layer(f"{name} 3x3", batch, width, extent, width, 3, stride),
                conv_layer(
                    f"{name} expand", batch, width, extent // stride, 4 * width, 1
                ),
            ]
            if number == 0:
                block.append(
                    conv_layer(
                        f"{name} shortcut",
                        batch,
                        channels,
                        extent,
                        4 * width,
                        1,
                        stride,
                    )
                )
            blocks.append(block)
            channels, extent = 4 * width, extent // stride
    return blocks


blocks = resnet50(batch=1)
layers = [layer for block in blocks for layer in block]
multiply_adds = sum(layer.flops for layer in layers) / 2
print(len(layers), "convolutions,", f"{multiply_adds / 1e9:.2f} G multiply-adds")
assert len(layers) == 53
assert (
    abs(multiply_adds / 4.09e9 - 1) < 0.01
)  # as the literature has it, without the last matrix product

# %% [markdown]
# ## Running it
#
# Weights are random, with a magnitude that keeps that of activations. Each convolution gets the activations that it
# would have in the network, and some of its results are compared with sums in float64, each within its own bound.

# %%
random = np.random.default_rng(0)
checked = set()


def check(x, w, y, layer):
    """Compare some of a layer's outputs with sums in float64."""
    x = np.pad(x, ((0, 0), (0, 0), *((layer.pads[0],) * 2,) * 2)).astype(np.float64)
    stride, (kernel, _) = layer.strides[0], layer.kernel
    for n, m, row, column in zip(
        *(random.integers(0, extent, 5) for extent in y.shape), strict=True
    ):
        top, left = row * stride, column * stride
        products = x[n, :, top : top + kernel, left : left + kernel] * w[m].astype(
            np.float64
        )
        bound = (products.size + 2) * 2.0**-24 * abs(products).sum()
        assert abs(y[n, m, row, column] - products.sum()) <= bound, layer.id
    checked.add(layer.id)


def run(layer, x):
    """Compute one convolution of x, and check it."""
    w = random.standard_normal(layer.w_shape).astype(np.float32) * np.float32(
        np.sqrt(2 / np.prod(layer.w_shape[1:]))
    )
    y = gpuconv.to_host(gpuconv.conv(place(x), place(w), **layer.attributes()))
    check(x, w, y, layer)
    return y


x = run(blocks[0][0], random.standard_normal((1, 3, 224, 224)).astype(np.float32)).clip(
    0
)
x = gpuconv.to_host(
    gpuconv.max_pool(place(x), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
)
for reduce, middle, expand, *shortcut in blocks[1:]:
    y = run(expand, run(middle, run(reduce, x).clip(0)).clip(0))
    x = ((run(shortcut[0], x) if shortcut else x) + y).clip(0) / np.float32(np.sqrt(2))
print(len(checked), "convolutions checked; the last activations:", x.shape)
assert len(checked) == len(layers)
assert x.shape == (1, 2048, 7, 7)
assert np.isfinite(x).all()

# %% [markdown]
# ## Measured: a CPU
#
# `python -m benchmarks cpu` timed layers of this network, the same in ONNX Runtime, and a plain matrix product with as
# many multiply-adds by NumPy's BLAS. That product shows what this BLAS reaches on the machine at such a size, so it is
# the unit here; ONNX Runtime's own products are sometimes faster, below one. These numbers are stored, not measured on
# this page.

# %%
record = json.loads(
    (checkout / "benchmarks" / "results" / "cpu.json").read_text(encoding="utf-8")
)
rows = [
    row
    for row in record["rows"]
    if row["layer"]["net"] == "ResNet-50" and row["layer"]["op"] == "Conv"
]
measured = {
    row["layer"]["id"].removeprefix("resnet50."): {
        "gpuconv": row["our_median"] / row["product_median"],
        "ONNX Runtime": row["ort_median"] / row["product_median"],
    }
    for row in rows
}
cpu, threads = record["machine"]["cpu"], record["threads"]
print(f"{record['command']}: {cpu}, {threads} threads, float32")
for (name, ratios), row in zip(measured.items(), rows, strict=True):
    times = ", ".join(f"{program} {ratio:.2f}" for program, ratio in ratios.items())
    print(f"{name:12} x {'×'.join(map(str, row['x'])):13} {times}")
assert len(measured) >= 9

# %% [markdown]
# ## Modelled: a GPU that is not here
#
# The planner chooses among kernels by a model of their times. Compared with the floors of a datasheet, it predicts how
# far each kernel is from them. None of this is measured: times are computed from the kernels' tiles, instructions and
# traffic. The example has 32 images in bfloat16 on an H200, whose tensor cores are so fast that many layers wait for
# memory.

# %%
h200 = representative("sm_90a")
modelled, floors, by_memory, kernels = {}, {}, {}, {}
for layer in layers:
    case = Case(replace(layer, x=(32, *layer.x[1:])), "bfloat16")
    chooser = Chooser()
    plan(case, h200, chooser)
    modelled[layer.id], kernels[layer.id] = chooser.picked.seconds, chooser.picked.name
    work, rate = floor.work(case.layer.geometry, "bfloat16"), h200.peak("bfloat16")
    floors[layer.id] = work.seconds(rate, h200.bandwidth)
    by_memory[layer.id] = work.bytes / h200.bandwidth > work.flops / rate
    assert (
        modelled[layer.id] > floors[layer.id]
    )  # no model may be quicker than possible
print(f"{sum(by_memory.values())} of {len(layers)} layers wait for memory")
total, least = sum(modelled.values()), sum(floors.values())
print(f"model {total * 1e6:.0f} us, floor {least * 1e6:.0f} us")
for name in ("stem", "1.1 3x3", "3.1 expand", "4.1 3x3"):
    print(f"{name:11} {kernels[name]}")

# %% [markdown]
# ## The picture
#
# Above what was measured on the CPU, for the layers that are stored; below what is modelled for the GPU, for every
# convolution in order. Hatched bars are modelled.

# %%
figure, (above, below) = plt.subplots(2, 1, figsize=(12, 7), layout="constrained")
at = np.arange(len(measured))
for shift, program, colour in (
    (-0.2, "gpuconv", "tab:green"),
    (0.2, "ONNX Runtime", "tab:gray"),
):
    above.bar(
        at + shift,
        [ratios[program] for ratios in measured.values()],
        0.4,
        color=colour,
        label=program,
    )
above.axhline(1, color="black", linestyle=":", label="matrix product of the same size")
above.set_xticks(at, measured)
above.set(
    title="MEASURED on a CPU, float32, two threads (stored)",
    ylabel="time over matrix product",
)
above.legend(loc="upper right", ncols=3)
above.set_ylim(0, 1.3 * max(max(ratios.values()) for ratios in measured.values()))

colours = {True: "tab:blue", False: "tab:red"}
below.bar(
    list(modelled),
    [modelled[name] / floors[name] for name in modelled],
    color=[colours[by_memory[name]] for name in modelled],
    hatch="///",
    edgecolor="white",
    linewidth=0,
)
line = below.axhline(1, color="black", linestyle=":", label="the floor")
kinds = [
    Patch(
        facecolor=colours[key],
        hatch="///",
        edgecolor="white",
        label=f"modelled; the floor is {name}",
    )
    for key, name in ((True, "memory's"), (False, "arithmetic's"))
]
below.legend(handles=[*kinds, line], loc="upper right", ncols=3)
below.set(
    title="MODELLED for an H200, bfloat16, 32 images (nothing measured)",
    ylabel="time over floor",
)
below.set_ylim(0, 1.25 * max(modelled[name] / floors[name] for name in modelled))
below.tick_params(axis="x", labelrotation=90, labelsize=7)
below.margins(x=0.01)
plt.show()
