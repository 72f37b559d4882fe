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
# # Quickstart
#
# gpuconv has ONNX's Conv, ConvTranspose and MaxPool as functions of arrays. NumPy arrays run on the CPU,
# CuPy arrays on their GPU, and the results are the same. This page puts a photograph through all three, and then
# looks at what is exact on the way.
#
# To run it: `pip install -e ".[examples]"` in a checkout, then `jupyter lab examples/quickstart.ipynb`. With a GPU add
# the extra `cuda13` or `cuda12`.

# %%
import matplotlib.pyplot as plt
import numpy as np
from skimage import data

import gpuconv

# %% [markdown]
# Everything below runs on the GPU if there is one. `to_device` moves an array there, `to_host` moves it back;
# functions never move arrays by themselves.

# %%
try:
    place = gpuconv.to_device
    place(np.zeros(1))
    print("on the GPU")
except gpuconv.DeviceError as error:
    place = np.asarray
    print("on the CPU, since", error)

# %% [markdown]
# ## Conv: filters
#
# Activations are (N, C, D1, …, Dn): images, channels, then any number of spatial axes. Weights are (M, C, k1, …, kn):
# one filter of all input channels for each output channel. Attributes are keywords with ONNX's names and defaults.
#
# Here is a photograph, and three filters of its brightness: its changes along rows and along columns (Sobel), and the
# difference between a pixel and those around it (Laplace).

# %%
photo = data.chelsea()[20:244, 70:390].astype(np.float32) / 255
image = photo.transpose(2, 0, 1)[None]  # one image of three channels
sobel = np.outer([1, 2, 1], [-1, 0, 1])
laplace = np.array([[0, -1, 0], [-1, 4, -1], [0, -1, 0]])
brightness = np.array([0.299, 0.587, 0.114])  # of red, green and blue
weight = (
    np.stack([sobel, sobel.T, laplace])[:, None] * brightness[:, None, None]
).astype(np.float32)
print("image", image.shape, "weight", weight.shape)

features = gpuconv.conv(place(image), place(weight), pads=[1, 1, 1, 1])
print("features", features.shape, features.dtype)


# %%
def draw(panels, **limits):
    """Draw pictures side by side."""
    _, axes = plt.subplots(1, len(panels), figsize=(10, 2.1), layout="constrained")
    for axis, (title, panel) in zip(axes, panels.items(), strict=True):
        axis.imshow(panel, cmap="gray", **limits)
        axis.set(title=title, xticks=[], yticks=[])


along_rows, along_columns, details = gpuconv.to_host(features)[0]
titles = ("change along rows", "change along columns", "details")
answers = (along_rows, along_columns, 2 * details)
draw({"photograph": photo, **dict(zip(titles, answers, strict=True))}, vmin=-1, vmax=1)
plt.show()

# %% [markdown]
# ## MaxPool, and back
#
# With `return_indices=True` MaxPool also returns where each maximum was, as an index into the whole tensor.
# `max_unpool` puts the maxima back there: of every 8 × 8 pixels, the one with the strongest edge remains.

# %%
edges = np.hypot(along_rows, along_columns)[None, None]
pooled, indices = gpuconv.max_pool(
    place(edges), kernel_shape=[8, 8], strides=[8, 8], return_indices=True
)
assert (edges.ravel()[gpuconv.to_host(indices)] == gpuconv.to_host(pooled)).all()
sparse = gpuconv.max_unpool(pooled, indices, kernel_shape=[8, 8], strides=[8, 8])
print(
    pooled.shape,
    sparse.shape,
    f"{np.mean(gpuconv.to_host(sparse) != 0):.1%} of the pixels are left",
)

# %% [markdown]
# ## ConvTranspose: enlarging
#
# A Conv with stride 4 makes a small picture, ConvTranspose with stride 4 a large one again. With `group=3` each of
# the three channels is filtered by itself. Means of 4 × 4 pixels go down, bilinear weights go up.

# %%
means = np.full((3, 1, 4, 4), 1 / 16, np.float32)
ramp = (np.array([1, 3, 5, 7, 7, 5, 3, 1]) / 8).astype(np.float32)
bilinear = np.tile(np.outer(ramp, ramp), (3, 1, 1, 1))
small = gpuconv.conv(place(image), place(means), strides=[4, 4], group=3)
large = gpuconv.conv_transpose(
    small, place(bilinear), strides=[4, 4], pads=[2] * 4, group=3
)
print(image.shape, "to", small.shape, "to", large.shape)
assert (
    abs(gpuconv.to_host(large)[..., 4:-4, 4:-4] - image[..., 4:-4, 4:-4]).mean() < 0.03
)

# %% [markdown]
# ConvTranspose is the adjoint of the Conv with the same weights and attributes: ⟨conv(x), y⟩ = ⟨x, conv_transpose(y)⟩,
# up to rounding.

# %%
back = gpuconv.conv_transpose(features, place(weight), pads=[1, 1, 1, 1])
left, right = (
    np.vdot(
        gpuconv.to_host(a).astype(np.float64), gpuconv.to_host(b).astype(np.float64)
    )
    for a, b in ((features, features), (image, back))
)
print(left, right)
assert abs(left - right) < 1e-5 * abs(left)

# %% [markdown]
# ## What is exact
#
# Each output of a Conv is a sum over the window below it, made in float32 and rounded once. How far such a sum may be
# from the exact one is known: for K terms whose magnitudes add up to S, at most (K + 1)·u·S, with u = 2⁻²⁴. S is a
# Conv itself, of magnitudes. Here are all outputs against sums in float64, in units of their bounds.

# %%
padded = np.pad(image[0].astype(np.float64), ((0, 0), (1, 1), (1, 1)))
windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
exact = np.einsum("cyxij,mcij->myx", windows, weight.astype(np.float64))
bound = (
    (27 + 1)
    * 2.0**-24
    * np.einsum("cyxij,mcij->myx", windows, abs(weight).astype(np.float64))
)
share = abs(gpuconv.to_host(features)[0] - exact) / bound
print(f"{share.size} sums are off by at most {share.max():.1%} of their bounds")
assert share.max() <= 1

# %% [markdown]
# 16-bit numbers are summed in float32 too. In float16 itself 2048 + 1 is 2048, and stays so however many ones follow:

# %%
ones = np.ones((1, 1, 1, 1025), np.float16)
ones[..., 0] = 2048
total = gpuconv.to_host(gpuconv.conv(place(ones), place(np.ones_like(ones))))
print(
    "gpuconv",
    total.item(),
    "and by additions in float16",
    ones.ravel().cumsum(dtype=np.float16)[-1].item(),
)
assert total.item() == 2048 + 1024

# %% [markdown]
# Padding has no value. An infinite weight over only padding adds nothing, where a padding of zeros would have resulted
# in NaN.

# %%
edge = gpuconv.conv(
    place(np.ones((1, 1, 3), np.float32)),
    place(np.array([[[np.inf, 1]]], np.float32)),
    pads=[1, 0],
)
print(gpuconv.to_host(edge))
assert gpuconv.to_host(edge).tolist() == [[[1, np.inf, np.inf]]]

# %% [markdown]
# ## Errors
#
# A call that breaks a rule says which, with the numbers, before anything is computed.

# %%
try:
    gpuconv.conv(place(image), place(weight), group=2)
except gpuconv.ArgumentError as error:
    print(error)
else:
    raise AssertionError("3 channels do not make 2 groups")

# %% [markdown]
# ## What a GPU would do
#
# `explain` needs no GPU. It names the kernels that a call launches on a device, a lower bound of its time, and the
# candidates. Its times are modelled: they only serve to rank kernels.

# %%
plan = gpuconv.explain(
    "conv",
    (32, 64, 56, 56),
    (64, 64, 3, 3),
    pads=[1, 1, 1, 1],
    dtype="float16",
    arch="sm_80",
)
assert plan.kernel in [launch.variant.name for launch in plan.launches]

# %% [markdown]
# ## The picture
#
# The photograph, its strongest edges where they were, the small picture, and the same enlarged again.

# %%
colours = [
    gpuconv.to_host(array)[0].transpose(1, 2, 0).clip(0, 1) for array in (small, large)
]
spots = (
    1
    - gpuconv.to_host(gpuconv.max_pool(sparse, kernel_shape=[3, 3], pads=[1] * 4))[0, 0]
)  # 3 × 3 pixels each
draw(
    {
        "photograph": photo,
        "strongest edges": spots,
        "small": colours[0],
        "enlarged": colours[1],
    },
    vmin=0,
    vmax=1,
)
plt.show()
