"""The marks of a page between which something is written from the code."""

from __future__ import annotations

#: Of what `make docs` writes into its copy of a page; the page itself has nothing there.
BUILT = "<!-- written by make docs -->"
END = "<!-- end of what is written -->"


def between(text: str, begin: str, end: str, content: str) -> str:
    """`text` of a page with `content` between its two marks. Raises ValueError without marks."""
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page lacks the line {end if found else begin}")
    return f"{before}{begin}\n\n{content}\n{end}{after}"
