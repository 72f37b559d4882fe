"""Makes ``python -m gpuconv`` run the command ``gpuconv``."""

from gpuconv_command import main

if __name__ == "__main__":
    raise SystemExit(main())
