"""CONTRIBUTING.md can be followed: its table names what is there, and its command works once it is added."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "CONTRIBUTING.md"
JOB = """
apiVersion: coach.dev/v1alpha1
kind: TrainingJob
metadata: {{name: own}}
spec:
  program: {{command: ["{python}", own.py], metrics: {{loss: "loss: (.*)"}}}}
  target: {{metric: loss, value: 0.5, epochsInARow: 1}}
  budget: {{unlimited: true}}
  ticket: {ticket}
"""
PLACES = re.findall(r"`(coach/[\w/]+\.py)`: `(\w+)`", PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("file", "name"), PLACES)
def test_what_the_table_names_is_in_that_file(file: str, name: str) -> None:
    assert re.search(rf"^ *(?:async )?def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)


def test_the_table_answers_what_a_newcomer_asks() -> None:
    rows = re.findall(r"^\| (.+?) \| `", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert {"a budget reserved", "the next probe chosen", "FitGpp's victim picked", "a pod started"} <= set(rows)


def test_the_picture_shows_all_rooms() -> None:
    picture = next(block.text for block in blocks(PAGE) if block.language == "text")
    rooms = {path.parent.name for path in (ROOT / "coach").glob("*/__init__.py")}
    rooms |= {path.parent.name for path in (ROOT / "coach/core").glob("*/__init__.py")}
    assert {room for room in rooms if not re.search(rf"\b{room}\b", picture)} == set()


@pytest.fixture
def copied(tmp_path: Path) -> None:
    """Coach, with what Python has compiled of it already: only files that are changed are compiled again."""
    shutil.copytree(ROOT / "coach", tmp_path / "coach")


@pytest.mark.usefixtures("copied")
def test_a_command_is_added_by_following_the_page(tmp_path: Path) -> None:
    (block,) = (block for block in blocks(PAGE) if block.words.startswith("file=coach/cli/"))
    file = tmp_path / block.words.removeprefix("file=")
    file.write_text(block.text)
    commands = tmp_path / "coach/cli/commands.py"
    text = commands.read_text()
    assert text.count('"simulate",') == 1
    commands.write_text(text.replace('"simulate",', f'"simulate", "jobs.{file.stem}",'))

    def coach(*words: str) -> str:
        command = [sys.executable, "-m", "coach.cli.main", *words]
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "COACH_HOME": str(tmp_path / "home")}
        return subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True).stdout

    assert coach(file.stem) == "0.0000\n"
    assert f"coach {file.stem}" in coach(file.stem, "--help") and f" {file.stem} " in coach("--help")


@pytest.mark.usefixtures("copied")
def test_a_source_of_metrics_is_added_by_following_the_page(tmp_path: Path) -> None:
    (block,) = (block for block in blocks(PAGE) if block.words.startswith("file=coach/platforms/program_metrics/"))
    for file, before, added in (
        (block.words.removeprefix("file="), "_KINDS: dict", f"{block.text}\n\n"),
        ("coach/platforms/program_metrics/files.py", '    "csv": _Csv,', '    "logfmt": _Logfmt,\n'),
        ("coach/platforms/program_metrics/files.py", '    "csv": "metrics.csv",', '    "logfmt": "*.log",\n'),
        ("coach/core/spec/metric_source.py", 'FILES = {"csv"', ""),
    ):
        text = (tmp_path / file).read_text()
        assert text.count(before) == 1
        new = text.replace(before, added + before if added else 'FILES = {"logfmt": "FILE", "csv"')
        (tmp_path / file).write_text(new)
    (tmp_path / "train.py").write_text(
        "import time\n"
        "for epoch in range(1, 40):\n"
        "    with open('run.log', 'a') as file: print(f'epoch={epoch} loss={1 / epoch:.3f}', file=file)\n"
        "    time.sleep(0.3)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "COACH_HOME": str(tmp_path / "home")}
    asked = ["run", "--budget", "unlimited", "--target", "loss=0.3", "--metric", "logfmt:run.log", "--"]
    line = [sys.executable, "-m", "coach.cli.main", *asked, sys.executable, "train.py"]
    done = subprocess.run(line, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len((tmp_path / "run.log").read_text().splitlines()) < 39  # it was stopped at the target


@pytest.mark.usefixtures("copied")
def test_a_column_and_a_field_of_the_job_file_are_added_by_following_the_page(tmp_path: Path) -> None:
    for file, before, added in (
        (
            "core/spec/job.py",
            "    max_epochs: StrictInt",
            '    ticket: int | None = Field(default=None, ge=1)\n    """Its ticket."""\n',
        ),
        ("report/row_types.py", "    framework: str  #: of its model", "    ticket: int | None\n"),
        ("report/status.py", "        epoch=job.full_epoch_count,", "        ticket=job.spec.ticket,\n"),
        ("cli/display/tables.py", '        "EPOCH": [', '        "TICKET": [str(row.ticket) for row in rows],\n'),
    ):
        text = (tmp_path / "coach" / file).read_text()
        assert text.count(before) == 1, f"{file}: {before} is not there any more"
        (tmp_path / "coach" / file).write_text(text.replace(before, added + before))
    (tmp_path / "own.py").write_text("print('loss: 0.2')")

    def coach(*words: str, code: int = 0) -> str:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "COACH_HOME": str(tmp_path / "home")}
        line = [sys.executable, "-m", "coach.cli.main", *words]
        done = subprocess.run(line, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr * bool(code)

    (tmp_path / "wrong.yaml").write_text(JOB.format(ticket=0, python=sys.executable))
    (tmp_path / "right.yaml").write_text(JOB.format(ticket=7, python=sys.executable))
    assert re.search(r"spec\.ticket: .*\b0\b", coach("validate", "wrong.yaml", code=2))
    coach("run", "right.yaml", "--no-live")
    assert json.loads(coach("ps", "-o", "json"))[0]["ticket"] == 7
    assert re.search(r"TICKET.*\n.*\nown .* 7 ", coach("ps"))
