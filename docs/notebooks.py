"""Makes the notebooks of the scripts in examples/, with their outputs, and the site's small pictures of them.

    python docs/notebooks.py             # all; or names, as quickstart, for some
    python docs/notebooks.py --check     # writes nothing: runs the scripts, and fails where one of them does

A notebook is a script in jupytext's percent format, executed. The same scripts and results make the same files, byte
for byte: no times, no paths, and pictures of few colours. It takes
``pip install -e ./emulated_cuda -e ".[docs]"``, and g++ for the emulator.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
EXAMPLES, PICTURES = CHECKOUT / "examples", CHECKOUT / "docs" / "pictures"
MAX_NOTEBOOK, MAX_THUMBNAIL = 300_000, 30_000  # bytes
COLOURS = 128  # of a picture's palette
SIZE = 320, 200  # of a thumbnail
README = "onnx_backend"  # whose last picture stands in README
# What stands side by side in a thumbnail: the number of a picture in the notebook, the left and the upper end of a part
# of it, and the part's width, in pixels. Its height follows from SIZE.
PARTS = {
    "batch_invariance": [(0, 0, 20, 590)],
    "checkerboards": [(0, 75, 32, 164), (0, 625, 32, 164)],
    "deconvolution": [(0, 40, 32, 180), (0, 352, 32, 180)],
    "edges": [(0, 80, 60, 200), (0, 820, 60, 200)],
    "four_dimensions": [(0, 64, 32, 203), (0, 694, 32, 203)],
    "implicit_gemm": [(0, 69, 32, 520)],
    "network_floors": [(0, 40, 0, 1137)],
    "on_a_gpu": [(0, 0, 25, 555)],
    "onnx_backend": [(0, 0, 31, 711)],
    "quickstart": [(0, 25, 33, 133), (0, 275, 33, 133)],
    "unpooling": [(0, 340, 33, 190), (0, 940, 33, 190)],
}


def scripts(names: list[str]) -> list[Path]:
    """Return the scripts that are notebooks: all, or those with the names."""
    found = [path for path in sorted(EXAMPLES.glob("*.py")) if path.read_text(encoding="utf-8").startswith("# ---\n")]
    unknown = set(names) - {path.stem for path in found}
    if unknown:
        raise SystemExit(f"no notebook is called {', '.join(sorted(unknown))}")
    return [path for path in found if not names or path.stem in names]


def environment(**more: str) -> dict[str, str]:
    """Return the variables of what is executed: it imports this checkout's package."""
    path = os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, **more}


def check(script: Path) -> str:
    """Run a script; return what went wrong."""
    command = [sys.executable, "-W", "ignore:FigureCanvasAgg is non-interactive", str(script)]
    done = subprocess.run(command, cwd=EXAMPLES, env=environment(MPLBACKEND="agg"), capture_output=True, text=True)
    print(script.name, "fails" if done.returncode else "passes", flush=True)
    return done.stderr if done.returncode else ""


def executed(script: Path) -> Any:
    """Return the notebook of a script, with outputs."""
    import jupytext
    from nbclient import NotebookClient

    notebook = jupytext.read(script)
    resources = {"metadata": {"path": str(EXAMPLES)}}
    quiet = ["--log-level=40", "--InteractiveShell.colors=NoColor"]  # the kernel warns of how it is connected
    client = NotebookClient(notebook, timeout=600, kernel_name="python3", record_timing=False, resources=resources)
    client.extra_arguments = quiet
    client.execute(env=environment())
    return notebook


def opened(png: str) -> Any:
    """Return a picture that stands in a notebook."""
    from PIL import Image

    return Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")


def few_colours(picture: Any, colours: int) -> bytes:
    """Return a picture as a PNG with a palette."""
    from PIL import Image

    png = io.BytesIO()
    picture.quantize(colours, dither=Image.Dither.NONE).save(png, "png", optimize=True)
    return png.getvalue()


def plain_output(output: Any) -> Any:
    """Return an output as it is kept: pictures small, text without what depends on the machine."""
    if output["output_type"] == "stream":
        if output["name"] == "stderr" or str(CHECKOUT) in output["text"]:
            raise SystemExit(f"this cannot be kept in a notebook: {output['text']}")
        return {"output_type": "stream", "name": "stdout", "text": output["text"].splitlines(keepends=True)}
    data = dict(output["data"])
    if "image/png" in data:
        png = few_colours(opened(data["image/png"]), COLOURS)
        data = {"image/png": base64.b64encode(png).decode("ascii"), "text/plain": ["a picture"]}
    return {"output_type": "display_data", "data": data, "metadata": {}}


def merged(outputs: list[Any]) -> list[Any]:
    """Return outputs with streams that follow each other as one: how they were cut depends on time."""
    together: list[Any] = []
    for output in outputs:
        last = together[-1] if together else {}
        if output["output_type"] == "stream" and last.get("name") == output["name"]:
            last["text"] += output["text"]
        else:
            together.append(dict(output))
    return together


def plain_notebook(notebook: Any, name: str) -> Any:
    """Return a notebook as it is kept, in plain dictionaries."""
    cells: list[Any] = []
    for number, cell in enumerate(notebook.cells):
        source = cell["source"].splitlines(keepends=True)
        kept = {"cell_type": cell["cell_type"], "id": f"{name}-{number}", "metadata": {}, "source": source}
        if cell["cell_type"] == "code":
            outputs = [plain_output(output) for output in merged(cell["outputs"])]
            kept |= {"execution_count": cell["execution_count"], "outputs": outputs}
        cells.append(kept)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"file_extension": ".py", "name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def pictures(notebook: Any) -> list[Any]:
    """Return a notebook's pictures in order."""
    outputs = [output.get("data", {}) for cell in notebook["cells"] for output in cell.get("outputs", ())]
    return [opened(data["image/png"]) for data in outputs if "image/png" in data]


def thumbnail(notebook: Any, name: str) -> bytes:
    """Return parts of the notebook's pictures, side by side, as a small PNG."""
    from PIL import Image

    made, whole, parts = pictures(notebook), Image.new("RGB", SIZE, "white"), PARTS[name]
    each = SIZE[0] // len(parts)
    for place, (number, left, upper, width) in enumerate(parts):
        box = (left, upper, left + width, upper + width * SIZE[1] / each)
        whole.paste(made[number].resize((each, SIZE[1]), Image.Resampling.LANCZOS, box), (place * each, 0))
    smaller = (few_colours(whole, colours) for colours in (64, 48, 32, 24))
    return next((png for png in smaller if len(png) <= MAX_THUMBNAIL), b"")


def as_text(notebook: Any) -> str:
    """Return a notebook as a file, with a line for each cell: what changes is read in its script."""
    cells = ",\n".join(json.dumps(cell, ensure_ascii=False) for cell in notebook["cells"])
    others = json.dumps({name: value for name, value in notebook.items() if name != "cells"}, ensure_ascii=False)
    return f'{{"cells": [\n{cells}\n],\n{others[1:]}\n'


def build(script: Path) -> str:
    """Write a script's notebook and thumbnail; return what went wrong."""
    notebook = plain_notebook(executed(script), script.stem)
    text = as_text(notebook).encode()
    png = thumbnail(notebook, script.stem)
    if len(text) > MAX_NOTEBOOK or not png:
        return f"{script.stem}: the notebook ({len(text)} bytes) or its thumbnail is too large"
    script.with_suffix(".ipynb").write_bytes(text)
    (PICTURES / "notebooks" / f"{script.stem}.png").write_bytes(png)
    if script.stem == README:
        (PICTURES / f"{script.stem}.png").write_bytes(few_colours(pictures(notebook)[-1], 32))
    print(script.stem, "is made", flush=True)
    return ""


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", help="of notebooks; by default all")
    parser.add_argument("--check", action="store_true", help="only run the scripts")
    arguments = parser.parse_args()
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        wrong = list(threads.map(check if arguments.check else build, scripts(arguments.names)))
    print(*filter(None, wrong), sep="\n", end="", file=sys.stderr)
    return int(any(wrong))


if __name__ == "__main__":
    sys.exit(main())
