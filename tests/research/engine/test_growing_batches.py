"""Jobs whose speed changes with their epochs, and whose starts take time."""

from __future__ import annotations

import numpy as np
import pytest

from coach_research.engine.cluster import Cluster
from coach_research.engine.event_engine import Engine
from coach_research.policies.rounds.gavel import Gavel
from coach_research.workload import Work
from tests.research.engine.policies import Fifo


def job(arrival: float, epochs: float, paces: tuple[tuple[int, float], ...] = (), start: float = 0.0) -> Work:
    return Work(arrival, epochs, np.array([1.0, 0.0, 0.0]), speed=lambda _: 0.1, paces=paces, start_seconds=start)


def test_a_job_trains_at_the_pace_of_its_epochs() -> None:
    """Four epochs of 10 s, three of 5 s, one of 20 s; a start takes 7 s."""
    works = [job(0.0, 8, ((4, 2.0), (7, 0.5)), 7.0)]
    record = Engine(Cluster.uniform(1, 1), works, Fifo()).run()  # type: ignore[arg-type]
    assert record.column("finished").tolist() == pytest.approx([7 + 4 * 10 + 3 * 5 + 20])
    assert record.column("executed").tolist() == pytest.approx([75])


def test_a_preempted_job_keeps_the_pace_of_its_epochs_and_pays_for_each_start() -> None:
    """Two jobs share a core in rounds of 50 s; each needs 10 epochs of 10 s and 20 of 5 s, and pays 5 s a start."""
    works = [job(0.0, 30, ((10, 2.0),), 5.0) for _ in range(2)]
    record = Engine(Cluster.uniform(1, 1), works, Gavel(round=50.0)).run()
    starts = record.column("preemptions") + 1
    finished = record.column("finished")
    assert (starts > 1).all()
    # The core is never idle until the last one ends, but for the rest of the round in which the first one does.
    assert 0 <= finished.max() - (2 * 200 + 5 * starts.sum()) <= 50
