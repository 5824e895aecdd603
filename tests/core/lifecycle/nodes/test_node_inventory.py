"""Nodes that go away and come back: what stood there is lost, nothing new goes there, and a job waits for them."""

from __future__ import annotations

from coach.core.cluster import Allocation, Node, Resources, Taken
from coach.core.estimation.observations import KnownSpeed
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.job import Phase
from coach.core.jobs.reasons import Reason, State
from coach.report.why import why
from tests.core.lifecycle.faulty_cluster import FaultyDynamics, World, nodes, spec, usd

STATIC = {"name": "static", "workers": 1, "servers": 1}


def training(cluster: tuple[Node, ...], **changes: object) -> World:
    """In its third epoch, with one worker and one server."""
    world = World.of(cluster, shadow=True)
    world.submit(spec(**{"policy": STATIC, "maxEpochs": 5, **changes}))
    world.run(until=lambda: world.job().phase is Phase.RUNNING and len(world.job().epochs) == 2)
    return world


def on(world: World) -> set[str]:
    return {held.pod.node for held in world.job().gang.pods.values()}


def test_a_job_whose_node_is_lost_goes_on_elsewhere_from_its_last_checkpoint() -> None:
    world = training(nodes(2, 2.0))
    (node,) = on(world)
    world.lose_nodes(node, back=None)
    world.run(until=lambda: len(world.job().epochs) == 3)
    assert on(world) == {"node-0", "node-1"} - {node}
    first, again = world.orders()[2:4]
    assert (again.number, again.attempt, again.weights_in) == (first.number, 2, first.weights_in)
    world.run()
    assert world.job().reason is Reason.EPOCH_LIMIT and world.job().attempts.count == 6


def test_a_job_with_no_function_there_does_not_notice() -> None:
    world = training(nodes(2, 2.0))
    (node,) = on(world)
    world.lose_nodes(*{"node-0", "node-1"} - {node})
    world.run()
    assert world.job().attempts.count == len(world.job().epochs) == 5


def test_a_job_waits_for_the_node_that_alone_can_hold_it_and_says_so() -> None:
    world = training((Node("small", Resources(1.0, 64.0)), Node("large", Resources(2.0, 64.0))))
    world.lose_nodes("large", back=100.0)
    lost_at = world.now
    world.run(until=lambda: world.job().reason is Reason.NODES_UNAVAILABLE)
    job = world.job()
    assert job.state is State.WAITING and not job.gang.pods
    assert "1 worker x 1 cpu" in job.message and "1 of 2 nodes is unavailable: large" in job.message
    said = why(job, world.reducer.jobs, world.reducer.nodes.available, world.now).lines
    assert said[0].startswith("job is Waiting: waits for unavailable nodes (needs 1 scheduler x 0.1 cpu")
    world.run(until=lambda: job.phase is Phase.RUNNING)
    assert world.now >= lost_at + 100 and "large" in on(world)
    world.run()
    assert job.reason is Reason.EPOCH_LIMIT
    world.check_fold()


def test_what_others_hold_is_not_free() -> None:
    held = (Taken("node-0", Resources(1.5, 60.0)),)
    world = World.of(nodes(1, 2.0), shadow=True)
    world.send(ev.NodesChanged(world.now, (), taken=held))
    world.submit(spec(maxEpochs=2))
    said = why(world.job(), world.reducer.jobs, world.reducer.nodes.there, world.now, held).lines
    assert "node-0: 0.5 of 2 cores and 4.0 of 64.0 GiB free; others hold 1.5 cores and 60.0 GiB" in said
    assert "When it starts is not known: it depends on a job whose end nothing predicts" in said


def test_a_job_that_comes_while_its_node_is_away_waits_for_it() -> None:
    world = World.of(nodes(2, 2.0), shadow=True)
    world.lose_nodes("node-0", "node-1", back=50.0)
    world.submit(spec(maxEpochs=2))
    assert world.job().reason is Reason.NODES_UNAVAILABLE
    assert "2 of 2 nodes are unavailable: node-0, node-1" in world.job().message
    world.run()
    assert world.job().reason is Reason.EPOCH_LIMIT


def test_what_no_node_can_hold_is_refused_also_while_some_are_away() -> None:
    world = World.of(nodes(2, 0.9))
    world.lose_nodes("node-0")
    world.submit(spec())
    assert world.job().reason is Reason.NEVER_FITS


def test_a_job_whose_money_covers_only_what_nodes_that_are_away_can_hold_is_not_over() -> None:
    """With two workers an epoch is eight times as fast as with one, and so cheaper."""
    fast = FaultyDynamics(speed=lambda w, s: 0.05 if w == 1 else 0.4)
    world = World.of((Node("small", Resources(2.0, 64.0)), Node("large", Resources(8.0, 64.0))))
    world.lose_nodes("large", back=200.0)
    file = spec(workers={"min": 1, "max": 2}, servers={"min": 1, "max": 1}, budget=usd(0.0007))
    world.submit(file, fast, known_points=(KnownSpeed(1, 1, 0.05), KnownSpeed(2, 1, 0.4)))
    world.run(until=lambda: world.job().reason is Reason.NODES_UNAVAILABLE)
    assert world.job().message == "the money left covers 2x1; 1 of 2 nodes is unavailable: large"
    world.run()
    assert {order.allocation for order in world.orders()} == {Allocation(2, 1)}
    assert world.job().reason is Reason.BUDGET_SPENT


def test_nothing_is_placed_on_a_node_that_was_away_when_the_handler_started() -> None:
    world = World.of(nodes(2, 2.0), shadow=True)
    world.lose_nodes("node-1", back=None)
    world.restart(down=5.0)
    assert world.reducer.nodes.unavailable == {"node-1"}
    for name in ("a", "b"):
        world.submit(spec(name, policy=STATIC, maxEpochs=2))
    began = world.now
    world.run()
    placed = [(each.at, pod.node) for each in world.history if isinstance(each, act.DeployPods) for pod in each.pods]
    assert placed and all(node == "node-0" for at, node in placed if at < began + 10)
    assert all(job.reason is Reason.EPOCH_LIMIT for job in world.reducer.jobs.values())


def test_a_job_waits_for_room_that_pods_of_others_hold_and_is_not_refused() -> None:
    world = World.of(nodes(1, 2.0), shadow=True)
    world.send(ev.NodesChanged(world.now, (), taken=(Taken("node-0", Resources(1.5, 1.0)),)))
    world.submit(spec(maxEpochs=2))
    job = world.job()
    assert (job.state, job.reason) == (State.WAITING, Reason.WAITING_CAPACITY)
    assert "pods that are not Coach's hold 1.5 cpu and 1 GiB" in job.message
    world.send(ev.NodesChanged(world.now, (), taken=()))
    world.run()
    assert job.reason is Reason.EPOCH_LIMIT
