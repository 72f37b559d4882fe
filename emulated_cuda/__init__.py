"""Stands between a checkout's root and the package in ``src``: Python finds this folder first where it starts there.

Without it, the folder would be an empty namespace package. It gives way to the package wherever that is installed.
"""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

_places = [entry for entry in sys.path if not Path(entry, __name__, "pyproject.toml").exists()]  # but for checkouts
_spec = PathFinder.find_spec(__name__, _places)
if _spec is None or _spec.loader is None:
    raise ModuleNotFoundError(
        f"the package emulated_cuda is not installed: type pip install -e {Path(__file__).parent}", name=__name__
    )
sys.modules[__name__] = module_from_spec(_spec)  # whoever imports this gets that one
_spec.loader.exec_module(sys.modules[__name__])
