"""Ground truth of `coach simulate`: the dynamics of its jobs, from their own runs, runs of the same job, or assumed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coach.core.errors import UserError
from coach.core.spec.job import TrainingJob
from coach.core.spec.training import Framework, Mode, ParameterServer
from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import StateDirectory, renamed
from coach.simulation.dynamics.from_journal import Run, learn, runs_of
from coach.simulation.dynamics.job_dynamics import JobDynamics
from coach.simulation.dynamics.measured_speeds import find_speed
from coach.simulation.dynamics.synthetic import assumed

#: What a change costs a job on elastic servers: million weights, and the most of the medians in
#: results/elastic/changes.md, of two or three servers more, in seconds. ps-lite's restart took 0.3 to 2.3 s there.
ELASTIC_RESCALES = ((0.0, 0.006), (0.4, 0.007), (1.0, 0.018), (10.0, 0.09), (25.0, 0.187))


#: How the origin of a job begins that no journal has.
NEVER_RAN = "never ran here"


def elastic_rescale(millions: float = 10.0) -> float:
    """Seconds that a change costs with so many million weights: between the measured sizes, and on beyond them."""
    weights, seconds = zip(*ELASTIC_RESCALES, strict=True)
    beyond = max(millions / weights[-1], 1.0)
    return float(np.interp(millions, weights, seconds)) * beyond


def on_elastic_servers(job: TrainingJob) -> TrainingJob:
    """The job with elastic servers, where it may have them: a synchronous one of MXNet."""
    spec = job.spec
    if spec.program is not None or spec.framework is not Framework.MXNET or spec.mode is Mode.ASYNC:
        return job
    changed = spec.model_copy(update={"parameter_server": ParameterServer.ELASTIC})
    return job.model_copy(update={"spec": changed})


def distinct(jobs: Sequence[TrainingJob]) -> list[TrainingJob]:
    """The jobs under distinct names: the second and later ones of a name get a number."""
    seen: dict[str, int] = {}
    distinct = []
    for job in jobs:
        seen[job.name] = seen.get(job.name, 0) + 1
        distinct.append(job if seen[job.name] == 1 else renamed(job, f"{job.name[:34]}-{seen[job.name]}"))
    return distinct


@dataclass(frozen=True, slots=True)
class SimulatedJobs:
    """The jobs of a study. `arrivals` in seconds since the first; `origins`: source of dynamics -> job names."""

    jobs: list[TrainingJob]
    dynamics: list[JobDynamics]
    arrivals: tuple[float, ...]
    origins: dict[str, list[str]]
    #: How many never ran, so that their speeds and curves are assumed.
    assumed: int = 0


def recorded(path: Path) -> SimulatedJobs:
    """The jobs of a journal. Raises UserError if none trained a whole epoch."""
    runs: list[Run] = []
    for file in sorted(path.rglob("journal.db")) if path.is_dir() else [path]:
        if file.is_file():
            runs += _runs(file)
    trained = sorted((run for run in runs if run.job.full_epochs), key=lambda run: run.job.progress.submitted_at)
    if not trained:
        raise UserError(f"--journal {path}: no job there has trained; give a journal.db or a COACH_HOME with such jobs")
    jobs = distinct([run.job.job_file for run in trained])
    origins = {"speed, curve and arrival as in its real run": [job.name for job in jobs]}
    if left := [run.job.name for run in runs if not run.job.full_epochs]:
        origins["left out, as it trained no whole epoch"] = left
    first = trained[0].job.progress.submitted_at
    arrivals = tuple(run.job.progress.submitted_at - first for run in trained)
    return SimulatedJobs(jobs, [learn([run]) for run in trained], arrivals, origins)


def of_specs(
    specs: Sequence[TrainingJob], speeds: str, epoch_seconds: float, epochs: float, assume: bool
) -> SimulatedJobs:
    """The jobs of job files, all submitted at 0 s."""
    jobs = distinct(specs)
    dynamics, origins = dynamics_of(jobs, speeds, epoch_seconds, epochs, assume)
    unknown = sum(len(names) for origin, names in origins.items() if origin.startswith(NEVER_RAN))
    return SimulatedJobs(jobs, dynamics, (0.0,) * len(jobs), origins, unknown)


def _runs(file: Path) -> list[Run]:
    journal = Journal.read(file)
    runs = list(runs_of(record for _, record in journal.records()).values())
    journal.close()
    return runs


def dynamics_of(
    jobs: Sequence[TrainingJob], speeds: str, epoch_seconds: float, epochs: float, assume: bool
) -> tuple[list[JobDynamics], dict[str, list[str]]]:
    """The dynamics of each job, and their origins: a source -> its jobs' names."""
    shape = find_speed(speeds)
    known: list[Run] = []
    if not assume:
        for path in StateDirectory.default().journals():
            known += _runs(path)
    dynamics: list[JobDynamics] = []
    origins: dict[str, list[str]] = {}
    for job in jobs:
        alike = [run for run in known if _alike(run.job.job_file, job) and run.job.full_epochs]
        if alike:
            dynamics.append(learn(alike))
            origin = f"speed and curve as measured in {len(alike)} real run{'s' * (len(alike) > 1)}"
        else:
            dynamics.append(assumed(job, shape, epoch_seconds, epochs))
            origin = (
                f"{NEVER_RAN}; assumed: speeds as of {speeds}, {epoch_seconds:g} s an epoch at 1x1, "
                f"{epochs:g} epochs to the target"
            )
        origins.setdefault(origin, []).append(job.name)
    return dynamics, origins


def _alike(one: TrainingJob, other: TrainingJob) -> bool:
    """Whether two jobs train the same thing, and so have the same speed and curve."""
    a, b = (
        (
            s.framework,
            s.model and (s.model.file, s.model.net, s.model.args),
            s.program and (s.program.command, s.program.directory, s.program.env),
            s.data,
            s.batch_size,
            s.optimizer,
            s.clip,
            s.epoch,
            s.metric if s.has_own_metric else None,
            s.resources,
        )
        for s in (one.spec, other.spec)
    )
    return a == b
