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
# # ConvTranspose and checkerboards
#
# Networks that draw pictures enlarge them with ConvTranspose, and for years their pictures had a checkerboard in
# them. This page shows where it comes from, how gpuconv computes ConvTranspose, which turns out to be the same
# question, and what helps.
#
# To run it: `pip install -e ".[examples]"` in a checkout, then `jupyter lab examples/checkerboards.ipynb`. With a GPU
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


def enlarge(x, w, **attributes):
    """ConvTranspose of host arrays."""
    return gpuconv.to_host(gpuconv.conv_transpose(place(x), place(w), **attributes))


# %% [markdown]
# ## How many inputs reach an output?
#
# Input i goes to the outputs i·s + t − pad, one for each tap t of the kernel. An output collects what comes. With an
# input of ones and weights of ones it counts: for a kernel of 3 and a stride of 2 every other output is reached by
# two inputs and the ones between by one, along each axis.


# %%
def reached(kernel, stride, extent=8):
    """Return how many products each output has, far from the border."""
    ones = np.ones((1, 1, extent, extent), np.float32)
    counts = enlarge(
        ones, np.ones((1, 1, kernel, kernel), np.float32), strides=[stride] * 2
    )[0, 0]
    inside = slice(kernel, extent * stride - kernel)
    return counts[inside, inside]


assert sorted(set(reached(3, 2).ravel())) == [1, 2, 4]
for kernel, stride in ((2, 2), (3, 2), (4, 2), (5, 2), (4, 3), (6, 3)):
    counts = reached(kernel, stride)
    kinds = sorted(set(counts.ravel().astype(int).tolist()))
    print(f"kernel {kernel}, stride {stride}: {kinds}")
    assert (counts.min() == counts.max()) == (kernel % stride == 0)

# %% [markdown]
# The counts are even where the stride divides the kernel, and only there. Otherwise a network must learn weights that
# make up for the uneven counts, in every layer; what it does not manage is the checkerboard.
#
# ## The same by phases
#
# Outputs a stride apart have the same taps: those t with (o + pad − t) divisible by s. So the outputs fall into s
# phases along each axis, and each phase is an ordinary Conv of stride 1 with its own part of the kernel. A kernel of
# 3 with stride 2 has two taps for the even phase and one for the odd phase. gpuconv's kernels compute it so: no zeros
# are inserted between the inputs and multiplied, and no two threads add to one output. In NumPy, along one axis:


# %%
def by_phases(x, w, stride):
    """Return conv_transpose(x, w, strides=[stride]), for one axis."""
    kernel, extent = w.shape[2], x.shape[2]
    y = np.zeros((x.shape[0], w.shape[1], stride * (extent - 1) + kernel), x.dtype)
    for phase in range(stride):
        taps = w[
            :, :, phase::stride
        ]  # of this phase; its outputs are of inputs q, q - 1, …
        if taps.shape[2]:
            turned = taps[:, :, ::-1].transpose(
                1, 0, 2
            )  # Conv reads inputs from left to right, and has M first
            y[:, :, phase::stride] = gpuconv.conv(
                x, turned, pads=[taps.shape[2] - 1] * 2
            )[:, :, : y[:, :, phase::stride].shape[2]]
    return y


random = np.random.default_rng(0)
for kernel, stride in ((3, 2), (4, 2), (2, 3), (7, 3)):
    x = random.integers(-4, 5, (2, 3, 9)).astype(np.float32)
    w = random.integers(-4, 5, (3, 5, kernel)).astype(np.float32)
    assert (by_phases(x, w, stride) == enlarge(x, w, strides=[stride])).all()

# %% [markdown]
# ## On a photograph
#
# A piece of a photograph at half its size is enlarged again, with random weights of a mean of one, like an untrained
# layer, and by three that are even by design: a kernel of 4; bilinear weights; and nearest neighbours, which are a
# kernel of 2 with stride 2 and weights of one, with a Conv of stride 1 after them. The last is what many generators
# do now.

# %%
piece = data.camera()[80:208, 170:298].astype(np.float32) / 255
small = piece.reshape(64, 2, 64, 2).mean((1, 3))[None, None]
triangle = np.array([0.25, 0.75, 0.75, 0.25], np.float32)
bilinear = np.outer(triangle, triangle)[None, None]


def untrained(kernel):
    return random.normal(1, 0.1, (1, 1, kernel, kernel)).astype(np.float32)


uneven = enlarge(
    small, untrained(3), strides=[2, 2], pads=[1] * 4, output_padding=[1, 1]
)
even = enlarge(small, untrained(4), strides=[2, 2], pads=[1] * 4)
smooth = enlarge(small, bilinear, strides=[2, 2], pads=[1] * 4)
nearest = enlarge(small, np.ones((1, 1, 2, 2), np.float32), strides=[2, 2])
assert (nearest[0, 0] == small[0, 0].repeat(2, 0).repeat(2, 1)).all()
resized = gpuconv.to_host(
    gpuconv.conv(place(nearest), place(untrained(3) / 9), pads=[1] * 4)
)
pictures = {
    "kernel 3": uneven,
    "kernel 4": even,
    "bilinear": smooth,
    "nearest, then Conv": resized,
}
assert all(picture.shape == (1, 1, 128, 128) for picture in pictures.values())

# %% [markdown]
# A checkerboard is the highest possible frequency: in the spectrum it is in the corner and in the middle of the edges.
# How large is its amplitude, compared with the picture's mean?


# %%
def checkerboard(picture):
    """Return the amplitude at the highest frequency, over that of the mean."""
    spectrum = abs(np.fft.fft2(picture[0, 0, 16:-16, 16:-16]))
    middle = spectrum.shape[0] // 2
    return (
        max(spectrum[middle, middle], spectrum[0, middle], spectrum[middle, 0])
        / spectrum[0, 0]
    )


shares = {name: checkerboard(picture) for name, picture in pictures.items()}
for name, share in shares.items():
    print(f"{name:20} {share:.4f}")
assert shares["kernel 3"] > 5 * max(
    share for name, share in shares.items() if name != "kernel 3"
)

# %% [markdown]
# The kernel of 4 keeps what its random weights are uneven by, which training can change weight by weight. The kernel
# of 3 has a third of the mean at that frequency as long as its weights are alike: its even phase adds up two taps and
# its odd phase one, (2 − 1) / (2 + 1).

# %%
ones = enlarge(
    np.ones((1, 1, 66, 66), np.float32),
    np.ones((1, 1, 3, 3), np.float32),
    strides=[2, 2],
)[..., 2:-3, 2:-3]
assert abs(checkerboard(ones) - 1 / 3) < 1e-6

# %% [markdown]
# ## The picture

# %%
figure, axes = plt.subplots(2, 4, figsize=(11, 5.8), layout="constrained")
for (name, picture), (above, below) in zip(pictures.items(), axes.T, strict=True):
    above.imshow(picture[0, 0, 16:80, 32:96], cmap="gray")
    above.set_title(name)
    spectrum = np.fft.fftshift(abs(np.fft.fft2(picture[0, 0, 16:-16, 16:-16])))
    below.imshow(
        np.log10(spectrum / spectrum.max() + 1e-5),
        cmap="magma",
        extent=(-0.5, 0.5, -0.5, 0.5),
    )
    below.set_title(f"checkerboard {shares[name]:.1%}")
    above.set(xticks=[], yticks=[])
plt.show()
