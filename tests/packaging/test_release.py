"""`make release` in a clone: what it writes, and when it refuses. Parts that take minutes are left out."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of the working tree's files, with one commit."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "coach", "research", "deploy", "scripts", "*.toml", "CHANGELOG.md"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message", "all")
    return tmp_path


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=test", "-c", "user.email=test@example.com"]
    return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def release(clone: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scripts/release.py", *words]
    return subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("1.0", "three numbers, such as 0.2.0"),
        ("0.0.9", r"more than \d+\.\d+\.\d+, the version of this clone"),
    ],
)
def test_a_wrong_version_changes_nothing(clone: Path, version: str, why: str) -> None:
    done = release(clone, version)
    assert done.returncode == 1 and re.search(why, done.stderr)
    assert not git(clone, "status", "--porcelain")


def test_changes_that_are_not_committed_are_not_released(clone: Path) -> None:
    (clone / "new.txt").write_text("new")
    done = release(clone, "99.0.0")
    assert done.returncode == 1 and "not committed" in done.stderr


def test_every_file_gets_the_version_and_the_changelog_its_heading(clone: Path) -> None:
    found = re.search(r'__version__ = "(.*)"', (clone / "coach/__init__.py").read_text())
    assert found
    code = "import runpy; runpy.run_path('scripts/release.py')['number']('99.0.1')"
    subprocess.run([sys.executable, "-c", code], cwd=clone, check=True)
    heading = r"^## Unreleased\n\n## 99\.0\.1, \d{4}-\d\d-\d\d\n"
    assert re.search(heading, (clone / "CHANGELOG.md").read_text(), re.MULTILINE)
    places = ("coach/__init__.py", "scripts/images.py", "deploy", "*.toml")
    old = subprocess.run(["git", "grep", "-nF", found[1], "--", *places], cwd=clone, capture_output=True, check=False)
    assert not old.stdout
