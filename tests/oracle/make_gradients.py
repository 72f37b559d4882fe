"""Write gradients.json from PyTorch's autograd on the CPU; needs PyTorch, unlike the tests that read the file:

    python -m tests.oracle.make_gradients

Operands are drawn from a seed and rounded to a few bits, so that the file stores only the results.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

PATH = Path(__file__).with_name("gradients.json")
# operator, x, w, attributes in the form that PyTorch and ONNX share (symmetric pads, one number per axis)
CASES: tuple[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]], ...] = (
    ("conv", (2, 3, 9), (4, 3, 3), {}),
    ("conv", (1, 4, 12), (6, 2, 5), {"strides": [2], "pads": [2], "group": 2}),
    ("conv", (2, 3, 7, 6), (4, 3, 3, 2), {"pads": [1, 0], "strides": [2, 1], "dilations": [1, 2]}),
    ("conv", (2, 6, 5, 5), (6, 1, 3, 3), {"pads": [1, 1], "group": 6}),
    ("conv", (1, 2, 4, 5, 4), (3, 2, 2, 3, 2), {"strides": [1, 2, 2], "pads": [1, 1, 0]}),
    ("conv_transpose", (2, 3, 5), (3, 4, 4), {"strides": [2], "pads": [1]}),
    (
        "conv_transpose",
        (1, 4, 4, 3),
        (4, 2, 3, 3),
        {"strides": [2, 3], "pads": [1, 0], "output_padding": [1, 2], "group": 2},
    ),
    ("conv_transpose", (2, 2, 3, 4), (2, 3, 2, 3), {"dilations": [2, 1], "pads": [0, 1]}),
    (
        "conv_transpose",
        (1, 2, 2, 3, 2),
        (2, 3, 3, 2, 3),
        {"strides": [2, 1, 2], "pads": [1, 0, 1], "output_padding": [1, 0, 0]},
    ),
    ("max_pool", (2, 2, 11), (), {"kernel_shape": [3], "strides": [2], "pads": [1]}),
    ("max_pool", (2, 3, 7, 8), (), {"kernel_shape": [3, 2], "strides": [2, 1], "dilations": [1, 2], "pads": [1, 1]}),
    ("max_pool", (1, 2, 5, 6, 5), (), {"kernel_shape": [2, 3, 2], "strides": [1, 2, 2], "ceil_mode": 1}),
)


def operand(number: int, position: int, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return float32 numbers of few bits, a different array per case and position (x, w, b, dy)."""
    drawn = np.random.default_rng([number, position]).normal(size=shape)
    return (np.round(drawn * 64) / 64).astype(np.float32)


def main() -> None:
    import torch
    from torch.nn import functional

    rows = []
    for number, (operator, x_shape, w_shape, attributes) in enumerate(CASES):
        rank = len(x_shape) - 2
        named = {
            "strides": "stride",
            "pads": "padding",
            "dilations": "dilation",
            "group": "groups",
            "ceil_mode": "ceil_mode",
        }
        keywords = {named.get(name, name): value for name, value in attributes.items() if name != "kernel_shape"}
        x = torch.tensor(operand(number, 0, x_shape), requires_grad=True)
        leaves = {"x": x}
        if operator == "max_pool":
            y = getattr(functional, f"max_pool{rank}d")(
                x, attributes["kernel_shape"], **keywords | {"ceil_mode": bool(attributes.get("ceil_mode"))}
            )
        else:
            channels = w_shape[0] if operator == "conv" else w_shape[1] * attributes.get("group", 1)
            leaves |= {
                "w": torch.tensor(operand(number, 1, w_shape), requires_grad=True),
                "b": torch.tensor(operand(number, 2, (channels,)), requires_grad=True),
            }
            call = f"conv{rank}d" if operator == "conv" else f"conv_transpose{rank}d"
            y = getattr(functional, call)(*leaves.values(), **keywords)
        y.backward(torch.tensor(operand(number, 3, tuple(y.shape))))
        found = {f"d{name}": [float(v) for v in leaf.grad.reshape(-1)] for name, leaf in leaves.items()}
        rows.append(
            {"operator": operator, "x": x_shape, "w": w_shape, "y": list(y.shape), "attributes": attributes, **found}
        )
    lines = ",\n".join(json.dumps(row) for row in rows)
    PATH.write_text(f'{{"torch": "{torch.__version__}", "rows": [\n{lines}\n]}}\n')
    print(f"{len(rows)} rows: {PATH}")


if __name__ == "__main__":
    main()
