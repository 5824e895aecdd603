"""Jobs as runs of MLflow, TensorBoard and W&B, written by their own libraries, which their users have installed.

A run has the job's specification as parameters, and for each epoch, numbered as in Coach, its metric, seconds, workers,
servers and the money spent until then. Writing a job again continues or replaces its run; none is there twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import itertools
import re
import shlex
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from coach.core.errors import PermanentError, UserError
from coach.core.jobs.job import Job
from coach.core.spec.job import TrainingJob
from coach.report.row_types import EpochRow, JobRow
from coach.report.status import epoch_rows

PROJECT = "coach"
#: What each is installed as.
PACKAGES = {"mlflow": "mlflow-skinny", "tensorboard": "tensorboard", "wandb": "wandb"}
#: Of an epoch; the learning curve's own numbers come before them.
_NUMBERS = ("seconds", "workers", "servers", "epochs_trained", "epochs_per_second")
#: What a person may have put a password into.
_LEFT_OUT = ("env", "secrets")


def write(tracker: str, place: str, row: JobRow, job: Job) -> str:
    """Write one job; what its run is called there. `place`: a tracking URI of MLflow, a folder of the others.

    Raises UserError where the tracker is unknown or its library is missing, PermanentError where that cannot write.
    """
    if tracker not in PACKAGES or not place:
        raise UserError(f"--to {tracker}{':' if place else ''}{place}: use mlflow:URI, tensorboard:DIR or wandb:DIR")
    try:
        library = importlib.import_module(tracker)
    except ImportError as error:
        raise UserError(
            f"--to {tracker}: its library is missing ({error}); "
            f"install it next to Coach: pip install {PACKAGES[tracker]}"
        ) from None
    try:
        written: str = _WRITERS[tracker](library, place, row, job)
    except Exception as error:  # each library has its own
        said = (str(error) or type(error).__name__).splitlines()[0]
        raise PermanentError(f"--to {tracker}:{place}: {tracker} says: {said}") from error
    return written


def parameters(job: TrainingJob, defaults: bool = False) -> dict[str, str]:
    """The job file's fields by their paths, such as `optimizer.learningRate`; those left at their `defaults` too."""
    spec = job.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=not defaults)["spec"]
    return dict(_flat(spec))


def _flat(fields: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for name, value in fields.items():
        if name in _LEFT_OUT:
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield above + name, shlex.join(value) if name == "command" else str(value)


def metrics(row: EpochRow, metric: str, spent: float) -> dict[str, float]:
    """The numbers of one epoch; `spent` until its end, in the job's currency.

    Where the job's metric has the name of one of Coach's own numbers, that is `coach.NAME`.
    """
    own = {"spent": spent} | {name: getattr(row, name) for name in _NUMBERS}
    known = {f"coach.{name}" if name == metric else name: value for name, value in own.items()}
    known |= {"loss": row.loss, "accuracy": row.accuracy, metric: row.value}
    return {name: float(value) for name, value in known.items() if value is not None}


def _steps(job: Job, metric: str) -> Iterator[tuple[int, float, dict[str, float]]]:
    """Each epoch's number, end (seconds since 1970) and numbers."""
    spent = 0.0
    for row in epoch_rows(job):
        spent += row.cost
        at = datetime.fromisoformat(row.ended_at).timestamp() if row.ended_at else 0.0
        yield row.epoch, at, metrics(row, metric, spent)


def _as_mlflow_names(found: Mapping[str, Any]) -> dict[str, Any]:
    """The same by names that MLflow takes, `AR_100` for `AR@100`; those that would be one have a number."""
    made = dict[str, Any]()
    for name, value in found.items():
        parts = [part for part in re.sub(r"[^\w\-. /]", "_", name).split("/") if part not in ("", ".", "..")]
        taken = plain = "/".join(parts)[:240] or "_"
        again = itertools.count(2)
        while taken in made:
            taken = f"{plain}_{next(again)}"
        made[taken] = value
    return made


def _mlflow(library: Any, uri: str, row: JobRow, job: Job) -> str:
    client = library.MlflowClient(tracking_uri=uri)
    found = client.get_experiment_by_name(PROJECT)
    experiment = found.experiment_id if found else client.create_experiment(PROJECT)
    earlier = client.search_runs([experiment], f"tags.`coach.job` = '{job.name}'")
    tags = {"coach.job": job.name, "coach.state": row.state, "coach.reason": row.reason}
    start = int(job.progress.submitted_at * 1000)
    run = client.create_run(experiment, start_time=start, tags=tags, run_name=job.name).info.run_id
    try:
        for name, value in _as_mlflow_names(parameters(job.job_file)).items():
            client.log_param(run, name, value[:500])
        entity = library.entities.Metric
        for number, at, found_metrics in _steps(job, row.metric):
            batch = [
                entity(name, value, int(at * 1000), number) for name, value in _as_mlflow_names(found_metrics).items()
            ]
            client.log_batch(run, metrics=batch)
        if job.ended:
            ended = int(job.progress.ended_at * 1000) if job.progress.ended_at else None
            client.set_terminated(run, "FINISHED" if row.state == "Succeeded" else "FAILED", ended)
    except BaseException:  # a half would run for ever
        client.delete_run(run)
        raise
    for old in earlier:
        client.delete_run(old.info.run_id)
    return f"{uri}: experiment {PROJECT}, run {run}"


def _tensorboard(library: Any, folder: str, row: JobRow, job: Job) -> str:
    inside = [
        importlib.import_module(f"{library.__name__}.{name}")
        for name in ("compat.proto.event_pb2", "compat.proto.summary_pb2", "summary.writer.event_file_writer")
    ]
    event, summary, files = inside
    run = Path(folder) / job.name
    for old in run.glob("events.out.tfevents.*.coach"):
        old.unlink()
    writer = files.EventFileWriter(str(run), filename_suffix=".coach")
    for number, at, found in _steps(job, row.metric):
        values = [summary.Summary.Value(tag=name, simple_value=value) for name, value in found.items()]
        writer.add_event(event.Event(wall_time=at, step=number, summary=summary.Summary(value=values)))
    writer.close()
    return str(run)


def _wandb(library: Any, folder: str, row: JobRow, job: Job) -> str:
    Path(folder).mkdir(parents=True, exist_ok=True)
    # The same job is the same run wherever it is synchronised to.
    identity = hashlib.sha256(f"{job.name} {job.progress.submitted_at}".encode()).hexdigest()[:16]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        run = library.init(
            project=PROJECT,
            name=job.name,
            id=identity,
            dir=folder,
            mode="offline",
            config=parameters(job.job_file),
            settings=library.Settings(silent=True, console="off", x_disable_stats=True, disable_git=True),
        )
        code = 1
        try:
            for number, _, found in _steps(job, row.metric):
                run.log(found, step=number)
            run.summary["state"] = row.state
            written = str(Path(run.dir).parent)
            code = 0 if row.state == "Succeeded" else 1
        finally:
            run.finish(exit_code=code)
    return f"{written}; send it with: wandb sync {written}"


_WRITERS = {"mlflow": _mlflow, "tensorboard": _tensorboard, "wandb": _wandb}
