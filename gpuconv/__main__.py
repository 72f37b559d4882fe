"""Lets ``python -m gpuconv`` be the command ``gpuconv``."""

from gpuconv.cli.main import main

raise SystemExit(main())
