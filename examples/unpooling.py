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
# # MaxPool's Indices, and unpooling
#
# MaxPool forgets where its maxima were. Its second output, the Indices, remembers; SegNet and its kin use that to put
# things back where they came from. What the Indices count is where implementations differ most, so this page goes
# through the rules one by one, with results, and then takes a photograph apart and puts it together.
#
# To run it: `pip install -e ".[examples]"` in a checkout, then `jupyter lab examples/unpooling.ipynb`. With a GPU
# add the extra `cuda13` or `cuda12`.

# %%
import matplotlib.pyplot as plt
import numpy as np
from skimage import data

import gpuconv

try:
    place = gpuconv.to_device
    place(np.zeros(1))
    print("on the GPU")
except gpuconv.DeviceError as error:
    place = np.asarray
    print("on the CPU, since", error)


def max_pool(x, **attributes):
    """MaxPool of a host array, with Indices."""
    return map(
        gpuconv.to_host, gpuconv.max_pool(place(x), return_indices=True, **attributes)
    )


# %% [markdown]
# ## They count elements of the whole tensor
#
# They do not count within one plane, as in PyTorch: the second channel of the first image begins at H·W. So
# `x.ravel()[indices]` are the maxima.

# %%
random = np.random.default_rng(0)
x = random.standard_normal((2, 3, 4, 6)).astype(np.float32)
y, indices = max_pool(x, kernel_shape=[2, 2], strides=[2, 2])
assert (x.ravel()[indices] == y).all()
planes = np.arange(2 * 3).reshape(2, 3, 1, 1) * (4 * 6)
per_plane = indices - planes  # as torch.nn.functional.max_pool2d has them
print(indices[1, 2].tolist(), "or in their plane", per_plane[1, 2].tolist())
assert per_plane.min() >= 0
assert per_plane.max() < 4 * 6

# %% [markdown]
# With `storage_order=1` the places in a plane are counted column by column. The planes still follow each other as
# before.

# %%
by_columns = (
    list(max_pool(x, kernel_shape=[2, 2], strides=[2, 2], storage_order=1))[1] - planes
)
row, column = np.divmod(per_plane, 6)
assert (by_columns == row + 4 * column).all()

# %% [markdown]
# Padding is not counted, for it is not there: a window is what it covers of the input. So pads may even be larger
# than the kernel; a window with nothing in it gives the lowest finite number and the index −1.

# %%
y, indices = max_pool(np.array([[[7, 8]]], np.float32), kernel_shape=[2], pads=[3, 0])
print(y.tolist(), indices.tolist())
assert indices.tolist() == [[[-1, -1, 0, 1]]]
assert y[0, 0, 0] == np.finfo(np.float32).min

# %% [markdown]
# ## Which one, if several are largest?
#
# The first in the window, row by row. Zeros of both signs are equal. NaN is larger than everything, and of several
# the first counts: what went wrong stays visible.

# %%
x = np.array([[[2, 2, -0.0, 0.0, np.nan, 5, np.nan, 1]]], np.float32)
y, indices = max_pool(x, kernel_shape=[2], strides=[2])
print(y.tolist(), indices.tolist())
assert indices.tolist() == [[[0, 2, 4, 6]]]
assert np.signbit(
    y[0, 0, 1]
)  # with Indices y is the element itself, the sign of zero included

# %% [markdown]
# ## Putting maxima back
#
# `max_unpool` is ONNX's MaxUnpool: every element goes to its index, everything else is zero. Here with the shape that
# the maxima came from, where the windows do not reach the end:

# %%
x = random.standard_normal((1, 1, 7)).astype(np.float32)
y, indices = max_pool(x, kernel_shape=[2], strides=[2])
back = gpuconv.to_host(
    gpuconv.max_unpool(
        place(y), place(indices), kernel_shape=[2], strides=[2], output_shape=[7]
    )
)
print(np.round(x, 2), np.round(back, 2), sep="\n")
assert (back[back != 0] == x[back != 0]).all()
assert np.count_nonzero(back) == 3

# %% [markdown]
# Several channels do not go with `output_shape` so easily: Indices count in the shape that MaxUnpool works out from
# its attributes, stride · (Q − 1) + kernel − pads, also where `output_shape` is larger. Those of a tensor whose last
# column no window met count otherwise, and `max_unpool` refuses them. With `indices_in="plane"`, for both calls, they
# count within the planes of the result, and go with any `output_shape`.
#
# ## The gradient
#
# What reaches a window goes to its maximum. Where windows do not overlap that is the same as unpooling; where they
# do, an element that is the maximum of several windows collects from all of them, whereas unpooling puts one there.

# %%
x = random.standard_normal((2, 3, 8, 8)).astype(np.float32)
for attributes, same in (
    ({"kernel_shape": [2, 2], "strides": [2, 2]}, True),
    ({"kernel_shape": [3, 3], "strides": [1, 1]}, False),
):
    y, indices = max_pool(x, **attributes)
    dy = np.ones_like(y)
    dx = gpuconv.to_host(
        gpuconv.max_pool_grad(place(dy), place(indices), x.shape, **attributes)
    )
    put = gpuconv.to_host(gpuconv.max_unpool(place(dy), place(indices), **attributes))
    by_hand = np.zeros(x.size, np.float32)
    np.add.at(by_hand, indices.ravel(), dy.ravel())
    assert (dx.ravel() == by_hand).all()
    assert (dx == put).all() == same
    print(
        attributes["kernel_shape"],
        "largest gradient",
        dx.max(),
        "largest unpooled",
        put.max(),
    )

# %% [markdown]
# ## Encoder and decoder
#
# Two poolings of 2 × 2 leave one pixel in 16. Enlarged by repetition that is a mosaic; unpooled, every pixel is where
# it was, with zeros around it. A Conv that spreads the known pixels over their neighbourhood, and divides by their
# number (a normalised convolution), turns this into a picture with its bright details in the right positions.

# %%
photo = data.camera().astype(np.float32)[None, None] / 255
attributes = {"kernel_shape": [2, 2], "strides": [2, 2]}
level, levels = place(photo), []
for _ in range(2):
    level, indices = gpuconv.max_pool(level, return_indices=True, **attributes)
    levels.append(indices)
known, mask = level, place(np.ones(level.shape, np.float32))
for indices in reversed(levels):
    known, mask = (
        gpuconv.max_unpool(array, indices, **attributes) for array in (known, mask)
    )

rows, columns = np.mgrid[-6:7, -6:7]
bell = np.exp(-(rows**2 + columns**2) / (2 * 1.5**2)).astype(np.float32)[None, None]
spread, weight = (
    gpuconv.to_host(gpuconv.conv(array, place(bell), pads=[6] * 4))
    for array in (known, mask)
)
filled = spread / weight
known, mask, small = map(gpuconv.to_host, (known, mask, level))
mosaic = small.repeat(4, 2).repeat(4, 3)
assert mask.sum() == photo.size / 16
assert (known[mask == 1] == photo[mask == 1]).all()

# %% [markdown]
# Each of those pixels is the brightest of its 4 × 4 neighbours: two poolings of 2 × 2 are one of 4 × 4. (The Indices
# are not the same numbers: each level counts in its own tensor.)

# %%
once, at = max_pool(photo, kernel_shape=[4, 4], strides=[4, 4])
assert (small == once).all()
errors = {
    name: abs(picture - photo).mean()
    for name, picture in (("mosaic", mosaic), ("filled", filled))
}
print({name: round(float(error), 4) for name, error in errors.items()})
assert errors["filled"] < errors["mosaic"]

# %% [markdown]
# ## The picture

# %%
cut = slice(120, 220), slice(180, 300)
panels = {
    "photograph": photo,
    "repeated": mosaic,
    "unpooled": known,
    "and filled": filled,
}
figure, axes = plt.subplots(1, 4, figsize=(12, 3), layout="constrained")
for axis, (name, panel) in zip(axes, panels.items(), strict=True):
    axis.imshow(panel[0, 0][cut], cmap="gray", vmin=0, vmax=1)
    axis.set(title=name, xticks=[], yticks=[])
plt.show()
