"""Redirects ``import emulated_cuda`` to the installed package when Python starts in the root of a checkout.

There, Python finds this folder before the package in ``src``. Without this file the folder would be imported as an
empty namespace package.
"""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

_places = [entry for entry in sys.path if not Path(entry, __name__, "pyproject.toml").exists()]  # without checkouts
_spec = PathFinder.find_spec(__name__, _places)
if _spec is None or _spec.loader is None:
    raise ModuleNotFoundError(
        f"the package emulated_cuda is not installed: type pip install -e {Path(__file__).parent}", name=__name__
    )
sys.modules[__name__] = module_from_spec(_spec)  # what the import statement returns
_spec.loader.exec_module(sys.modules[__name__])
