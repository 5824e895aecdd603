"""Properties never gamble: fixed cases in every run, and what `make fuzz` found is tried first."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

HERE = Path(__file__).parent
DRAWN = """
import os, pathlib
from hypothesis import given, strategies as st
if os.environ.get("LOCAL"):
    import constants  # whose numbers hypothesis would draw too

@given(st.floats(), st.text(), st.integers())
def test_drawn(a, b, c):
    with pathlib.Path("drawn").open("a") as file:
        print(repr((a, b, c)), file=file)
"""
RARE = """
from hypothesis import given, strategies as st

@given(st.integers(0, 1_000_000))
def test_rare(number):
    assert number % 997 != 5
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with our conftest and nothing else."""
    (tmp_path / "tests").mkdir()
    for name in ("__init__.py", "conftest.py", "cpu_time.py", "fuzz.py"):
        shutil.copy(HERE / name, tmp_path / "tests")
    (tmp_path / "constants.py").write_text("A, B = 271828.75, 'swordfish'\n")
    return tmp_path


def run(folder: Path, test: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "tests/test_it.py").write_text(test)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "tests"],
        cwd=folder,
        env={"PYTHONPATH": str(folder), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_property_draws_the_same_cases_whatever_else_is_imported(folder: Path) -> None:
    def drawn(*options: str, **environment: str) -> str:
        (folder / "drawn").unlink(missing_ok=True)
        done = run(folder, DRAWN, *options, **environment)
        assert done.returncode == 0, done.stdout
        return (folder / "drawn").read_text()

    first = drawn()
    assert len(first.splitlines()) >= 50
    assert drawn(LOCAL="1", PYTHONHASHSEED="7") == first
    assert drawn(CI="true") == first
    assert drawn("--hypothesis-profile=fuzz") != first


def test_what_a_search_found_is_seen_by_the_next_run_even_after_an_edit(folder: Path) -> None:
    assert run(folder, RARE).returncode == 0, "the fixed cases do not meet it"
    search = ("-m", "hypothesis", "--hypothesis-profile=fuzz", "-p", "tests.fuzz", "--fuzz-seconds", "250")
    found = run(folder, RARE, *search)
    assert found.returncode == 1 and "% 997) != 5" in found.stdout, found.stdout
    for text in (RARE, RARE.replace("assert", "assert number is not None\n    assert")):
        again = run(folder, text)
        assert again.returncode == 1 and "% 997) != 5" in again.stdout, again.stdout
    mended = RARE.replace("!= 5", "!= 997")
    assert run(folder, mended).returncode == 0
    assert run(folder, RARE).returncode == 1, "a run deletes nothing"
