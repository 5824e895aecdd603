"""Jobs as runs of MLflow, TensorBoard and W&B, each read back by its own library, in an environment that has them."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coach.cli.main import invoke
from coach.core.errors import PermanentError, UserError
from coach.core.spec.job import TrainingJob
from coach.handler.state.journal import fold
from coach.handler.state.state_directory import StateDirectory
from coach.report import trackers
from coach.report.status import epoch_rows, job_row
from tests.cli.conftest import ROOT, keep
from tests.journals.replay import FOLDER, read
from tests.report.recorded_jobs import steady_job, two_jobs

PYTHON = ROOT / ".venv-trackers/bin/python"
READ = {
    "mlflow": """
import mlflow
client = mlflow.MlflowClient(sys.argv[1])
[run] = client.search_runs([client.get_experiment_by_name("coach").experiment_id])
steps = {name: [[each.step, each.value] for each in client.get_metric_history(run.info.run_id, name)] for name in NAMES}
about = [run.info.status, run.data.params["target.loss"], run.info.run_name]
""",
    "tensorboard": """
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1] + "/steady")
events.Reload()
steps = {name: [[each.step, each.value] for each in events.Scalars(name)] for name in NAMES}
about = None
""",
    # Its own reader is a program of Go's: the file is LevelDB's log, of records that its own types read.
    "wandb": """
import glob, struct
from wandb.proto import wandb_internal_pb2
[file] = glob.glob(sys.argv[1] + "/wandb/offline-run-*/*.wandb")
data, at, part, steps, about = open(file, "rb").read(), 7, b"", {name: [] for name in NAMES}, None
while at < len(data):
    if 32768 - at % 32768 < 7:
        at += 32768 - at % 32768
        continue
    length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
    part += data[at + 7 : at + 7 + length]
    at += 7 + length
    if kind in (2, 3):
        continue
    record, part = wandb_internal_pb2.Record.FromString(part), b""
    if record.WhichOneof("record_type") == "history":
        items = record.history.item
        found = {(list(item.nested_key) or [item.key])[0]: json.loads(item.value_json) for item in items}
        for name in NAMES:
            if name in found:
                steps[name].append([found["_step"], found[name]])
""",
}
NAMES = ("loss", "spent", "workers")


@pytest.mark.full
@pytest.mark.skipif(not PYTHON.exists(), reason="their libraries are not there: make test-trackers gets them")
@pytest.mark.parametrize("tracker", list(READ))
def test_a_job_is_a_run_of_the_tracker(tracker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = steady_job()
    monkeypatch.setenv("COACH_HOME", str(tmp_path / "home"))
    keep(StateDirectory.default(), world)
    place = {"mlflow": f"sqlite:///{tmp_path}/runs.db"}.get(tracker, str(tmp_path / "runs"))
    command = [PYTHON, "-m", "coach.cli.main", "export", "steady", "--to", f"{tracker}:{place}"]
    for _ in range(2 if tracker != "wandb" else 1):  # again: the run is replaced
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    read = f"import json, sys\nNAMES = {NAMES}\n{READ[tracker]}\nprint(json.dumps([steps, about]))"
    answer = subprocess.run([PYTHON, "-c", read, place], check=False, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    steps, about = json.loads(answer.stdout.splitlines()[-1])
    rows = epoch_rows(world.reducer.jobs["steady"])
    spent = [sum(row.cost for row in rows[: i + 1]) for i in range(len(rows))]
    right = {
        "loss": [[row.epoch, row.loss] for row in rows if row.loss is not None],
        "spent": [[row.epoch, each] for row, each in zip(rows, spent, strict=True)],
        "workers": [[row.epoch, row.workers] for row in rows],
    }
    for name in NAMES:
        assert [step for step, _ in steps[name]] == [step for step, _ in right[name]]
        assert [v for _, v in steps[name]] == pytest.approx([v for _, v in right[name]], rel=1e-6)
    assert about in (None, ["FINISHED", "0.6", "steady"])


@pytest.mark.parametrize(
    ("tracker", "place", "message"),
    [
        ("neptune", "x", "--to neptune:x: use mlflow:URI, tensorboard:DIR or wandb:DIR"),
        ("wandb", "", "--to wandb: use mlflow:URI"),
        ("mlflow", "x", "its library is missing"),
    ],
)
def test_what_cannot_be_written_is_said(tracker: str, place: str, message: str) -> None:
    world = steady_job()
    job = world.reducer.jobs["steady"]
    with pytest.raises(UserError, match=message):
        trackers.write(tracker, place, job_row(job, world.now), job)


def test_parameters_have_no_environment() -> None:
    [file] = FOLDER.glob("0.1.0/program.jsonl.gz")
    job = next(job for job in fold(read(file).records).values() if job.spec.program)
    fields = job.job_file.model_dump(by_alias=True, exclude_defaults=True)
    fields["spec"]["program"]["env"] = {"TOKEN": "a"}
    found = trackers.parameters(TrainingJob.model_validate(fields))
    assert "program.command" in found
    assert not any("env" in name.split(".") for name in found)


def test_a_metric_with_a_name_of_coachs_own_numbers_keeps_its_values() -> None:
    [row, *_] = epoch_rows(steady_job().reducer.jobs["steady"])
    found = trackers.metrics(replace(row, value=90.0), "seconds", 1.0)
    assert (found["seconds"], found["coach.seconds"], found["spent"]) == (90.0, row.seconds, 1.0)


def test_names_become_such_as_mlflow_takes_and_stay_apart() -> None:
    given = {"AR@100": 1, "AR#100": 2, "valid_1's rmse": 3, "/a//../b": 4, "ä:x": 5, "..": 6, "loss": 7}
    found = trackers._as_mlflow_names(given)
    assert found == {
        "AR_100": 1, "AR_100_2": 2, "valid_1_s rmse": 3, "a/b": 4, "ä_x": 5, "_": 6, "loss": 7,
    }  # fmt: skip
    assert len(next(iter(trackers._as_mlflow_names({"x" * 1000: 1})))) < 250


class Refusing:
    """MLflow's client where it refuses an epoch's numbers; what it was asked for."""

    def __init__(self, **_: Any) -> None:
        self.deleted: list[str] = []
        Refusing.last = self

    def log_batch(self, *_: Any, **__: Any) -> None:
        raise ValueError("no such metric")

    def delete_run(self, run: str) -> None:
        self.deleted.append(run)

    def search_runs(self, *_: Any) -> list[Any]:
        return [SimpleNamespace(info=SimpleNamespace(run_id="earlier"))]

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: SimpleNamespace(experiment_id="1", info=SimpleNamespace(run_id="new"))


def test_a_run_that_mlflow_refuses_is_taken_back_and_the_earlier_one_stays() -> None:
    world = steady_job()
    job = world.reducer.jobs["steady"]
    library = SimpleNamespace(MlflowClient=Refusing, entities=SimpleNamespace(Metric=lambda *_: None))
    with pytest.raises(ValueError, match="no such metric"):
        trackers._mlflow(library, "x", job_row(job, world.now), job)
    assert Refusing.last.deleted == ["new"]


def test_a_job_that_cannot_be_written_keeps_no_other_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COACH_HOME", str(tmp_path))
    keep(StateDirectory.default(), two_jobs())

    def write(tracker: str, place: str, row: Any, job: Any) -> str:
        if job.name == "digits":
            raise PermanentError("mlflow says: no")
        return "written"

    monkeypatch.setattr(trackers, "write", write)
    assert invoke(["export", "--to", "mlflow:x"]) == 5
    out, err = capsys.readouterr()
    assert "pictures: written" in out and "digits: mlflow says: no" in err
