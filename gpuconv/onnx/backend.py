"""Whole ONNX models: loading, optimising and running them on the CPU or a CUDA device.

The module implements the ``onnx.backend.base`` interface, so that onnx's own test runner can drive it. gpuconv's
operators compute what they can; onnx's reference evaluator computes the remaining nodes on the host.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx.backend.base
from onnx import ModelProto, NodeProto, OperatorSetIdProto

import gpuconv
from gpuconv import cuda
from gpuconv._errors import ArgumentError, ArgumentTypeError, DeviceError, GpuconvError, listed, shown
from gpuconv._graph import Graph, captured
from gpuconv.cpu import _blas
from gpuconv.onnx import model as models
from gpuconv.onnx import nodes
from gpuconv.onnx.batch.images import images_of_inputs
from gpuconv.onnx.contrib import translating
from gpuconv.onnx.evaluator import CudaEvaluator, Evaluator, Observer
from gpuconv.onnx.inputs import Input, NodeArg, as_arrays, bind, declared
from gpuconv.onnx.messages import presentable, quoted, reason, warn
from gpuconv.onnx.report import Report
from gpuconv.rules import invariance, strictness
from gpuconv.rules.invariance import Invariance

_EVALUATORS = {"CPU": Evaluator, "CUDA": CudaEvaluator, "CUDA:0": CudaEvaluator}


class Rep(onnx.backend.base.BackendRep):
    """A model that is ready to run any number of times; :func:`prepare` returns it."""

    def __init__(
        self,
        evaluator: Evaluator,
        inputs: list[Input],
        unfolded: Callable[[], Evaluator] | None = None,
        invariant: Invariance | None = None,
        outputs: Sequence[Input] = (),
    ) -> None:
        self.inputs = inputs
        self._declared_outputs = outputs
        self.output_names: list[str] = list(evaluator.output_names)
        self._evaluator = evaluator
        self._unfolded = unfolded
        self._invariant = invariant
        self._warned: set[str] = set()
        self._mixing_nodes: dict[int, NodeProto] = {}
        self._outputs = onnx.backend.base.namedtupledict("Outputs", self.output_names)

    @presentable
    def run(
        self,
        inputs: Any = None,
        input_feed: Mapping[str, Any] | None = None,
        run_options: Any = None,
        *,
        output_names: Sequence[str] | None = None,
        observer: Observer | None = None,
        **kwargs: Any,
    ) -> Any:
        """Compute the model's outputs.

        Call it as ``run(inputs)``, or as ``run(output_names, input_feed)`` like a session of ONNX Runtime.

        Parameters
        ----------
        inputs : sequence of arrays, dict of str to array, or one array
            A sequence in the order of the graph's inputs, leaving out those with an initializer; or a dict by name,
            which may include inputs with an initializer. A single array is accepted for a single input. Arrays may be
            of any library that supports DLPack, as in :func:`gpuconv.conv`: on the host, and for a model prepared for
            "CUDA" also on the current device. If ``input_feed`` is given, this argument means ``output_names``.
        input_feed : dict of str to array, optional
            The inputs by name. Lists of numbers are converted to arrays of the declared type.
        run_options : optional
            Ignored.
        output_names : sequence of str, optional
            Which outputs to return; None for all.
        observer : callable, optional
            Called after each node with (NodeProto, index, number of nodes, seconds).
        **kwargs
            Ignored, as onnx's interface requires.

        Returns
        -------
        tuple, or list where an input feed is given
            One value per output of the graph, or per name in ``output_names``. A tuple's values are also available by
            name: ``outputs["y"]``. Arrays are NumPy's, or CuPy's if an input was on the device; strings and types of 8
            bits or fewer that CuPy lacks stay NumPy's.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            An input is missing, unknown, or of another dtype or shape than the graph declares; an output name is
            unknown; or an operator of gpuconv refuses its inputs, and the message names the node.
        GpuconvError
            Another operator failed, for example in the reference evaluator; the message names the node.
        MemoryError
            The model's values need more memory than is available.

        Warns
        -----
        UserWarning
            Once for each operator that onnx's reference evaluator computes, each named dimension to which inputs give
            two sizes, and each node in which one image may influence another despite ``invariant="batch"``.
        """
        if input_feed is None and output_names is None:
            return self._outputs(*self._run(inputs, self.output_names, observer))
        names = self._names(inputs if output_names is None else output_names)
        return self._run(as_arrays(self.inputs, input_feed or {}), names, observer)

    @presentable
    def capture(self, inputs: Any) -> Graph:
        """Capture a run of the model as a CUDA graph, which replays all of its kernel launches with a single launch.

        Parameters
        ----------
        inputs : sequence of arrays, dict of str to array, or one array
            As :meth:`run` takes them, on the device; the graph is specialised to their shapes. Inputs that the host
            reads, such as shapes, axes and conditions, are NumPy arrays; the graph is specialised to their values.

        Returns
        -------
        gpuconv.Graph
            Its call takes the inputs that were on the device, in the order of the model's inputs. It returns all
            outputs as :meth:`run` does, as CuPy arrays that the next call overwrites.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            As :meth:`run` does; or the model was prepared for the CPU; or a floating-point input that the device reads
            is a NumPy array.
        DeviceError
            As :func:`gpuconv.graph` does. If a node cannot be captured because it copies values between host and
            device, the message names it.
        """
        if not isinstance(self._evaluator, CudaEvaluator):
            raise ArgumentError("capture: the model was prepared for 'CPU'; CUDA graphs need prepare(model, 'CUDA')")
        try:
            values = bind(self.inputs, inputs, self._evaluator.takes, self._warned)
        except GpuconvError as error:
            raise type(error)(str(error).replace("run: ", "capture: ", 1)) from None
        fixed = {name: value for name, value in values.items() if self._evaluator.stays_on_host(name, value)}
        names = [spec.name for spec in self.inputs if spec.name in values and spec.name not in fixed]
        return captured(
            self._as_function(names, fixed),
            {f"the input {quoted(name)}": values[name] for name in names},
            "capture",
            "the model",
        )

    def _as_function(self, names: list[str], fixed: Mapping[str, Any]) -> Callable[..., Any]:
        """Return a run as a function of the named arrays; outputs on the host are copied to the device once."""
        host_results: dict[str, Any] = {}
        kept_alive: list[Evaluator] = []  # keeps alive the evaluator whose constants the graph reads

        def run(*arrays: Any) -> Any:
            results, _ = self._evaluated({**fixed, **dict(zip(names, arrays, strict=True))}, None)
            kept_alive[:] = [self._evaluator]
            for name in self.output_names:
                if isinstance(results[name], np.ndarray) and name not in host_results:
                    host_results[name] = gpuconv.to_device(results[name])
            return self._outputs(*(host_results.get(name, results[name]) for name in self.output_names))

        return run

    def get_inputs(self) -> list[NodeArg]:
        """Return name, shape and type of the required inputs, as a session of ONNX Runtime does.

        Examples
        --------
        >>> import onnx
        >>> from gpuconv.onnx import backend
        >>> model = onnx.parser.parse_model('''
        ... <ir_version: 10, opset_import: ["" : 22]>
        ... g (float[N, 3] x) => (float[N, 3] y) { y = Relu (x) }
        ... ''')
        >>> backend.prepare(model).get_inputs()
        [NodeArg(name='x', shape=['N', 3], type='tensor(float)')]
        """
        return [NodeArg.of(spec) for spec in self.inputs if spec.required]

    def get_outputs(self) -> list[NodeArg]:
        """Return name, shape and type of the outputs as declared by the model."""
        return [NodeArg.of(spec) for spec in self._declared_outputs]

    def report(self) -> Report:
        """Return which nodes were folded, which were fused, and which onnx's reference evaluator computes.

        Returns
        -------
        Report
            Print it, or read its fields. ``left`` may grow after a run, when inputs turn out to be ones that gpuconv's
            operators leave to the reference evaluator.

        Examples
        --------
        >>> import onnx
        >>> from gpuconv.onnx import backend
        >>> model = onnx.parser.parse_model('''
        ... <ir_version: 10, opset_import: ["" : 22]>
        ... g (float[N, 1, L] x, float[1, 1, 1] w) => (float[N, 1, L] z) {
        ...     c = Conv (x, w)
        ...     y = Relu (c)
        ...     z = Sinh (y)
        ... }
        ... ''')
        >>> print(backend.prepare(model).report())
        computed ahead of time: none
        fused:
          Conv node with output 'c', Relu node with output 'y'
        left to onnx's reference evaluator: 1 Sinh
          Sinh node with output 'z'
        """
        return self._evaluator.report(self._mixing_nodes.values())

    def _names(self, requested: Any) -> list[str]:
        """Return the names of the requested outputs, after checking them; None or an empty sequence means all."""
        if requested is None:
            return self.output_names
        if not isinstance(requested, Sequence) or isinstance(requested, str | bytes):
            raise ArgumentTypeError(f"run: output_names must be a sequence of names or None, not {shown(requested)}")
        unknown = [name for name in requested if name not in self.output_names]
        if unknown:
            there = listed([quoted(name) for name in self.output_names])
            raise ArgumentError(f"run: there is no output {shown(unknown[0])}; the outputs are {there}")
        return list(requested) or self.output_names

    def _run(self, inputs: Any, names: Sequence[str], observer: Observer | None) -> list[Any]:
        """Return the named outputs, in the memory (host or device) that the inputs came from."""
        results, values = self._evaluated(inputs, observer)
        to_caller = self._evaluator.leaving(values)
        return [_writable(to_caller(results[name])) for name in names]

    def _evaluated(self, inputs: Any, observer: Observer | None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Run the model; return values by name, the outputs among them, and the checked inputs."""
        values = bind(self.inputs, inputs, self._evaluator.takes, self._warned)
        defaults = {spec.name for spec in self.inputs if not spec.required}
        # folding assumed the default values, which this run overrides
        if defaults & values.keys() and self._unfolded is not None:
            self._evaluator, self._unfolded = self._unfolded(), None
        mode = invariance.CURRENT.get() if self._invariant is None else self._invariant
        quiet = np.errstate(all="ignore")  # infinities and NaNs are legitimate results of a model and need no warning
        with invariance.invariant(mode), strictness.relaxed(), quiet:
            images = None if mode is None else images_of_inputs(values, self._warn_of_mixing)
            evaluate = partial(
                self._evaluator.evaluate, self._evaluator.enter(values), observer=observer, images=images
            )
            results = evaluate() if isinstance(self._evaluator, CudaEvaluator) else _blas.holding(evaluate)
            missing = [name for name in self.output_names if name not in results]
            if missing:
                raise GpuconvError(f"run: no node computed the output {quoted(missing[0])}")
            return results, values

    def _warn_of_mixing(self, node: NodeProto) -> None:
        """Warn once per node in which one image may influence another's results."""
        if id(node) not in self._mixing_nodes:
            self._mixing_nodes[id(node)] = node
            warn(
                f'{nodes.describe(node)}: an image\'s results may depend on others here, despite invariant="batch": '
                f"{node.op_type} brings images together, or is not known to keep them apart"
            )


class Backend(onnx.backend.base.Backend):
    """The ``onnx.backend.base.Backend`` interface of gpuconv."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether models can run on a device: "CPU" always, "CUDA" and "CUDA:0" if a CUDA device is present."""
        name = str(device).upper()
        return name == "CPU" or (name in _EVALUATORS and cuda.runtime.unavailable_reason() is None)

    @classmethod
    def is_compatible(cls, model: Any, device: str = "CPU", **kwargs: Any) -> bool:
        """Return whether :meth:`prepare` would accept a model for a device."""
        try:
            cls.prepare(model, device, **kwargs)
        except (ArgumentError, DeviceError):
            return False
        return True

    @classmethod
    @presentable
    def prepare(
        cls,
        model: ModelProto | bytes | str | os.PathLike[str],
        device: str = "CPU",
        *,
        fold: bool = True,
        invariant: Invariance | None = None,
        untrusted: bool = False,
        **kwargs: Any,
    ) -> Rep:
        """Read, check and optimise a model.

        Parameters
        ----------
        model : ModelProto, bytes or path
            For a path, external data may lie in the folder of that file and below, and nowhere else.
        device : {"CPU", "CUDA", "CUDA:0"}
            Where the operators of gpuconv.onnx.operators, Conv, ConvTranspose and pooling run. On a device, values stay
            there between nodes, while shapes, axes and similar parameters stay on the host. Other operators run on the
            host, with one warning per operator.
        fold : bool
            Whether to compute constant nodes now, and to fuse BatchNormalization, activations and residual sums into
            the preceding convolutions. Fused activations and residuals are bit-identical in float32 and float64, and
            round fewer times in 16-bit types. Per-channel factors and shifts (float32 and float64 only) change the
            rounding: each weight is rounded once more, so the error of a sum of K terms is at most (K + 3)·u·S.
        invariant : {"batch"}, optional
            Guarantees that each image's results are bit-identical whatever else is in the batch. The batch is axis 0 of
            every input that has as many entries there as the first input. A run warns about nodes in which images
            influence each other nevertheless, and :meth:`Rep.report` lists them. By default, the setting of
            :func:`gpuconv.invariant` at the time of the run applies.
        untrusted : bool
            Whether onnx's native code (its parsers, checker and shape inference) processes the model in a child process
            first. The limits are 60 s and 2 GiB, plus 8 bytes per byte of the model. A model that crashes this code, or
            exceeds the limits, raises ArgumentError instead of ending this process. The work done in this process, by
            prepare and by runs, is not bounded; docs/security.md says how to bound it. This takes about one more
            second.
        **kwargs
            Ignored, as onnx's interface requires.

        Returns
        -------
        Rep

        Raises
        ------
        ArgumentError
            The file cannot be read; the model is invalid, too large or too deeply nested; a node uses a feature that
            its opset lacks; or an operator is unknown. The message is one line of at most 500 characters.
        ArgumentTypeError
            The model is none of the types above.
        DeviceError
            There is no CUDA device; the message says why.
        MemoryError
            The model needs more memory than is available.

        Warns
        -----
        UserWarning
            The model has a defect that cannot change a result, such as a value without a type or nodes out of order.

        Examples
        --------
        >>> import numpy as np, onnx
        >>> from gpuconv.onnx import backend
        >>> model = onnx.parser.parse_model('''
        ... <ir_version: 10, opset_import: ["" : 22]>
        ... pool (float[1, 1, N] x) => (float[1, 1, M] y) { y = MaxPool <kernel_shape = [3]> (x) }
        ... ''')
        >>> backend.prepare(model).run([np.array([[[3, 1, 2, 5]]], np.float32)])["y"]
        array([[[3., 5.]]], dtype=float32)
        """
        evaluator_class = _evaluator_class(device)
        invariance.check("prepare", invariant)
        with strictness.relaxed():
            return cls._prepare(models.load(model, untrusted), evaluator_class, fold, invariant)

    @classmethod
    def _prepare(
        cls, loaded: models.Loaded, evaluator_class: type[Evaluator], fold: bool, invariant: Invariance | None
    ) -> Rep:
        """Return the Rep of a loaded model, optimised if ``fold``.

        If inputs have defaults, an unfolded evaluator can still be created, for runs that override them.
        """
        graph = loaded.proto.graph
        inputs, outputs = declared(graph.input, loaded.constants), declared(graph.output)
        unfolded = partial(_evaluator, evaluator_class, loaded.proto, constants=loaded.constants)
        if not fold:
            return Rep(unfolded(), inputs, invariant=invariant, outputs=outputs)
        has_defaults = not all(spec.required for spec in inputs)
        return Rep(unfolded(facts=loaded.facts), inputs, unfolded if has_defaults else None, invariant, outputs)

    @classmethod
    @presentable
    def run_node(  # type: ignore[override]  # keywords in place of the **kwargs of onnx's interface
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        *,
        opset_version: int | None = None,
        opset_imports: Iterable[OperatorSetIdProto] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Compute a single node.

        Parameters
        ----------
        node : onnx.NodeProto
            Its operator and domain must be known to gpuconv or to onnx's reference evaluator.
        inputs : sequence of arrays, dict of str to array, or one array
            One per distinct non-empty input name of the node.
        device : {"CPU", "CUDA", "CUDA:0"}
            As in :meth:`prepare`.
        outputs_info : sequence of (dtype, shape), optional
            Expected dtype and shape of each output.
        opset_version : int, optional
            Version of the default domain. Default: from ``opset_imports``, or else the newest that onnx knows.
        opset_imports : iterable of OperatorSetIdProto, optional
            Versions of all domains; these override ``opset_version``.
        **kwargs
            Ignored, as onnx's interface requires.

        Returns
        -------
        tuple
            One value per output, also available by output name.

        Raises
        ------
        ArgumentError, ArgumentTypeError, DeviceError
            As :meth:`prepare` and :meth:`Rep.run` do; also if an output differs from ``outputs_info``.
        """
        evaluator_class = _evaluator_class(device)
        node = models.with_default_domain(node)
        opsets = _opsets(node, opset_version, opset_imports)
        models.check_node(node, opsets)
        names = list(dict.fromkeys(filter(None, node.input)))
        values = bind([Input(name) for name in names], inputs)
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        translated_nodes = translating.translated(node, opsets[""])
        graph = onnx.helper.make_graph(
            translated_nodes, "node", [_value_info(*item) for item in values.items()], outputs
        )
        rep = Rep(
            _evaluator(evaluator_class, graph, opsets=opsets),
            [Input(name) for name in names],
            outputs=[Input(name) for name in node.output if name],
        )
        result = rep.run(values)
        for name, value, info in zip(rep.output_names, result, outputs_info or (), strict=False):
            _check_output(node, name, value, *info)
        return result


def _writable(value: Any) -> Any:
    """Return an output that the caller may write to: a copy if it is a read-only array, such as a cached constant."""
    return value.copy() if isinstance(value, np.ndarray) and not value.flags.writeable else value


def _evaluator_class(device: str) -> type[Evaluator]:
    """Return the evaluator class for a device name; raise DeviceError if there is no CUDA device."""
    name = str(device).upper()  # also accepts "cuda", PyTorch's spelling
    if name not in _EVALUATORS:
        raise ArgumentError(f"device must be one of {', '.join(_EVALUATORS)}, not {shown(device)}")
    reason = None if name == "CPU" else cuda.runtime.unavailable_reason()
    if reason is not None:
        raise DeviceError(f"no CUDA device was found ({reason}); use device='CPU'")
    return _EVALUATORS[name]


def _evaluator(evaluator_class: type[Evaluator], proto: Any, **options: Any) -> Evaluator:
    """Create an evaluator; whatever onnx's reference evaluator cannot represent becomes an ArgumentError."""
    try:
        evaluator = evaluator_class(proto, **options)
        evaluator.share(set())
        return evaluator
    except (GpuconvError, MemoryError):
        raise
    except Exception as error:  # such as sparse initializers or unsupported attributes
        kind = type(error).__name__
        raise ArgumentError(f"onnx's reference evaluator cannot run the model: {kind}: {reason(error)}") from error


def _opsets(node: NodeProto, version: int | None, imports: Iterable[OperatorSetIdProto] | None) -> dict[str, int]:
    """Return the version of each domain for a single node, after checking that of the default domain."""
    newest = onnx.defs.onnx_opset_version()
    opsets = {node.domain: 1, "": newest if version is None else version}
    for entry in imports or ():
        opsets["" if entry.domain == "ai.onnx" else entry.domain] = entry.version
    nodes.check_opset(opsets[""])
    return opsets


def _value_info(name: str, value: Any) -> onnx.ValueInfoProto:
    if not isinstance(value, np.ndarray):
        return onnx.ValueInfoProto(name=name)
    return onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)


def _check_output(node: NodeProto, name: str, value: Any, dtype: Any, shape: tuple[int, ...]) -> None:
    """Raise ArgumentError if an output differs in dtype or shape from what ``outputs_info`` expects."""
    if value.dtype != dtype or value.shape != tuple(shape):
        raise ArgumentError(
            f"{nodes.describe(node)}: outputs_info expects {quoted(name)} of dtype {np.dtype(dtype)} and shape "
            f"{tuple(shape)}, but it has dtype {value.dtype} and shape {value.shape}"
        )


is_compatible = Backend.is_compatible
prepare = Backend.prepare
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device
