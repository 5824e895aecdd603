"""SpeCon, FitGpp, KOD2 and their baselines live in small, and simulated: does a policy do the same?

    python -m benchmarks.papers_live [--next [RUNS]]    # what is missing; RUNS of it; --tables: only the tables

Real processes on three virtual nodes of this machine, one run each of the workloads below. Journals are kept
(results/papers-live/*.jsonl.gz), and the tables are made from them. Two comparisons. *Replayed*: the recorded events,
given to a second reducer with the same policy, must lead to the recorded actions. *Simulated*: the same jobs in virtual
time, their speeds and curves learned from the other policies' runs of the workload; how often jobs were moved,
preempted and resized, and in which order they ended, may differ, because decisions follow from when epochs end.
"""

from __future__ import annotations

import gzip
import json
import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, pairwise
from typing import Any

from benchmarks import harness
from benchmarks.training.fidelity import alone, keep
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.lifecycle.reducer import Reducer
from coach.core.spec.job import TrainingJob
from coach.handler.state.codec import Record, decode
from coach.plugins import policy
from coach.simulation.dynamics.from_journal import Run, learn, runs_of
from coach.simulation.reducer_simulation import Driver

COMMAND = "python -m benchmarks.papers_live"
FOLDER = harness.RESULTS / "papers-live"
CORES = 2.0
COUNTS = ("moves", "preemptions", "resizes")


@dataclass(frozen=True)
class Workload:
    """Jobs of a paper in small. `jobs`: (seconds of submission, epochs, changes of the job file)."""

    title: str
    nodes: str
    policies: tuple[str, ...]
    jobs: tuple[tuple[float, int, dict[str, Any]], ...]


def fixed(workers: int = 1, rate: float = 0.02, **spec: Any) -> dict[str, Any]:
    """Changes for a job of `workers` workers and one server, with this learning rate."""
    return {
        "policy": {"name": "static", "workers": workers, "servers": 1},
        "optimizer": {"name": "sgd", "learningRate": rate},
        **spec,
    }


def asks(worker: str) -> dict[str, Any]:
    """Requests of a worker so large, and of little else."""
    return {
        "scheduler": {"cpu": "20m", "memory": "128Mi"},
        "server": {"cpu": "80m", "memory": "256Mi"},
        "worker": {"cpu": worker, "memory": "512Mi"},
    }


#: Converges within few epochs, and goes on; still learns at its end; ends early.
FLAT, LEARNS, SHORT = (30, fixed(rate=0.3)), (24, fixed(rate=0.002)), (4, fixed(rate=0.02))
TRIAL = {"class": "trial-and-error"}
WORKLOADS = {
    "specon": Workload(
        "SpeCon: containers that have converged make room (intervals of 4 s in place of 30 s)",
        "3x4",
        ("round-robin", "specon:interval=4"),
        tuple(
            (1.0 * place, *kind)
            for place, kind in enumerate((FLAT, SHORT, SHORT, LEARNS, SHORT, LEARNS, LEARNS, SHORT, LEARNS))
        ),
    ),
    "fitgpp": Workload(
        "FitGpp: trial-and-error jobs preempt (two fill a node)",
        "3x2",
        ("fifo", "fitgpp", "lrtp", "rand"),
        (
            *((0.0, 14, fixed(resources=asks("850m"), gracePeriod=grace)) for grace in (20, 5, 10, 15, 8, 25)),
            *((due, 3, fixed(resources=asks("850m"), **TRIAL)) for due in (6.0, 10.0, 14.0)),
        ),
    ),
    "kod2": Workload(
        "KOD2: workers are given to running jobs and taken back for waiting ones",
        "3x2",
        ("tf-operator:deadlock_timeout=20", "kod2"),
        tuple(
            (
                due,
                12,
                {"workers": {"min": 1, "max": 3}, "servers": {"min": 1, "max": 1}, "resources": asks("600m")},
            )
            for due in (0.0, 4.0, 8.0, 12.0)
        ),
    ),
}


def specs(name: str) -> list[TrainingJob]:
    """The jobs of a workload: a perceptron on 8x8 digits, so many epochs whatever it learns."""
    base = {
        "apiVersion": "coach.dev/v1alpha1",
        "kind": "TrainingJob",
        "spec": {
            "model": {"file": (harness.ROOT / "functions/models/mlp.py").as_uri()},
            "data": {"format": "digits8x8"},
            "budget": {"unlimited": True},
            "batchSize": 32,
            "resources": asks("800m"),
            "miniEpoch": {"minSeconds": 0.2, "maxSeconds": 1},
        },
    }
    jobs = []
    for place, (_, epochs, changes) in enumerate(WORKLOADS[name].jobs):
        target = {"accuracy": 0.01, "epochsInARow": epochs}
        content = {
            **base,
            "metadata": {"name": f"job-{place}"},
            "spec": {**base["spec"], "target": target, **changes},
        }
        jobs.append(TrainingJob.from_json(content))
    return jobs


def run(name: str, allocator: str) -> dict[str, Any]:
    """Run a workload under a policy, and keep its journal."""
    history: list[Record] = []
    work = WORKLOADS[name]
    load = os.getloadavg()[0]
    jobs = harness.run(
        specs(name), work.nodes, allocator=allocator, history=history, after=[due for due, *_ in work.jobs]
    )
    keep(FOLDER / f"{file_of(name, allocator)}.jsonl.gz", history)
    ended = "/".join(sorted({job.state.value for job in jobs}))
    return {"workload": name, "policy": allocator, "load before": round(load, 1), "ended": ended}


def file_of(name: str, allocator: str) -> str:
    """The name of the run's journal."""
    return f"{name}-{allocator.partition(':')[0]}"


def records_of(name: str, allocator: str) -> list[Any]:
    """The journal of a run."""
    with gzip.open(FOLDER / f"{file_of(name, allocator)}.jsonl.gz", "rt") as file:
        return [decode(kind, json.dumps(body)) for kind, body in map(json.loads, file)]


@dataclass(frozen=True)
class Seen:
    """What a journal says of a run: the order of ends, seconds by job, moves, preemptions and resizes in all."""

    order: tuple[str, ...]
    completion: dict[str, float]
    counts: dict[str, int]
    #: Of each move: seconds without training, to write the checkpoint, until new pods are ready, and to load and form.
    overhead: list[tuple[float, float, float, float]]


def seen(records: Iterable[Any]) -> Seen:
    """Read the records of a run.

    Of two epochs of a job one after the other: a *move* is another node for a job of the same size, a *resize* another
    size; a *preemption* is a decision that a job is to leave, as the policy saves it.
    """
    records = list(records)
    runs = runs_of(records)
    where: dict[str, str] = {}
    at: dict[str, tuple[str, ...]] = {}
    ready: dict[str, float] = {}
    preempted: dict[str, int] = {}
    leaving: set[str] = set()
    for one in records:
        match one:
            case act.DeployPods():
                where.update({pod.id.name: pod.node for pod in one.pods})
            case ev.PodReady():
                where[one.pod.name] = one.node or where[one.pod.name]
                ready[one.job] = one.at
            case act.RunEpoch():
                at[one.token] = tuple(sorted({where[pod.name] for pod in one.pods}))
                ready[one.token] = ready.get(one.job, 0.0)
            case act.SavePolicyState():
                if one.known.get("leaving") and one.job not in leaving:
                    preempted[one.job] = preempted.get(one.job, 0) + 1
                    leaving.add(one.job)
                elif not one.known.get("leaving"):
                    leaving.discard(one.job)
    counts = dict.fromkeys(COUNTS, 0) | {"preemptions": sum(preempted.values())}
    overhead = []
    for name, run in runs.items():
        epochs = run.job.full_epochs
        outside = {epoch.token: seconds for epoch, seconds in harness.outside(run.job)}
        for before, epoch in pairwise(epochs):
            if before.allocation != epoch.allocation:
                counts["resizes"] += 1
            elif at[before.token] != at[epoch.token] and not preempted.get(name):
                counts["moves"] += 1
                pods = max(0.0, ready[epoch.token] - before.ended_at)
                report = epoch.report
                parts = before.report.checkpoint_seconds, pods, report.load_seconds + report.form_seconds
                overhead.append((outside.get(epoch.token, float("nan")), *parts))
    ends = sorted(runs, key=lambda name: runs[name].job.progress.ended_at or 0.0)
    completion = {name: harness.completion(run.job) for name, run in runs.items()}
    return Seen(tuple(ends), completion, counts, overhead)


def replayed(records: Sequence[Any], allocator: str) -> tuple[int, int]:
    """Actions of the run, and how many of them a second reducer takes in the same order on the recorded events."""
    reducer = Reducer(policy(allocator))
    ours = [action for one in records if isinstance(one, ev.Event) for action in reducer.react(one)]
    theirs = [one for one in records if isinstance(one, act.Action)]
    return max(len(ours), len(theirs)), sum(a == b for a, b in zip(ours, theirs, strict=False))


def apart(runs: dict[str, Run]) -> dict[str, Run]:
    """The runs of a journal as if each job had been alone on the machine."""
    return alone(runs, {name: learn([run]) for name, run in runs.items()})


def simulated(name: str, allocator: str) -> Seen:
    """The workload in virtual time, with what the other policies' runs say of its jobs."""
    others = [apart(runs_of(records_of(name, other))) for other in WORKLOADS[name].policies if other != allocator]
    records = records_of(name, allocator)
    started = next(one for one in records if isinstance(one, ev.HandlerStarted))
    journal: list[Any] = []
    driver = Driver(started.nodes, policy(allocator), machine_cores=CORES, begin=started.at, journal=journal.append)
    for one in records:
        if isinstance(one, ev.JobSubmitted):
            driver.submit_at(one.at, one.job, one.spec, learn([runs[one.job] for runs in others]))
    driver.run()
    return seen(journal)


def agreeing(a: Sequence[str], b: Sequence[str]) -> str:
    """Pairs of jobs that end in the same order, of all pairs."""
    pairs = list(combinations(a, 2))
    return f"{sum(b.index(x) < b.index(y) for x, y in pairs)} of {len(pairs)}"


def write(rows: harness.Rows) -> None:
    """A table of each workload whose runs are all there."""
    for name, work in WORKLOADS.items():
        if not all(rows.has(name, one) for one in work.policies):
            continue
        table, notes = [], []
        for one in work.policies:
            records = records_of(name, one)
            live, virtual = seen(records), simulated(name, one)
            actions, same = replayed(records, one)
            table.append(
                {
                    "policy": one,
                    "jobs": len(live.order),
                    **{count: f"{live.counts[count]}; {virtual.counts[count]}" for count in COUNTS},
                    "mean completion, s": "; ".join(f"{_mean(s.completion):.1f}" for s in (live, virtual)),
                    **_trials(work, (live, virtual)),
                    "pairs that end in the same order": agreeing(live.order, virtual.order),
                    "replayed: same actions": f"{same} of {actions}",
                    "load before": rows.of(workload=name, policy=one)[0]["load before"],
                }
            )
            if live.overhead:
                whole, save, pods, load = (statistics.median(column) for column in zip(*live.overhead, strict=True))
                notes.append(
                    f"{one}: a move takes {whole:.2f} s without training (median of {len(live.overhead)}, at most "
                    f"{max(row[0] for row in live.overhead):.2f} s): {save:.3f} s to write the checkpoint, "
                    f"{pods:.2f} s until the new pods are ready, {load:.2f} s to load it and to form the group."
                )
        harness.write_table(
            FOLDER / f"{name}.md",
            f"{work.title}: live; simulated",
            COMMAND,
            table,
            "\n\n".join(
                [
                    f"Three virtual nodes (`--nodes {work.nodes}`) share this machine's cores. One run each.",
                    *notes,
                ]
            ),
        )


def _trials(work: Workload, both: Sequence[Seen]) -> dict[str, str]:
    """The mean completion of trial-and-error jobs, if there are any."""
    names = [f"job-{place}" for place, (*_, changes) in enumerate(work.jobs) if changes.get("class")]
    means = [_mean({name: one.completion[name] for name in names}) for one in both if names]
    return {"of trial-and-error jobs, s": "; ".join(f"{mean:.1f}" for mean in means)} if means else {}


def _mean(seconds: dict[str, float]) -> float:
    return statistics.fmean(seconds.values())


def main() -> None:
    """Run what is missing."""
    options = harness.piecewise(__doc__, repeats=1).parse_args()
    rows = harness.Rows(FOLDER / "runs.csv", ("workload", "policy"))
    wanted = [(name, one) for name, work in WORKLOADS.items() for one in work.policies]
    harness.measure(rows, wanted, run, partial(write, rows), options)


if __name__ == "__main__":
    main()
