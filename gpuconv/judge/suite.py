"""Write the suite: a folder for each test, in the layout of ONNX's own backend tests, and the standalone judges."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import gpuconv
from gpuconv.judge import cases, combinations, flat, rulings, shapes, sweep
from gpuconv.judge import problems as problems_module
from gpuconv.judge.definition import Array
from gpuconv.judge.problems import NAMES, Answer, Problem, answer, fed, fed_by_name, model, of_case, stored, tensor
from gpuconv.judge.readings import Alternative, alternatives

DATA = "test_data_set_0"
STANDALONE = Path(__file__).with_name("standalone")
FORMAT = 2
LICENCE = "Apache-2.0"
_README = """A conformance suite of ONNX's Conv, ConvTranspose, MaxPool, AveragePool and MaxUnpool.

Each folder is a test in the layout of ONNX's own backend tests: model.onnx, and in test_data_set_0 the inputs
(input_N) and outputs (output_N). Every array is there as .pb (TensorProto) and as .npy; bfloat16 is stored in .npy as
uint16 bits, and case.json has the true type. Besides:

constant_N          the model's initializers, in the order of case.json's "constants".
bound_N             float64, the shape of output_N: how far each element may be off. 0 demands equality (==, and any NaN
                    equals any NaN); infinity accepts anything: a sum may or may not overflow on its way.
                    Elsewhere it is (K + 1) u S + rounding: K terms, S the sum of their magnitudes, u = 2^-24 (2^-53
                    for double), so sums of 16-bit types are expected to accumulate in float32.
wide_bound_N        the same with u of the 16-bit type itself.
tf32_bound_N        for float32: factors rounded or truncated to TF32.
transform_bound_N   as precise as a transform, such as Winograd's: 32 u K max|x| max|w| in place of (K + 1) u S.
narrow_bound_N      float64 computed in float32.
alternative_NAME_N  other answers that can be defended.
case.json           the description of the test: the operator, its attributes, the rule in the specification's words
                    with its quotation, the status (specified, by the reference, disputed, ruled here), public
                    discussions, known issues of implementations ("upstream"), and the meaning of each alternative.
                    "rules" lists the rules that take part in a combination; other tests have one.
                    "bits": true asks for every bit; an answer with equal values is then defensible.
                    "valid": false marks a model that the specification forbids or that
                    onnx.checker.check_model(full_check=True) rejects: refusing it is right, too.
                    "onnx_shape" is the shape that ONNX's shape inference gives instead.

An answer is accepted if one set of outputs explains all outputs together: output_N, or one alternative of kind "whole".
Each element must be within its bound of the set, or be that of an alternative of kind "element" whose "of" names the
set (null: output_N). An element alternative counts only where it differs from its set. Elements of alternatives may be
off by the largest finite element of the bound. If the bound has infinities, an element of an alternative whose
magnitude is above 0.9 times the type's largest value may be anything. The same with another bound in place of bound_N
is a less precise answer.
Only output_N within bound_N agrees; every other accepted answer differs. An answer that is not accepted is wrong, or
"inconsistent" if each element is that of output_N or of an alternative marked "inconsistent when mixed": NaN is kept
or lost depending on its position.

Without protobuf, .npy or JSON: TEST/test.flat has the arrays of a test and the entries of case.json that running and
judging need.
All numbers are little-endian:

    char  magic[8] "FLAT0001";  int64 records;  then the records without gaps:
    char  name[96]              UTF-8, filled with zero bytes
    int64 type, rank, dims[8]   TensorProto.DataType: 1 float32, 2 uint8, 3 int8, 7 int64, 8 text, 10 float16,
                                11 float64, 16 bfloat16; sizes, 0 beyond the rank; of text: rank 1, the number of bytes
    bytes data                  C order, filled with zero bytes to a multiple of 8

Arrays have the names above. Other records are "operator", "opset", "type", "rank", "rule", "bits", "valid" and so on,
"attributes.pads" (int64) or "attributes.auto_pad" (text), "alternatives.NAME.kind". What is null is left out.

To judge a target, let it write OUTPUTS/TEST/output_N.npy, or output_N.flat (a flat file with one record), or say in
OUTPUTS/TEST/refused.txt why it does not support the test. max_pool.c is an example of a whole target.

    cc -O2 -o judge judge.c -lm && ./judge SUITE OUTPUTS       or       python3 judge.py SUITE OUTPUTS

judge.c is C99 and needs no library, judge.py needs NumPy. Both print a line for each test that does not agree. They
return 1 for wrong, inconsistent and crashes (no outputs), 2 for a broken suite, else 0. Options: --strict (differs
returns 1, too), --filter TEXT, --precision tf32 and --accumulate float16 or bfloat16 (what the target claims).

suite.json and tests.txt list all tests. suite.json has the version of onnx whose shape inference was compared, and the
hash over all other files. Nothing here needs gpuconv. The licence is in the file LICENSE.
"""


@dataclass(frozen=True)
class Written:
    """The result of :func:`write`: the number of tests, the size of all files in bytes, and the hash over them."""

    tests: int
    size: int
    digest: str


def problems(seed: int, count: int | None) -> Iterator[Problem]:
    """Yield all problems of the suite: those of the named cases, then the sweep's."""
    for number, case in enumerate(cases.CASES):
        yield from of_case(case, number)
    yield from sweep.problems(seed, count)


def write(
    folder: Path,
    seed: int,
    count: int | None,
    show: Callable[[str], None],
    wanted: Callable[[Problem], bool] | None = None,
) -> Written:
    """Write the suite.

    Parameters
    ----------
    folder : Path
        Created if it does not exist.
    seed, count
        Of the sweep, see :func:`gpuconv.judge.sweep.problems`.
    show : callable
        Called with the name of each test.
    wanted : callable, optional
        Returns whether a problem is written; by default all are.
    """
    digest, size, names = hashlib.sha256(), 0, []
    for problem in problems(seed, count):
        show(problem.name)
        if wanted is not None and not wanted(problem):
            continue
        names.append(problem.name)
        size += _store(folder, files(problem), digest)
    size += _store(folder, {"README.txt": _README.encode(), "LICENSE": _licence(), **_judges()}, digest)
    size += _store(folder, {"tests.txt": "".join(f"{name}\n" for name in names).encode()}, digest)
    facts = {
        "format": FORMAT,
        "version": gpuconv.__version__,
        "licence": LICENCE,
        "onnx": shapes.ONNX,
        "seed": seed,
        "sweep": count,
        "sha256": digest.hexdigest(),
        "tests": names,
    }
    size += _store(folder, {"suite.json": _json(facts)}, hashlib.sha256())
    return Written(len(names), size, digest.hexdigest())


def _store(folder: Path, contents: Mapping[str, bytes], digest: Any) -> int:
    for name, content in contents.items():
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return store(folder, contents)


def store(folder: Path, contents: Mapping[str, bytes]) -> int:
    """Write files by their paths in a folder, which is created if needed; return their total size in bytes."""
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return sum(map(len, contents.values()))


def _licence() -> bytes:
    """Return the text of the licence, from the checkout or the package's metadata; a suite has the same in both."""
    beside = Path(gpuconv.__file__).parents[1] / "LICENSE"
    if beside.is_file():
        return beside.read_bytes()
    with suppress(metadata.PackageNotFoundError, OSError):
        for file in metadata.files("gpuconv") or ():
            if file.name == "LICENSE":
                return Path(str(file.locate())).read_bytes()
    return f"{LICENCE}\n".encode()


def _judges() -> dict[str, bytes]:
    """Return the judges that do not need gpuconv, and the example of a target."""
    return {name: (STANDALONE / name).read_bytes() for name in ("judge.c", "judge.py", "max_pool.c")}


def files(problem: Problem) -> dict[str, bytes]:
    """Return the files of a test, by their paths in the suite."""
    right = answer(problem)
    arrays, constants = _numbered("input", fed(problem)), [*stored(problem).values()]
    arrays |= _numbered("constant", constants) | _numbered("output", right.outputs) | _numbered("bound", right.bounds)
    for kind, limits in right.looser.items():
        arrays |= _numbered(f"{kind}_bound", limits)
    others = list(alternatives(problem, right))
    for other in others:
        arrays |= _numbered(f"alternative_{other.name}", other.outputs)
    facts = _facts(problem, right, others)
    made = {
        "model.onnx": model(problem).SerializeToString(deterministic=True),
        "case.json": _json(facts),
        "test.flat": flat.pack(facts, arrays),
    }
    for name, array in arrays.items():
        made[f"{DATA}/{name}.pb"] = _bytes(array, name)
        made[f"{DATA}/{name}.npy"] = _plain(array)
    return {f"{problem.name}/{name}": made[name] for name in sorted(made)}


def _numbered(kind: str, arrays: Sequence[Array]) -> dict[str, Array]:
    return {f"{kind}_{number}": np.asarray(array) for number, array in enumerate(arrays)}


def _bytes(array: Array, name: str) -> bytes:
    content: bytes = tensor(array, name).SerializeToString(deterministic=True)
    return content


def _plain(array: Array) -> bytes:
    """Return a .npy file; bfloat16 as uint16 bits."""
    stream = io.BytesIO()
    plain = array.view(np.uint16) if array.dtype.name == "bfloat16" else array
    np.lib.format.write_array(stream, np.ascontiguousarray(plain).reshape(array.shape), (1, 0), allow_pickle=False)
    return stream.getvalue()


def _facts(problem: Problem, right: Answer, others: Sequence[Alternative]) -> dict[str, Any]:
    ruling = combinations.of(problem)
    onnx_shape = shapes.difference(problem, right.outputs[0].shape)
    unclear = onnx_shape is not None and onnx_shape["class"] == shapes.UNCLEAR
    room = unclear or any(other.geometry for other in others)
    attributes = {name: _text(value) for name, value in problems_module.attributes(problem).items()}
    return {
        "name": problem.case.name,
        "operator": problem.case.op,
        "opset": problem.opset,
        "type": problem.dtype,
        "rank": len(problem.case.x_shape) - 2,
        "rule": ruling.name,
        "rules": list(ruling.parts or (ruling.name,)),
        "sentence": ruling.sentence,
        # Where another reading of the specification gives another answer, the rule is not specified.
        "status": rulings.DISPUTED if room and ruling.status == rulings.SPECIFIED else ruling.status,
        "quotation": ruling.quotation,
        "discussions": list(ruling.discussions),
        "upstream": {name: list(links) for name, links in ruling.upstream.items()},
        "valid": shapes.is_valid(problem),
        "onnx_shape": onnx_shape,
        "attributes": attributes,
        "inputs": _described("input", {NAMES[name]: array for name, array in fed_by_name(problem).items()}),
        "constants": _described("constant", {NAMES[name]: array for name, array in stored(problem).items()}),
        "outputs": _described("output", dict(zip(("Y", "Indices"), right.outputs, strict=False))),
        "bits": problem.bits,
        "alternatives": {
            other.name: {
                "sentence": other.sentence,
                "kind": "whole" if other.whole else "element",
                "of": other.of,
                "verdict": "inconsistent when mixed" if other.nan else "differs",
            }
            for other in others
        },
    }


def _described(kind: str, arrays: dict[str, Array]) -> list[dict[str, Any]]:
    return [
        {"name": name, "type": array.dtype.name, "shape": list(array.shape), "file": f"{kind}_{number}"}
        for number, (name, array) in enumerate(arrays.items())
    ]


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else list(value) if isinstance(value, tuple) else value


def _json(facts: dict[str, Any]) -> bytes:
    return (json.dumps(facts, indent=1) + "\n").encode()
