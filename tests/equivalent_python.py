"""Mutants of Python modules that `mutate_python` need not notice: they compute the same. By reason."""

from __future__ import annotations

EQUIVALENT: dict[str, tuple[str, ...]] = {}
