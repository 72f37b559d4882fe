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
# # Implicit GEMM, explained from the real kernel
#
# A convolution is a matrix product in disguise, and matrix products are what processors are best at. The obvious way
# to use that is to write the matrix to memory (im2col); a better one is a kernel that gathers parts of the matrix when
# it needs them. That is the implicit GEMM, which computes most of gpuconv's dense convolutions.
#
# This page does three things: the index arithmetic, in NumPy; the loop over tiles, in NumPy; and then the CUDA kernel
# itself, which runs here without a GPU, on the emulated device of the package `emulated_cuda`. Its emulator executes
# the kernel's PTX from NVIDIA's compiler, instruction by instruction, and counts instructions and memory accesses.
#
# To run it: `pip install -e ./emulated_cuda -e ".[cuda13,examples]"` in a checkout, then `jupyter lab
# examples/implicit_gemm.ipynb`. It needs g++.

# %%
from itertools import product
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Rectangle

import emulated_cuda
from emulated_cuda import control

emulated_cuda.install(emulated_cuda.Settings(host_threads=2))  # before CuPy is imported
import gpuconv
from gpuconv.cuda.build import compile as compiler
from gpuconv.cuda.call import device
from gpuconv.cuda.plan import offers

compiler.cubin = lambda *kernel: compiler.ptx(*kernel).encode()  # PTX with source lines

checkout = next(
    folder
    for folder in (Path.cwd(), *Path.cwd().parents)
    if (folder / "kernels_cu").is_dir()
)

# %% [markdown]
# ## The matrix
#
# Of a Conv with M filters, C channels and a kernel of R × S, on N images with P × Q outputs each:
#
# * the weights are a matrix of M rows and K = R·S·C columns;
# * the activations are one of K rows and N·P·Q columns, one column for each output pixel: all that the pixel's window
#   holds;
# * their product has M rows and N·P·Q columns: the output.
#
# gpuconv numbers K by (tap, channel) with the channel fastest, so that a slice of K mostly has one tap, whose place
# in the window is worked out once.

# %%
random = np.random.default_rng(0)
x = random.integers(-3, 4, (2, 32, 20, 20)).astype(np.float32)
w = random.integers(-3, 4, (128, 32, 3, 3)).astype(np.float32)
images, channels, height, width = x.shape
filters, _, kernel_rows, kernel_columns = w.shape
pad = 1
pixels, K = images * height * width, kernel_rows * kernel_columns * channels


def gathered(k, pixel, x=x):
    """Return rows k and columns pixel of the matrix of activations, straight from x."""
    tap, channel = np.divmod(k, channels)
    n, place = np.divmod(pixel, height * width)
    row = place // width + tap // kernel_columns - pad
    column = place % width + tap % kernel_columns - pad
    found = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    return np.where(
        found, x[n, channel, np.where(found, row, 0), np.where(found, column, 0)], 0
    )


matrix = gathered(np.arange(K)[:, None], np.arange(pixels)[None])
weights = w.transpose(0, 2, 3, 1).reshape(filters, K)
y = (weights @ matrix).reshape(filters, images, height, width).transpose(1, 0, 2, 3)
assert (
    y == gpuconv.conv(x, w, pads=[pad] * 4)
).all()  # sums of small integers are exact in any order
print(f"x has {x.nbytes / 1e3:.0f} KB, the matrix {matrix.nbytes / 1e3:.0f} KB")

# %% [markdown]
# The matrix is nine times as large as x, since it contains each element once for every tap. Writing it and reading it
# again costs more than everything else, and the tiles below avoid that.
#
# ## The tiles
#
# A block of threads computes a tile of BLOCK_M × BLOCK_N outputs. It goes through K in slices of BLOCK_K: it loads
# BLOCK_M × BLOCK_K weights and BLOCK_K × BLOCK_N activations into shared memory, and multiplies them. Only that one
# piece of the matrix exists at any time. In NumPy, with the kernel's letters:


# %%
def implicit_gemm(block_m, block_n, block_k):
    result, loaded = np.zeros((filters, pixels), np.float32), 0
    for m0, n0 in product(range(0, filters, block_m), range(0, pixels, block_n)):
        tile = result[m0 : m0 + block_m, n0 : n0 + block_n]  # in registers
        for k0 in range(0, K, block_k):
            activations = gathered(
                np.arange(k0, k0 + block_k)[:, None],
                np.arange(n0, n0 + tile.shape[1])[None],
            )
            slice_of_weights = weights[m0 : m0 + block_m, k0 : k0 + block_k]
            loaded += activations.size + slice_of_weights.size
            tile += slice_of_weights @ activations
    return result, loaded


for block_m, block_n in ((64, 64), (128, 128)):
    result, loaded = implicit_gemm(block_m, block_n, 16)
    assert (result == weights @ matrix).all()
    each = filters * pixels * K / loaded
    print(f"{block_m} x {block_n}: {loaded} elements loaded,", end=" ")
    print(f"{each:.1f} multiply-adds for each")

# %% [markdown]
# A loaded element is used for a whole row or column of the tile: BLOCK_M·BLOCK_N / (BLOCK_M + BLOCK_N) multiply-adds
# for each, 32 and 64 with these tiles, a little less where tiles extend beyond the end. Large tiles load less; small
# tiles are more numerous, and keep more multiprocessors busy. The planner chooses among them.
#
# ## The kernel
#
# Here is its main loop from `kernels_cu/conv/gemm/implicit_gemm.cuh`. While one slice is multiplied, the next ones are
# already being copied into other buffers (`fetch` starts asynchronous copies).

# %%
source = (checkout / "kernels_cu" / "conv/gemm/implicit_gemm.cuh").read_text(
    encoding="utf-8"
)
start = source.index("template <class Multiplier> DEVICE void accumulate")
print(source[start : source.index("\n}\n", start) + 2])

# %% [markdown]
# Now it runs. `to_device` copies to the emulated device, on which CuPy launches the kernels; `offers.picking` replaces
# the planner's choice, so that we can compare tiles; `watched` records every launch. Every access to memory is checked
# for bounds, alignment, initialisation and races.


# %%
def named(name):
    """Return a choice among candidates: the one of this name."""
    return lambda candidates: next(one for one in candidates if one.name == name)


launches = {}
for tile in ("64x64x16", "128x128x16"):
    seen = []
    device.prepared.clear()  # else a call like the last one would repeat its launches
    with (
        offers.picking(named(f"conv_float32_3d_{tile}_uniform")),
        control.watched(seen.append, counters=True),
    ):
        there = gpuconv.conv(*map(gpuconv.to_device, (x, w)), pads=[pad] * 4)
        assert (gpuconv.to_host(there) == y).all()
    packing, launches[tile] = seen
    print(
        launches[tile].name,
        "in",
        launches[tile].grid[0],
        "blocks after",
        packing.name,
    )

# %% [markdown]
# ## What it did
#
# The emulator counts per instruction and per source line. First the multiply-adds: each block computes exactly its
# whole tile for all of K.


# %%
def counted(launch, instruction):
    """Return how many threads executed an instruction."""
    counters = launch.counters
    return sum(
        int(row[1])
        for key, row in zip(counters.keys, counters.counts, strict=True)
        if key == instruction
    )


for tile, launch in launches.items():
    block_m, block_n, _ = map(int, tile.split("x"))
    assert counted(launch, "fma.f32") == launch.grid[0] * block_m * block_n * K
    useful = filters * pixels * K / counted(launch, "fma.f32")
    share = counted(launch, "fma.f32") / launch.counters.total["lanes"]
    print(
        f"{tile}: {useful:.0%} of the multiply-adds are of outputs that exist,", end=" "
    )
    print(f"{share:.0%} of the instructions are multiply-adds")

# %% [markdown]
# Then memory, in sectors of 32 bytes, the units that cross the bus of a GPU. Weights are packed beforehand so that a
# row of them fills whole sectors. Their count can be predicted exactly: each block reads K rows of its BLOCK_M filters.
# For activations the prediction is close: some rows of 20 pixels begin inside a sector.

# %%
traffic = {}
inside = gathered(np.arange(K)[:, None], np.arange(pixels)[None], np.ones_like(x))
for tile, launch in launches.items():
    block_m, block_n, _ = map(int, tile.split("x"))
    loads, stores = (launch.counters.traffic()[name][0] for name in ("loads", "stores"))
    of_weights = launch.grid[0] * K * block_m * 4 // 32
    of_activations = loads - of_weights
    ideal = -(-filters // block_m) * inside.sum() * 4 // 32
    assert (of_weights,) in launch.counters.by_line(
        "global_sectors"
    ).values()  # one line of the kernel copies them
    assert ideal <= of_activations < 1.5 * ideal
    traffic[tile] = {
        "weights": of_weights,
        "activations": of_activations,
        "outputs": stores,
    }
    print(tile, traffic[tile], "where activations need", ideal)
assert traffic["64x64x16"]["activations"] == 2 * traffic["128x128x16"]["activations"]

# %% [markdown]
# With tiles of 64 filters there are two rows of tiles, and each reads all activations: twice as many sectors. (Many
# of these come from the L2 cache; the emulator counts the requests of the multiprocessors.) Shared memory has 32 banks,
# and threads of a warp that access different words of one bank must wait for each other. The kernel's pitches prevent
# that:

# %%
for launch in launches.values():
    assert not launch.counters.conflicts()
    print(
        launch.counters.total["shared_wavefronts"],
        "wavefronts, of which so many are needed:",
        end=" ",
    )
    print(launch.counters.total["shared_ideal"])

# %% [markdown]
# And a profile by source lines: where the instructions are.

# %%
counters = launches["128x128x16"].counters
profile = counters.by_line("instructions")
for line, (count,) in sorted(profile.items(), key=lambda item: -item[1][0])[:6]:
    file, number = line.split(" ")[0].split(":")
    path = next((checkout / "kernels_cu").rglob(file))
    text = path.read_text(encoding="utf-8").splitlines()[int(number) - 1].strip()
    share = count / counters.total["instructions"]
    print(f"{share:6.1%}  {line.split(' ')[0]:22} {text[:80]}")

# %% [markdown]
# ## The picture
#
# On the left the first part of the matrix that nobody writes down, with one slice of one tile; black is padding. On
# the right the sectors of the real kernel by tile, against those of a matrix that im2col would have written before,
# and read with the large tile.

# %%
number = np.broadcast_to(
    np.arange(1.0, height * width + 1).reshape(height, width), x.shape
)
shown = gathered(np.arange(K)[:, None], np.arange(200)[None], number)
figure, (left, right) = plt.subplots(
    1, 2, figsize=(11, 4), width_ratios=(3, 2), layout="constrained"
)
left.imshow(
    np.where(shown == 0, np.nan, shown),
    aspect="auto",
    interpolation="nearest",
    cmap="viridis",
)
left.set_facecolor("black")
left.add_patch(
    Rectangle((63.5, 95.5), 64, 16, fill=False, edgecolor="red", linewidth=2)
)
left.set(
    xlabel="output pixel",
    ylabel="K = (tap, channel)",
    title="the implicit matrix: which pixel of x",
    yticks=range(0, K, 32),
)
bottom = np.zeros(3)
bars = [*launches, "128x128x16,\nim2col"]
explicit = {
    "weights": traffic["128x128x16"]["weights"],
    "activations": 2 * matrix.nbytes // 32,
    "outputs": y.nbytes // 32,
}
for part in explicit:
    heights = np.array([traffic[tile][part] for tile in launches] + [explicit[part]])
    right.bar(bars, heights, bottom=bottom, label=part)
    bottom += heights
right.axhline(
    (x.nbytes + w.nbytes + y.nbytes) / 32,
    color="black",
    linestyle=":",
    label="every array once",
)
right.set(
    ylabel="sectors of 32 bytes",
    title="asked for by the multiprocessors",
    ylim=(0, 1.3 * bottom.max()),
)
right.legend(ncols=2)
plt.show()
