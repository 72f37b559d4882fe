"""README.md and the pages of docs/ keep to short sentences, as docs/sentences.py measures; kernels to their columns."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent
TOOL: dict[str, Any] = runpy.run_path(str(CHECKOUT / "docs" / "sentences.py"))
COLUMNS = 120  # as in `.clang-format`, which no test needs


@pytest.mark.parametrize("page", TOOL["PAGES"], ids=lambda page: page.name)
def test_sentences_are_short(page: Path) -> None:
    found = TOOL["sentences"](page.read_text(encoding="utf-8"))
    if not found:  # a page that includes another page
        pytest.skip("no sentences")
    middle, share = TOOL["figures"]([TOOL["words"](one) for one in found])
    assert middle <= TOOL["MEDIAN"]
    assert share <= TOOL["SHARE_OF_LONG"], "python docs/sentences.py --long 28 names them"


PAGE = """# A heading. Not a sentence

One sentence with `some code.` and
a [link](to/a/page.md). x is the second! Is (a + b) in the third?

| a table. | not a sentence. |
|---|---|

- An item: up to 2.5 words; still one
- the next one.

```python
print("no. sentences. here.")
```
1. Numbered
"""


def test_pages_are_cut_into_sentences() -> None:
    assert TOOL["sentences"](PAGE) == [
        "One sentence with `code` and a link.",
        "x is the second!",
        "Is (a + b) in the third?",
        "An item: up to 2.5 words; still one",
        "the next one.",
        "Numbered",
    ]


def test_words_and_figures_are_counted() -> None:
    assert [TOOL["words"](one) for one in TOOL["sentences"](PAGE)] == [7, 4, 6, 7, 3, 1]
    assert TOOL["figures"]([1, 28, 29, 3]) == (15.5, 0.25)


def test_lines_of_kernels_are_no_longer_than_their_format_says() -> None:
    assert f"ColumnLimit: {COLUMNS}\n" in (CHECKOUT / ".clang-format").read_text(encoding="utf-8")
    kernels = sorted((CHECKOUT / "kernels_cu").rglob("*.cu*"))
    long = [
        f"{path}:{number}"
        for path in kernels
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > COLUMNS or line != line.rstrip()
    ]
    assert kernels
    assert not long
