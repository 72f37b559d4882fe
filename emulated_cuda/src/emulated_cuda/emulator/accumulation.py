"""Models of how a tensor core accumulates the products of one `mma` or `wgmma`, encoded as the setting `sums`.

NVIDIA does not document the order or the intermediate precision. The emulator's default is "in order": the products
are added along K, each partial sum rounded to float. Two papers compared models with devices bit for bit: Khattak and
Mikaitis, "Accurate Models of NVIDIA Tensor Cores" (arXiv 2512.07004); Xie and others, "MMA-Sim" (arXiv 2511.10909).
Their models are assumptions here until a device has been recorded. In a fused model, a group of products and the
accumulator are aligned to the largest exponent among them, truncated to a fixed number of bits below it, and summed
exactly. "scrambled" models no device: each instruction and shape uses its own fixed pseudo-random order. A test that
fails with it depends on an order that the hardware does not guarantee.
"""

from __future__ import annotations

IN_ORDER, SCRAMBLED = 0, -1
_TYPES = 10**6  # radix by which `of_types` packs three models into one number


def fused(group_bytes: int, fraction: int, nearest: bool = False) -> int:
    """Return the code of a fused model: `group_bytes` of products along K are added to the accumulator at once.

    Parameters
    ----------
    group_bytes : int
        Bytes of one operand's row that form a group: 16 is eight products of 16-bit elements, or four of TF32. An
        instruction has at most 32 bytes along K.
    fraction : int
        Bits that each summand keeps below the largest exponent of its group; the rest is truncated.
    nearest : bool
        Whether the sum of a group is rounded to the nearest float, instead of toward zero.

    Raises
    ------
    ValueError
        A parameter is out of range.
    """
    if not (0 < group_bytes <= 32 and 0 < fraction < 40):
        raise ValueError(f"groups have 1 to 32 bytes and 1 to 39 bits, not {group_bytes} and {fraction}")
    return 1000 * group_bytes + 10 * fraction + nearest


def of_types(f16: int, bf16: int, tf32: int) -> int:
    """Return one code for three models, one per element type; ValueError if any of them is "scrambled"."""
    numbers = (f16, bf16, tf32)
    if min(numbers) < 0:
        raise ValueError("a scrambled order is one of all types")
    return f16 if len(set(numbers)) == 1 else sum(number * _TYPES**place for place, number in enumerate(numbers))


MODELS = {
    "in order": IN_ORDER,
    "Volta": fused(8, 23),
    "Ampere": fused(16, 24),  # also Ada
    "Hopper": fused(32, 25),  # also Blackwell
    "scrambled": SCRAMBLED,
}
