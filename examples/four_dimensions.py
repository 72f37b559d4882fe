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
# # A convolution in four dimensions
#
# Frameworks stop at three spatial axes. The operators' specifications do not, and neither does gpuconv: every
# function takes any number of axes. Films of volumes, as microscopes and scanners make them, have four: time, depth,
# rows and columns. Here a speck too faint for any single volume is found by what it does in time, with one Conv in
# four dimensions.
#
# To run it: `pip install -e ".[examples]"` in a checkout, then `jupyter lab examples/four_dimensions.ipynb`. With a GPU
# add the extra `cuda13` or `cuda12`.

# %%
from itertools import product

import matplotlib.pyplot as plt
import numpy as np

import gpuconv

try:
    place = gpuconv.to_device
    place(np.zeros(1))
    print("on the GPU")
except gpuconv.DeviceError as error:
    place = np.asarray
    print("on the CPU, since", error)

# %% [markdown]
# ## Definition
#
# A Conv over (time, depth, rows, columns) is a sum, over the taps along time, of Convs over the remaining three axes.
# A framework with up to three axes can compute it that way, with one call and one addition for each tap; and we can use
# it as a check.

# %%
random = np.random.default_rng(0)
x = random.integers(-3, 4, (2, 3, 5, 6, 7, 8)).astype(
    np.float32
)  # N, C, then four axes
w = random.integers(-3, 4, (4, 3, 3, 2, 3, 2)).astype(np.float32)
y = gpuconv.to_host(gpuconv.conv(place(x), place(w)))
by_time = np.stack(
    [
        sum(
            gpuconv.to_host(
                gpuconv.conv(place(x[:, :, time + tap]), place(w[:, :, tap]))
            )
            for tap in range(w.shape[2])
        )
        for time in range(y.shape[2])
    ],
    axis=2,
)
print(y.shape)
assert (y == by_time).all()

# %% [markdown]
# ## A speck in noise
#
# Twelve volumes of 14 × 28 × 28, each nothing but noise, and in them a soft speck that moves by the same step from
# volume to volume. Its brightest voxel is as bright as the noise's standard deviation.

# %%
frames, depth, size = 12, 14, 28
start, velocity = np.array([4, 6, 20]), np.array([0, 1, -1])
film = random.standard_normal((frames, depth, size, size)).astype(np.float32)
grid = np.mgrid[0:depth, 0:size, 0:size]
for frame in range(frames):
    offset = grid - (start + velocity * frame).reshape(3, 1, 1, 1)
    film[frame] += np.exp(-(offset**2).sum(0) / 2)

# %% [markdown]
# ## Filters that move
#
# The best linear detector of a known shape in noise is a Conv with that shape (a matched filter). For one volume the
# shape is the speck. For seven volumes it is the speck's path: one filter in four dimensions for each velocity. Here
# are the 27 with steps of −1, 0 and 1 along each axis. A path spans up to 7 voxels and the speck 2 more on each side,
# so a kernel has 7 × 11 × 11 × 11 taps. All filters have a norm of one, so that the standard deviation of noise stays
# one.

# %%
length, reach = 7, 5
inner = np.mgrid[-reach : reach + 1, -reach : reach + 1, -reach : reach + 1]
velocities = list(product((-1, 0, 1), repeat=3))
bank = np.zeros((len(velocities), 1, length, *(2 * reach + 1,) * 3), np.float32)
for number, step in enumerate(velocities):
    for frame in range(length):
        offset = inner - np.array(step).reshape(3, 1, 1, 1) * (frame - length // 2)
        bank[number, 0, frame] = np.exp(-(offset**2).sum(0) / 2)
    bank[number] /= np.linalg.norm(bank[number])
volumes = film[None, None]
moving = gpuconv.to_host(
    gpuconv.conv(
        place(volumes), place(bank), pads=[0] + [reach] * 3 + [0] + [reach] * 3
    )
)[0]
still = bank[velocities.index((0, 0, 0))][None, :, length // 2 : length // 2 + 1]
still = still / np.linalg.norm(still)
single = gpuconv.to_host(
    gpuconv.conv(
        place(volumes), place(still), pads=[0] + [reach] * 3 + [0] + [reach] * 3
    )
)[0, 0]
print(
    "filters",
    bank.shape,
    "answers",
    moving.shape,
    f"{2 * moving.size * bank[0].size / 1e9:.1f} GFLOP",
)

# %% [markdown]
# ## Who finds it?
#
# The strongest answer of the filter in three dimensions is noise, somewhere else. In four dimensions it is the speck:
# its place in the middle of the path and its velocity.

# %%
best = np.unravel_index(moving.argmax(), moving.shape)
found_velocity, middle, found = (
    velocities[best[0]],
    best[1] + length // 2,
    np.array(best[2:]),
)
truth = start + velocity * middle
print(
    "four dimensions:",
    found_velocity,
    "at",
    found.tolist(),
    "in volume",
    middle,
    "- the truth is",
    truth.tolist(),
)
assert found_velocity == tuple(velocity)
assert abs(found - truth).max() <= 1

missed = np.unravel_index(single.argmax(), single.shape)
print(
    "three dimensions:",
    list(map(int, missed[1:])),
    "in volume",
    int(missed[0]),
    "- the truth is",
    (start + velocity * missed[0]).tolist(),
)
assert abs(np.array(missed[1:]) - (start + velocity * missed[0])).max() > 2

# %% [markdown]
# Why: adding up seven volumes along the path makes the speck seven times as bright and the noise √7 times, which is
# √7 for the answer in units of the noise.

# %%
there = slice(length // 2, frames - length // 2)
path = [tuple(start + velocity * frame) for frame in range(frames)]
in_three = np.mean([single[frame][path[frame]] for frame in range(frames)[there]])
in_four = np.mean(
    [
        moving[best[0], frame - length // 2][path[frame]]
        for frame in range(frames)[there]
    ]
)
print(
    f"the speck's own answer: {in_three:.1f} in three dimensions, {in_four:.1f} in four"
)
assert 0.6 * np.sqrt(7) < in_four / in_three < 1.6 * np.sqrt(7)

# %% [markdown]
# ## The picture
#
# One volume, brightest voxels along the depth; and the strongest answers of each filter there, again along the depth.
# The circle is the truth.

# %%
at = middle
panels = {
    "one volume": film[at].max(0),
    "filtered in three dimensions": single[at].max(0),
    "filtered in four": moving[best[0], at - length // 2].max(0),
}
figure, axes = plt.subplots(1, 4, figsize=(13, 3.3), layout="constrained")
for axis, (name, panel) in zip(axes, panels.items(), strict=False):
    axis.imshow(panel, cmap="magma")
    axis.plot(
        truth[2], truth[1], "o", markersize=14, markerfacecolor="none", color="white"
    )
    axis.set(title=name, xticks=[], yticks=[])
axes[3].bar(
    range(27),
    moving.reshape(27, -1).max(1),
    color=["red" if v == tuple(velocity) else "gray" for v in velocities],
)
axes[3].set(
    title="strongest answer by velocity",
    xlabel="filter",
    ylabel="in units of the noise",
)
plt.show()
