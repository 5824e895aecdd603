"""The thesis's question (sections 4.5 and 5): what does it gain to place a job's pods as a gang?

Jobs that start together ask for their pods on the thesis's three nodes of 32 cores, under its own policy (`thesis`), in
the reducer. Only the placement differs: pod by pod as the stock kube-scheduler, pod by pod with the thesis's three
rules, or as a gang. *Tightness* is what all jobs need at least, three pods each, divided by the pods for which the
nodes have room. At the thesis's own load it is near 0: its functions requested no cores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
from matplotlib.figure import Figure

from coach import plugins
from coach.core.cluster import Node, PodId, Resources
from coach.core.spec.job import TrainingJob
from coach.simulation.dynamics.measured_speeds import shipped
from coach.simulation.dynamics.synthetic import assumed, job_file
from coach_research.platforms.kube_scheduler import parse_placement
from coach_research.pod_by_pod_driver import PodByPodDriver
from coach_research.workload import FloatArray

#: A job's fewest pods: a scheduler, a server and a worker.
FEWEST = 3
#: The measures of a cell and placement, and their column headings.
COLUMNS = {
    "deadlock": "runs that stand still, %",
    "half": "half-placed, min a job",
    "wait": "wait for the first epoch, s",
    "epoch": "seconds an epoch",
    "first": "first, min",
    "mean": "mean, min",
    "last": "last, min",
}


class Watched(PodByPodDriver):
    """Measures how long jobs hold some of their pods and wait for a node for the others."""

    half_placed = 0.0
    _seen = 0.0

    def _tick(self) -> None:
        passed, self._seen = self.now - self._seen, self.now
        for pods in self.standing.values():
            placed = [bool(pod.pod.node) for pod in pods.values() if not pod.leaving]
            self.half_placed += passed * (any(placed) and not all(placed))

    def send(self, event: Any) -> Any:
        """See `PodByPodDriver`."""
        self._tick()
        return super().send(event)

    def _place(self) -> None:
        self._tick()
        super()._place()

    def _remove(self, pod: PodId) -> None:
        self._tick()
        super()._remove(pod)


def replicate(parameters: dict[str, Any], seed: int) -> dict[str, float]:
    """Each cell (jobs, cores a pod) under each placement, with the same jobs and noise."""
    measures: dict[str, float] = {}
    for jobs, cores in parameters["cells"]:
        for placement in parameters["placements"]:
            found = run(parameters, jobs, cores, placement, seed)
            measures |= {f"{cell(jobs, cores)} {placement}: {name}": value for name, value in found.items()}
    return measures


def cell(jobs: int, cores: float) -> str:
    """How a cell is called."""
    return f"{jobs} jobs, {cores:g} cores a pod"


def tightness(parameters: Mapping[str, Any], jobs: int, cores: float) -> float:
    """What all jobs need at least, in parts of what fits."""
    return float(FEWEST * jobs / (parameters["nodes"] * math.floor(parameters["cores"] / cores)))


def run(parameters: Mapping[str, Any], jobs: int, cores: float, placement: str, seed: int) -> dict[str, float]:
    """One run; completion times are NaN where a job never ends."""
    nodes = [Node(f"node-{n}", Resources(parameters["cores"], 56.0)) for n in range(parameters["nodes"])]
    driver = Watched(
        nodes,
        plugins.policy(parameters["policy"]),
        seed=seed,
        default=parse_placement(parameters["placements"][placement]),
    )
    for number in range(jobs):
        file = job_file(f"{chr(ord('a') + number)}{number}", parameters["most"])
        request = {"cpu": f"{cores:g}", "memory": "1Gi"}
        file["spec"]["resources"] = dict.fromkeys(("scheduler", "server", "worker"), request)
        dynamics = replace(
            assumed(
                TrainingJob.from_json(file),
                shipped()[parameters["model"]],
                parameters["epoch_seconds"],
                parameters["epochs"],
            ),
            pod_seconds=parameters["pod_seconds"],
        )
        driver.submit_at(0.0, file["metadata"]["name"], file, dynamics)
    driver.run()
    ended = list(driver.ended.values())
    ends = np.array([one.ended for one in ended]) if not driver.left else np.full(1, math.nan)
    starts = [one.started for one in (*ended, *driver.left.values()) if not math.isnan(one.started)]
    epochs = sum(one.epochs for one in ended)
    return {
        "deadlock": 100.0 * bool(driver.left),
        "half": driver.half_placed / 60 / jobs,
        "wait": float(np.mean(starts)) if starts else math.nan,
        "epoch": sum(one.trained for one in ended) / epochs if epochs else math.nan,
        "first": float(ends.min()) / 60,
        "mean": float(ends.mean()) / 60,
        "last": float(ends.max()) / 60,
    }


def table(results: Mapping[str, FloatArray], parameters: Mapping[str, Any]) -> str:
    """A row a cell and placement, by tightness, as Markdown: means; completion of runs that end, with how many do."""
    from scipy.stats import binomtest

    lines = [
        f"| tightness | cell | placement | {' | '.join(COLUMNS.values())} |",
        f"| ---: | --- | --- |{' ---: |' * len(COLUMNS)}",
    ]
    for jobs, cores in _by_tightness(parameters):
        for placement in parameters["placements"]:
            cells = []
            for key in COLUMNS:
                values = results[f"{cell(jobs, cores)} {placement}: {key}"]
                known = values[~np.isnan(values)]
                if key == "deadlock":
                    stuck = int((values > 0).sum())
                    wilson = binomtest(stuck, len(values)).proportion_ci(method="wilson")
                    cells.append(f"{values.mean():.0f} ({100 * wilson.low:.0f}..{100 * wilson.high:.0f})")
                else:
                    cells.append(f"{known.mean():.3g}" if len(known) else "")
            at = tightness(parameters, jobs, cores)
            lines.append(f"| {at:.2f} | {cell(jobs, cores)} | {placement} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _by_tightness(parameters: Mapping[str, Any]) -> list[tuple[int, float]]:
    cells = [(int(jobs), float(cores)) for jobs, cores in parameters["cells"]]
    return sorted(cells, key=lambda one: (tightness(parameters, *one), one))


def figures(results: Mapping[str, FloatArray], parameters: Mapping[str, Any]) -> dict[str, Figure]:
    """Runs that stand still against tightness, a line a placement, with 1.0 and the thesis's own load marked."""
    figure = Figure(figsize=(6.5, 3.8), layout="constrained")
    axes = cast(Any, figure.subplots())
    colours = {"stock": "#0072B2", "thesis": "#E69F00", "gang": "#009E73"}
    for placement, marker in zip(parameters["placements"], "os^", strict=False):
        cells = _by_tightness(parameters)
        at = [tightness(parameters, *one) for one in cells]
        share = [results[f"{cell(*one)} {placement}: deadlock"].mean() for one in cells]
        axes.plot(at, share, marker, color=colours.get(placement), label=placement, alpha=0.8)
    axes.axvline(1.0, color="0.6", linestyle=":")
    axes.set_xlabel("tightness: three pods a job, in parts of the room (the thesis's own load: near 0)")
    axes.set_ylabel("runs that stand still, %")
    axes.set_ylim(-3, 103)
    axes.legend()
    return {"tightness": figure}
