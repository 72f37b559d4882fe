"""A pytest plugin, loaded after emulated_cuda.plugin, which runs SigPy's own tests with gpuconv's convolutions.

SigPy convolves by ``cupy.cudnn``, which CuPy 14 no longer has: ``gpuconv.compat.cudnn`` replaces it.
This repository contains nothing of SigPy. From a clone of https://github.com/mikgroup/sigpy, with `GPUCONV` naming this
checkout:

    pip install sigpy "$GPUCONV[cuda13]" "$GPUCONV/emulated_cuda[cuda13]" pytest
    PYTHONPATH=$GPUCONV/tests/compat pytest -p emulated_cuda.plugin -p sigpy_plugin --ignore-glob='*/learn/*' tests

On a machine with a GPU, leave the first plugin out.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys

if "emulated_cuda.plugin" in sys.modules:  # gpuconv's cache then holds PTX, which no device may take for machine code
    from emulated_cuda.emulator.build import cache_folder

    os.environ["GPUCONV_CACHE_DIR"] = str(cache_folder() / "gpuconv")

import cupy

import gpuconv.compat.cudnn as compat

compat.__spec__ = importlib.machinery.ModuleSpec("cupy.cudnn", None)  # SigPy checks whether it exists
sys.modules["cupy.cudnn"] = sys.modules["cupy.cuda.cudnn"] = compat
cupy.cudnn = cupy.cuda.cudnn = compat
