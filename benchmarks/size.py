"""How large each room of the house is: lines of code, and words of the pages. Writes results/size.md.

    python -m benchmarks.size [COMMIT]      # compares the working tree with COMMIT (default: the one in the table)

Lines are all lines of tracked files, blank ones and comments included, as `wc -l` counts them. Words are what is
between spaces, of all pages for readers, with what `make docs` writes into them.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from scripts.generate import pages

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "results" / "size.md"
#: From when on the house was made smaller.
BEFORE = "2a2d8f5b"
PRODUCT = "the product: coach and functions"
WORDS = "pages, words"


def room(path: PurePosixPath) -> str | None:
    """The room that a file is in; None where it is not counted."""
    first, kind = path.parts[0], path.suffix
    if kind == ".py" and first == "coach":
        return f"coach/{path.parts[1]}" if len(path.parts) > 2 else "coach, its own files"
    if kind == ".py" and first in ("functions", "research", "tests", "benchmarks", "scripts"):
        return first
    if first == "scheduler-plugins" and kind == ".go":
        return "scheduler-plugins, tests" if path.name.endswith("_test.go") else "scheduler-plugins"
    if first == "web" and kind in (".ts", ".tsx"):
        return "web"
    if kind == ".md" and (first == "docs" or len(path.parts) == 1 or path.parts[:2] == ("research", "docs")):
        return WORDS
    return None


def sizes(files: Iterator[tuple[str, bytes]]) -> Counter[str]:
    """Lines (words of pages) by room."""
    found: Counter[str] = Counter()
    for name, content in files:
        at = room(PurePosixPath(name))
        if at is not None:
            found[at] += len(content.split()) if at == WORDS else content.count(b"\n")
    found[PRODUCT] = sum(
        count for at, count in found.items() if at.split("/")[0].split(",")[0] in ("coach", "functions")
    )
    return found


def of_now() -> Iterator[tuple[str, bytes]]:
    """The files of the working tree that are in git or would be added."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in sorted(set(_git(*command[1:]).decode().split("\0"))):
        if name and (ROOT / name).is_file() and room(PurePosixPath(name)):
            content = (ROOT / name).read_bytes()
            completed = pages.PAGES.get(Path(name))
            yield name, completed(content.decode()).encode() if completed else content


def of(commit: str) -> Iterator[tuple[str, bytes]]:
    """The files of a commit."""
    with tarfile.open(fileobj=io.BytesIO(_git("archive", commit))) as archive:
        for member in archive:
            if member.isfile() and (file := archive.extractfile(member)) is not None:
                yield member.name, file.read()


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True).stdout


def read() -> dict[str, int]:
    """What the table says the rooms have now."""
    rows = re.findall(r"^\| (.+?) \| [\d,]+ \| ([\d,]+) \|", TABLE.read_text(), re.MULTILINE)
    return {name.strip("*"): int(count.replace(",", "")) for name, count in rows}


def main(commit: str = "") -> None:
    """Write the table."""
    if not commit:
        commit = found[1] if TABLE.exists() and (found := re.search(r"`(\w+)` of", TABLE.read_text())) else BEFORE
    day = _git("show", "-s", "--format=%cs", commit).decode().strip()
    before, now = sizes(of(commit)), sizes(of_now())
    lines = []
    first = ("coach", "functions", "the product")
    for name in sorted(before | now, key=lambda name: (not name.startswith(first), name)):
        shown = f"**{name}**" if name == PRODUCT else name
        difference = now[name] - before[name]
        lines.append(f"| {shown} | {before[name]:,} | {now[name]:,} | {difference:+,} |")
    head = f"Written by `python -m benchmarks.size`: lines of code, words of pages. Before: commit `{commit}` of {day}."
    table = ["| room | before | now | difference |", "| --- | ---: | ---: | ---: |", *lines]
    TABLE.write_text("\n".join(["# The size of the house", "", head, "", *table]) + "\n")
    print("\n".join(table))


if __name__ == "__main__":
    main(*sys.argv[1:])
