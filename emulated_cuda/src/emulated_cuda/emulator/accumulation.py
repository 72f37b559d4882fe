"""How tensor cores may add, as numbers that the engine takes: the setting `sums`.

NVIDIA documents none of it. The emulator's own way is "in order". What others found on devices, by comparing models
with them bit for bit, is an assumption here until a device has been recorded: Khattak and Mikaitis, "Accurate Models of
NVIDIA Tensor Cores" (arXiv 2512.07004); Xie and others, "MMA-Sim" (arXiv 2511.10909). In these, the products of some
bytes along K are added at once, with the sum so far, each cut off so many bits below the largest exponent. "scrambled"
is no model of a device: each instruction and each shape adds in an order of its own, the same one for all of its sums.
What does not hold there depends on an order that nobody promises.
"""

from __future__ import annotations

IN_ORDER, SCRAMBLED = 0, -1
_TYPES = 10**6  # numbers of one type's models are below


def fused(group_bytes: int, fraction: int, nearest: bool = False) -> int:
    """Return the number of a model that adds products of `group_bytes` along K at once.

    Parameters
    ----------
    group_bytes : int
        Of a factor: 2 for each product of 16-bit elements, 4 of TF32; a whole instruction mostly has 32.
    fraction : int
        Bits that summands keep below the largest exponent of the group.
    nearest : bool
        Whether a group's sum is rounded to the nearest float, instead of cut off.
    """
    if not (0 < group_bytes <= 32 and 0 < fraction < 40):
        raise ValueError(f"groups have 1 to 32 bytes and 1 to 39 bits, not {group_bytes} and {fraction}")
    return 1000 * group_bytes + 10 * fraction + nearest


def of_types(f16: int, bf16: int, tf32: int) -> int:
    """Return the number of models that differ by the type of the elements; none may be scrambled."""
    numbers = (f16, bf16, tf32)
    if min(numbers) < 0:
        raise ValueError("a scrambled order is one of all types")
    return f16 if len(set(numbers)) == 1 else sum(number * _TYPES**place for place, number in enumerate(numbers))


MODELS = {
    "in order": IN_ORDER,
    "Volta": fused(8, 23),
    "Ampere": fused(16, 24),  # Ada as well
    "Hopper": fused(32, 25),  # Blackwell as well
    "scrambled": SCRAMBLED,
}
