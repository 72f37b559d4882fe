"""Lets ``python -m gpuconv`` be the command ``gpuconv``."""

from gpuconv_command import main

if __name__ == "__main__":
    raise SystemExit(main())
