"""The least mean completion time is the least, and policies come near it."""

import numpy as np
import pytest

from benchmarks.decisions.allocation import run_to_the_end
from benchmarks.decisions.completion_oracle import POLICIES, jobs_of, speeds_by_pods
from coach.core.cluster import Node, Resources
from coach.core.policies import ClusterView
from coach.plugins import policy
from tests.oracles.completion_times import least_mean_completion

LINEAR = np.arange(5.0)


def test_alone_a_job_takes_what_it_takes_with_all_pods() -> None:
    assert least_mean_completion([8.0], [LINEAR], 4) == 2.0
    assert least_mean_completion([8.0], [np.array([0.0, 1.0, 3.0, 2.0, 1.0])], 4) == pytest.approx(8 / 3)


def test_of_two_jobs_that_scale_perfectly_the_shorter_goes_first() -> None:
    """Both after another: 0.25 and 0.25 + 0.75; shared, the shorter would end at 0.5 and the longer still at 1."""
    assert least_mean_completion([1.0, 3.0], [LINEAR, LINEAR], 4) == pytest.approx((0.25 + 1.0) / 2)


def test_of_two_jobs_that_do_not_scale_each_gets_one_pod() -> None:
    flat = np.array([0.0, 1.0, 1.0, 1.0, 1.0])
    assert least_mean_completion([1.0, 3.0], [flat, flat], 4) == pytest.approx(2.0)


@pytest.mark.parametrize("seed", range(5))
def test_no_policy_is_below_the_least_and_mean_completion_is_ahead_of_optimus(seed: int) -> None:
    cluster = ClusterView((Node("node", Resources(8.31, 1e3)),))
    jobs = jobs_of(seed)
    epochs = [job.remaining_epochs.expected for job in jobs]
    least = least_mean_completion(epochs, [speeds_by_pods(job, 8) for job in jobs], 8)
    found = {name: run_to_the_end(jobs_of(seed), cluster, policy(name))[0] for name in POLICIES}
    assert min(found.values()) >= least * (1 - 1e-9)
    assert found["coach:mean-completion"] <= 1.16 * least
    assert found["coach:mean-completion"] <= found["optimus"] * 1.05
