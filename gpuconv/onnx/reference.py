"""Conv, ConvTranspose and pooling as operator classes for onnx's reference evaluator.

Pass ``OPS`` as ``onnx.reference.ReferenceEvaluator(model, new_ops=OPS)``. The evaluator finds operators by name at
every opset, and each node reads its opset from the model. It does not pass ``new_ops`` on to the model's local
functions; :mod:`gpuconv.onnx.backend` computes the operators there too.

Examples
--------
>>> import numpy as np, onnx
>>> from onnx.reference import ReferenceEvaluator
>>> from gpuconv.onnx import OPS
>>> model = onnx.parser.parse_model('''
... <ir_version: 10, opset_import: ["" : 22]>
... pool (float[1, 1, 4] x) => (float[1, 1, 2] y) { y = MaxPool <kernel_shape = [3]> (x) }
... ''')
>>> ReferenceEvaluator(model, new_ops=OPS).run(None, {"x": np.array([[[3, 1, 2, 5]]], np.float32)})
[array([[[3., 5.]]], dtype=float32)]
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from onnx import NodeProto
from onnx.reference.op_run import OpRun

from gpuconv._errors import GpuconvError
from gpuconv.onnx import nodes, operators
from gpuconv.onnx.messages import presentable
from gpuconv.rules.strictness import relaxed


class _Operator(OpRun):
    """Base class: an ``OpRun`` whose attributes are checked at model load and which calls gpuconv's public function.

    ``__init__`` translates the node's attributes into keywords and raises ArgumentError for those its opset lacks.
    ``_run`` adds the values of attributes that refer to attributes of the enclosing model function.
    """

    op_domain = ""

    @presentable
    def __init__(self, onnx_node: NodeProto, run_params: dict[str, Any], schema: Any = None) -> None:
        self._opset = run_params["opsets"][onnx_node.domain]
        # Translate before calling OpRun's constructor: that one knows the newest schema only, and its messages are
        # unclear.
        self._keywords = nodes.keywords(onnx_node, self._opset)
        self._linked = [attribute.name for attribute in onnx_node.attribute if attribute.ref_attr_name]
        super().__init__(onnx_node, run_params, schema)

    def _run(self, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        linked = {name: attributes[name] for name in self._linked}
        nodes.check_linked(self.onnx_node, linked)
        with relaxed():
            return nodes.call(self.onnx_node, self._opset, inputs, {**self._keywords, **linked})

    @presentable
    def run(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Run the node; a GpuconvError that OpRun has wrapped in a TypeError is raised itself."""
        try:
            base: Any = super()  # untyped in onnx
            outputs: tuple[Any, ...] = base.run(*args, **kwargs)
            return outputs
        except TypeError as error:  # OpRun replaces every TypeError by one that lists the input types
            own = own_error(error)
            if own is None:
                raise
            raise own from None


class Conv(_Operator):
    """Conv of every opset, computed by :func:`gpuconv.conv`."""


class ConvTranspose(_Operator):
    """ConvTranspose of every opset, computed by :func:`gpuconv.conv_transpose`."""


class MaxPool(_Operator):
    """MaxPool of every opset, computed by :func:`gpuconv.max_pool`."""


class AveragePool(_Operator):
    """AveragePool of every opset, computed by :func:`gpuconv.average_pool`."""


class GlobalAveragePool(_Operator):
    """GlobalAveragePool of every opset, computed by :func:`gpuconv.global_average_pool`."""


class MaxUnpool(OpRun):
    """MaxUnpool of every opset, computed by :func:`gpuconv.max_unpool` through the operator table of
    gpuconv.onnx.operators.
    """

    op_domain = ""

    def __init__(self, onnx_node: NodeProto, run_params: dict[str, Any], schema: Any = None) -> None:
        self._form = operators.form_of(onnx_node, run_params["opsets"][onnx_node.domain])
        super().__init__(onnx_node, run_params, schema)

    def _run(self, *inputs: Any, **linked: Any) -> tuple[Any, ...]:
        form = replace(self._form, attributes={**self._form.attributes, **linked})
        with relaxed():
            return (operators.TABLE["MaxUnpool"].function(form, *inputs),)


OPS: list[type[OpRun]] = [Conv, ConvTranspose, MaxPool, AveragePool, GlobalAveragePool, MaxUnpool]


def own_error(error: BaseException | None) -> GpuconvError | None:
    """Return the first GpuconvError in the ``__cause__`` chain of an error (the error itself included), or None."""
    while error is not None and not isinstance(error, GpuconvError):
        error = error.__cause__
    return error
