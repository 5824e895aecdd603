"""Writes the commands' help and the table of fields into a copy of docs: `python -m scripts.generate.pages FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

from scripts.generate import cli_page, job_file_page

#: The pages that `make docs` completes, each with what completes its text.
PAGES = {page.PAGE: page.page for page in (cli_page, job_file_page)}


def main(copy: Path) -> None:
    """Complete the pages of a copy of docs."""
    for name, complete in PAGES.items():
        page = copy / name.relative_to("docs")
        page.write_text(complete(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
