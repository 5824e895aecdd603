"""Workers and servers of a job bound by computing and of one bound by the network, behind links of limited bandwidth.

    sudo python -m benchmarks.training.bandwidth [--next [RUNS]]

Six virtual nodes of one core, each with a link of its own; no two pods that train fit on one. The surface is measured
point by point (the median of some epochs each), then Coach runs the job to its target. The tables compare Coach's model
of the surface at the end, and the path of allocations it took, with the measurements. Each run is a row of
results/bandwidth/runs.csv and is skipped when it is there.
"""

from __future__ import annotations

import itertools
import statistics
from functools import partial
from typing import Any

from benchmarks import harness
from coach.core.jobs.epoch import EpochKind
from coach.core.jobs.job import Job

COMMAND = "python -m benchmarks.training.bandwidth"
FOLDER = harness.RESULTS / "bandwidth"
NODES, RATE = "6x1", "2gbit"
JOBS = {"lenet": "bound by computing", "mlp": "bound by the network"}
MOST = 2
GRID = list(itertools.product(range(1, MOST + 1), range(1, MOST + 1)))
#: Epochs measured at each point, after one that also forms the group.
EPOCHS = 3
COACH = "coach"
KEYS = ("job", "at", "repeat")


def run(job: str, at: str, repeat: int) -> dict[str, Any]:
    """The row of one point measured, or of the job under Coach."""
    (spec,) = harness.load(f"jobs/bench/{job}.yaml")
    spec = harness.changed(spec, workers={"min": 1, "max": MOST}, servers={"min": 1, "max": MOST})
    if at != COACH:
        workers, servers = map(int, at.split("x"))
        target = {"accuracy": 1.0}
        spec = harness.static(harness.changed(spec, maxEpochs=EPOCHS + 1, target=target), workers, servers)
    (finished,) = harness.run([spec], NODES, RATE)
    row: dict[str, Any] = {"job": job, "at": at, "repeat": repeat, "epochs_per_second": ""}
    row |= {
        "state": finished.state.value,
        "completion_seconds": round(harness.completion(finished), 2),
        "path": "",
        "fitted": "",
    }
    if at == COACH:
        assert finished.speed is not None
        row["path"] = " ".join(_step(epoch) for epoch in finished.epochs)
        row["fitted"] = " ".join(f"{finished.speed.predict(w, s):.5g}" for w, s in GRID)
    else:
        row["epochs_per_second"] = round(statistics.median(_speeds(finished)), 5)
    return row


def _step(epoch: Any) -> str:
    return f"{epoch.allocation}{'?' if epoch.kind is EpochKind.PROBE else ''}"


def _speeds(job: Job) -> list[float]:
    """Training speeds of the epochs after the first, in epochs/s."""
    return [epoch.epochs_per_second for epoch in job.epochs[1:]]


def _measured(rows: harness.Rows, job: str) -> dict[tuple[int, int], float]:
    """Speeds in epochs/s by (workers, servers), as far as they are there."""
    return {
        (int(at[0]), int(at[2])): rows.median("epochs_per_second", job=job, at=at)
        for at in dict.fromkeys(row["at"] for row in rows.of(job=job))
        if at != COACH
    }


def write(rows: harness.Rows) -> None:
    """Write the table of what there is so far."""
    table = []
    for job, bound in JOBS.items():
        measured = _measured(rows, job)
        coach = rows.of(job=job, at=COACH)
        if not measured or not coach:
            continue
        path = coach[0]["path"].split()
        real = [step for step in path if not step.endswith("?")]
        usual = max(dict.fromkeys(real), key=real.count)
        at = int(usual[0]), int(usual[2])
        best = max(measured, key=lambda point: measured[point])
        table.append(
            {
                "job": job,
                "": bound,
                "fastest measured": "{}x{}".format(*best),
                "most epochs of Coach": usual,
                "workers : servers": f"{at[0] / at[1]:.2g}",
                "its speed against the fastest": f"{measured.get(at, 0.0) / measured[best]:.0%}",
                "speed by servers 1, 2 (2 workers)": _row(measured, [(2, s) for s in (1, 2)]),
                "by workers 1, 2 (1 server)": _row(measured, [(w, 1) for w in (1, 2)]),
                "path": " ".join(f"{k}*{len(list(g))}" for k, g in itertools.groupby(path)),
            }
        )
    if table:
        harness.write_table(
            FOLDER / "bandwidth.md",
            f"Two jobs on {NODES} virtual nodes behind links of {RATE}",
            COMMAND,
            table,
            "Speeds in epochs/s while training. `?` is a mini-epoch. The nodes share this machine's cores.",
        )


def _row(measured: dict[tuple[int, int], float], points: list[tuple[int, int]]) -> str:
    return ", ".join(f"{measured[point]:.3g}" if point in measured else "-" for point in points)


def main() -> None:
    """Run what is missing."""
    options = harness.piecewise(__doc__, repeats=1).parse_args()
    rows = harness.Rows(FOLDER / "runs.csv", KEYS)
    points = ["{}x{}".format(*point) for point in GRID]
    runs = [(job, at, repeat) for repeat in range(options.repeats) for at in (*points, COACH) for job in JOBS]
    harness.measure(rows, runs, run, partial(write, rows), options)


if __name__ == "__main__":
    main()
