"""Tests of gpuconv.torch need PyTorch; without it they are skipped, or fail where GPUCONV_REQUIRE_TORCH is set."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

NEEDS_NONE = ("test_tensors.py", "test_arguments.py", "test_products.py")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    if collection_path.suffix != ".py" or collection_path.name in (*NEEDS_NONE, "conftest.py", "__init__.py"):
        return None
    if find_spec("torch") is None:
        if os.environ.get("GPUCONV_REQUIRE_TORCH"):
            pytest.exit("GPUCONV_REQUIRE_TORCH is set, but PyTorch is not installed", returncode=1)
        return True
    return None
