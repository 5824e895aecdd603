"""Every link, and every path that a page or a file mentions, leads somewhere."""

import re

import pytest

from tests.docs.pages import PAGES, ROOT, tracked

MARKDOWN = tracked("*.md")
FOLDERS = "benchmarks|coach|deploy|docs|examples|functions|jobs|results|scheduler-plugins|scripts|tests"
#: What looks like a path in this repository and is none: it is written on demand.
NOT_FILES = {"results/quick"}


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives the headings."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        found.add(next(s for n in range(100) if (s := slug if n == 0 else f"{slug}-{n}") not in found))
    return found


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page):
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
            broken.append(link)
    assert not broken


def test_every_page_that_a_file_mentions_exists():
    missing = []
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        names = set(re.findall(r"(?<![\w/])(?:\.\./)*(docs/[\w./-]+?\.(?:md|json))\b", text))
        missing += [f"{path.relative_to(ROOT)}: {name}" for name in names if not (ROOT / name).exists()]
    assert not missing


def test_every_figure_of_the_results_is_on_a_page():
    shown = {
        (page.parent / link).resolve()
        for page in MARKDOWN
        for link in re.findall(r"\]\(([^)\s]+\.(?:svg|png))\)", page.read_text(encoding="utf-8"))
    }
    assert not set(tracked("results/*.svg", "results/*.png")) - shown


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_in_a_page_exists(page):
    paths = re.findall(rf"`((?:{FOLDERS})/[\w./-]+)`", page.read_text(encoding="utf-8"))
    names = {path for path in paths if "NAME" not in path} - NOT_FILES
    inside = page.parent  # a README in a folder may name files from there
    assert not {name for name in names if not (ROOT / name).exists() and not (inside / name).exists()}


def test_the_index_lists_every_page():
    index = (ROOT / "docs/README.md").read_text(encoding="utf-8")
    pages = [path.relative_to(ROOT / "docs") for path in tracked("docs/*") if path.name != "README.md"]
    assert [str(page) for page in pages if f"({page})" not in index] == []


def test_every_test_that_the_table_of_slurms_faults_names_is_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "tests/slurm/README.md").read_text(encoding="utf-8")))
    files = [
        path for folder in ("slurm", "platforms/slurm", "core/spec") for path in (ROOT / "tests" / folder).glob("*.py")
    ]
    there = {name for path in files for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))}
    assert len(named) > 25
    assert named - there == set()
