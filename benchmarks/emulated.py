"""A step of a visit on the tests' emulated device: ``python -m benchmarks.emulated benchmarks.smoke --rows FILE``.

The emulated driver takes its place before anything imports CuPy, and whoever compiles kernels gets PTX. Then the
module runs as it does on a GPU. It must not be one that keeps cubins, as theirs would be PTX.
"""

from __future__ import annotations

import os
import runpy
import sys

from emulated_cuda import compilers
from gpuconv.cuda.build import compile as compiler
from tests.harness import cuda_device


def main() -> int:
    """Run the module that the command line names; 2 where there is no emulated device."""
    os.environ.setdefault("EMULATED_CUDA_MULTIPROCESSORS", "2")  # few blocks are several on each
    reason = cuda_device.emulated_unavailable_reason()
    if reason is not None:
        print(f"emulated: {reason}", file=sys.stderr)
        return 2
    vars(compiler)["cubin"] = cuda_device.ptx  # from the same cache of PTX that the tests have
    compilers.use_ptx()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
