"""Evaluate and refit the cost model by the rows of ``benchmarks.sweep``: ``python -m benchmarks.learn FILE [--write]``.

It needs no GPU. It prints modelled against measured times by kernel family, the regret of each choice (time of the
picked kernel over that of the fastest one), and the families and tiles whose removal would slow no case down by 5 %.
Then it fits the model's rates (``gpuconv/cuda/plan/limits.py``) to the times of some cases, by least squares of
logarithms, robust against outliers. With ``--write``, plans for devices of this name use the fitted rates.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import progress, static_plan, sweep
from benchmarks.static_plan import Case
from gpuconv.cuda.plan import measured_rates
from gpuconv.cuda.plan.limits import Rates, Representative, nearest, rates_of

MARGIN = 1.05  # a family or tile is useful if some case would be slower by this factor without it
_STEP = 0.02  # step of a rate's logarithm for finite differences
_ROUNDS = 12
_LOSS_SCALE = 1.5  # scale of the Cauchy loss in units of the usual error: larger errors lose weight
_MIN_DEVIATION = 0.01  # smallest usual error of a logarithm
_RIDGE = 0.001  # ridge penalty per hundred times: rates that no time depends on stay where they are
_MAX_STEP, _MIN_STEP = 0.7, 2e-3  # largest step of a logarithm, and the step at which the iteration stops
_MOST_DAMPING = 1e3
_WORST = 20  # choices printed
_MAX_FAMILIES = 12  # families named in the short report
_NAMES = tuple(field.name for field in fields(Rates))


@dataclass(frozen=True, slots=True)
class Measured:
    """Modelled and measured seconds of one kernel on one case, where its result was right."""

    case: str
    kernel: str
    modelled: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Sweep:
    """The contents of a sweep's file.

    Attributes
    ----------
    about : dict
        By case, its reference row.
    times : list of Measured
    others : dict of str to int
        Counts of the rows without a time, by status.
    """

    about: dict[str, dict[str, Any]]
    times: list[Measured]
    others: dict[str, int]

    @property
    def by_case(self) -> dict[str, dict[str, float]]:
        """Measured seconds by case, then by kernel."""
        found: dict[str, dict[str, float]] = defaultdict(dict)
        for one in self.times:
            found[one.case][one.kernel] = one.seconds
        return dict(found)


class NotMeasured(ValueError):
    """The times come from the emulated device and say nothing about a GPU."""


def read(path: Path) -> Sweep:
    """Return the sweep stored in a file; the last line of a row counts.

    Raises
    ------
    NotMeasured
        Some lines are of the emulated device.
    """
    lines = [line for line in progress.read(path) if line.get("step") == sweep.STEP]
    if any(line.get("emulated") for line in lines):
        raise NotMeasured(f"{path} has times of the emulated device, which are no measurements")
    return of(lines)


def of(lines: Iterable[dict[str, Any]]) -> Sweep:
    """Return the sweep that these lines record."""
    ended = {line["row"]: line for line in lines if line["status"] != "begun"}
    found = Sweep({}, [], defaultdict(int))
    for row, line in ended.items():
        case, kernel = row.split(" | ")
        if kernel == sweep.REFERENCE:
            found.about[case] = line
        elif line["status"] == "passed" and line.get("checked", True):
            found.times.append(Measured(case, kernel, line["modelled"], line["seconds"]))
        else:
            found.others[line["status"] if line["status"] != "passed" else "unchecked"] += 1
    return found


# ---------------------------------------------------------------- names


def family(kernel: str) -> str:
    """Return a kernel's name without dtype, number of axes, tile, precision of products, and copy suffix."""
    return _TILE.sub("", _untyped(kernel)).removesuffix("_of_copy")


def tile(kernel: str) -> str:
    """Return a kernel's name without dtype and number of axes."""
    return _untyped(kernel)


_TILE = re.compile(r"_(?:\d+x\d+(?:x\d+)*|\d+x(?:any|\d+)|few\d+|\d+x?\d*s\d+)(?=_|$)")


def _untyped(kernel: str) -> str:
    text = re.sub(r"_(?:bfloat|float|uint|int|complex)\d+(?=_|$)", "", kernel)
    text = re.sub(r"_\dd(?=_|$)", "", text).replace("_tf32_wgmma", "_wgmma")
    return re.sub(r"_3?x?tf32(?=_|$)", "_mma", text)


# ---------------------------------------------------------------- statistics


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Spearman's rank correlation, ties ranked by their mean; NaN if one side is constant."""
    if len(first) < 2:
        return float("nan")
    a, b = _ranks(first), _ranks(second)
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / size if size else float("nan")


def _ranks(values: Sequence[float]) -> Any:
    _, places, counts = np.unique(np.asarray(values, float), return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[places]


def regrets(times: dict[str, dict[str, float]], picked: dict[str, str]) -> dict[str, float]:
    """Return, by case, the time of the picked kernel over that of the fastest, where the picked one was timed."""
    return {
        case: found[picked[case]] / min(found.values()) for case, found in times.items() if picked.get(case) in found
    }


def idle(times: dict[str, dict[str, float]], group: Callable[[str], str]) -> dict[str, float]:
    """Return the groups of kernels whose removal slows no case down by `MARGIN`, with the largest factor of each."""
    worth: dict[str, float] = {}
    for found in times.values():
        best = min(found.values())
        for name in {group(kernel) for kernel in found}:
            others = [seconds for kernel, seconds in found.items() if group(kernel) != name]
            worth[name] = max(worth.get(name, 1.0), min(others, default=float("inf")) / best)
    return {name: cost for name, cost in sorted(worth.items(), key=lambda item: item[1]) if cost < MARGIN}


# ---------------------------------------------------------------- fitting


@dataclass(frozen=True, slots=True)
class Fit:
    """Fitted rates, and the model's error before and after.

    Attributes
    ----------
    rates : Rates
    before, after : float
        Robust standard deviation of log(measured / modelled).
    certain : dict of str to float
        Approximate uncertainty of each rate's logarithm; rates that the times do not determine are absent.
    """

    rates: Rates
    before: float
    after: float
    certain: dict[str, float]


def modelled(cases: Iterable[Case], device: Representative, by: Rates) -> dict[tuple[str, str], float]:
    """Return the modelled seconds of every candidate of the cases with these rates, by (case, kernel)."""
    there = replace(device, limits=replace(device.limits, rates=by))
    return {(str(case), one.name): one.seconds for case in cases for one in sweep.candidates(case, there)}


def fit(times: Sequence[Measured], cases: Sequence[Case], device: Representative, start: Rates) -> Fit:
    """Fit the rates to the times of the cases: damped Gauss-Newton on logarithms; only improving steps are accepted."""
    known = {(one.case, one.kernel): one.seconds for one in times}
    wanted = {str(case) for case in cases}
    keys = sorted(set(modelled(cases, device, start)) & {key for key in known if key[0] in wanted})
    measured = np.log([known[key] for key in keys])

    def errors(place: Any) -> Any:
        found = modelled(cases, device, _rates(start, place))
        return measured - np.log([found[key] for key in keys])

    return _descend(errors, start, _RIDGE * max(1.0, len(keys) / 100))


def _rates(start: Rates, place: Any) -> Rates:
    """Return ``start`` with the logarithm of each rate shifted by ``place``."""
    factors = dict(zip(_NAMES, np.exp(place).tolist(), strict=True))
    return Rates(**{name: value * factors[name] for name, value in asdict(start).items()})


def _descend(errors: Callable[[Any], Any], start: Rates, held: float) -> Fit:
    size = len(_NAMES)
    place, damping = np.zeros(size), 1e-2
    error = first = errors(place)
    square = np.zeros((size, size))
    for _ in range(_ROUNDS):
        slopes = np.stack([errors(place + _STEP * axis) - error for axis in np.eye(size)], 1) / _STEP
        usual = max(_MIN_DEVIATION, _LOSS_SCALE * _robust_deviation(error))
        weights = 1 / (1 + (error / usual) ** 2)
        square = slopes.T @ (weights[:, None] * slopes)
        pull = slopes.T @ (weights * error) + held * place
        while damping < _MOST_DAMPING:
            step = -np.linalg.solve((1 + damping) * square + (1 + damping) * held * np.eye(size), pull)
            step = np.clip(step, -_MAX_STEP, _MAX_STEP)
            tried = errors(place + step)
            if _cost(tried, usual, place + step, held) < _cost(error, usual, place, held):
                break
            damping *= 8
        else:
            break
        place, error, damping = place + step, tried, damping / 8
        if abs(step).max() < _MIN_STEP:
            break
    told = np.diag(square)
    spread = np.sqrt(np.diag(np.linalg.inv(square + held * np.eye(size)))) * _robust_deviation(error)
    certain = {name: float(far) for name, far, much in zip(_NAMES, spread, told, strict=True) if much > held}
    return Fit(_rates(start, place), _robust_deviation(first), _robust_deviation(error), certain)


def _cost(error: Any, usual: float, place: Any, held: float) -> float:
    """Cauchy loss of the errors (quadratic for usual ones, nearly flat for outliers) plus the ridge penalty of the
    rates."""
    of_errors = usual**2 / 2 * np.log1p((error / usual) ** 2).sum()
    return float(of_errors + held * place @ place / 2)


def _robust_deviation(error: Any) -> float:
    """Return the robust standard deviation of errors: 1.4826 times the median magnitude."""
    return 1.4826 * float(np.median(abs(error)))


# ---------------------------------------------------------------- the command


def main(argv: list[str] | None = None) -> int:
    """Print the evaluation and the fit; return 2 if the file has no times, or emulated ones."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learn", description=__doc__)
    parser.add_argument("rows", type=Path, help="file of JSON lines written by python -m benchmarks.sweep")
    parser.add_argument("--cases", type=int, default=96, help="number of cases to fit rates to; 0: all (%(default)s)")
    parser.add_argument("--write", action="store_true", help="store the fitted rates for devices of this name")
    parser.add_argument("--architecture", action="store_true", help="with --write: also for all of its architecture")
    arguments = parser.parse_args(argv)
    try:
        found = read(arguments.rows)
    except NotMeasured as reason:
        print(f"python -m benchmarks.learn: {reason}", file=sys.stderr)
        return 2
    if not found.times:
        print(f"python -m benchmarks.learn: {arguments.rows} has no times of a sweep", file=sys.stderr)
        return 2
    device = device_of(found)
    print(
        f"{device.limits.name} ({device.limits.architecture}): {len(found.times)} kernels of {len(found.by_case)} cases"
    )
    _print_all(found)
    there = [case for case in sweep.stratified(static_plan.cases()) if str(case) in found.by_case]
    chosen = there[: arguments.cases] if arguments.cases else there
    result = fit(found.times, chosen, device, device.limits.rates)
    _print_fit(found, chosen, device, result)
    if arguments.write:
        names = [device.limits.name, *([device.limits.architecture] if arguments.architecture else [])]
        write(Path(measured_rates.__file__), {**measured_rates.MEASURED, **dict.fromkeys(names, as_data(result.rates))})
    return 0


def device_of(found: Sweep) -> Representative:
    """Return the swept device, with the shared-memory limits of its architecture."""
    about = next(line for line in found.about.values() if "device" in line)
    known, name = nearest(about["architecture"]), about["device"]
    limits = replace(
        known.limits,
        architecture=about["architecture"],
        multiprocessors=about["multiprocessors"],
        name=name,
        rates=rates_of(name, about["architecture"]),
    )
    return replace(known, limits=limits)


def as_data(found: Rates) -> dict[str, float]:
    """Return rates by name, rounded to four digits."""
    return {name: float(f"{value:.4g}") for name, value in asdict(found).items()}


def write(path: Path, measured: dict[str, dict[str, float]]) -> None:
    """Write the module of measured rates, formatted as ``ruff format`` would."""
    head, _ = path.read_text(encoding="utf-8").split("MEASURED", 1)
    lines = []
    for device, found in measured.items():
        pairs = [f'        "{name}": {value!r},\n' for name, value in found.items()]
        lines.append(f"    {json.dumps(device)}: {{\n{''.join(pairs)}    }},\n")
    table = f"{{\n{''.join(lines)}}}" if lines else "{}"
    path.write_text(f"{head}MEASURED: dict[str, dict[str, float]] = {table}\n", encoding="utf-8")


def brief(found: Sweep) -> list[str]:
    """Return a short report: how far the model is off, and what never wins."""
    groups: dict[str, list[float]] = defaultdict(list)
    for one in found.times:
        groups[family(one.kernel)].append(one.seconds / one.modelled)
    off = {name: float(np.median(ratios)) for name, ratios in groups.items()}
    furthest = sorted(off, key=lambda name: -abs(np.log(off[name])))[:_MAX_FAMILIES]
    rank = spearman([one.modelled for one in found.times], [one.seconds for one in found.times])
    picks = regrets(found.by_case, {case: line.get("picked", "") for case, line in found.about.items()})
    lines = [
        f"{len(found.times)} kernels of {len(found.by_case)} cases; rank correlation with the model {rank:.3f}",
        _regret_line(picks),
        f"measured over modelled, furthest off: {', '.join(f'{name} {off[name]:.2f}' for name in furthest)}",
    ]
    for what, group in (("families", family), ("tiles", tile)):
        useless = idle(found.by_case, group)
        lines.append(f"{what} that never win by {MARGIN - 1:.0%}: {', '.join(useless) or 'none'}")
    return lines


def _print_all(found: Sweep) -> None:
    for status, count in sorted(found.others.items()):
        print(f"{count} {status}: left out")
    print("\nfamily: kernels; measured over modelled: median, least, most; rank correlation")
    groups: dict[str, list[Measured]] = defaultdict(list)
    for one in found.times:
        groups[family(one.kernel)].append(one)
    for name, ones in sorted(groups.items(), key=lambda item: -len(item[1])):
        ratios = [one.seconds / one.modelled for one in ones]
        rank = spearman([one.modelled for one in ones], [one.seconds for one in ones])
        spread = f"{np.median(ratios):.2f} {min(ratios):.2f} {max(ratios):.2f}"
        print(f"  {name}: {len(ones)}; {spread}; {rank:.3f}")
    _print_regrets(regrets(found.by_case, {case: line.get("picked", "") for case, line in found.about.items()}), found)
    for what, group in (("families", family), ("tiles", tile)):
        useless = idle(found.by_case, group)
        print(f"\n{what} without which no case takes {MARGIN - 1:.0%} longer, with the longest: {len(useless)}")
        for name, cost in useless.items():
            print(f"  {name}: {cost:.3f}")


def _print_regrets(found: dict[str, float], rows: Sweep) -> None:
    print(f"\n{_regret_line(found)}; the worst:")
    for case, regret in sorted(found.items(), key=lambda item: -item[1])[:_WORST]:
        times = rows.by_case[case]
        best = min(times, key=times.__getitem__)
        print(f"  {regret:.3f}  {case}: {rows.about[case]['picked']}, not {best} ({times[best] * 1e6:.1f} us)")


def _regret_line(found: dict[str, float]) -> str:
    if not found:
        return "regret: no pick has a time"
    mean = float(np.exp(np.mean(np.log(list(found.values())))))
    return f"regret of {len(found)} picks: mean {mean:.4f}, worst {max(found.values()):.3f}"


def _print_fit(found: Sweep, cases: Sequence[Case], device: Representative, result: Fit) -> None:
    print(
        f"\nrates fitted to {len(cases)} cases; usual error of a logarithm {result.before:.3f}, then {result.after:.3f}"
    )
    for name, value in asdict(result.rates).items():
        before = asdict(device.limits.rates)[name]
        known = f"within {result.certain[name]:.1%}" if name in result.certain else "not told by these rows"
        print(f"  {name}: {before:.4g}, then {value:.4g} ({known})")
    times = {case: kernels for case, kernels in found.by_case.items() if case in set(map(str, cases))}
    for when, own in (("before", device.limits.rates), ("then", result.rates)):
        by_case: dict[str, dict[str, float]] = defaultdict(dict)
        for (case, kernel), seconds in modelled(cases, device, own).items():
            by_case[case][kernel] = seconds
        picked = {case: min(kernels, key=kernels.__getitem__) for case, kernels in by_case.items()}
        print(f"  {when}: {_regret_line(regrets(times, picked))}")


if __name__ == "__main__":
    sys.exit(main())
