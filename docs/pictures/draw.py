"""Draws the pictures of the pages: ``python docs/pictures/draw.py`` writes them beside this file.

A picture is a function that returns its size and its shapes. The layout of fragments comes from the formulas of
kernels_cu/conv/gemm/fragments.cuh, that of phases from the definition of ConvTranspose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path

from benchmarks import judged

BLUE, RED, GREEN, YELLOW, GRAY, PALE = "#4878a8", "#c44e52", "#55a868", "#e0b050", "#8c8c8c", "#eef1f5"
Picture = tuple[int, int, Iterator[str]]


def rect(
    x: float, y: float, width: float, height: float, fill: str = "none", stroke: str = "#333", dash: str = ""
) -> str:
    """Return a rectangle."""
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" stroke="{stroke}"{dashed}/>'


def text(x: float, y: float, words: str, size: int = 13, anchor: str = "middle", fill: str = "#222") -> str:
    """Return a line of text."""
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{fill}">{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, stroke: str = "#333", arrow: bool = True) -> str:
    """Return a line, with a point at its end."""
    end = ' marker-end="url(#point)"' if arrow else ""
    return f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{stroke}" stroke-width="1.5"{end}/>'


def box(x: float, y: float, width: float, height: float, *words: str, fill: str = PALE) -> Iterator[str]:
    """Yield a rectangle with lines of text in its middle."""
    yield rect(x, y, width, height, fill)
    for number, word in enumerate(words):
        yield text(x + width / 2, y + height / 2 + 5 + 17 * (number - (len(words) - 1) / 2), word)


def implicit_gemm() -> Picture:
    """Weights times the matrix of activations that nobody writes down."""

    def shapes() -> Iterator[str]:
        yield rect(40, 210, 200, 130, PALE)
        yield text(140, 360, "weights: M × K")
        yield rect(40, 250, 200, 40, "#cfe0f0")
        yield rect(120, 250, 30, 40, BLUE)
        yield rect(280, 20, 300, 170, "none", GRAY, "6 4")
        yield text(430, 12, "activations: K × pixels, made piece by piece", 13)
        yield rect(400, 20, 60, 170, "#f3dcdc", "none")
        yield rect(400, 100, 60, 26, RED)
        yield rect(280, 210, 300, 130, PALE)
        yield text(430, 360, "output: M × pixels")
        yield rect(400, 250, 60, 40, YELLOW)
        yield text(430, 275, "tile")
        yield line(152, 262, 396, 262, BLUE)
        yield line(430, 128, 430, 246, RED)
        yield text(270, 150, "K = (tap, channel)", 12, "end")
        yield line(274, 60, 274, 180, GRAY)
        yield rect(640, 60, 150, 110, "none")
        yield text(715, 50, "x: one channel")
        for row in range(5):
            yield line(640, 60 + 22 * row, 790, 60 + 22 * row, "#ccc", arrow=False)
        for column in range(7):
            yield line(640 + 21.4 * column, 60, 640 + 21.4 * column, 170, "#ccc", arrow=False)
        yield rect(661, 104, 107, 22, RED)
        yield line(660, 115, 466, 113, RED)
        yield text(715, 190, "a row of a slice: neighbouring pixels,", 12)
        yield text(715, 206, "moved by one tap", 12)
        yield text(130, 305, "slice", 12)

    return 830, 375, shapes()


def pipeline() -> Picture:
    """Three buffers: two are on their way while one is multiplied."""

    def shapes() -> Iterator[str]:
        colors = ("#cfe0f0", "#dcebdc", "#f6e7c8")
        for buffer in range(3):
            yield text(90, 62 + 50 * buffer, f"buffer {buffer}", 13, "end")
        for step in range(6):
            left = 110 + 110 * step
            yield text(left + 55, 24, f"step {step}", 12)
            for number, fill in ((step, ""), (step + 1, ""), (step + 2, "")):
                row = number % 3
                doing = ("multiply", "arriving", "fetch")[number - step]
                yield from box(left, 40 + 50 * row, 104, 36, f"{doing} {number}", fill=fill or colors[number - step])
        yield text(440, 212, "slices of K; between steps all threads wait for each other once", 13)

    return 790, 225, shapes()


def phases() -> Picture:
    """ConvTranspose along one axis, kernel 3, stride 2: two phases with taps of their own."""

    def shapes() -> Iterator[str]:
        stride, kernel, inputs = 2, 3, 4
        colors = (BLUE, RED)
        for i in range(inputs):
            x = 130 + 140 * i
            for tap in range(kernel):
                output = i * stride + tap
                yield line(x + 20, 70, 80 + 70 * output + 20, 145, colors[output % stride])
                yield text(
                    (x + 80 + 70 * output) / 2 + 20 + 8 * (tap - 1), 104, f"w{tap}", 12, fill=colors[output % stride]
                )
            yield from box(x, 30, 40, 38, f"x{i}")
        for output in range(stride * (inputs - 1) + kernel):
            yield from box(80 + 70 * output, 150, 40, 38, f"y{output}", fill=("#cfe0f0", "#f3dcdc")[output % stride])
        yield text(60, 55, "inputs", 13, "end")
        yield text(60, 174, "outputs", 13, "end")
        yield text(390, 222, "even phase: taps 0 and 2, a Conv with two taps", 13, fill=BLUE)
        yield text(390, 242, "odd phase: tap 1, a Conv with one tap", 13, fill=RED)

    return 740, 255, shapes()


def planning() -> Picture:
    """From a call to launches."""

    def shapes() -> Iterator[str]:
        yield from box(20, 20, 150, 54, "call", "shapes, attributes")
        yield from box(220, 20, 160, 54, "geometry", "sizes, all checked")
        yield from box(430, 20, 170, 54, "problem", "strides, dtype, phases")
        yield from box(430, 120, 170, 54, "candidates", "kernels that can do it")
        yield from box(220, 120, 160, 54, "choice", "measured, or modelled", fill="#f6e7c8")
        yield from box(20, 120, 150, 54, "plan", "grids, structs, reasons")
        yield from box(20, 220, 150, 54, "cubins", "built, or from disk")
        yield from box(220, 220, 160, 54, "prepared call", "kept by its layout")
        yield from box(430, 220, 170, 54, "launches", "pointers filled in", fill="#dcebdc")
        for x in (170, 380):
            yield line(x + 2, 47, x + 46, 47)
            yield line(x + 2, 247, x + 46, 247)
        yield line(515, 76, 515, 116)
        yield line(428, 147, 384, 147)
        yield line(218, 147, 174, 147)
        yield line(95, 176, 95, 216)
        for start, end in (((20, 47), (8, 47)), ((8, 47), (8, 300)), ((8, 300), (300, 300))):
            yield line(*start, *end, GRAY, arrow=False)
        yield line(300, 300, 300, 278, GRAY)
        yield text(430, 304, "a call like one before goes straight here", 12, fill=GRAY)

    return 640, 320, shapes()


def repair() -> Picture:
    """Why zeros in place of padding are wrong, and what becomes of it."""

    def shapes() -> Iterator[str]:
        values, weights = ("pad", "2", "3"), ("∞", "1", "1")
        for i in range(3):
            yield from box(60 + 60 * i, 30, 54, 36, values[i], fill="#e8e8e8" if i == 0 else PALE)
            yield from box(60 + 60 * i, 74, 54, 36, weights[i], fill="#f3dcdc" if i == 0 else PALE)
        yield text(50, 53, "x", 13, "end")
        yield text(50, 97, "w", 13, "end")
        yield from box(310, 30, 180, 36, "0·∞ + 2 + 3 = NaN", fill="#f3dcdc")
        yield text(400, 22, "what the tile sums", 12)
        yield from box(310, 100, 180, 54, "a NaN?", "if not, it is right")
        yield line(400, 68, 400, 96)
        yield from box(560, 30, 190, 54, "window wholly inside x?", "then it is right, too")
        yield line(492, 120, 556, 72)
        yield text(512, 84, "yes", 12)
        yield from box(560, 124, 190, 54, "summed again, over", "the taps inside x: 5", fill="#dcebdc")
        yield line(655, 86, 655, 120)
        yield text(670, 106, "no", 12)
        yield line(242, 70, 304, 52)

    return 790, 195, shapes()


def fragments() -> Picture:
    """Where the 16 x 16 elements of a fragment of 16-bit weights are: each lane's 16 bytes."""

    def shapes() -> Iterator[str]:
        side = 24
        for lane in range(32):
            for element in range(0, 8, 2):  # a word holds two neighbours along K
                row, k = lane // 4 + element // 2 % 2 * 8, element // 4 * 8 + lane % 4 * 2
                x, y = 70 + side * k, 40 + side * row
                fill = YELLOW if lane == 6 else ("#cfe0f0", "#dcebdc", "#eef1f5", "#f6e7f0")[lane % 4]
                word = f"{element}, {element + 1}" if lane == 6 else str(lane)
                yield rect(x, y, 2 * side, side, fill, "#fff") + text(x + side, y + 16, word, 11, fill="#444")
        yield text(262, 30, "K: 16 rows of the GEMM", 12)
        for number, word in enumerate(("16", "output", "channels")):
            yield text(62, 216 + 16 * number, word, 12, "end")
        yield text(600, 60, "in memory: 512 bytes", 13)
        for lane in range(32):
            x, y = 500 + 25 * (lane % 8), 75 + 30 * (lane // 8)
            yield rect(x, y, 25, 26, YELLOW if lane == 6 else PALE) + text(x + 12, y + 17, str(lane), 10)
        yield text(600, 225, "16 bytes for each lane, side by side:", 12)
        yield text(600, 243, "a warp copies them at once, and each lane", 12)
        yield text(600, 261, "has what its instruction takes", 12)
        yield text(600, 300, "yellow: the elements of lane 6, in its order", 12)

    return 790, 440, shapes()


def hopper() -> Picture:
    """A call on Hopper: up to two passes, and a kernel whose warpgroups fetch, multiply and write at the same time."""

    def shapes() -> Iterator[str]:
        yield from box(20, 30, 130, 44, "w: M, C, taps")
        yield from box(20, 110, 130, 44, "x: N, C, H, W")
        yield from box(200, 30, 170, 44, "rows: taps, channels", fill="#cfe0f0")
        yield from box(200, 110, 170, 44, "x: N, H, W, channels", fill="#f3dcdc")
        yield from box(460, 62, 130, 60, "ring of stages", "in shared memory", fill="#f6e7c8")
        yield from box(660, 62, 130, 60, "wgmma", "sums in registers", fill=PALE)
        yield from box(860, 70, 110, 44, "y: N, M, P, Q")
        for y, name in ((52, "packed"), (132, "copied")):
            yield line(152, y, 196, y)
            yield text(174, y - 8, name, 11, fill=GRAY)
        yield line(372, 52, 456, 82, BLUE)
        yield line(372, 132, 456, 102, RED)
        yield text(418, 50, "boxes", 11, fill=BLUE)
        yield text(452, 140, "pixels of windows", 11, fill=RED)
        yield line(592, 92, 656, 92)
        yield line(792, 92, 856, 92)
        yield text(824, 84, "epilogue", 11, fill=GRAY)

        names = ("fetching", "warpgroup 0", "warpgroup 1")
        for row, name in enumerate(names):
            yield text(130, 216 + 44 * row, name, 12, "end")
        for tile in range(4):
            left = 140 + 200 * tile
            yield from box(left, 194, 196, 34, f"slices of tile {tile}", fill="#f6e7c8")
            row = 238 + 44 * (tile % 2)
            yield from box(left + 24, row, 196, 34, f"multiply {tile}", fill=("#cfe0f0", "#dcebdc")[tile % 2])
            if tile < 3:
                yield from box(left + 224, row, 120, 34, f"write {tile}")
        yield text(500, 350, "tiles in turns: while one warpgroup writes, the tensor cores multiply for the other", 13)

    return 990, 365, shapes()


def strips() -> Picture:
    """A strip of x in shared memory: the taps along H of one tap along W begin a row further down each."""

    def shapes() -> Iterator[str]:
        rows, taps = 4, 3
        colors = ((BLUE, "#cfe0f0"), (RED, "#f3dcdc"), (GREEN, "#dcebdc"))
        yield text(150, 22, "x as it is: one copy brings 64 pixels", 12)
        yield text(150, 38, "of a row, of each of 64 channels", 12)
        yield rect(30, 50, 240, 222, PALE)
        for row in range(1, 8):
            yield line(30, 50 + 27.75 * row, 270, 50 + 27.75 * row, "#ccc", arrow=False)
        yield text(430, 30, "strip: 6 rows in shared memory", 12)
        for row in range(rows + taps - 1):
            y = 50 + 37 * row
            yield from box(340, y, 180, 33, ("row h − 1", "row h", f"row h + {row - 1}")[min(row, 2)], fill="#f6e7c8")
            yield rect(90, 77.75 + 27.75 * row, 110, 27.75, "#f6e7c8")
            yield line(202, 91.6 + 27.75 * row, 336, y + 17, GRAY)
        for tap, (stroke, fill) in enumerate(colors):
            x, top, bottom = 540 + 22 * tap, 52 + 37 * tap, 50 + 37 * (tap + rows) - 6
            yield line(x, top, x, bottom, stroke, arrow=False)
            for y in (top, bottom):
                yield line(x - 8, y, x, y, stroke, arrow=False)
            yield from box(670, 50 + 76 * tap, 130, 44, f"tap {tap} along H", "4 rows of inputs", fill=fill)
            yield line(x + 2, 72 + 76 * tap, 666, 72 + 76 * tap, stroke)
            yield line(802, 72 + 76 * tap, 846, 130 + 20 * tap, stroke)
        yield from box(850, 108, 120, 84, "wgmma", "sums of 4 rows", "of 64 outputs")
        yield text(500, 300, "the same for the other taps along W, and for the next 64 channels", 13)

    return 990, 315, shapes()


VERDICTS = {"agrees": GREEN, "differs": YELLOW, "refuses": "#e4e4e4", "crashes": "#222", "hangs": "#222"}
BY_STATUS = {"specified": "#c0392b", "by the reference": "#c0392b", "disputed": "#e08a3c", "ruled here": "#9b7fb8"}


def judge() -> Picture:
    """What implementations make of each rule, in float32; what is wrong has a colour for the status of the rule."""
    records, rules = judged.records(), judged.rules()
    left, top, across, down = 215, 95, 46, 15

    def fill(word: str, status: str) -> str:
        return BY_STATUS[status] if word in ("wrong", "inconsistent") else VERDICTS.get(word, "none")

    def shapes() -> Iterator[str]:
        for column, name in enumerate(records):
            x, words = left + across * (column + 0.5) + 4, text(0, 0, judged.NAMES[name], 12, "start")
            yield f'<g transform="translate({x:g} {top - 6}) rotate(-40)">{words}</g>'
        for row, (rule, status) in enumerate(rules):
            y = top + down * row
            found = [judged.summed(one, rule=rule, status=status, kind="float32") for one in records.values()]
            cells = (
                rect(
                    left + across * column + 1,
                    y + 1,
                    across - 2,
                    down - 2,
                    fill(judged.verdict(each)[0], status),
                    "none",
                )
                for column, each in enumerate(found)
            )
            yield rect(4, y + 1, 5, down - 2, BY_STATUS[status], "none")
            yield text(left - 8, y + 11, rule, 11, "end") + "".join(cells)
        below = top + down * len(rules)
        legend = [*VERDICTS.items()][:4]
        legend += [(f"wrong: {status}", colour) for status, colour in BY_STATUS.items() if status != "by the reference"]
        for number, (word, colour) in enumerate(legend):
            x, y = 20 + 150 * (number % 4), below + 14 + 20 * (number // 4)
            yield rect(x, y, 14, 13, colour, "none") + text(x + 20, y + 11, word, 12, "start")

    return left + across * len(records) + 45, top + down * len(rules) + 60, shapes()


def architecture() -> Picture:
    """From a call to its result: which folder of the repository does which step."""

    def shapes() -> Iterator[str]:
        yield from box(20, 16, 840, 36, "gpuconv/cli · gpuconv/compat · gpuconv/dask · gpuconv/onnx")
        yield line(115, 54, 115, 84)
        yield text(128, 74, "call the public functions", 12, "start", GRAY)
        yield from box(20, 88, 190, 72, "public function", "chooses the backend", "gpuconv/_conv.py")
        yield from box(260, 88, 180, 72, "geometry", "validated integers", "gpuconv/rules")
        yield from box(660, 88, 200, 72, "result, computed", "with NumPy and BLAS", "gpuconv/cpu", fill="#dcebdc")
        yield line(212, 124, 256, 124)
        yield line(442, 124, 656, 124)
        yield text(550, 116, "NumPy arrays", 12)
        yield line(350, 162, 350, 226)
        yield text(362, 184, "CuPy arrays", 12, "start")

        yield rect(240, 196, 634, 210, "none", GRAY, "6 4")
        yield text(864, 214, "once for each shape, dtype, layout and device", 12, "end", GRAY)
        yield from box(260, 230, 180, 72, "planner", "dispatches by operator", "gpuconv/cuda/planning.py")
        yield from box(470, 230, 180, 72, "kernel families offer", "candidates, or refuse", "gpuconv/cuda/conv")
        words = "the fastest candidate", "becomes the plan", "gpuconv/cuda/plan"
        yield from box(680, 230, 180, 72, *words, fill="#f6e7c8")
        words = "NVRTC compiles its kernels,", "unless they are in the cache", "kernels_cu · gpuconv/cuda/build"
        yield from box(470, 322, 390, 72, *words)
        yield from box(260, 322, 180, 72, "prepared call", "cached in a dictionary", "gpuconv/cuda/call")
        yield line(442, 266, 466, 266)
        yield line(652, 266, 676, 266)
        yield line(770, 304, 770, 318)
        yield line(468, 358, 444, 358)

        yield from box(260, 430, 180, 54, "launches", "addresses filled in", fill="#dcebdc")
        yield line(350, 396, 350, 426)
        yield from box(660, 430, 200, 54, "result", "on the current stream", fill="#dcebdc")
        yield line(442, 457, 656, 457)
        yield line(115, 162, 115, 457, GRAY, arrow=False)
        yield line(115, 457, 256, 457, GRAY)
        yield text(128, 440, "a call like", 12, "start", GRAY)
        yield text(128, 476, "an earlier one", 12, "start", GRAY)

    return 880, 500, shapes()


PICTURES: tuple[Callable[[], Picture], ...] = (
    architecture,
    implicit_gemm,
    pipeline,
    phases,
    planning,
    repair,
    fragments,
    hopper,
    strips,
    judge,
)
_HEAD = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
    'font-family="sans-serif">\n<title>{title}</title>\n<defs><marker id="point" viewBox="0 0 8 8" refX="7" refY="4" '
    'markerWidth="7" markerHeight="7" orient="auto-start-reverse"><path d="M 0 0 L 8 4 L 0 8 z" fill="context-stroke"/>'
    "</marker></defs>\n"
)


def svg(picture: Callable[[], Picture]) -> str:
    """Return a picture as a file, on white, so that it can be read on a dark page."""
    width, height, shapes = picture()
    title = escape((picture.__doc__ or "").strip())
    head = _HEAD.format(width=width, height=height, title=title)
    return f"{head}{rect(0, 0, width, height, '#fff', 'none')}\n" + "\n".join(shapes) + "\n</svg>\n"


if __name__ == "__main__":
    for picture in PICTURES:
        path = Path(__file__).with_name(f"{picture.__name__}.svg")
        path.write_text(svg(picture), encoding="utf-8", newline="\n")
