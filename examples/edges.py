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
# # Edges, corners and stripes of a photograph
#
# The filters that networks learn in their first layer were known before: derivatives, Laplacians, Gabor functions.
# Here they are put into one Conv by hand, on a photograph that scikit-image has in its package, and compared with
# SciPy's. Then MaxPool's Indices find corners.
#
# To run it: `pip install -e ".[examples]"` in a checkout, then `jupyter lab examples/edges.ipynb`. With a GPU add
# the extra `cuda13` or `cuda12`.

# %%
import matplotlib.pyplot as plt
import numpy as np
from scipy import ndimage
from skimage import data

import gpuconv

try:
    place = gpuconv.to_device
    place(np.zeros(1))
    print("on the GPU")
except gpuconv.DeviceError as error:
    place = np.asarray
    print("on the CPU, since", error)

photo = data.camera().astype(np.float32) / 255
print(photo.shape, photo.dtype)

# %% [markdown]
# ## A bank of filters is one Conv
#
# Every filter becomes one output channel. All have 15 × 15 taps here, so the two Sobel filters are padded with zeros.
# Gabor functions are waves in a Gaussian window: they respond to stripes of one width and direction.

# %%
rows, columns = np.mgrid[-7:8, -7:8].astype(np.float32)


def gabor(angle, wavelength=6.0, spread=3.0):
    """Return a wave along a direction under a bell, without the constant part."""
    along = columns * np.cos(angle) + rows * np.sin(angle)
    wave = np.cos(2 * np.pi * along / wavelength) * np.exp(
        -(rows**2 + columns**2) / (2 * spread**2)
    )
    return wave - wave.mean()


def centred(small):
    """Put a 3 x 3 filter in the middle of 15 x 15 taps."""
    return np.pad(np.asarray(small, np.float32), 6)


angles = np.arange(6) * np.pi / 6
sobel = [
    centred(np.outer([1, 2, 1], [-1, 0, 1])),
    centred(np.outer([-1, 0, 1], [1, 2, 1])),
]
laplacian = centred([[0, 1, 0], [1, -4, 1], [0, 1, 0]])
bank = np.stack([*sobel, laplacian, *map(gabor, angles)]).astype(np.float32)[:, None]
print(bank.shape)

# %% [markdown]
# ## What is beyond the border?
#
# ONNX's `pads` put nothing there, which for a sum is the same as black. At the border of a photograph black is an
# edge, which nobody drew. SciPy lets one choose; so can we, by padding the image ourselves, here with its mirror
# image, and convolving without `pads`. Both ways agree with SciPy, filter by filter.

# %%
black = gpuconv.to_host(
    gpuconv.conv(place(photo[None, None]), place(bank), pads=[7] * 4)
)[0]
mirrored = np.pad(photo, 7, mode="symmetric")[None, None]
answers = gpuconv.to_host(gpuconv.conv(place(mirrored), place(bank)))[0]
for number, filter_ in enumerate(bank[:, 0].astype(np.float64)):
    for ours, mode in ((black, "constant"), (answers, "reflect")):
        theirs = ndimage.correlate(photo.astype(np.float64), filter_, mode=mode)
        assert abs(ours[number] - theirs).max() < 227 * 2.0**-24 * abs(filter_).sum()
gradient, gradient_of_black = np.hypot(*answers[:2]), np.hypot(*black[:2])
print(f"mean gradient along the border: {gradient[0].mean():.3f},", end=" ")
print(f"with black beyond it {gradient_of_black[0].mean():.3f}")
assert gradient_of_black[0].mean() > 5 * gradient[0].mean()

# %% [markdown]
# The tolerance above is no guess: 225 products and a bias are 226 terms, each at most as large as its weight, which
# puts a float32 sum within (226 + 1)·u·Σ|w| of the exact one. (A bias of zero counts as a term here.)
#
# ## Separable filters, and groups
#
# A Gaussian is the product of one along rows and one along columns. With `group` equal to the number of channels
# every channel has filters of its own (a depthwise Conv), so that one call smooths several images apart from each
# other, in 2 × 13 products for each output instead of 169.

# %%
bell = np.exp(-(np.arange(-6, 7) ** 2) / (2 * 2.0**2))
bell = (bell / bell.sum()).astype(np.float32)


def smooth(stack):
    """Smooth every channel of (1, C, H, W) by itself, mirrored at the border."""
    channels = stack.shape[1]
    padded = place(np.pad(stack, ((0, 0), (0, 0), (6, 6), (6, 6)), mode="symmetric"))
    down = place(np.tile(bell[:, None], (channels, 1, 1, 1)))
    along = place(np.tile(bell[None, :], (channels, 1, 1, 1)))
    return gpuconv.to_host(
        gpuconv.conv(gpuconv.conv(padded, down, group=channels), along, group=channels)
    )


smoothed = smooth(photo[None, None])[0, 0]
assert (
    abs(smoothed - ndimage.gaussian_filter(photo.astype(np.float64), 2, radius=6)).max()
    < 34 * 2.0**-24
)

# %% [markdown]
# ## Corners, and how MaxPool finds peaks
#
# The structure tensor holds the squares and the product of the gradient's two parts, smoothed. Where it has two large
# eigenvalues the image changes in both directions: a corner (Harris). One depthwise call smooths all three parts.

# %%
right, down = answers[0], answers[1]
a, b, c = smooth(np.stack([right * right, right * down, down * down])[None])[0]
corners = a * c - b * b - 0.05 * (a + c) ** 2

# %% [markdown]
# A peak is an element that is the maximum of its own window. MaxPool's Indices are numbers of elements, so this is
# one comparison with their own numbers. Comparing values instead would count every element of a plateau; with Indices
# only its first one is the maximum of its window.

# %%
window = {"kernel_shape": [21, 21], "pads": [10] * 4}
height, indices = gpuconv.max_pool(
    place(corners[None, None]), return_indices=True, **window
)
own = np.arange(corners.size).reshape(corners.shape)
peak = (gpuconv.to_host(indices)[0, 0] == own) & (corners > 0.02 * corners.max())
assert (
    gpuconv.to_host(height)[0, 0]
    == ndimage.maximum_filter(corners, 21, mode="constant", cval=-np.inf)
).all()
peak_rows, peak_columns = np.nonzero(peak)
distances = np.maximum(
    *(abs(np.subtract.outer(at, at)) for at in (peak_rows, peak_columns))
)
print(
    len(peak_rows),
    "corners, the nearest two",
    distances[distances > 0].min(),
    "pixels apart",
)
assert distances[distances > 0].min() > 10  # no peak is in another one's window

# %% [markdown]
# ## The picture
#
# The photograph with its corners, the length of the gradient, and which of the six directions of stripes answers
# most, where any does.

# %%
stripes = abs(answers[3:])
strongest = np.where(
    stripes.max(0) > 0.15 * stripes.max(),
    angles[stripes.argmax(0)] * 180 / np.pi,
    np.nan,
)
figure, axes = plt.subplots(1, 3, figsize=(12, 4.2), layout="constrained")
axes[0].imshow(photo, cmap="gray")
axes[0].plot(
    peak_columns, peak_rows, "o", markersize=7, markerfacecolor="none", color="red"
)
axes[0].set_title("corners")
axes[1].imshow(gradient, cmap="magma")
axes[1].set_title("gradient")
shown = axes[2].imshow(strongest, cmap="hsv", vmin=0, vmax=180, interpolation="nearest")
axes[2].set_title("stripes, by direction")
figure.colorbar(shown, ax=axes[2], label="degrees", ticks=range(0, 181, 30))
for axis in axes:
    axis.set(xticks=[], yticks=[])
plt.show()
