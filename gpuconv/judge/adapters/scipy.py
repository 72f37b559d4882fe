"""scipy.signal and scipy.ndimage, or those of CuPy, by direct calls, for what they have calls for."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from gpuconv.judge.adapters.node import Node, read


def version(option: str) -> str:
    """Name the version of SciPy or CuPy."""
    name = "cupy" if option == "cupyx" else "scipy"
    return f"{'cupyx.scipy' if option == 'cupyx' else 'SciPy'} {importlib.import_module(name).__version__}"


def run(model: Any, inputs: Sequence[Any], option: str) -> list[Any]:
    """Call the functions that the model's node stands for."""
    node = read(model, inputs)
    root, arrays = ("cupyx.scipy", "cupy") if option == "cupyx" else ("scipy", "numpy")
    library = importlib.import_module(arrays)
    node.need(node.op in _CALLS, node.op)
    node.need(set(node.strides) == {1} and set(node.dilations) == {1}, "strides and dilations")
    node.need(node.operands[0].dtype.name != "bfloat16", "bfloat16")
    node.need(node.operands[0].shape[1] > 0, "no channels")
    operands = [None if array is None else library.asarray(array) for array in node.operands]
    module = importlib.import_module(f"{root}.{'ndimage' if node.op == 'MaxPool' else 'signal'}")
    y = _CALLS[node.op](node, module, library, *operands)
    return [y.get() if option == "cupyx" else y]


def _conv(node: Node, signal: Any, library: Any, x: Any, w: Any, b: Any = None) -> Any:
    node.need(node.begins + node.ends == [0] * 2 * node.rank, "pads")
    node.need(node.auto_pad in ("NOTSET", "VALID"), node.auto_pad)
    each = w.shape[1]

    def plane(image: Any, m: int) -> Any:
        first = m // (w.shape[0] // node.group) * each
        parts = [signal.correlate(image[first + c], w[m, c], "valid", "direct") for c in range(each)]
        return sum(parts) + (0 if b is None else b[m])

    return library.stack([library.stack([plane(image, m) for m in range(w.shape[0])]) for image in x]).astype(x.dtype)


def _conv_transpose(node: Node, signal: Any, library: Any, x: Any, w: Any, b: Any = None) -> Any:
    node.need(node.group == 1 and not {"output_shape", "output_padding"} & set(node.attributes), "groups and sizes")
    node.need(node.begins + node.ends == [0] * 2 * node.rank and node.auto_pad in ("NOTSET", "VALID"), "pads")

    def plane(image: Any, m: int) -> Any:
        parts = [signal.convolve(image[c], w[c, m], "full", "direct") for c in range(w.shape[0])]
        return sum(parts) + (0 if b is None else b[m])

    return library.stack([library.stack([plane(image, m) for m in range(w.shape[1])]) for image in x]).astype(x.dtype)


def _max_pool(node: Node, ndimage: Any, library: Any, x: Any) -> Any:
    centred = [k // 2 for k in node.kernel]
    node.need(all(k % 2 for k in node.kernel) and node.begins == node.ends == centred, "pads unlike half the kernel")
    node.need(node.outputs == 1, "Indices")
    node.need(x.dtype.kind == "f", "integers")
    return ndimage.maximum_filter(x, (1, 1, *node.kernel), mode="constant", cval=-library.inf)


_CALLS: dict[str, Any] = {"Conv": _conv, "ConvTranspose": _conv_transpose, "MaxPool": _max_pool}
