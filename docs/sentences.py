"""Measures how long the sentences of README.md and of the pages beside this file are, without code and tables.

    python docs/sentences.py            # the figures of every page
    python docs/sentences.py --long 28  # and every sentence of more words

`tests/test_prose.py` holds the pages to MEDIAN and LONGEST.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from statistics import median

DOCS = Path(__file__).resolve().parent
PAGES = [DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))]
MEDIAN = 16  # words of the middle sentence, at most
LONG, SHARE_OF_LONG = 28, 0.1  # at most this share of the sentences has more words than that

_FENCE = re.compile(r"^(```+).*?^\1$", re.DOTALL | re.MULTILINE)
_LEFT_OUT = re.compile(r"^(#.*|\|.*|!\[.*|<!--.*-->)$", re.MULTILINE)  # headings, tables, pictures, comments
_ITEM = re.compile(r"^\s*(?:[-*]|\d+\.) +", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_CODE = re.compile(r"`[^`]*`")


def sentences(text: str) -> list[str]:
    """Return the sentences of a page in Markdown, each as one line. A code span counts as one word."""
    for pattern in (_FENCE, _LEFT_OUT):
        text = pattern.sub("\n\n", text)
    text = _ITEM.sub("\n\n", _CODE.sub("`code`", _LINK.sub(r"\1", text)))
    found = []
    for paragraph in re.split(r"\n\s*\n", text):
        line = " ".join(paragraph.replace(">", " ").split())
        found += [part for part in re.split(r"(?<=[.!?])[)*\"]* +(?=\S)", line) if words(part)]
    return found


def words(sentence: str) -> int:
    """Count words; signs and numbers within formulas that stand alone are none."""
    return sum(any(character.isalpha() for character in word) for word in sentence.split())


def figures(lengths: list[int]) -> tuple[float, float]:
    """Return the middle length, and the share of lengths above LONG."""
    return median(lengths), sum(length > LONG for length in lengths) / len(lengths)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", type=int, metavar="WORDS", help="print the sentences of more words")
    above = parser.parse_args().long
    for page in PAGES:
        found = sentences(page.read_text(encoding="utf-8"))
        middle, share = figures([words(one) for one in found] or [0])
        print(f"{page.name:24} {len(found):4} sentences, median {middle:4.1f} words, {share:4.0%} above {LONG}")
        for one in found if above is not None else ():
            if words(one) > above:
                print(f"    {words(one)}: {one}")


if __name__ == "__main__":
    main()
