"""Lets ``python -m gpuconv`` be the command ``gpuconv``."""

from gpuconv.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
