"""Snapshots of what people read: text files that `pytest tests/wording --snapshot-update` writes anew."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

#: What a failure says of a page.
CHANGED = "where the new words are right: `python -m pytest tests/wording --snapshot-update`, and read the diff"


class Page(SingleFileSnapshotExtension):
    """A text file a test, below `__snapshots__`."""

    file_extension = "txt"
    _write_mode = WriteMode.TEXT


@pytest.fixture
def page(snapshot: SnapshotAssertion) -> SnapshotAssertion:
    """What a text is compared with: the page of this test."""
    return snapshot.use_extension(Page)


@pytest.fixture(autouse=True, scope="module")
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder to work in, the clock of Greenwich and a terminal of 120 columns."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("work")
        patch.chdir(folder)
        set_to = {"COACH_HOME": "home", "COACH_CATALOGS": "none", "KUBECONFIG": "kubeconfig"}
        for name, value in {**set_to, "COLUMNS": "120", "TZ": "UTC"}.items():
            patch.setenv(name, value)
        time.tzset()
        yield folder
    time.tzset()
