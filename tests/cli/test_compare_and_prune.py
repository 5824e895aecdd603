"""`coach compare` and `coach prune` on jobs of virtual time, with files for their checkpoints."""

from __future__ import annotations

import csv
import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from coach.core.jobs import events as ev
from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import StateDirectory
from tests.cli.test_commands import run
from tests.core.lifecycle.faulty_cluster import World, nodes, spec
from tests.object_store import object_store
from tests.report.recorded_jobs import BUDGET, half_way

pytestmark = pytest.mark.standard


@pytest.fixture
def stored(home: StateDirectory, tmp_path: Path) -> Path:
    """Two jobs that have ended, with a checkpoint of every epoch; the folder."""
    folder = tmp_path / "checkpoints"
    ended(home, folder, folder.as_uri())
    return folder


def ended(home: StateDirectory, folder: Path, uri: str) -> None:
    world = World.of(nodes(2, 4.0))
    for name in ("digits", "other"):
        world.submit(spec(name, budget=BUDGET))
    world.run()
    folder.mkdir(parents=True)
    journal = Journal.write(home.journal(1))
    journal.append(replace(one, checkpoints=uri) if isinstance(one, ev.JobSubmitted) else one for one in world.history)
    journal.close()
    for name in ("digits", "other"):
        for epoch in world.job(name).epochs:
            (folder / epoch.report.weights.rpartition("/")[2]).write_bytes(b"x" * 1000)
    (folder / "notes.txt").write_text("mine")


def files(folder: Path, name: str) -> set[str]:
    return {file.name for file in folder.glob(f"{name}.*.ckpt")}


def test_compare_prints_what_each_job_had_for_its_money(
    capsys: pytest.CaptureFixture[str], stored: Path, tmp_path: Path
) -> None:
    figure = tmp_path / "figures/compared.svg"
    code, out, _ = run(capsys, "compare", "digits", "other", "--figure", str(figure))
    assert code == 0 and "LOSS WITH USD" in out and "TIME TO LOSS" in out and " *" in out
    assert "other" in figure.read_text()
    code, out, _ = run(capsys, "compare", "digits", "other", "-o", "json")
    assert {one["name"] for one in json.loads(out)["jobs"]} == {"digits", "other"}
    code, out, _ = run(capsys, "compare", "digits", "other", "-o", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert rows[0].keys() == {"job", "epoch", "money", "seconds", "loss"} and len(rows) > 10


def test_prune_says_what_it_would_delete_and_asks(
    capsys: pytest.CaptureFixture[str], home: StateDirectory, stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, others = files(stored, "digits"), files(stored, "other")
    code, out, err = run(capsys, "prune", "digits", "--dry-run", "-o", "json")
    [found] = json.loads(out)
    job = home.past()["digits"].job
    stay = {job.best.report.weights.rpartition("/")[2], job.epochs[-1].report.weights.rpartition("/")[2]}
    assert code == 0 and found["bytes"] == 1000 * len(found["files"])
    assert {Path(file).name for file in found["files"]} == before - stay
    assert set(found["keeps"]) == {job.best.ordinal, job.epochs[-1].ordinal}
    assert f"{len(before - stay)} checkpoints to delete" in err

    monkeypatch.setattr(sys, "stdin", io.StringIO())  # a script
    code, _, err = run(capsys, "prune", "digits")
    assert code == 2 and "--yes" in err and files(stored, "digits") == before

    code, _, _ = run(capsys, "prune", "digits", "--yes")
    assert code == 0 and files(stored, "digits") == stay
    assert files(stored, "other") == others
    code, _, err = run(capsys, "prune", "digits")
    assert code == 0 and "0 checkpoints to delete" in err


def test_prune_all_leaves_the_records(capsys: pytest.CaptureFixture[str], stored: Path) -> None:
    code, _, _ = run(capsys, "prune", "--all", "-y")
    assert code == 0 and not list(stored.glob("*.ckpt")) and (stored / "notes.txt").exists()
    assert run(capsys, "show", "digits")[0] == 0
    code, _, err = run(capsys, "model", "digits")
    assert code == 2 and "does not have" in err


@pytest.mark.full
@pytest.mark.processes
def test_prune_deletes_from_an_object_store(
    capsys: pytest.CaptureFixture[str], home: StateDirectory, tmp_path: Path
) -> None:
    with object_store(tmp_path / "store") as store:
        folder = store.bucket / "a team/kept"
        ended(home, folder, "s3://bucket/a team/kept")
        others = files(folder, "other")
        code, out, _ = run(capsys, "prune", "digits", "--yes", "-o", "json")
        [found] = json.loads(out)
        job = home.past()["digits"].job
        assert code == 0 and found["bytes"] == 1000 * len(found["files"]) > 0
        assert files(folder, "digits") == {one.report.weights.rpartition("/")[2] for one in (job.best, job.epochs[-1])}
        assert files(folder, "other") == others and (folder / "notes.txt").exists()
        assert run(capsys, "prune", "--all", "-y")[0] == 0
        assert store.objects() == ["a team/kept/notes.txt"]
        (folder / "notes.txt").unlink()
        assert "0 checkpoints to delete" in run(capsys, "prune", "--all", "-y")[2]
        store.kill()
        code, _, err = run(capsys, "prune", "digits", "--yes")
    assert code == 5 and "checkpoints cannot be deleted: GenericError" in err and len(err.splitlines()) == 1, err


def test_a_job_that_goes_on_keeps_its_checkpoints(capsys: pytest.CaptureFixture[str], home: StateDirectory) -> None:
    journal = Journal.write(home.journal(1))
    journal.append(half_way().history)
    journal.close()
    code, _, err = run(capsys, "prune", "digits", "--yes")
    assert code == 2 and "coach cancel digits" in err
    assert run(capsys, "prune", "--yes")[0] == 0
