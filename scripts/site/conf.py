"""The site of the pages in docs: `make docs` writes it to .cache/site.

Links to files that are no pages go to the repository that COACH_REPOSITORY names, such as https://HOST/OWNER/NAME;
without it they are words.
"""

import os
import re
import shutil
from pathlib import Path
from typing import Any

from coach import __version__

project = "Coach"
release = __version__
html_title = f"Coach {release}"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
root_doc = "README"
myst_heading_anchors = 6
autodoc_member_order = "bysource"
autodoc_typehints = "description"
html_copy_source = False
suppress_warnings = ["misc.highlighting_failure"]  # of outputs that are called JSON and are cut

REPOSITORY = os.environ.get("COACH_REPOSITORY", "")
#: The parts of the site: their names, and the pages of each.
PARTS = {
    "Start": "start/*",
    "Guides": "guides/*",
    "Reference": "reference/*",
    "Advanced": "advanced/*",
    "The project": "plan\nproject/*",
}


def _tree(name: str, pages: str) -> str:
    return f"\n```{{toctree}}\n:hidden:\n:caption: {name}\n:glob:\n\n{pages}\n```\n"


def _outside(app: Any, page: str, content: list[str]) -> None:
    """Give a page's links out of docs their places; the first page has the table of contents."""
    folder = Path(page).parent

    def link(found: re.Match[str]) -> str:
        words, target = found.groups()
        path = os.path.normpath(folder / target.partition("#")[0])
        if not path.startswith("..") and not path.endswith((".json", ".yaml")):
            return found[0]
        place = path.removeprefix("../") if path.startswith("..") else f"docs/{path}"
        return f"[{words}]({REPOSITORY}/blob/main/{place})" if REPOSITORY else words

    content[0] = re.sub(r"\[((?:[^\]\[]|\[[^\]]*\])*)\]\((?![a-z]+:|#)([^)\s]+)\)", link, content[0])
    if page == root_doc:
        content[0] += "".join(_tree(name, pages) for name, pages in PARTS.items())


def _index(app: Any, error: Exception | None) -> None:
    """Give the site's root its page: its links are those of the first page, in the same folder."""
    if error is None:
        shutil.copyfile(Path(app.outdir, f"{root_doc}.html"), Path(app.outdir, "index.html"))


def setup(app: Any) -> None:
    """Sphinx calls it."""
    app.connect("source-read", _outside)
    app.connect("build-finished", _index)
