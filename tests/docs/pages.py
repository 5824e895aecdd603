"""The Markdown pages of this repository, and the code blocks in them."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


def tracked(*patterns: str) -> list[Path]:
    """Files that are in git or would be added, by patterns of git."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", *patterns]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [path for name in sorted(filter(None, listed.split("\0"))) if (path := ROOT / name).is_file()]


#: Results are written by benchmarks, which have their own words; all other pages are for readers.
PAGES = [path for path in tracked("*.md") if not path.is_relative_to(ROOT / "results")]


@dataclass(frozen=True)
class Block:
    """A fenced block. Its info string is a language, then words: `run`, `file=NAME`, `not-run: REASON`..."""

    page: Path
    line: int
    info: str
    text: str

    @property
    def language(self) -> str:
        return self.info.partition(" ")[0]

    @property
    def words(self) -> str:
        return self.info.partition(" ")[2]

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [Block(page, text.count("\n", 0, m.start()) + 1, m[1].strip(), m[2]) for m in found]


def prose(page: Path) -> str:
    """The page without its code and without what commands write into it."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"<!-- [^>]*written by.*?<!-- end of .*?-->", "", text, flags=re.DOTALL)
    return re.sub(r"`[^`\n]*`", "``", text)
