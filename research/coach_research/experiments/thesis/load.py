"""The thesis's own load (table 2): one, two and three jobs on three nodes of 32 cores, with room for all.

Its functions requested no cores, so every pod fits anywhere, and a scheduler can only decide what is near what. Here
the rows of table 2 run in the reducer under each placement, with the epochs that the thesis's runs recorded
(`thesis_recorded.yaml`), and with a network that costs nothing or what the gradients of remote pairs of worker and
server take on the fuller cable. What is compared is seconds an epoch: completion times
vary with the number of epochs, on which a scheduler has no hold (`results/thesis/logs.md`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, cast

import numpy as np
import yaml
from matplotlib.figure import Figure

from coach import plugins
from coach.core.cluster import Node, Resources, Role
from coach.core.jobs import actions as act
from coach.core.jobs.epoch import EpochKind
from coach.simulation.dynamics.job_dynamics import JobDynamics
from coach.simulation.dynamics.synthetic import falling, job_file
from coach_research.experiment import t95
from coach_research.platforms.kube_scheduler import parse_placement
from coach_research.pod_by_pod_driver import PodByPodDriver
from coach_research.workload import FloatArray

#: Samples of an epoch, and bytes of a network's gradients (431,080 and 11.2 million weights of 4 bytes).
SAMPLES = {"lenet": 60_000, "resnet18": 25_000}
BYTES = {"lenet": 1.72e6, "resnet18": 44.8e6}


@cache
def recorded() -> dict[str, Any]:
    """The means of the thesis's static runs, by model."""
    text = (resources.files("coach.simulation") / "data" / "thesis_recorded.yaml").read_text()
    data: dict[str, Any] = yaml.safe_load(text)
    return data


class Networked(PodByPodDriver):
    """Adds what remote pairs of worker and server send to the seconds of an epoch, and counts the pairs on one node.

    A step sends a worker's gradients to all servers, an equal part to each, and its weights back. Other jobs' traffic
    is not counted.
    """

    def __init__(self, *arguments: Any, model: str, batch: float, bandwidth: float, **more: Any) -> None:
        self._bytes, self._batch, self._bandwidth = BYTES[model], batch, bandwidth
        self.pairs, self.together = 0, 0
        super().__init__(*arguments, **more)

    def _network_seconds(self, order: act.RunEpoch, samples: int) -> float:
        place = {pod.role: [] for pod in order.pods}  # type: dict[Role, list[str]]
        for pod in order.pods:
            place[pod.role].append(self.standing[order.job][pod].pod.node)
        workers, servers = place[Role.WORKER], place[Role.SERVER]
        sent: dict[str, float] = defaultdict(float)
        for worker in workers:
            for server in servers:
                self.pairs += 1
                self.together += worker == server
                if worker != server:
                    sent[worker] += 2 * self._bytes / len(servers)
                    sent[server] += 2 * self._bytes / len(servers)
        steps = samples / (self._batch * len(workers))
        return steps * max(sent.values(), default=0.0) / self._bandwidth


def replicate(parameters: dict[str, Any], seed: int) -> dict[str, float]:
    """Each row of table 2 under each network and placement, with the same noise."""
    measures: dict[str, float] = {}
    for row, what in parameters["rows"].items():
        for network, batches in parameters["networks"].items():
            for placement in parameters["placements"]:
                found = run(parameters, what, batches, placement, seed)
                name = f"{row}, network {network}, {placement}"
                measures |= {f"{name}: {key}": value for key, value in found.items()}
    return measures


def run(
    parameters: Mapping[str, Any],
    what: Mapping[str, Any],
    batches: Mapping[str, float],
    placement: str,
    seed: int,
) -> dict[str, float]:
    """One run: seconds an epoch, pairs on one node (%), mean, first and last completion (s)."""
    model, jobs = what["model"], what["jobs"]
    record = recorded()[model]
    nodes = [Node(f"node-{n}", Resources(32.0, 56.0)) for n in range(3)]
    driver = Networked(
        nodes,
        plugins.policy("thesis"),
        seed=seed,
        default=parse_placement(parameters["placements"][placement]),
        model=model,
        batch=batches.get(model, 1.0),
        bandwidth=parameters["bandwidth"] if batches else math.inf,
    )
    between = float(record["seconds_between_epochs"][jobs])
    seconds = {tuple(map(int, at.split("x"))): value for at, value in record["epoch_seconds"].items()}
    for number in range(jobs):
        policy = None if what["dynamic"] else {"name": "static", "workers": 2, "servers": 2}
        file = job_file(f"{model}-{number}", 2, policy=policy)
        request = {"cpu": f"{parameters['cores']:g}", "memory": "1Gi"}
        file["spec"]["resources"] = dict.fromkeys(("scheduler", "server", "worker"), request)
        dynamics = JobDynamics(
            lambda w, s: 1.0 / float(seconds[w, s]),
            falling(2.5, 0.3, parameters["epochs"][model]),
            data_size=SAMPLES[model],
            new_group_seconds=between,
            same_group_seconds=between,
            evaluate_seconds=0.0,
            pod_seconds=parameters["pod_seconds"],
            speed_noise=float(record["epoch_noise"]),
        )
        driver.submit_at(0.0, file["metadata"]["name"], file, dynamics)
    driver.run()
    ends = np.array([one.ended for one in driver.ended.values()])
    epochs = [
        epoch.seconds for one in driver.ended.values() for epoch in one.final.epochs if epoch.kind is EpochKind.FULL
    ]
    return {
        "seconds an epoch": float(np.mean(epochs)),
        "pairs on one node, %": 100.0 * driver.together / driver.pairs,
        "mean completion, s": float(ends.mean()),
        "first, s": float(ends.min()),
        "last, s": float(ends.max()),
    }


def table(results: Mapping[str, FloatArray], parameters: Mapping[str, Any]) -> str:
    """A row of table 2 and network a line, as Markdown: seconds an epoch, paired with the first placement."""
    first, *others = parameters["placements"]
    head = [
        "row", "network", f"{first}: s an epoch", *(f"{other}, %" for other in others),
        *(f"{name}: pairs on one node, %" for name in parameters["placements"]), f"{first}: mean completion, s",
        *(f"{other}, s" for other in others), "printed: stock, thesis's, s",
    ]  # fmt: skip
    lines = [f"| {' | '.join(head)} |", f"| --- | --- |{' ---: |' * (len(head) - 2)}"]
    for row, what in parameters["rows"].items():
        for network in parameters["networks"]:

            def of(placement: str, key: str, at: str = f"{row}, network {network}") -> FloatArray:
                return results[f"{at}, {placement}: {key}"]

            cells = [row, network, f"{of(first, 'seconds an epoch').mean():.1f}"]
            for other in others:
                mean, half = _change(results, f"{row}, network {network}", first, other)
                cells.append(f"{mean:+.1f} ± {half:.1f}")
            for key, form in (("pairs on one node, %", ".0f"), ("mean completion, s", ".0f")):
                cells += [f"{of(name, key).mean():{form}}" for name in parameters["placements"]]
            cells.append(", ".join(map(str, what["printed"])) if network == next(iter(parameters["networks"])) else "")
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _change(results: Mapping[str, FloatArray], at: str, first: str, other: str) -> tuple[float, float]:
    """How much longer epochs are than under the first placement, %, and half of its 95 % interval."""
    change = 100 * (results[f"{at}, {other}: seconds an epoch"] / results[f"{at}, {first}: seconds an epoch"] - 1)
    half = t95(len(change)) * change.std(ddof=1) / math.sqrt(len(change)) if len(change) > 1 else 0.0
    return float(change.mean()), float(half)


def figures(results: Mapping[str, FloatArray], parameters: Mapping[str, Any]) -> dict[str, Figure]:
    """Seconds an epoch against the first placement's, by row of table 2, with the last of the networks."""
    figure = Figure(figsize=(6.5, 4.2), layout="constrained")
    axes = cast(Any, figure.subplots())
    first, *others = parameters["placements"]
    *_, network = parameters["networks"]
    rows = list(parameters["rows"])
    for number, (other, colour) in enumerate(zip(others, ("#E69F00", "#009E73"), strict=False)):
        changes = [_change(results, f"{row}, network {network}", first, other) for row in rows]
        at = [len(rows) - index - 0.2 * number for index in range(len(rows))]
        means, halves = zip(*changes, strict=True)
        axes.errorbar(means, at, xerr=halves, fmt="o", color=colour, label=other, capsize=2)
    axes.axvline(0.0, color="0.6", linestyle=":")
    axes.set_yticks([len(rows) - index for index in range(len(rows))], rows)
    axes.set_xlabel(f"seconds an epoch against {first}'s, %, network {network}")
    axes.legend()
    return {"epochs": figure}
