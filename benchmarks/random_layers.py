"""Draw random layers for the CPU from a seed, to measure shapes that nothing was tuned for."""

from __future__ import annotations

from random import Random

from benchmarks.layers import Layer, reach

# Layers per operator among twenty; half of the MaxPool layers return Indices.
MIX = {"Conv": 11, "ConvTranspose": 4, "MaxPool": 5}
FLOPS = 1e9  # largest work of a layer; the smallest is a thousandth of it
_CHANNELS = (1, 3, 8, 16, 24, 32, 48, 64, 96, 100, 128, 160, 192, 256, 320, 384, 512)
_EXTENTS = (7, 250)
_KERNELS = (1, 1, 2, 3, 3, 3, 3, 4, 5, 7)
_LONG = (9, 15, 31, 64)  # further kernel sizes of layers with one spatial axis
_BYTES = 32e6  # largest size of x and y together, in float32


def layers(seed: int, count: int) -> list[Layer]:
    """Return ``count`` layers, always the same for the same seed.

    Channels are 1 to 512, extents 7 to 250, kernels 1 to 7 (up to 64 with one spatial axis), strides 1 to 3, dilations
    1 or 2. One Conv in five is grouped or depthwise, and one layer in six has one spatial axis. The batch is 1, 2, 4 or
    8.
    """
    random = Random(seed)
    operators = [op for op, share in MIX.items() for _ in range(share)]
    return [_draw(random, operators[number % len(operators)], number) for number in range(count)]


def _draw(random: Random, op: str, number: int) -> Layer:
    """Draw layers of an operator until one has outputs and a moderate size."""
    while True:
        layer = _any(random, op, number)
        fits = all(n >= r for n, r in zip(layer.x[2:], reach(layer), strict=True)) and min(layer.y_shape) > 0
        if fits and FLOPS / 1000 <= layer.flops <= FLOPS and layer.nbytes() <= _BYTES:
            return layer


def _any(random: Random, op: str, number: int) -> Layer:
    rank = 1 if random.random() < 1 / 6 else 2
    kernels = _LONG + _KERNELS if rank == 1 else _KERNELS
    kernel = [random.choice(kernels)] * rank
    if op == "MaxPool":
        kernel = [max(2, k) for k in kernel]
    stride = random.choice((1, 1, 1, 2, 2, 3)) if op == "Conv" else random.choice((1, 2, 2, 2, 3))
    dilation = 2 if random.random() < 1 / 8 and op != "MaxPool" else 1
    reaches = [(k - 1) * dilation + 1 for k in kernel]
    pads = [r // 2 if random.random() < 2 / 3 else 0 for r in reaches]
    if op == "MaxPool":
        pads = [min(p, k - 1) for p, k in zip(pads, kernel, strict=True)]
    channels, filters, group = random.choice(_CHANNELS), random.choice(_CHANNELS), 1
    if op == "Conv" and random.random() < 1 / 5:
        group = channels if random.random() < 2 / 3 else 4
        channels, filters = (channels, channels) if group == channels else (channels * 4, filters * 4)
    extents = [random.randint(*_EXTENTS) for _ in range(rank)]
    if rank == 1:
        extents = [extents[0] * random.choice((1, 8, 64))]
    return Layer(
        id=f"random.{number}",
        net="random",
        op=op,
        x=(random.choice((1, 1, 2, 4, 8)), channels, *extents),
        kernel=tuple(kernel),
        strides=(stride,) * rank,
        pads=tuple(pads * 2),
        dilations=(dilation,) * rank,
        dtypes=("fp32",),
        k_out=0 if op == "MaxPool" else filters,
        group=group,
        output_padding=(0,) * rank if op == "ConvTranspose" else (),
        indices=op == "MaxPool" and number % 2 == 0,
    )
