"""The engine against queues whose answers are known, within 2 %; sizes as small as that allows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from coach.core.policies.api.policy import Policy
from coach_research.engine.cluster import Cluster
from coach_research.engine.event_engine import Engine
from coach_research.workload import NOTHING, FloatArray, Work
from tests.research.engine.policies import AtOnce, Fifo

pytestmark = pytest.mark.standard

ONE = np.array([1.0, 0.0, 0.0])
#: The allowed relative error.
NEAR = 0.02


def mean_sojourn(cluster: Cluster, policy: Policy, rate: float, services: FloatArray, worker: FloatArray) -> float:
    """Mean completion time of jobs that arrive as a Poisson stream; the first tenth is left out."""
    gaps = np.random.default_rng(11).exponential(1 / rate, len(services))
    arrivals = np.cumsum(gaps) * (len(gaps) / rate / gaps.sum())  # the stream's rate, exactly
    works = (Work(a, s, worker) for a, s in zip(arrivals.tolist(), services.tolist(), strict=True))
    record = Engine(cluster, works, policy).run()
    sojourn = record.column("finished") - record.column("arrived")
    return float(sojourn[len(sojourn) // 10 :].mean())


def exactly(mean: float, services: FloatArray) -> FloatArray:
    """Services whose mean is exactly `mean`: of what is drawn, only the order and the shape count."""
    return services * (mean / services.mean())


def test_one_server() -> None:
    services = exactly(1.0, np.random.default_rng(12).exponential(1.0, 60_000))
    ours = mean_sojourn(Cluster.uniform(1, 1), Fifo(), 0.5, services, ONE)
    assert ours == pytest.approx(1 / (1 - 0.5), rel=NEAR)


def test_several_servers() -> None:
    servers, load = 4, 0.7
    rate = servers * load
    services = exactly(1.0, np.random.default_rng(13).exponential(1.0, 60_000))
    ours = mean_sojourn(Cluster.uniform(servers, 1), Fifo(), rate, services, ONE)
    # Erlang C.
    top = rate**servers / math.factorial(servers) / (1 - load)
    waits = top / (sum(rate**n / math.factorial(n) for n in range(servers)) + top)
    assert ours == pytest.approx(1 + waits / (servers - rate), rel=NEAR)


@pytest.mark.parametrize("shape", ["deterministic", "hyperexponential"])
def test_processor_sharing_depends_on_the_mean_service_alone(shape: str) -> None:
    dice = np.random.default_rng(14)
    if shape == "deterministic":
        services = np.ones(20_000)
    else:
        services = exactly(1.0, np.where(dice.random(40_000) < 0.9, 0.5, 5.5) * dice.exponential(1.0, 40_000))
    ours = mean_sojourn(Cluster.uniform(1, 1, contention=0.0), AtOnce(), 0.5, services, NOTHING)
    assert ours == pytest.approx(1 / (1 - 0.5), rel=NEAR)
