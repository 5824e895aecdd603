"""The house stays as a newcomer finds it: no old name comes back, and no folder grows too long to read."""

import re
from collections import Counter
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import get_type_hints

import pytest

from benchmarks import size
from coach.core.jobs.job import Job
from tests.docs.pages import ROOT, tracked

#: Names that were replaced last, and by what; those of releases before are no longer looked for.
OLD = {
    "JobPolicyView": "ReducerJobView",
    "JobStateView": "EngineJobView",
    "LiveView": "LiveDisplay",
    r"coach\.research": "coach_research",
    r"coach\.service\.(?:app|server|service)": "coach.service.http_app, serve, operations",
    r"coach\.(?:cli\.reference|jobfiles\.(?:reference|crd_rules)|service\.openapi)": "scripts.generate",
}
#: This file and the changelog name the old words.
MAY = {"tests/test_house.py", "CHANGELOG.md"}
TEXTS = [
    path
    for path in tracked("*.py", "*.go", "*.md", "*.yaml", "*.toml", "Makefile")
    if str(path.relative_to(ROOT)) not in MAY and not path.is_relative_to(ROOT / "results")
]


@pytest.mark.parametrize("old", OLD)
def test_an_old_name_does_not_come_back(old: str) -> None:
    word = re.compile(rf"(?<![\w/]){old}(?!\w)")
    found = [str(path.relative_to(ROOT)) for path in TEXTS if word.search(path.read_text(encoding="utf-8"))]
    assert not found, f"write {OLD[old]}"


def test_make_test_looks_for_processes_in_every_folder_whose_tests_start_some() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    folders = re.findall(r"^(?:commands|handlers|processes|local|platforms|PACKAGING) := (.*)", makefile, re.M)
    known = [ROOT / folder for line in folders for folder in line.split() if folder.startswith("tests/")] + [
        ROOT / "tests/web",
        ROOT / "tests/research",
        Path(__file__),
    ]
    marked = [
        path for path in tracked("tests/*.py") if re.search(r"mark\.(processes|mxnet)\b", path.read_text("utf-8"))
    ]
    assert len(marked) > 50, "another mark?"
    missing = [str(path) for path in marked if not any(path.is_relative_to(one) for one in known)]
    assert not missing, "name their folders in `processes` of the Makefile"


def test_no_folder_has_more_files_than_fit_on_a_screen() -> None:
    sizes: Counter[Path] = Counter(path.parent.relative_to(ROOT) for path in tracked("*.py", "*.go"))
    large = {str(folder): size for folder, size in sizes.items() if size > 18}
    assert not large, "at most 18: move files that belong together into a folder of their own"


def test_a_job_and_its_parts_have_at_most_fifteen_fields() -> None:
    kinds = [Job, *filter(is_dataclass, get_type_hints(Job).values())]
    sizes = {kind.__name__: len(fields(kind)) for kind in kinds}
    assert len(sizes) > 5 and max(sizes.values()) <= 15, f"move fields that belong together into a part: {sizes}"


def test_the_table_of_sizes_is_at_most_a_tenth_off() -> None:
    table, now = size.read(), size.sizes(size.of_now())
    assert table.keys() >= now.keys(), "run: python -m benchmarks.size"
    off = {name: (table[name], now[name]) for name in now if abs(table[name] - now[name]) > max(100, now[name] // 10)}
    assert not off, "(in the table, now); run: python -m benchmarks.size"


def test_the_pages_grow_no_further_with_what_is_generated() -> None:
    assert size.sizes(size.of_now())[size.WORDS] <= 60_000, "cut, merge or move words: python -m benchmarks.size"
