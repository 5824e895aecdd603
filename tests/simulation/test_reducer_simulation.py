"""Coach in virtual time is the reducer itself, with its money, its probes and its answers to failures."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import pytest

from coach.core.cluster import Node, Resources
from coach.core.estimation.cost import USUAL_CALLS, USUAL_CALLS_PER_SECOND
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.epoch import EpochKind
from coach.core.jobs.reasons import Reason, State
from coach.core.lifecycle.reducer import Reducer
from coach.core.policies.api.allocation import AllocationDecision, ClusterView, JobView
from coach.core.policies.coach import CoachPolicy
from coach.handler.state.codec import encode
from coach.plugins import policy
from coach.simulation.dynamics.job_dynamics import JobDynamics
from coach.simulation.faults import Faults
from coach.simulation.reducer_simulation import Driver
from coach.studies.simulation_inputs import elastic_rescale
from tests.core.lifecycle.faulty_cluster import nodes, spec, usd

pytestmark = pytest.mark.standard

DYNAMICS = JobDynamics(
    lambda w, s: 0.1 * w / (1 + 0.15 * (w - 1) + 0.1 * w / s),
    lambda x: 1 / (0.4 * x + 0.5) + 0.1,
    speed_noise=0.02,
)


def life(seed: int = 1, jobs: int = 2, **more: object) -> tuple[Driver, list[object]]:
    records: list[object] = []
    driver = Driver(nodes(2, 4), policy("coach"), seed=seed, journal=records.append, **more)  # type: ignore[arg-type]
    for number in range(jobs):
        driver.submit_at(10.0 * number, f"job-{number}", spec(f"job-{number}", budget=usd(1.0)), DYNAMICS)
    driver.run()
    return driver, records


def test_jobs_come_to_their_targets_within_their_budgets() -> None:
    driver, _ = life()
    for ended in driver.ended.values():
        assert (ended.state, ended.reason) == (State.SUCCEEDED, Reason.TARGET_REACHED)
        assert 0 < ended.spent <= 1.0
        assert ended.overshoot == 0
        assert ended.probes > 0
        assert DYNAMICS.loss(ended.epochs_trained) <= 0.3


def test_a_change_costs_what_elastic_servers_take_where_that_is_said() -> None:
    ended = {}
    for rescale in (None, 0.09):
        driver = Driver(nodes(1, 4), policy("coach"), seed=1)
        dynamics = replace(DYNAMICS, new_group_seconds=30.0, rescale_seconds=rescale)
        driver.submit_at(0.0, "job", spec("job", budget=usd(1.0)), dynamics)
        driver.run()
        ended[rescale] = driver.ended["job"]
    assert ended[None].changes > 0 and ended[0.09].changes > 0
    # The first group is formed in both.
    assert 30.0 < ended[0.09].ended < ended[None].ended - 30.0 * (ended[None].changes - 1)


def test_the_price_of_a_change_grows_with_the_weights_as_measured() -> None:
    prices = [elastic_rescale(millions) for millions in (0.1, 0.4, 10.0, 25.0, 100.0)]
    assert prices == sorted(prices)
    assert (prices[2], prices[3], elastic_rescale()) == (0.09, 0.187, 0.09)
    assert prices[4] == pytest.approx(4 * 0.187)


@pytest.mark.parametrize("framework", ["mxnet", "pytorch"])
def test_a_preempted_elastic_job_leaves_its_room_to_a_trial_within_its_epoch(framework: str) -> None:
    elastic = framework == "pytorch"
    servers = {"min": 0, "max": 0} if elastic else {"min": 1, "max": 1}
    common = {"framework": framework, "budget": usd(5.0), "servers": servers}
    records: list[object] = []
    driver = Driver(nodes(1, 4), policy("fitgpp"), seed=1, journal=records.append)
    slow = JobDynamics(lambda w, s: 0.002 * w, lambda x: 1 / (0.4 * x + 0.5) + 0.1)
    driver.submit_at(0.0, "long", spec("long", workers={"min": 3, "max": 3}, **common), slow)
    trial = {"class": "trial-and-error", "workers": {"min": 1, "max": 1}, "maxEpochs": 1}
    driver.submit_at(1050.0, "trial", spec("trial", **trial, **common), replace(slow, speed=lambda w, s: 0.1 * w))
    driver.run()
    stops = [each for each in records if isinstance(each, act.StopEpoch)]
    ended = driver.ended["long"].final
    cut = [each for each in ended.epochs if each.kind is EpochKind.FULL and each.fraction < 1]
    assert not any(isinstance(each, ev.EpochFailed) for each in records)
    assert sum(epoch.report.samples for epoch in ended.epochs) == ended.progress.position
    began = next(each.at for each in records if isinstance(each, act.RunEpoch) and each.job == "trial")
    assert [each.reason for each in stops] == [Reason.DISRUPTED] * elastic
    assert (began < 1065.0) == (len(cut) == 1) == elastic, (began, cut)


def test_the_same_seed_gives_the_same_journal_to_the_byte() -> None:
    one, two, other = (
        [encode(record) for record in life(seed)[1]]  # type: ignore[arg-type]
        for seed in (1, 1, 2)
    )
    assert one == two != other


def test_what_a_job_pays_is_what_its_pods_held() -> None:
    driver, _ = life(jobs=1)
    ended = driver.ended["job-0"]
    book = ended.final.spec.price_book
    # Billed from the first epoch to the release, and each call: less than what the pods held, and nearly that.
    held = book.rate(ended.held)
    calls = sum(50 for _ in ended.final.epochs) * 4 * book.invocation
    assert 0.9 * held < ended.spent < held + calls + 1e-6


def test_changes_are_counted_from_one_epoch_to_the_next() -> None:
    driver, records = life()
    for name, ended in driver.ended.items():
        begun = [one.allocation for one in records if isinstance(one, act.RunEpoch) and one.job == name]
        assert ended.attempts == len(begun) == len(ended.final.epochs)
        assert ended.changes == sum(before != after for before, after in itertools.pairwise(begun)) > 0


def test_a_function_that_dies_costs_an_attempt_and_not_the_job() -> None:
    driver, records = life(faults=Faults(1, function_lost=60.0))
    lost = [record for record in records if isinstance(record, ev.PodLost)]
    assert lost
    for ended in driver.ended.values():
        assert ended.state is State.SUCCEEDED
    assert sum(ended.attempts - ended.epochs - ended.probes for ended in driver.ended.values()) == len(
        [record for record in records if isinstance(record, ev.EpochFailed)]
    )


@pytest.mark.parametrize("name", ["coach", "drf", "srtf", "kod2"])
def test_nodes_that_are_lost_cost_attempts_and_no_pod_is_on_them(name: str) -> None:
    records: list[object] = []
    faults = Faults(2, node_lost=60.0, node_back=30.0)
    driver = Driver(nodes(3, 4), policy(name), faults=faults, journal=records.append)
    for number in range(3):
        driver.submit_at(10.0 * number, f"job-{number}", spec(f"job-{number}", budget=usd(1.0)), DYNAMICS)
    driver.run()
    assert driver.nodes_lost > 3
    assert any(isinstance(record, ev.PodLost) for record in records)
    unavailable: tuple[str, ...] = ()
    for record in records:
        if isinstance(record, ev.NodesChanged):
            unavailable = record.unavailable
        elif isinstance(record, act.DeployPods):
            assert not {pod.node for pod in record.pods} & set(unavailable)
    assert {ended.state for ended in driver.ended.values()} <= {State.SUCCEEDED, State.FAILED}
    assert any(ended.state is State.SUCCEEDED for ended in driver.ended.values())
    assert all(ended.overshoot == 0 for ended in driver.ended.values())


def test_a_job_waits_for_the_only_node_that_can_hold_it() -> None:
    records: list[object] = []
    small, large = Node("small", Resources(1.0, 64.0)), Node("large", Resources(8.0, 64.0))
    faults = Faults(4, node_lost=80.0, node_back=20.0)
    driver = Driver((small, large), policy("coach"), faults=faults, journal=records.append)
    driver.submit_at(0.0, "job", spec(), DYNAMICS)
    driver.run()
    said = [record for record in records if isinstance(record, act.SetStatus)]
    waits = [record for record in said if record.reason is Reason.NODES_UNAVAILABLE]
    assert waits and all("unavailable: " in record.message for record in waits)
    assert driver.ended["job"].state is State.SUCCEEDED


def test_two_jobs_on_one_machine_slow_each_other_down() -> None:
    alone, _ = life(jobs=1)
    together, _ = life(jobs=2, machine_cores=1.0)
    assert together.ended["job-0"].trained > 1.3 * alone.ended["job-0"].trained


def test_a_job_alone_is_not_slowed_by_its_own_workers() -> None:
    """Its dynamics are those alone on its machine: they already include that the machine is too small for it."""
    free, _ = life(jobs=1)
    alone, _ = life(jobs=1, machine_cores=1.0)
    assert alone.ended["job-0"].ended == free.ended["job-0"].ended


def test_functions_train_whole_steps() -> None:
    records: list[object] = []
    dynamics = replace(DYNAMICS, data_size=1000, batch_size=64)
    driver = Driver(nodes(2, 4), policy("coach"), journal=records.append)
    driver.submit_at(0.0, "job", spec(), dynamics)
    driver.run()
    orders = {record.token: record for record in records if isinstance(record, act.RunEpoch)}
    done = [record for record in records if isinstance(record, ev.EpochFinished)]
    assert {each.report.samples for each in done if orders[each.token].fraction == 1.0} == {1024}
    assert all(each.report.samples % 64 == 0 for each in done)


def test_a_journal_fed_to_the_reducer_again_gives_the_same_actions() -> None:
    _, records = life()
    reducer = Reducer(policy("coach"))
    actions: list[object] = []
    for record in records:
        if isinstance(record, ev.Event):
            actions += reducer.react(record)
    assert actions == [record for record in records if isinstance(record, act.Action)]


def test_an_epoch_that_needs_more_than_its_deadline_is_stopped_there() -> None:
    slow = JobDynamics(lambda w, s: 1e-6, DYNAMICS.loss)
    driver = Driver((Node("n", Resources(8.0, 64.0)),), policy("coach"))
    driver.submit_at(0.0, "job", spec(budget=usd(0.001)), slow)
    driver.run()
    assert driver.ended["job"].state is not State.SUCCEEDED
    assert driver.ended["job"].spent <= 0.001


@pytest.mark.parametrize("name", ["drf", "srtf", "static:2x2"])
def test_the_baselines_run_in_the_reducer_too(name: str) -> None:
    driver = Driver(nodes(2, 4), policy(name))
    for number in range(3):
        driver.submit_at(5.0 * number, f"job-{number}", spec(f"job-{number}"), DYNAMICS)
    driver.run()
    assert {ended.state for ended in driver.ended.values()} == {State.SUCCEEDED}


@dataclass(frozen=True)
class Counting(CoachPolicy):
    """Coach's policy; `asked` has the number of jobs of each question."""

    asked: list[int] = field(default_factory=list)

    def allocate(self, jobs: Sequence[JobView], cluster: ClusterView) -> AllocationDecision:
        self.asked.append(len(jobs))
        return super().allocate(jobs, cluster)


@dataclass(frozen=True)
class Whole(Counting):
    """Asked about all jobs, whatever room there is."""

    separable: ClassVar[bool] = False


@pytest.mark.parametrize("count", [8, 4, 1])
def test_with_room_for_all_a_job_is_decided_alone_and_nothing_else_changes(count: int) -> None:
    journals = []
    all_jobs, some_jobs = Whole(), Counting()
    for rule in (all_jobs, some_jobs):
        records: list[object] = []
        driver = Driver(nodes(count, 4), rule, seed=3, faults=Faults(3, function_lost=400.0), journal=records.append)
        for number in range(4):
            driver.submit_at(30.0 * number, f"job-{number}", spec(f"job-{number}", budget=usd(1.0)), DYNAMICS)
        driver.run()
        journals.append([encode(record) for record in records])  # type: ignore[arg-type]
    assert journals[0] == journals[1]
    assert max(all_jobs.asked) > 1
    # Eight nodes have room for the maximum of all four jobs, one node never has.
    assert set(some_jobs.asked) == {1} if count == 8 else max(some_jobs.asked) > 1


def test_an_epoch_takes_the_calls_that_predictions_of_cost_have() -> None:
    _, records = life(jobs=1)
    orders = {record.token: record for record in records if isinstance(record, act.RunEpoch)}
    done = [record for record in records if isinstance(record, ev.EpochFinished)]
    assert done
    for one in done:
        order = orders[one.token]
        usual = len(order.pods) * (USUAL_CALLS + USUAL_CALLS_PER_SECOND * (one.at - order.at))
        assert one.invocations == pytest.approx(usual, abs=0.5)
