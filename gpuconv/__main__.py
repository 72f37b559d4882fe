"""Lets ``python -m gpuconv`` be the command ``gpuconv``."""

import sys

from gpuconv.cli.main import main

sys.exit(main())
