"""Faults at random instants on a cluster of three nodes: what each costs, and that nothing is lost.

    make chaos-kubernetes N=20 SEED=1        # 20 jobs of seed 1; those of before are not repeated

A run is a job that is applied to the cluster of `make test-kubernetes`, and one fault at a random instant between its
creation and its end. Afterwards it must have reached its target with each epoch once, the ledger must be the sum of
what was settled, and no pod, Gang or ConfigMap may be left. Two jobs without a fault give the usual time.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import RESULTS, verdict, write_csv, write_table
from scripts import images
from tests.kubernetes.cluster import Cluster, Unready
from tests.kubernetes.installed import LARGE, Coach, job

ROWS = RESULTS / "kubernetes" / "runs.csv"
COMMAND = "make chaos-kubernetes N={} SEED={}"
SIZES: dict[str, dict[str, Any]] = {
    "1x1": {},
    "2x1": {"workers": {"min": 2, "max": 2}, "resources": LARGE},  # on two nodes
}
#: Seconds that a lost node is away.
AWAY = 30.0


class What(StrEnum):
    """What happens to a job, or to what it depends on."""

    NOTHING = "nothing"
    POD = "a pod of the job is deleted"
    HANDLER = "the handler's pod is killed"
    NODE = "a node is lost"
    API_SERVER = "the API server is restarted"
    SCHEDULER = "the scheduler's pod is killed"


@dataclass(frozen=True)
class Run:
    """A job of `size`, and `what` happens at `share` (0..1) of the time that it takes undisturbed.

    `choice` (0..1) chooses the pod, or the node.
    """

    seed: int
    number: int
    size: str
    what: What
    share: float
    choice: float

    @classmethod
    def draw(cls, seed: int, number: int) -> Run:
        """The `number`-th of a seed; the first are of each size without a fault."""
        if number < len(SIZES):
            return cls(seed, number, list(SIZES)[number], What.NOTHING, 0.0, 0.0)
        dice = random.Random(f"{seed}/{number}")
        what = dice.choice([one for one in What if one is not What.NOTHING])
        return cls(seed, number, dice.choice(list(SIZES)), what, dice.random(), dice.random())

    @property
    def name(self) -> str:
        """Of its job."""
        return f"run-{self.seed}-{self.number}"


class Stage:
    """The cluster with Coach on it."""

    def __init__(self, cluster: Cluster, coach: Coach) -> None:
        self.cluster, self.coach = cluster, coach
        self._mend: Callable[[], None] = lambda: None

    def run(self, run: Run, usual: float) -> dict[str, Any]:
        """The row of a run. `usual`: seconds that a job of its size takes."""
        began = time.monotonic()
        row: dict[str, Any] = {
            "seed": run.seed,
            "run": run.number,
            "size": run.size,
            "what": run.what.value,
            "after": 0.0,
            "struck": "",
            "repeated": 0,
            "seconds": 0.0,
            "lost": "",
        }
        try:
            self.coach.apply(job(run.name, target={"loss": 1.0, "epochsInARow": 5}, **SIZES[run.size]))
            if run.what is not What.NOTHING:
                time.sleep(run.share * usual)
                row["after"] = round(time.monotonic() - began, 1)
                row["struck"] = self._strike(run)
            status = self.coach.ended(run.name)
            row["seconds"] = round(time.monotonic() - began, 1)
            self._mend()
            row["repeated"] = self.coach.paid(run.name)
            epochs = [one["epoch"] for one in self.coach.ask("show", run.name)["epochs"]]
            if status["state"] != "Succeeded":
                row["lost"] = f"ended {status['state']}: {status['reason']}: {status['message']}"
            elif epochs != list(range(1, len(epochs) + 1)):
                row["lost"] = f"epochs {epochs}"
        except (AssertionError, RuntimeError, pytest.fail.Exception) as error:
            row["lost"] = " ".join(str(error).split())[:1000]
        finally:
            self._mend()
            with contextlib.suppress(RuntimeError):  # one that is lost must not disturb the next
                self.coach.cluster.kubectl("delete", "trainingjob", run.name, "--timeout=60s")
        return row

    def _strike(self, run: Run) -> str:
        """Make it happen; to what it happened, empty where the job has no pod or has ended."""
        if self.coach.status(run.name).get("completionTime"):
            return ""
        match run.what:
            case What.POD:
                if not (pods := sorted(self._pods(run.name))):
                    return ""
                pod = pods[int(run.choice * len(pods))]
                self._kill(pod)
                return pod.removeprefix(f"{run.name}-")
            case What.HANDLER | What.SCHEDULER:
                component = run.what.name.lower()
                self._kill("-l", f"app.kubernetes.io/component={component}")
                return component
            case What.API_SERVER:
                self.cluster.restart("kube-apiserver")
                return "kube-apiserver"
            case What.NODE:
                return self._lose_node(run)
            case _:
                return ""

    def _pods(self, name: str) -> dict[str, str]:
        items = self.cluster.get("pods", "-l", f"coach.dev/job={name}")["items"]
        return {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in items}

    def _kill(self, *which: str) -> None:
        self.cluster.kubectl("delete", "pod", *which, "--grace-period=0", "--force", "--ignore-not-found")

    def _lose_node(self, run: Run) -> str:
        """A node that pods of the job are on, or are to be on; the handler may be there, too."""
        if not (on := sorted(set(filter(None, self._pods(run.name).values())))):
            return ""
        node = on[int(run.choice * len(on))]
        items = self.cluster.get("pods", "-l", "app.kubernetes.io/instance=coach")["items"]
        there = [
            pod["metadata"]["labels"]["app.kubernetes.io/component"]
            for pod in items
            if pod["spec"].get("nodeName") == node
        ]
        self.cluster.kill_node(node)
        lost_at = time.monotonic()

        def mend() -> None:
            self._mend = lambda: None
            self.cluster.start_node(node)
            self.cluster.kubectl("wait", "--for=condition=Ready", f"node/{node}", "--timeout=120s")
            for part in ("handler", "scheduler"):
                self.cluster.kubectl("rollout", "status", f"deployment/coach-{part}", "--timeout=120s")

        self._mend = mend
        if there:  # they come back with their node only
            time.sleep(max(0.0, lost_at + AWAY - time.monotonic()))
            mend()
        return " and ".join([node, *sorted(there)])


def main() -> int:
    """Make the runs, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=int, help="with a fault each")
    parser.add_argument("seed", type=int)
    parser.add_argument("--out", type=Path, default=ROWS)
    options = parser.parse_args()
    rows = _read(options.out)
    done = {(row["seed"], row["run"]) for row in rows}
    drawn = [Run.draw(options.seed, number) for number in range(options.runs + len(SIZES))]
    todo = [run for run in drawn if (str(run.seed), str(run.number)) not in done]
    if todo:
        try:
            _run(todo, rows, options.out)
        except Unready as error:
            print(f"chaos-kubernetes: {error}", file=sys.stderr)
            return 1
    write(rows, options.out, COMMAND.format(options.runs, options.seed))
    return verdict(rows, len(done))


def _run(todo: Sequence[Run], rows: list[dict[str, Any]], out: Path) -> None:
    with Cluster() as cluster:
        for name in images.STANDARD:
            cluster.load_image(images.OUT / f"coach-{name}.tar")
        coach = Coach(cluster)
        coach.install()
        stage = Stage(cluster, coach)
        for run in todo:
            row = {key: str(value) for key, value in stage.run(run, _usual(rows, run.size, str(run.seed))).items()}
            rows.append(row)
            write_csv(out, rows)
            print(
                ", ".join(f"{key} {value}" for key, value in row.items() if value),
                file=sys.stderr,
                flush=True,
            )
        coach.uninstall()


def _usual(rows: Sequence[dict[str, Any]], size: str, seed: str = "") -> float:
    """Seconds that a job of a size takes undisturbed: with `seed`, on the machine as it was then."""
    calm = [row for row in rows if row["what"] == What.NOTHING and row["size"] == size]
    seconds = [float(row["seconds"]) for row in calm if not seed or row["seed"] == seed]
    return statistics.median(seconds) if seconds else 0.0


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write(rows: Sequence[dict[str, Any]], out: Path, command: str) -> None:
    """The table by fault and size; runs in which the job had no pod, or had ended, are not counted."""
    hit = [row for row in rows if row["struck"] or row["lost"] or row["what"] == What.NOTHING]
    table = []
    for what in What:
        for size in SIZES:
            of = [row for row in hit if (row["what"], row["size"]) == (what, size)]
            if not of:
                continue
            more = [float(row["seconds"]) - _usual(rows, size, row["seed"]) for row in of if not row["lost"]]
            repeated = [int(row["repeated"]) for row in of]
            table.append(
                {
                    "fault": what.value,
                    "workers x servers": size,
                    "jobs": len(of),
                    "epochs repeated, mean": round(statistics.mean(repeated), 2),
                    "at most": max(repeated),
                    "seconds longer, median": f"{statistics.median(more):.1f}" if more else "-",
                    "at most ": f"{max(more):.1f}" if more else "-",
                    "losses": sum(bool(row["lost"]) for row in of),
                }
            )
    seeds = ", ".join(sorted({row["seed"] for row in rows}, key=int))
    calm = ", ".join(f"{size}: {_usual(rows, size):.0f} s" for size in SIZES)
    note = (
        f"Jobs by fault, of the seeds {seeds}; {len(rows) - len(hit)} more, in which the fault came before the job\n"
        "had a pod or after its end, are not counted. A loss is another end than the target, an epoch missing or\n"
        "there twice, money that does not add up, or something left in the cluster. Undisturbed jobs took, in the\n"
        f"median, from `kubectl apply` until nothing of them was left: {calm}. A node comes back\n"
        f"after {AWAY:.0f} s if the handler or the scheduler was on it, else after the job's end. Each job is in\n"
        "[runs.csv](runs.csv)."
    )
    write_table(out.with_name("chaos.md"), "Faults at random instants on a cluster", command, table, note)


if __name__ == "__main__":
    sys.exit(main())
