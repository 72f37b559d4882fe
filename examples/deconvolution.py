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
# # Deconvolution by gradient descent
#
# Every operator of gpuconv has its gradients as functions: of the input, of the weights, of the bias. That is all
# that a training loop needs, and also what an inverse problem needs. Here a blurred photograph is made sharp again,
# first with a blur that is known; then the blur itself is found from a pair of images. No framework, no graph: the
# gradients are calls like any other.
#
# To run it: `pip install -e ".[examples]"` in a checkout, then `jupyter lab examples/deconvolution.ipynb`. With a GPU
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


def inner(a, b):
    """Return the inner product of two arrays, wherever they are, in float64."""
    return float(
        np.vdot(*(gpuconv.to_host(array).astype(np.float64) for array in (a, b)))
    )


# %% [markdown]
# ## What the gradients are
#
# Conv is linear in x and in w. With dy the gradient of some loss with respect to y = conv(x, w), `conv_input_grad(dy,
# w, x.shape)` is that with respect to x: the adjoint, ⟨conv(x, w), dy⟩ = ⟨x, conv_input_grad(dy)⟩; and
# `conv_weight_grad(x, dy, w.shape)` the same for w. The forward call's attributes go along. In integers this holds
# exactly, strides, dilations, groups and uneven padding included.

# %%
random = np.random.default_rng(0)
x, w = (
    random.integers(-4, 5, shape).astype(np.float32)
    for shape in ((2, 4, 9, 11), (6, 2, 3, 2))
)
attributes = {"group": 2, "strides": [2, 1], "dilations": [1, 3], "pads": [2, 0, 1, 1]}
y = gpuconv.conv(place(x), place(w), **attributes)
dy = place(random.integers(-4, 5, y.shape).astype(np.float32))
dx = gpuconv.conv_input_grad(dy, place(w), x.shape, **attributes)
dw = gpuconv.conv_weight_grad(place(x), dy, w.shape, **attributes)
print(inner(y, dy), inner(x, dx), inner(w, dw))
assert inner(y, dy) == inner(x, dx) == inner(w, dw)

# %% [markdown]
# A derivative by differences agrees too. (For a linear function the difference is exact, with any step.)

# %%
step = np.zeros_like(w)
step[4, 1, 2, 0] = 1
difference = inner(gpuconv.conv(place(x), place(w + step), **attributes), dy) - inner(
    y, dy
)
assert difference == gpuconv.to_host(dw)[4, 1, 2, 0]

# %% [markdown]
# ## A blur that is known
#
# A piece of a photograph is blurred by a shaking hand: 11 × 11 taps along a curve. Some noise is added. Without
# `pads` the blurred image is smaller, since no light is known beyond the border.

# %%
sharp = data.camera()[60:220, 130:290].astype(np.float32)[None, None] / 255
path = np.linspace(0, 1, 200)
rows, columns = 5 + 4 * np.sin(3 * path), 1 + 9 * path
blur = (
    np.histogram2d(rows, columns, bins=11, range=[[-0.5, 10.5]] * 2)[0].astype(
        np.float32
    )[None, None]
    / 200
)
blurred = gpuconv.to_host(gpuconv.conv(place(sharp), place(blur)))
blurred += random.normal(0, 0.002, blurred.shape).astype(np.float32)
print(sharp.shape, "blurred to", blurred.shape)

# %% [markdown]
# The loss is ½‖conv(x, w) − blurred‖². Its gradient is `conv_input_grad` of what is left over. A step of one over the
# largest eigenvalue never overshoots; since the weights are not negative and add up to one, that eigenvalue is at most
# one. With Nesterov's momentum dozens of steps do what would take hundreds. Light is not negative either: after each
# step it is cut off at zero and one.


# %%
def sharpen(blurred, blur, steps):
    """Return the image that is blurred, and the losses on the way."""
    target, weights = place(blurred), place(blur)
    margin = blur.shape[2] // 2
    image = place(
        np.pad(
            blurred, ((0, 0), (0, 0), (margin, margin), (margin, margin)), mode="edge"
        )
    )
    ahead, losses, momentum = image, [], 1.0
    for _ in range(steps):
        left = gpuconv.conv(ahead, weights) - target
        losses.append(inner(left, left) / 2)
        following = (ahead - gpuconv.conv_input_grad(left, weights, image.shape)).clip(
            0, 1
        )
        later = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead = following + np.float32((momentum - 1) / later) * (following - image)
        image, momentum = following, later
    return gpuconv.to_host(image), losses


def decibels(image):
    """Return the peak signal-to-noise ratio, away from the border."""
    inside = np.s_[..., 12:-12, 12:-12]
    return -10 * np.log10(np.mean((image[inside] - sharp[inside]) ** 2))


restored, losses = sharpen(blurred, blur, 60)
before = np.pad(blurred, ((0, 0), (0, 0), (5, 5), (5, 5)), mode="edge")
print(f"{decibels(before):.1f} dB blurred, {decibels(restored):.1f} dB restored")
print(f"loss {losses[0]:.2f} to {losses[-1]:.4f}")
assert decibels(restored) > decibels(before) + 5
assert losses[-1] < 0.01 * losses[0]

# %% [markdown]
# More steps would fit the noise as well. That is the inverse problem's fault and not the gradients'; stopping early
# is one of the remedies.
#
# ## An unknown blur
#
# Now both images are given, as when a camera is calibrated, and the kernel is unknown. The loss is the same, with the
# other gradient: `conv_weight_grad`. Neighbouring pixels are so similar that plain descent converges slowly, so we use
# conjugate gradients, which also need only the gradient of a quadratic loss.


# %%
def find_blur(sharp, blurred, taps, steps):
    """Return the kernel that blurs one image to the other, by conjugate gradients."""
    images, shape = place(sharp), (1, 1, taps, taps)
    weights = place(np.zeros(shape, np.float32))
    gradient = -gpuconv.conv_weight_grad(
        images, place(blurred), shape
    )  # at weights of zero
    direction, square = -gradient, inner(gradient, gradient)
    for _ in range(steps):
        along = gpuconv.conv(images, direction)
        curved = gpuconv.conv_weight_grad(images, along, shape)
        length = np.float32(square / inner(along, along))
        weights = weights + length * direction
        gradient = gradient + length * curved
        square, last = inner(gradient, gradient), square
        direction = -gradient + np.float32(square / last) * direction
    return gpuconv.to_host(weights)


contrast = sharp - sharp.mean()
found = find_blur(contrast, blurred - sharp.mean(), 11, 60)
error = np.linalg.norm(found - blur) / np.linalg.norm(blur)
print(f"the kernel is off by {error:.1%}; it adds up to {found.sum():.3f}")
assert error < 0.1

# %% [markdown]
# And the kernel that was found restores the image as well as the true one.

# %%
again, _ = sharpen(blurred, found.clip(0) / found.clip(0).sum(), 60)
print(f"{decibels(again):.1f} dB")
assert decibels(again) > decibels(restored) - 1

# %% [markdown]
# ## The picture

# %%
figure, axes = plt.subplots(
    1, 5, figsize=(13, 3), width_ratios=(2, 2, 1, 1, 2), layout="constrained"
)
for axis, name, image in (
    (axes[0], f"blurred, {decibels(before):.1f} dB", before),
    (axes[1], f"restored, {decibels(restored):.1f} dB", restored),
    (axes[2], "the blur", blur),
    (axes[3], "as found", found),
):
    axis.imshow(image[0, 0], cmap="gray")
    axis.set(title=name, xticks=[], yticks=[])
axes[4].semilogy(losses)
axes[4].set(title="loss", xlabel="step")
plt.show()
