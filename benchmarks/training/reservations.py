"""A reservation also limits its epoch's time: how often that cut an epoch, and how much money it tied up.

    python -m benchmarks.training.reservations [--histories 300]

Two sources, separate in the table: the full epochs of `benchmarks.training.static_baselines`
(results/reservations/epochs.csv), and simulated histories (`tests/core/lifecycle/random_histories.py`: random jobs,
prices and speeds, without faults) in which the time of each epoch is its expected one times a log-normal factor of 10
%, and every fiftieth takes two to four times as long.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from scipy.stats import beta

from benchmarks import harness
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.reasons import Reason
from coach.core.money import to_amount

COMMAND = "python -m benchmarks.training.reservations"
FOLDER = harness.RESULTS / "reservations"
#: Ends of an epoch that it would not have met with a later deadline.
CUTS = {Reason.DEADLINE_EXCEEDED, Reason.STALLED}
#: Simulated epochs: spread of their times, how many are slow, and how slow.
SPREAD, SLOW, SLOWER = 0.10, 0.02, (2.0, 4.0)


def epochs(history: Iterable[Any]) -> list[dict[str, Any]]:
    """A row for each attempt at an epoch: what was reserved, how long it might have taken, what it took and cost."""
    orders: dict[str, act.RunEpoch] = {}
    paid: dict[str, int] = {}
    rows = []
    for record in history:
        match record:
            case act.RunEpoch():
                orders[record.token] = record
            case act.Settle() if record.token in orders:
                paid[record.token] = paid.get(record.token, 0) + record.amount
            case ev.EpochFinished() | ev.EpochFailed() if record.token in orders:
                order = orders[record.token]
                predicted = order.predicted_seconds
                rows.append(
                    {
                        "token": order.token,
                        "kind": order.kind.value,
                        "allocation": str(order.allocation),
                        "predicted": "yes" if predicted else "no",
                        "bound": "budget" if order.budget_bound else "time",
                        "predicted_high": round(predicted[2], 3) if predicted else "",
                        "deadline": round(order.deadline, 3),
                        "seconds": round(record.at - order.at, 3),
                        "reserved": to_amount(order.reservation),
                        "ended": "finished" if isinstance(record, ev.EpochFinished) else record.reason.value,
                    }
                )
    for row in rows:
        row["paid"] = to_amount(paid.get(row["token"], 0))
    return rows


def keep(history: Iterable[Any], **labels: Any) -> None:
    """Add the epochs of a real run to results/reservations/epochs.csv."""
    rows = harness.Rows(FOLDER / "epochs.csv", ("token",))
    rows.add(*({**labels, **row} for row in epochs(history)))


def simulated(count: int) -> list[dict[str, Any]]:
    """Epochs of simulated histories without faults, but with slow epochs."""
    from tests.core.lifecycle.random_histories import SeededDraws, draw, play

    rows: list[dict[str, Any]] = []
    for number in range(count):
        scenario = draw(SeededDraws(f"reservations {number}"))
        scenario.faults.clear()
        for file in scenario.files:
            file["spec"].pop("timeLimit", None)  # it cuts epochs, too, by the user's choice
        rng = random.Random(number)
        for name, dynamics in scenario.dynamics.items():
            scenario.dynamics[name] = replace(
                dynamics,
                speed=_jittered(dynamics.speed, rng),
                fault=lambda order: None,
                pod=lambda pod, n: 0.5,
            )
        rows += epochs(play(scenario, shadow=False).history)
    return rows


def _jittered(speed: Any, rng: random.Random) -> Any:
    def epoch(workers: int, servers: int) -> float:
        slow = rng.uniform(*SLOWER) if rng.random() < SLOW else 1.0
        return float(speed(workers, servers)) / (math.exp(SPREAD * rng.gauss(0, 1)) * slow)

    return epoch


def _measured_before(rows: Iterable[dict[str, Any]]) -> list[bool]:
    """For each attempt, in their order, whether its job had an epoch with its allocation before."""
    known: dict[str, set[str]] = {}
    found = []
    for row in rows:
        job, _, number = row["token"].rpartition(".")
        if number == "1":
            known[job] = set()
        found.append(row["allocation"] in known.setdefault(job, set()))
        if row["ended"] == "finished":
            known[job].add(row["allocation"])
    return found


def _above(rows: Iterable[dict[str, Any]]) -> str:
    """Share of finished epochs with a prediction that took longer than its upper bound."""
    late = [float(row["seconds"]) > float(row["predicted_high"]) for row in rows if row["predicted_high"] != ""]
    return f"{statistics.fmean(late):.1%} of {len(late)}" if late else "-"


def summary(source: str, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line for each way in which the deadline was set."""
    lines = []
    rows = [{**row, "again": again} for row, again in zip(rows, _measured_before(rows), strict=True)]
    for predicted, bound in itertools.product((True, False), ("time", "budget")):
        group = [row for row in rows if (row["predicted"] == "yes") is predicted and row["bound"] == bound]
        done = [row for row in group if row["ended"] == "finished"]
        if not group:
            continue
        way = "when it would hang" if bound == "time" else "when the money ends"
        cut = [row for row in group if row["ended"] in {reason.value for reason in CUTS}]
        lines.append(
            {
                "epochs of": source,
                "deadline": way if predicted else f"{way}, nothing known yet",
                "epochs": len(group),
                "cut by it": f"{len(cut) / len(group):.2%}",
                "quantile, 95 % sure": f"{_quantile(len(cut), len(group)):.2%}",
                "above upper bound, measured before": _above(row for row in done if row["again"]),
                "a new allocation": _above(row for row in done if not row["again"]),
                "deadline / time, median": _median(done, "deadline", "seconds"),
                "reserved / paid, median": _median(done, "reserved", "paid"),
            }
        )
    return lines


def _quantile(cut: int, count: int) -> float:
    """The quantile of an epoch's time that the deadline is at least, 95 % sure, if it cut so many (Clopper-Pearson)."""
    return float(beta.ppf(0.05, count - cut, cut + 1)) if cut < count else 0.0


def _median(rows: Sequence[dict[str, Any]], above: str, below: str) -> float:
    ratios = [float(row[above]) / float(row[below]) for row in rows if float(row[below]) > 0]
    return statistics.median(ratios) if ratios else math.nan


def write(count: int) -> None:
    """Write results/reservations/reservations.md."""
    table = []
    real = harness.Rows(FOLDER / "epochs.csv", ("token",)).rows
    if real:
        table += summary("benchmarks.training.static_baselines", real)
    table += summary(f"{count} simulated histories", simulated(count))
    harness.write_table(
        FOLDER / "reservations.md",
        "How often an epoch was cut by its reservation, and how much money it tied up",
        COMMAND,
        table,
        "What is reserved beyond what is paid is given back when the epoch ends. Until then no other epoch of the job "
        "could use it, and none runs; other jobs have budgets of their own. An epoch whose deadline is when the money "
        "ends is started because its predicted upper bound is still covered.",
    )


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--histories", type=int, default=300)
    write(parser.parse_args().histories)
    print((FOLDER / "reservations.md").read_text())


if __name__ == "__main__":
    main()
