"""The policy dl2: its file, and DRF in place of a network that does not decide."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coach.core.cluster import Allocation
from coach.core.errors import UserError
from coach.core.policies.api.allocation import Reason
from coach.plugins import policy
from coach_research.policies.dl2.network import Network
from coach_research.policies.dl2.policy import Dl2Policy
from tests.core.policies.policy_examples import Job, cluster

JOBS = [Job("a"), Job("b", created=1.0)]


def dl2() -> Dl2Policy:
    found = policy("dl2")
    assert isinstance(found, Dl2Policy)
    return found


def changed(**arrays: object) -> Dl2Policy:
    network = dl2().network
    return replace(dl2(), network=replace(network, weights={**network.weights, **arrays}))


def test_a_job_gets_its_minimum_and_what_the_network_gives() -> None:
    decision = dl2().allocate(JOBS, cluster(100))
    for job in JOBS:
        at = decision.allocations[job.id]
        assert at is not None
        assert job.minimum <= at
        assert at.workers <= 4
        assert at.servers <= 4
    assert {step.reason for step in decision.steps} == {Reason.LEARNED}


def test_a_network_that_says_void_at_once_leaves_the_minimum() -> None:
    decision = changed(b3=np.array([1e6], np.float32)).allocate(JOBS, cluster(100))
    assert set(decision.allocations.values()) == {Allocation(1, 1)}


def test_a_network_that_never_says_void_ends_where_nothing_is_possible() -> None:
    decision = changed(b3=np.array([-1e6], np.float32)).allocate(JOBS, cluster(100))
    assert set(decision.allocations.values()) == {Allocation(4, 4)}


@pytest.mark.parametrize("b2", [np.full(3, np.nan, np.float32), np.full(3, np.inf, np.float32)])
def test_scores_that_are_no_numbers_leave_the_decision_to_drf(b2: np.ndarray) -> None:
    decision = changed(b2=b2).allocate(JOBS, cluster(12))
    assert decision.allocations == policy("drf").allocate(JOBS, cluster(12)).allocations
    assert {step.reason for step in decision.steps} == {Reason.FALLBACK}


def test_a_network_that_finds_no_end_leaves_the_decision_to_drf() -> None:
    jobs = [Job("a", maximum=Allocation(500, 500))]
    decision = changed(b3=np.array([-1e6], np.float32), w3=np.zeros_like(dl2().network.weights["w3"])).allocate(
        jobs, cluster(10_000)
    )
    assert decision.allocations == policy("drf").allocate(jobs, cluster(10_000)).allocations
    assert decision.steps[0].reason is Reason.FALLBACK


def test_jobs_without_servers_get_workers_only() -> None:
    jobs = [Job("a", minimum=Allocation(1, 0), maximum=Allocation(4, 0))]
    at = dl2().allocate(jobs, cluster(100)).allocations["a"]
    assert at is not None
    assert at.servers == 0


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    network = dl2().network
    path = tmp_path / "mine.npz"
    path.write_bytes(network.to_bytes())
    made = policy(f"dl2:{path}")
    assert made.name == f"dl2:weights={path}"
    assert policy(made.name).allocate(JOBS, cluster(30)).allocations == made.allocate(JOBS, cluster(30)).allocations
    assert Network.from_bytes(path.read_bytes()).to_bytes() == network.to_bytes()
    assert made.allocate(JOBS, cluster(30)).allocations == dl2().allocate(JOBS, cluster(30)).allocations


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no such weights; a file that ends in .npz"),
        (b"", "cannot be read.*no file of"),
        (b"PK", "cannot be read.*no file of"),
        (b"text", "cannot be read.*no file of"),
    ],
)
def test_a_file_that_is_none_is_said(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "bad.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=f"bad.npz.*{said}"):
        policy(f"dl2:{path}")


def test_weights_of_another_shape_or_format_are_said(tmp_path: Path) -> None:
    network = dl2().network
    path = tmp_path / "bad.npz"
    path.write_bytes(replace(network, kinds=("one",)).to_bytes())
    with pytest.raises(UserError, match="shapes"):
        policy(f"dl2:{path}")
    path.write_bytes(replace(network, about={"format": 9}).to_bytes())
    with pytest.raises(UserError, match="format is 9, wanted 1"):
        policy(f"dl2:{path}")
    path.write_bytes(replace(network, slot=0.0).to_bytes())
    with pytest.raises(UserError, match="its slot is 0"):
        policy(f"dl2:{path}")
    path.write_bytes(changed(b3=np.array([np.nan], np.float32)).network.to_bytes())
    with pytest.raises(UserError, match="not all of its weights"):
        policy(f"dl2:{path}")
