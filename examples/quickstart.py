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
# gpuconv has ONNX's Conv, ConvTranspose and MaxPool as functions of arrays. NumPy arrays run on the CPU, CuPy arrays
# on their GPU, and the results are the same. This page builds a small network by hand and looks at what is exact on
# the way.

# %%
import matplotlib.pyplot as plt
import numpy as np

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
# ## Conv
#
# Activations are (N, C, D1, …, Dn): images, channels, then any number of spatial axes. Weights are (M, C, k1, …, kn):
# one filter of all input channels for each output channel. Attributes are keywords with ONNX's names and defaults.

# %%
random = np.random.default_rng(0)
rows, columns = np.mgrid[0:32, 0:32]
disc = ((rows - 15.5) ** 2 + (columns - 15.5) ** 2 < 100).astype(np.float32)
image = np.stack([disc, disc.T * columns / 31, random.random((32, 32))])[None].astype(np.float32)
weight = random.standard_normal((8, 3, 3, 3)).astype(np.float32)
bias = random.standard_normal(8).astype(np.float32)

features = gpuconv.conv(place(image), place(weight), place(bias), pads=[1, 1, 1, 1])
print(features.shape, features.dtype)

# %% [markdown]
# Each output is a sum over the window below it, made in float32 and rounded once. How far such a sum may be from the
# exact one is known: for K terms whose magnitudes add up to S, at most (K + 1)·u·S, with u = 2⁻²⁴. Here is one output
# in float64, and the bound.

# %%
window = image[0, :, 9:12, 19:22].astype(np.float64)  # below the output at row 10, column 20: padding moves it by one
terms = np.append(window.ravel() * weight[5].astype(np.float64).ravel(), bias[5])
error = abs(float(gpuconv.to_host(features)[0, 5, 10, 20]) - terms.sum())
bound = (terms.size + 1) * 2.0**-24 * abs(terms).sum()
print(f"error {error:.1e}, bound {bound:.1e}")
assert error <= bound

# %% [markdown]
# 16-bit numbers are summed in float32 too. In float16 itself 2048 + 1 is 2048, and stays so however many ones follow:

# %%
ones = np.ones((1, 1, 1, 1025), np.float16)
ones[..., 0] = 2048
total = gpuconv.to_host(gpuconv.conv(place(ones), place(np.ones_like(ones))))
print("gpuconv", total.item(), "and by additions in float16", ones.ravel().cumsum(dtype=np.float16)[-1])
assert total.item() == 2048 + 1024

# %% [markdown]
# Padding is nothing: no number stands for it. An infinite weight that meets padding alone adds nothing, where a
# padding of zeros would have made a NaN of it.

# %%
edge = gpuconv.conv(place(np.ones((1, 1, 3), np.float32)), place(np.array([[[np.inf, 1]]], np.float32)), pads=[1, 0])
print(gpuconv.to_host(edge))
assert gpuconv.to_host(edge).tolist() == [[[1, np.inf, np.inf]]]

# %% [markdown]
# ## MaxPool, and back
#
# With `return_indices=True` MaxPool also tells where each maximum was, counted through the whole tensor. `max_unpool`
# puts the maxima back there.

# %%
pooled, indices = gpuconv.max_pool(features, kernel_shape=[2, 2], strides=[2, 2], return_indices=True)
assert (gpuconv.to_host(features).ravel()[gpuconv.to_host(indices)] == gpuconv.to_host(pooled)).all()
sparse = gpuconv.max_unpool(pooled, indices, kernel_shape=[2, 2], strides=[2, 2])
print(pooled.shape, sparse.shape, f"{np.mean(gpuconv.to_host(sparse) != 0):.0%} of the elements are not zero")

# %% [markdown]
# ## ConvTranspose
#
# It has the weights of the Conv whose adjoint it is: the eight channels above lead back to three. That is also what
# adjoint means, up to rounding: ⟨conv(x), y⟩ = ⟨x, conv_transpose(y)⟩.

# %%
back = gpuconv.conv_transpose(sparse, place(weight), pads=[1, 1, 1, 1])
plain = gpuconv.conv(place(image), place(weight), pads=[1, 1, 1, 1])
left, right = (
    np.vdot(gpuconv.to_host(a).astype(np.float64), gpuconv.to_host(b).astype(np.float64))
    for a, b in ((plain, sparse), (image, back))
)
print(back.shape, left, right)
assert abs(left - right) < 1e-5 * abs(left)

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
# `explain` needs no GPU. It names the kernels that a call launches on a device, the time that it cannot be quicker
# than, and what the choice was between. The modelled times put kernels in order, no more.

# %%
plan = gpuconv.explain("conv", (32, 64, 56, 56), (64, 64, 3, 3), pads=[1, 1, 1, 1], dtype="float16", arch="sm_80")
assert plan.kernel in [launch.variant.name for launch in plan.launches]

# %% [markdown]
# ## The picture
#
# The image, one of its eight channels of features, the maxima of that where they were, and what leads back to the
# image.

# %%
panels = {
    "image": image[0].transpose(1, 2, 0),
    "a feature": gpuconv.to_host(features)[0, 5],
    "its maxima, unpooled": gpuconv.to_host(sparse)[0, 5],
    "conv_transpose": gpuconv.to_host(back)[0, 0],
}
figure, axes = plt.subplots(1, 4, figsize=(11, 3), layout="constrained")
for axis, (title, panel) in zip(axes, panels.items(), strict=True):
    axis.imshow(panel, cmap="gray")
    axis.set(title=title, xticks=[], yticks=[])
plt.show()
