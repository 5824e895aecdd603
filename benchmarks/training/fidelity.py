"""How well the simulator predicts real runs: recorded runs on this machine, each predicted from the others.

    python -m benchmarks.training.fidelity record [--next [RUNS]]                 # what is missing of three rounds
    python -m benchmarks.training.fidelity predict [--write results/simulation]

Recorded are the jobs of jobs/bench, with half their learning rate so that they take longer than the variations of the
machine's speed: LeNet, the perceptron, and both at once, in turns. Each run is stored at once and skipped when it is
there.

The dynamics of a predicted job (speeds, curve, core-seconds, time between epochs) are learned from the other runs of
that job alone; epochs during which other jobs ran are corrected to the time they would have taken alone (`alone`). Its
file, the points known from earlier jobs, the cluster and the times of submission are those of the recorded run. Then
the reducer simulates the run in virtual time, with the noise of several seeds, and the mean of its times is compared
with the recorded time.

Three predictions: from the others as they were; the same corrected for the machine's speed in that run, which
`machine_speed` measures during each run, independently of the run (the others' times are multiplied by the ratio of the
two readings); and "from itself", which learns from the predicted run alone: the rest is the driver's own error. In
addition, the recorded events of every journal are fed to a reducer again: its actions must be the recorded ones.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import itertools
import json
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.training.machine_speed import MachineSpeed
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.epoch import Epoch
from coach.core.lifecycle.reducer import Reducer
from coach.handler.state.codec import Record, decode, encode
from coach.plugins import policy
from coach.simulation.dynamics.from_journal import Run, learn, runs_of
from coach.simulation.dynamics.job_dynamics import JobDynamics
from coach.simulation.reducer_simulation import Driver

FOLDER = Path("results/simulation/journals")
#: Cores of the machine that the runs were recorded on.
CORES = 2.0
SEEDS = 5
#: What is changed of the job files: twice the epochs.
LONGER: dict[str, dict[str, Any]] = {
    "lenet": {"optimizer": {"name": "adam", "learningRate": 0.00005}, "maxEpochs": 120},
    "mlp": {"optimizer": {"name": "sgd", "learningRate": 0.025}, "maxEpochs": 200},
}
NODES = "4x1"
ROUNDS = 3
#: The error that is aimed at.
NEAR = 0.05


@dataclass(frozen=True, slots=True)
class Recorded:
    """A journal of one run; `machine_seconds`: the reading of `MachineSpeed` during it."""

    name: str
    records: list[Any]
    runs: dict[str, Run]
    machine_seconds: float | None = None

    @property
    def seconds(self) -> dict[str, float]:
        """From submission to end, by job."""
        return {
            name: (run.job.progress.ended_at or 0.0) - run.job.progress.submitted_at for name, run in self.runs.items()
        }


def wanted() -> list[tuple[str, tuple[str, ...]]]:
    """Names of runs and their jobs, in the order in which they are recorded."""
    kinds = {**{job: (job,) for job in LONGER}, "both": (*LONGER,)}
    return [(f"{kind}-{number}", jobs) for number in range(1, ROUNDS + 1) for kind, jobs in kinds.items()]


def record(folder: Path, name: str) -> dict[str, Any]:
    """Run these jobs and keep their journal; a row that says how long they took."""
    names = dict(wanted())[name]
    jobs = [harness.changed(harness.load(f"jobs/bench/{job}.yaml")[0], **LONGER[job]) for job in names]
    history: list[Record] = []
    with MachineSpeed() as machine:
        finished = harness.run(jobs, NODES, history=history)
    keep(folder / f"{name}.jsonl.gz", history)
    took = {job: f"{harness.completion(one):.2f}" for job, one in zip(names, finished, strict=True)}
    return {"run": name, **{job: took.get(job, "") for job in LONGER}, "machine_seconds": machine.seconds}


def keep(path: Path, records: Iterable[Record]) -> None:
    """Write records as lines of JSON, without the paths of the machine."""
    lines = []
    for one in records:
        body = re.sub(r"file://[^\"]*?/(functions|\.data|checkpoints|jobs)/", r"file:///coach/\1/", encode(one))
        lines.append(json.dumps([type(one).__name__, json.loads(body)], separators=(",", ":")))
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        file.write("\n".join(lines).encode())


def read(folder: Path) -> list[Recorded]:
    """All journals of a folder."""
    readings = {row["run"]: float(row["machine_seconds"]) for row in _rows(folder).rows}
    found = []
    for path in sorted(folder.glob("*.jsonl.gz")):
        with gzip.open(path, "rt") as file:
            records = [decode(name, json.dumps(body)) for name, body in map(json.loads, file)]
        name = path.name.partition(".")[0]
        found.append(Recorded(name, records, runs_of(records), readings.get(name)))
    return found


def _rows(folder: Path) -> harness.Rows:
    return harness.Rows(folder / "runs.csv", ("run",))


def same_actions(recorded: Recorded) -> tuple[int, int]:
    """Actions that a reducer takes on the recorded events, and how many of them, in order, are the recorded ones."""
    reducer = Reducer(policy("coach"))
    ours = [action for one in recorded.records if isinstance(one, ev.Event) for action in reducer.react(one)]
    theirs = [one for one in recorded.records if isinstance(one, act.Action)]
    return max(len(ours), len(theirs)), sum(a == b for a, b in zip(ours, theirs, strict=False))


def stretched(run: Run, wall: Mapping[str, float], core: float = 1.0) -> Run:
    """The run with all seconds of its epochs, by token, so many times as long, and core-seconds `core` times."""

    def epoch(one: Epoch) -> Epoch:
        by, report = wall[one.token], one.report
        return replace(
            one,
            ended_at=one.started_at + one.seconds * by,
            report=replace(
                report,
                train_seconds=report.train_seconds * by,
                evaluate_seconds=report.evaluate_seconds * by,
                form_seconds=report.form_seconds * by,
                load_seconds=report.load_seconds * by,
                checkpoint_seconds=report.checkpoint_seconds * by,
                warm_up_seconds=report.warm_up_seconds * by,
                cpu_seconds=report.cpu_seconds * core,
                thread_seconds=report.thread_seconds * core,
            ),
        )

    return replace(run, job=replace(run.job, epochs=[epoch(one) for one in run.job.epochs]))


def alone(runs: Mapping[str, Run], dynamics: Mapping[str, JobDynamics]) -> dict[str, Run]:
    """The runs of one journal as they would have been without each other, by the driver's own rule.

    While the running epochs use more than CORES, all are slower by the same factor. `dynamics` gives the cores that
    each uses: from runs alone if there are any, since on a full machine no job is seen to use more than it has.
    """
    used = {
        (name, epoch.token): min(dynamics[name].cores(*epoch.allocation), CORES)
        for name, run in runs.items()
        for epoch in run.job.epochs
    }
    return {name: stretched(run, _rates(name, runs, used)) for name, run in runs.items()}


def _rates(name: str, runs: Mapping[str, Run], used: Mapping[tuple[str, str], float]) -> dict[str, float]:
    """The relative speed of each epoch of a job (by token; 1: as alone), with the cores that epochs of all jobs use."""
    concurrent = [
        (one.started_at, one.ended_at, used[other, one.token])
        for other, run in runs.items()
        if other != name
        for one in run.job.epochs
    ]
    rates = {}
    for epoch in runs[name].job.epochs:
        begin, end = epoch.started_at, epoch.ended_at
        inside = [(max(start, begin), min(stop, end), cores) for start, stop, cores in concurrent]
        inside = [(start, stop, cores) for start, stop, cores in inside if start < stop]
        edges = sorted({begin, end, *(start for start, _, _ in inside), *(stop for _, stop, _ in inside)})
        done = 0.0
        for start, stop in itertools.pairwise(edges):
            cores = sum(cores for left, right, cores in inside if left <= start and stop <= right)
            done += (stop - start) * min(1.0, CORES / (used[name, epoch.token] + cores))
        rates[epoch.token] = done / max(end - begin, 1e-9)
    return rates


def _submitted(recorded: Recorded) -> dict[str, ev.JobSubmitted]:
    return {one.job: one for one in recorded.records if isinstance(one, ev.JobSubmitted)}


def _same(name: str, one: Recorded, other: Recorded) -> bool:
    return _submitted(one)[name].spec == _submitted(other)[name].spec


def learned_dynamics(recorded: Recorded, others: Sequence[Recorded], paced: bool = False) -> dict[str, JobDynamics]:
    """The dynamics of each job of `recorded` alone on the machine, learned from `others` that ran the same job.

    `paced`: corrected to the machine's speed during `recorded`.
    """
    found = {}
    alike = {
        name: [other for other in others if name in other.runs and _same(name, recorded, other)]
        for name in recorded.runs
    }
    cores = {}
    for name, some in alike.items():
        if not some:
            raise ValueError(f"{recorded.name}: no other run of its job {name}; record more")
        by_themselves = [other for other in some if len(other.runs) == 1] or some
        cores[name] = learn([other.runs[name] for other in by_themselves])
    for name, some in alike.items():
        runs = []
        for other in some:
            concurrent = {job: cores.get(job) or learn([run]) for job, run in other.runs.items()}
            run = alone(other.runs, concurrent)[name] if len(other.runs) > 1 else other.runs[name]
            pace = _pace(recorded, others) / _pace(other, [recorded, *others]) if paced else 1.0
            runs.append(stretched(run, {epoch.token: pace for epoch in run.job.epochs}, pace))
        found[name] = learn(runs)
    return found


def _pace(one: Recorded, others: Sequence[Recorded]) -> float:
    """How slow the machine was in a run, relative to all runs of the same jobs: their load slows the readings, too."""
    alike = [other for other in (one, *others) if set(other.runs) == set(one.runs)]
    readings = {other.name: other.machine_seconds for other in alike if other.machine_seconds}
    return readings[one.name] / statistics.fmean(readings.values()) if one.name in readings else 1.0


def predict(
    recorded: Recorded, others: Sequence[Recorded], paced: bool = False, seeds: int = SEEDS
) -> dict[str, float]:
    """Mean seconds of each job in virtual time, with the dynamics of the `others`."""
    learned, submitted = learned_dynamics(recorded, others, paced), _submitted(recorded)
    started = next(one for one in recorded.records if isinstance(one, ev.HandlerStarted))
    completions = []
    for seed in range(seeds):
        driver = Driver(started.nodes, policy("coach"), seed=seed, machine_cores=CORES, begin=started.at)
        for name, one in submitted.items():
            known = {"known_points": one.known_points, "known_epochs": one.known_epochs}
            driver.submit_at(one.at, name, one.spec, learned[name], **known)
        driver.run()
        completions.append({name: ended.ended - ended.submitted for name, ended in driver.ended.items()})
    return {name: statistics.fmean(seconds[name] for seconds in completions) for name in submitted}


def rows(folder: Path) -> list[dict[str, Any]]:
    """A row for each job of each run."""
    journals = read(folder)
    table = []
    for recorded in journals:
        others = [other for other in journals if other is not recorded]
        actions, same = same_actions(recorded)
        predicted, replayed = predict(recorded, others), predict(recorded, [recorded])
        paced = predict(recorded, others, paced=True)
        for name, seconds in recorded.seconds.items():
            table.append(
                {
                    "run": recorded.name, "job": name, "jobs_at_once": len(recorded.runs), "actions": actions,
                    "same_actions": same, "epochs": len(recorded.runs[name].job.epochs), "seconds": seconds,
                    "machine_seconds": recorded.machine_seconds,
                    "predicted_seconds": predicted[name], "error": predicted[name] / seconds - 1,
                    "paced_seconds": paced[name], "paced_error": paced[name] / seconds - 1,
                    "replayed_seconds": replayed[name], "replay_error": replayed[name] / seconds - 1,
                }
            )  # fmt: skip
    return table


def shown(table: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a table, and a summary."""
    lines = [
        "| run | job | epochs | machine | took | from the others | error | at the machine's speed | error "
        "| from itself | error | same actions |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in table:
        machine = f"{1e3 * row['machine_seconds']:.3f} ms" if row["machine_seconds"] else ""
        cells = [row["run"], row["job"], str(row["epochs"]), machine, f"{row['seconds']:.2f} s"]
        for kind, error in (("predicted", "error"), ("paced", "paced_error"), ("replayed", "replay_error")):
            cells += [f"{row[f'{kind}_seconds']:.2f} s", f"{row[error]:+.1%}"]
        lines.append(f"| {' | '.join(cells)} | {row['same_actions']} of {row['actions']} |")
    lines.append("")
    for words, error in (("From the others", "error"), ("At the machine's speed", "paced_error")):
        errors = [abs(row[error]) for row in table]
        near = sum(one <= NEAR for one in errors)
        lines.append(f"{words}: {near} of {len(errors)} within {NEAR:.0%}, all within {max(errors):.1%}.")
    return "\n".join(lines) + "\n"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("do", choices=("record", "predict"))
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    parser.add_argument("--next", type=int, nargs="?", const=1, metavar="RUNS", help="record so many runs (one)")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    if options.do == "record":
        options.tables = False
        keys = [(name,) for name, _ in wanted()]
        harness.measure(_rows(options.folder), keys, partial(record, options.folder), lambda: None, options)
        return
    try:
        table = rows(options.folder)
    except ValueError as error:
        parser.exit(2, f"{options.folder}: {error}\n")
    if not table:
        parser.exit(
            2,
            f"{options.folder}: no run there; `python -m benchmarks.training.fidelity record` records them\n",
        )
    print(shown(table), end="")
    if options.write:
        options.write.mkdir(parents=True, exist_ok=True)
        (options.write / "fidelity.md").write_text(shown(table))
        with (options.write / "fidelity.csv").open("w", newline="") as file:
            out = csv.DictWriter(file, list(table[0]), lineterminator="\n")
            out.writeheader()
            out.writerows(table)


if __name__ == "__main__":
    main()
