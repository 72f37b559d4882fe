"""Coverage-guided fuzzing of the ONNX loader by Atheris: ``python -m tests.fuzz.coverage_guided``.

Atheris is not a dependency of the tests: ``pip install atheris``. Arguments are libFuzzer's: corpus folders, the first
of which receives new inputs, and options such as ``-max_total_time=600``. Without a folder, a temporary one is filled
with a few hundred valid models. An input that fails is written to ``crash-…`` in the current folder.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(include=["gpuconv"]):
    import gpuconv.onnx  # noqa: F401

from google.protobuf.message import DecodeError
from onnx import ModelProto

from tests.fuzz import frame, loading, models, mutations

_SEEDS = 300
_FUZZER = loading.FUZZER()


def test_one_input(data: bytes) -> None:
    """Load a model, run it if that succeeds, and check what must hold for every model."""
    _FUZZER.check(loading.Case("bytes", None, data, {}, "bytes", fold=True))


def mutate(data: bytes, most: int, seed: int) -> bytes:
    """Mutate fields of data that is a model, or bytes of anything."""
    random = Random(seed)
    if random.random() < 0.6:
        try:
            changed = mutations.mutated(random, ModelProto.FromString(data)).SerializeToString()
        except (DecodeError, UnicodeError, ValueError):
            changed = b""
        if 0 < len(changed) <= most:
            return changed
    return bytes(atheris.Mutate(data, most))


def _folder() -> str:
    """Return a new folder of valid models."""
    folder = tempfile.mkdtemp(prefix="models-")
    for number in range(_SEEDS):
        model = models.sample(frame.random_of(0, number)).model
        Path(folder, f"{number}.onnx").write_bytes(model.SerializeToString())
    print(f"models, and those that reach more lines: {folder}")
    return folder


def main() -> None:
    """Run until a model fails, or as long as the options say."""
    options = [each for each in sys.argv[1:] if each.startswith("-")]
    folders = [str(Path(each).resolve()) for each in sys.argv[1:] if not each.startswith("-")] or [_folder()]
    # libFuzzer's timeout is off: the loader's time limit uses the timer. Paths are absolute: cases may change folder.
    usual = ["-timeout=0", "-rss_limit_mb=4096", "-max_len=20000", f"-artifact_prefix={Path.cwd()}/"]
    frame.limit_memory(frame.MEMORY)
    atheris.Setup([sys.argv[0], *usual, *options, *folders], test_one_input, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
