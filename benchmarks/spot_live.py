"""The published traces again, under the code that decides live: a program with `spec.spot` in the simulated cluster.

    python -m benchmarks.spot_live FOLDER/availability/1-node/aws-02-15-2023 [--write results/spot-live.md]

Work, prices and speeds are those of `benchmarks.decisions.spot`. A job is 240 epochs of 12 minutes of one worker; one
under way is lost with its node. Its speeds are measured as it trains. Each start of its program takes 6 minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.decisions.spot import CHANGE, SPEEDS, SPOT, WORK, given, say, starts
from coach.core.cluster import Instance, Node, Resources
from coach.core.jobs import events as ev
from coach.core.jobs.reasons import Reason
from coach.core.money import NANO
from coach.core.policies.coach import CoachPolicy
from coach.simulation.dynamics.job_dynamics import JobDynamics
from coach.simulation.reducer_simulation import Driver
from coach_research.spot_traces import Trace

HOUR, HAS = 3600.0, Resources(1.0, 1.0)
EPOCHS = 240
#: Hours of the deadline, workers at most, and the budget in on-demand costs; None: unlimited.
ROWS = ((52.0, 1, None), (52.0, 4, None), (52.0, 4, 1.05), (92.0, 4, None))


class OnTrace(Driver):
    """A cluster whose spot nodes are there when the trace says so."""

    def __init__(self, trace: Trace, start: int) -> None:
        self._spot = tuple(Node(f"spot-{n}", HAS, Instance(SPOT, 1.0, 1.0), spot=True) for n in range(len(SPEEDS)))
        others = tuple(Node(f"other-{n}", HAS, Instance(1.0, 1.0, 1.0)) for n in range(len(SPEEDS)))
        self._there = trace.machines[start:] > 0
        self._step = trace.step * HOUR
        super().__init__((*self._spot, *others), CoachPolicy())
        self.send(self._look(0))

    def _look(self, tick: int) -> ev.Event:
        """The nodes at a tick, and the next change."""
        later = np.flatnonzero(self._there[tick:] != self._there[tick])
        if len(later):
            after = tick + int(later[0])
            self.at(after * self._step, lambda: self._look(after))
        names = {node.name for node in self._spot}
        self._unavailable = set() if self._there[tick] else names
        if self._unavailable:
            for pod in self._empty(names):
                self._next(ev.PodLost(self.now, pod.job, pod, Reason.DISRUPTED, "the trace has no machine"))
        return ev.NodesChanged(self.now, tuple(sorted(self._unavailable)))


def document(deadline: float, workers: int, budget: float | None) -> dict[str, Any]:
    """The job file."""
    money = {"unlimited": True} if budget is None else {"amount": budget * WORK, "currency": "USD"}
    spec = {
        "program": {"command": ["train"], "resumes": True},
        "budget": money,
        "maxEpochs": EPOCHS,
        "prices": "nodes",
        "spot": {"deadline": f"{deadline:g}h"},
        "workers": {"min": 1, "max": workers},
        "resources": {"worker": {"cpu": "1", "memory": "1Gi"}},
    }
    return {"apiVersion": "coach.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "job"}, "spec": spec}


def run(trace: Trace, start: int, deadline: float, workers: int, budget: float | None) -> tuple[float, float]:
    """What a job costs in on-demand costs, and the hours that it takes; infinite where it does not end."""
    driver = OnTrace(trace, start)
    epoch = WORK / EPOCHS * HOUR
    dynamics = JobDynamics(
        lambda w, _: SPEEDS[w - 1] / epoch,
        lambda _: 1.0,
        new_group_seconds=CHANGE * HOUR,
        same_group_seconds=0.0,
        evaluate_seconds=0.0,
        pod_seconds=0.0,
        release_seconds=0.0,
        fit_seconds=0.0,
    )
    driver.submit_at(0.0, "job", document(deadline, workers, budget), dynamics)
    while "job" not in driver.ended and driver.now < 2 * deadline * HOUR and driver.step():
        pass
    found = driver.ended.get("job")
    if found is None:
        return driver.reducer.jobs["job"].money.ledger.spent / NANO / WORK, float("inf")
    return found.spent / WORK, (found.ended / HOUR if found.epochs >= EPOCHS else float("inf"))


def table(traces: Sequence[Trace], every: float) -> str:
    """Markdown: a row a deadline, a number of workers and a budget."""
    each = starts(traces, every)
    lines = [
        f"{len(each)} runs of {WORK:g} h of work a row: {len(traces)} zones, a start every {every:g} h.",
        "Costs and budgets are in what one on-demand worker costs.",
        "",
        "| deadline | workers | budget | mean cost | highest | late | over budget |",
        "| --- | --- | --- |" + " ---: |" * 4,
    ]
    for deadline, workers, budget in ROWS:
        found = np.array([run(trace, start, deadline, workers, budget) for trace, start in each])
        costs, late = found[:, 0], int((found[:, 1] > deadline).sum())
        over = "-" if budget is None else int((costs > budget + 1e-9).sum())
        said = "unlimited" if budget is None else f"{budget:g}"
        lines.append(
            f"| {deadline:g} h | 1 to {workers} | {said} | {costs.mean():.3f} | {costs.max():.2f} | {late} | {over} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the table, or write it."""
    asked = given(__doc__)
    say(f"# Spot nodes by the code that decides live\n\n{table(asked.traces, asked.every)}\n", asked.write)


if __name__ == "__main__":
    main()
