"""Where `coach simulate` has its jobs' truths from: their own runs, runs of jobs like them, or what it is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coach.core.errors import UserError
from coach.core.spec.job import TrainingJob
from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import StateDirectory
from coach.jobfiles.load import load_jobs
from coach.simulation.dynamics.from_journal import Run, learn, runs_of
from coach.simulation.dynamics.job_dynamics import JobDynamics
from coach.simulation.dynamics.measured_speeds import find_speed
from coach.simulation.dynamics.synthetic import assumed


def distinct(jobs: Sequence[TrainingJob]) -> list[TrainingJob]:
    """The same jobs; of those with one name the later ones are numbered."""
    seen: dict[str, int] = {}
    distinct = []
    for job in jobs:
        seen[job.name] = seen.get(job.name, 0) + 1
        name = job.name if seen[job.name] == 1 else f"{job.name[:34]}-{seen[job.name]}"
        distinct.append(job.model_copy(update={"metadata": job.metadata.model_copy(update={"name": name})}))
    return distinct


@dataclass(frozen=True, slots=True)
class Lived:
    """Jobs as they were; `arrivals` in seconds since the first came, `origins`: where truths are from -> jobs."""

    jobs: list[TrainingJob]
    truths: list[JobDynamics]
    arrivals: tuple[float, ...]
    origins: dict[str, list[str]]


def lived(path: Path) -> Lived:
    """The jobs of a journal. Raises UserError where none trained."""
    found = sorted(path.rglob("journal.db")) if path.is_dir() else [path]
    runs: list[Run] = []
    for one in found:
        if one.is_file():
            read = Journal.read(one)
            runs += runs_of(record for _, record in read.records()).values()
            read.close()
    trained = sorted((run for run in runs if run.job.full_epochs), key=lambda run: run.job.submitted_at)
    if not trained:
        raise UserError(
            f"--journal {path}: no job that trained is there; right would be a journal.db or a COACH_HOME"
        )
    jobs = distinct([run.job.job_file for run in trained])
    origins = {"speed, curve and arrival as in its real run": [job.name for job in jobs]}
    if left := [run.job.name for run in runs if not run.job.full_epochs]:
        origins["left out, as it trained no whole epoch"] = left
    first = trained[0].job.submitted_at
    arrivals = tuple(run.job.submitted_at - first for run in trained)
    return Lived(jobs, [learn([run]) for run in trained], arrivals, origins)


def of_files(files: Sequence[Path], speeds: str, epoch_seconds: float, epochs: float, assume: bool) -> Lived:
    """The jobs of job files, all at once."""
    jobs = distinct([one.spec for one in load_jobs(files, check_files=False)])
    truths, origins = truths_of(jobs, speeds, epoch_seconds, epochs, assume)
    return Lived(jobs, truths, (0.0,) * len(jobs), origins)


def truths_of(
    jobs: Sequence[TrainingJob], speeds: str, epoch_seconds: float, epochs: float, assume: bool
) -> tuple[list[JobDynamics], dict[str, list[str]]]:
    """The truth of each job, and where it comes from: words -> jobs."""
    shape = find_speed(speeds)
    known: list[Run] = []
    if not assume:
        for path in StateDirectory.default().journals():
            journal = Journal.read(path)
            known += runs_of(record for _, record in journal.records()).values()
            journal.close()
    truths: list[JobDynamics] = []
    origins: dict[str, list[str]] = {}
    for job in jobs:
        alike = [run for run in known if _alike(run.job.job_file, job) and run.job.full_epochs]
        if alike:
            truths.append(learn(alike))
            words = f"speed and curve as measured in {len(alike)} real run{'s' * (len(alike) > 1)}"
        else:
            truths.append(assumed(job, shape, epoch_seconds, epochs))
            words = (
                f"never ran here; assumed: speeds as of {speeds}, {epoch_seconds:g} s an epoch at 1x1, "
                f"{epochs:g} epochs to the target"
            )
        origins.setdefault(words, []).append(job.name)
    return truths, origins


def _alike(one: TrainingJob, other: TrainingJob) -> bool:
    """Whether they train the same: then they have one speed and one curve."""
    a, b = one.spec, other.spec
    return (a.model.file, a.data, a.batch_size, a.optimizer, a.resources) == (
        b.model.file, b.data, b.batch_size, b.optimizer, b.resources,
    )  # fmt: skip
