"""More files than one request may have: all are submitted, or what was is said."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from coach import Client
from coach.cli.main import invoke
from coach.core.errors import UserError
from coach.handler.state.state_directory import StateDirectory
from coach.service import schemas
from coach.service.client import PartlySubmittedError, submit_all
from coach.service.client.submission import parts
from coach.service.schemas import MAX_BODY, MAX_FILES
from tests.service.conftest import job_text
from tests.service.test_serve import served

#: More than any node has: such a job fails at once, and starts no process.
HUGE = {"cpu": 500, "memory": "1Gi"}
ROLES = {"worker": HUGE, "server": HUGE, "scheduler": HUGE}


def written(folder: Path, *names: str) -> list[Path]:
    files = [folder / f"{name}.yaml" for name in names]
    for name, file in zip(names, files, strict=True):
        file.write_text(job_text(name, resources=ROLES))
    return files


def numbered(count: int) -> list[str]:
    return [f"job-{number:03d}" for number in range(count)]


def test_files_go_in_as_few_requests_as_their_number_and_size_allow(tmp_path: Path) -> None:
    small = written(tmp_path, *numbered(250))
    assert [len(part) for part in parts(small)] == [MAX_FILES, MAX_FILES, 50]
    assert [file for part in parts(small) for file in part] == small
    large = [tmp_path / f"large-{number}.yaml" for number in range(5)]
    for file in large:
        file.write_text("# " + "ä" * 400_000)
    sizes = [[file.stat().st_size for file in part] for part in parts(large)]
    assert list(map(len, sizes)) == [2, 2, 1]
    assert all(sum(part) < MAX_BODY for part in sizes)


@pytest.mark.processes
def test_a_large_submission_is_taken_whole_and_its_retry_does_nothing_twice(
    home: StateDirectory, tmp_path: Path
) -> None:
    names = numbered(MAX_FILES + 10)
    files = written(tmp_path, *names)
    with served(tmp_path), Client() as coach:
        taken = submit_all(coach, files, key="once")
        assert [one.job.name for one in taken.jobs] == names
        again = submit_all(coach, files, key="once")
        assert [one.job.name for one in again.jobs] == names
        assert len(coach.list_jobs().jobs) == len(names)


@pytest.mark.processes
@pytest.mark.parametrize("output", ["table", *(pytest.param(each, marks=pytest.mark.full) for each in ("json", "csv"))])
def test_where_a_later_request_fails_the_accepted_jobs_are_shown_and_the_rest_is_named(
    home: StateDirectory,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    output: str,
) -> None:
    monkeypatch.setattr(schemas, "MAX_FILES", 3)
    files = written(tmp_path, *numbered(7))
    # Here it is a good file; the service reads no model of that folder.
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "model.py"
    elsewhere.write_text("def net(): ...\n")
    files[4].write_text(job_text("job-004", resources=ROLES, model={"file": str(elsewhere)}))
    with served(tmp_path), Client() as coach:
        assert invoke(["submit", *map(str, files), "-o", output]) == 2
        shown = capsys.readouterr()
        assert len(coach.list_jobs().jobs) == 3
    assert f"coach: 3 jobs of the first 3 files were submitted, and go on; {files[3]} and the 3 files" in shown.err
    if output == "json":
        found = [row["name"] for row in json.loads(shown.out)]
    elif output == "csv":
        found = [row["name"] for row in csv.DictReader(io.StringIO(shown.out))]
    else:
        found = [name for name in numbered(7) if name in shown.out]
    assert found == numbered(3)


@pytest.mark.processes
def test_where_the_first_request_fails_nothing_was_submitted(home: StateDirectory, tmp_path: Path) -> None:
    files = written(tmp_path, *numbered(MAX_FILES + 1))
    with served(tmp_path), Client() as coach:
        with pytest.raises(UserError) as refused:
            submit_all(coach, files, policy="nonsense")
        assert not isinstance(refused.value, PartlySubmittedError)
        assert coach.list_jobs().jobs == []
