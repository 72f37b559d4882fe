"""Write the suite: a folder for each problem, in the layout of ONNX's own backend tests."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpuconv.judge import cases, sweep
from gpuconv.judge.definition import Array
from gpuconv.judge.problems import Problem, answer, fed, model, of_case, tensor
from gpuconv.judge.rulings import RULINGS
from gpuconv.judge.variants import alternatives

DATA = "test_data_set_0"
FORMAT = 2
_README = """A conformance suite of ONNX's Conv, ConvTranspose, MaxPool, AveragePool and MaxUnpool.

Each folder is a test in the layout of ONNX's own backend tests: model.onnx, and in test_data_set_0 the inputs
(input_N.pb) and outputs (output_N.pb). Besides:

bound_N.pb          double, the shape of output_N: how far each element may be off. 0 demands equality (==, and any NaN
                    equals any NaN); infinity accepts anything: a sum may or may not overflow on its way.
                    Elsewhere it is (K + 1) u S + rounding: K terms, S the sum of their magnitudes, u = 2^-24 (2^-53
                    for double), so that sums of 16-bit types are asked for in float32.
wide_bound_N.pb     the same with u of the 16-bit type itself: a defensible answer.
alternative_NAME_N.pb  other defensible answers. An element of a sum may be off by the largest finite element
                    of the bound; where that has infinities, one within a tenth of the type's largest by anything.
case.json           the sentence that the test stands for, its rule, the rule's status (specified, by the reference,
                    disputed, ruled here), public discussions, and what each alternative is. "bits": true asks for
                    every bit of the outputs; equality is then a defensible answer.

suite.json lists all tests, and has the hash over all other files. Nothing here needs gpuconv.
"""


@dataclass(frozen=True)
class Written:
    """What :func:`write` wrote: the number of tests, the sum of the files' sizes, and the hash over them."""

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
        Made if it is not there.
    seed, count
        Of the sweep, see :func:`gpuconv.judge.sweep.problems`.
    show : callable
        Told the name of each test.
    wanted : callable, optional
        Tells of a problem whether the suite has it; by default it has all.
    """
    digest, size, names = hashlib.sha256(), 0, []
    for problem in problems(seed, count):
        show(problem.name)
        if wanted is not None and not wanted(problem):
            continue
        names.append(problem.name)
        size += _store(folder, files(problem), digest)
    size += _store(folder, {"README.txt": _README.encode()}, digest)
    facts = {"format": FORMAT, "seed": seed, "sweep": count, "sha256": digest.hexdigest(), "tests": names}
    size += _store(folder, {"suite.json": _json(facts)}, hashlib.sha256())
    return Written(len(names), size, digest.hexdigest())


def _store(folder: Path, contents: dict[str, bytes], digest: Any) -> int:
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return sum(map(len, contents.values()))


def files(problem: Problem) -> dict[str, bytes]:
    """Return the files of a test, by their paths in the suite."""
    right = answer(problem)
    data: dict[str, bytes] = {}
    for number, array in enumerate(fed(problem)):
        data[f"input_{number}.pb"] = _bytes(array, f"input_{number}")
    data |= _numbered("output", right.outputs) | _numbered("bound", right.bounds)
    if right.wide is not None:
        data |= _numbered("wide_bound", right.wide)
    others = {}
    for variant, other in alternatives(problem, right):
        others[variant.name] = variant.sentence
        data |= _numbered(f"alternative_{variant.name}", other.outputs)
    made = {
        "model.onnx": model(problem).SerializeToString(deterministic=True),
        "case.json": _json(_facts(problem, others)),
    }
    made |= {f"{DATA}/{name}": content for name, content in data.items()}
    return {f"{problem.name}/{name}": made[name] for name in sorted(made)}


def _numbered(kind: str, arrays: tuple[Array, ...]) -> dict[str, bytes]:
    return {f"{kind}_{number}.pb": _bytes(array, f"{kind}_{number}") for number, array in enumerate(arrays)}


def _bytes(array: Array, name: str) -> bytes:
    content: bytes = tensor(np.asarray(array), name).SerializeToString(deterministic=True)
    return content


def _facts(problem: Problem, others: dict[str, str]) -> dict[str, Any]:
    ruling = RULINGS[problem.case.rule]
    return {
        "name": problem.case.name,
        "operator": problem.case.op,
        "opset": problem.opset,
        "type": problem.dtype,
        "rule": ruling.name,
        "sentence": problem.case.rule,
        "status": ruling.status,
        "discussions": list(ruling.discussions),
        "alternatives": others,
        "bits": problem.bits,
    }


def _json(facts: dict[str, Any]) -> bytes:
    return (json.dumps(facts, indent=1) + "\n").encode()
