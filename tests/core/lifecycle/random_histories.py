"""Random histories of jobs: random clusters, prices, speeds, curves, and everything that can go wrong, at any instant.

    python -m tests.core.lifecycle.random_histories 10000 1      # 10,000 histories drawn from seed 1; one table
    python -m tests.core.lifecycle.random_histories 100 1 elastic  # of elastic groups; or programs

The same drawing serves hypothesis (`tests/core/lifecycle/test_random_histories.py`), which shrinks what fails: a
`Draws` draws the simple things at its low numbers.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from coach.core.cluster import Instance, Node, PodId, Resources
from coach.core.estimation.observations import KnownSpeed
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.reasons import Reason, Retry
from coach.core.money import PRICE_BOOKS, to_amount
from tests.core.lifecycle.faulty_cluster import FaultyDynamics, World, spec

#: What the functions can say of an epoch, and a platform of a pod.
EPOCH_FAULTS = tuple(reason for reason in Reason if reason.state is None)
POD_FAULTS = (
    Reason.FUNCTION_LOST,
    Reason.DISRUPTED,
    Reason.OUT_OF_MEMORY,
    Reason.INTERNAL,
    Reason.QUOTA_EXCEEDED,
    Reason.PODS_DELAYED,
    Reason.DEVICES_TAKEN,
)
#: Events after which something happens from outside: most histories are shorter than this.
LATEST = 120


class Draws(Protocol):
    """Draws; the first and the lowest are the simplest."""

    def whole(self, low: int, high: int) -> int: ...
    def pick(self, *choices: Any) -> Any: ...


class SeededDraws:
    """Dice from a seed."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def whole(self, low: int, high: int) -> int:
        return self._random.randint(low, high)

    def pick(self, *choices: Any) -> Any:
        return self._random.choice(choices)


@dataclass
class Fault:
    """Something that happens from outside after the `after`-th event."""

    after: int
    kind: str
    job: str
    number: int = 0  #: which pod, which earlier answer, how much money


@dataclass
class Scenario:
    """All that a history starts from."""

    cluster: tuple[Node, ...]
    files: list[dict[str, Any]]
    dynamics: dict[str, FaultyDynamics]
    more: dict[str, dict[str, Any]]
    faults: list[Fault]
    #: Name, amount, period, parent, labels.
    accounts: list[tuple[str, float, str, str, dict[str, str]]] = field(default_factory=list)
    submissions: dict[str, int] = field(default_factory=dict)  #: job -> after how many events it comes


def scaled(dice: Draws, low: float, high: float) -> float:
    """Log-uniform, on a grid."""
    return low * (high / low) ** (dice.whole(0, 40) / 40)


def draw(dice: Draws) -> Scenario:
    cluster = tuple(
        Node(f"node-{i}", Resources(dice.pick(2.0, 1.6, 4.0, 8.0, 1.0), dice.pick(64.0, 4.0, 2.0)))
        for i in range(dice.whole(1, 4))
    )
    names = ["a", "b", "c", "d"][: dice.pick(1, 1, 2, 2, 3, 4)]
    scenario = Scenario(cluster, [], {}, {}, [])
    for name in names:
        dynamics = _truth(dice)
        scenario.dynamics[name] = dynamics
        scenario.files.append(spec(name, **_file(dice, dynamics)))
        scenario.more[name] = _known(dice, dynamics)
        scenario.submissions[name] = dice.pick(0, 0, 0, dice.whole(0, 40))
    for _ in range(dice.pick(0, 1, 1, 2, 3, 6)):
        kind = dice.pick("lose", "restart", "again", "cancel", "interrupt", "stop", "resume", "early", "nodes")
        scenario.faults.append(Fault(dice.whole(1, LATEST), kind, dice.pick(*names), dice.whole(0, 50)))
    _accounts(dice, scenario)
    _machines(dice, scenario)
    return scenario


def draw_elastic(dice: Draws) -> Scenario:
    """The same, of elastic groups on one full node: those that have more than they need give within their epochs."""
    scenario = draw(dice)
    room = replace(scenario.cluster[0].capacity, cpu=dice.pick(4.6, 5.0, 3.6, 6.0))
    scenario.cluster = (replace(scenario.cluster[0], capacity=room),)
    for number, file in enumerate(scenario.files):
        file["spec"] |= {"parameterServer": "elastic", "workers": {"min": 1, "max": dice.pick(4, 3, 2)}}
        file["spec"] |= {"servers": {"min": 1, "max": dice.pick(2, 1)}, "maxEpochs": 20, "target": {"loss": 0.12}}
        file["spec"].pop("policy", None)
        name = file["metadata"]["name"]
        scenario.submissions[name] = dice.whole(20, 80) if number else 0
        dynamics, gain = scenario.dynamics[name], dice.pick(1.0, 0.9)
        alone = dynamics.speed(1, 1)
        scenario.dynamics[name] = replace(
            dynamics,
            speed=lambda w, _s, one=alone, gain=gain: one * w**gain,
            rescale_seconds=dice.pick(0.09, 0.0, 5.0, None),
        )
    return scenario


def draw_programs(dice: Draws) -> Scenario:
    """The same, of programs: some of them resume, and may have other numbers of workers then."""
    scenario = draw(dice)
    for file in scenario.files:
        fields, resumes = file["spec"], dice.pick(True, True, False)
        kept = {key: value for key, value in fields.items() if key not in ("model", "data", "servers", "miniEpoch")}
        kept["program"] = {"command": ["train"], "resumes": resumes}
        kept["gracePeriod"] = dice.pick(5, 30)
        kept["resources"] = {"worker": fields["resources"]["worker"]}
        if not resumes:
            kept.pop("spot", None)
            kept["workers"] = {"min": fields["workers"]["min"], "max": fields["workers"]["min"]}
        if "policy" in kept:
            kept["policy"] = {"name": "static", "workers": kept["workers"]["min"]}
        file["spec"] = kept
        name = file["metadata"]["name"]
        scenario.dynamics[name] = replace(scenario.dynamics[name], regroups=resumes and dice.pick(False, True))
        more = scenario.more[file["metadata"]["name"]]
        if points := more.get("known_points"):
            speeds = {point.workers: point.epochs_per_second for point in points}
            more["known_points"] = tuple(KnownSpeed(workers, 0, speed) for workers, speed in speeds.items())
    return scenario


def _accounts(dice: Draws, scenario: Scenario) -> None:
    """Half of the histories have accounts: one, or a team's in a department's, some of them by label.

    Some are changed on the way, or removed.
    """
    if dice.pick(True, False):
        return
    amounts = [file["spec"]["budget"].get("amount", 1.0) for file in scenario.files]
    for name in ("department", "team")[: dice.pick(1, 2)]:
        period = dice.pick("ever", "month", "week", "1h", "3d")
        parent = "department" if name == "team" else ""
        amount = max(amounts) * scaled(dice, 0.05, 20.0)
        labels = dice.pick({}, {}, {"team": "vision"}, {"team": "vision", "for": "paper"})
        scenario.accounts.append((name, amount, period, parent, labels))
    for file in scenario.files:
        if labels := dice.pick({}, {}, {"team": "vision", "for": "paper"}, {"team": "vision"}):
            file["metadata"]["labels"] = labels
        account = dice.pick(scenario.accounts[-1][0], scenario.accounts[0][0], None)
        if account:
            own = {} if dice.pick(True, False) or "unlimited" in file["spec"]["budget"] else file["spec"]["budget"]
            file["spec"]["budget"] = {**own, "account": account}
    for _ in range(dice.pick(0, 0, 1)):
        kind = dice.pick("account", "account", "remove", "label")
        scenario.faults.append(Fault(dice.whole(1, LATEST), kind, "", dice.whole(0, 50)))


def machine(hour: float, kind: str = "parts", cpu: float = 4.0) -> dict[str, Any]:
    """Prices of machines: `parts` of them, `whole` ones, or whole ones by the `hour`."""
    size = {"cpu": f"{round(cpu * 1000)}m", "memory": "8Gi"}
    whole = {"whole": kind != "parts", "byHour": kind == "hour"}
    second = {"vcpuSecond": 0.0, "gibSecond": 0.0, "invocation": 0.0}
    return {"name": kind, "currency": "USD", **second, "instance": {"hour": hour, **size, **whole}}


def _machines(dice: Draws, scenario: Scenario) -> None:
    """A third of the histories have jobs billed by machines or nodes, and prices that change on the way."""
    if dice.pick(True, True, False):
        return
    if dice.pick(True, False):
        for at, node in enumerate(scenario.cluster):
            kind, has = dice.pick("parts", "whole", "hour"), node.capacity
            cost = Instance(
                scaled(dice, 1e-3, 30.0), has.cpu, has.memory, whole=kind != "parts", by_hour=kind == "hour"
            )
            known = replace(node, price=dice.pick(cost, cost, None))
            scenario.cluster = (*scenario.cluster[:at], known, *scenario.cluster[at + 1 :])
    for file in scenario.files:
        kind = dice.pick("parts", "whole", "hour", "nodes", None)
        fields, hour = file["spec"], scaled(dice, 1e-3, 30.0)
        if kind:
            fields["prices"] = "nodes" if kind == "nodes" else machine(hour, kind)
            if "amount" in fields["budget"]:
                amount = hour * scaled(dice, 0.001, 100.0)
                fields["budget"] = {**fields["budget"], "amount": max(1e-6, amount)}
    for _ in range(dice.pick(1, 0, 2, 4)):
        fault = dice.pick("reprice", "nodes cost")
        name = dice.pick(*scenario.dynamics)
        scenario.faults.append(Fault(dice.whole(1, LATEST), fault, name, dice.whole(0, 50)))
    scenario.cluster = tuple(replace(node, spot=dice.pick(False, True)) for node in scenario.cluster)
    for file in scenario.files:
        if file["spec"].get("prices") == "nodes" and dice.pick(True, False):
            file["spec"]["spot"] = {"deadline": round(scaled(dice, 10.0, 100_000.0))}


def _truth(dice: Draws) -> FaultyDynamics:
    at_one = 1 / scaled(dice, 5.0, 5000.0)
    gain = dice.pick(0.9, 0.5, 1.0, 0.0, -0.3)
    crowd, noise = dice.pick(0.0, 0.2, 0.6), dice.pick(0.0, 0.0, 0.05, 0.4)
    seed = dice.whole(0, 1000)

    def speed(workers: int, servers: int) -> float:
        crowded = workers / servers - 1 if 0 < servers < workers else 0
        base = at_one * workers**gain / (1 + crowd * crowded)
        return float(base * math.exp(noise * random.Random(f"{seed} {workers} {servers}").gauss(0, 1)))

    end, slope, ripple = dice.pick(0.1, 0.29, 0.5), dice.pick(0.4, 0.05, 2.0), dice.pick(0.0, 0.0, 0.02)

    def loss(x: float) -> float:
        return float(1 / (slope * x + 0.5) + end + ripple * random.Random(f"{seed} {x}").gauss(0, 1))

    dynamics = FaultyDynamics(
        speed,
        lambda x: max(1e-3, loss(x)),
        evaluate_seconds=dice.pick(0.2, 0.0, 30.0),
        new_group_seconds=(start := dice.pick(0.3, 0.01, 20.0)),
        same_group_seconds=start,
        data_size=dice.pick(10_000, 100, 10**7),
        release_seconds=dice.pick(0.05, 0.0, 5.0),
        stop_seconds=dice.pick(0.05, 0.0, 5.0),
        fit_seconds=dice.pick(0.01, 0.0, 2.0),
    )
    fates = [
        (dice.whole(1, 25), dice.pick(*EPOCH_FAULTS), dice.whole(0, 10) / 10) for _ in range(dice.pick(0, 0, 1, 3))
    ]
    bounded = [fate for fate in fates if fate[1].retry is not Retry.NEVER or dice.pick(False, True)]

    def fault(order: act.RunEpoch) -> tuple[Reason, float] | None:
        attempt = int(order.token.rpartition(".")[2])
        return next(((reason, share) for at, reason, share in bounded if at == attempt), None)

    slow = {dice.whole(1, 30): dice.pick(30.0, 70.0, None, *POD_FAULTS) for _ in range(dice.pick(0, 0, 1, 4))}
    stuck = dice.pick(None, None, None, None, "worker-1", "server-1", "worker-2")
    usual = dice.pick(0.5, 0.0, 3.0)

    def pod(of: PodId, number: int) -> float | Reason | None:
        return None if stuck and of.name.endswith(stuck) else slow.get(number, usual)

    return replace(dynamics, fault=fault, pod=pod)


def _file(dice: Draws, dynamics: FaultyDynamics) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    prices = dice.pick("cloud-functions", "flat", "calls", "free", "dear")
    if prices in PRICE_BOOKS:
        changes["prices"], book = prices, PRICE_BOOKS[prices]
        second = book.rate(Resources(1.6, 0.8))
    else:
        rate = {"calls": 0.0, "free": 0.0, "dear": 100.0}[prices]
        call = {"calls": 1e-4, "free": 0.0, "dear": 0.5}[prices]
        changes["prices"] = {
            "name": prices,
            "currency": "USD",
            "vcpuSecond": rate,
            "gibSecond": rate / 8,
            "invocation": call,
        }
        second = rate * 1.7 + call * 6
    if second and dice.pick(True, True, True, False):
        epoch = second * (1 / dynamics.speed(1, 1) + dynamics.new_group_seconds + dynamics.evaluate_seconds)
        changes["budget"] = {"amount": max(1e-6, epoch * scaled(dice, 0.01, 300.0)), "currency": "USD"}
    for role in ("workers", "servers"):
        least = dice.pick(1, 1, 1, 2)
        changes[role] = {"min": least, "max": least + dice.pick(2, 0, 1, 3)}
    changes["maxEpochs"] = dice.pick(6, 2, 12, 1, 20)
    changes["target"] = {"loss": dice.pick(0.9, 0.3, 0.12, 1.5), "epochsInARow": dice.pick(3, 1, 2)}
    if dice.pick(False, False, False, True):
        changes["target"] = {"accuracy": dice.pick(0.5, 0.9)}
    if dice.pick(False, False, False, True):
        changes["timeLimit"] = round(scaled(dice, 1.0, 20_000.0))
    if dice.pick(False, False, True):
        changes["priority"] = dice.whole(-2, 2)
    if dice.pick(False, False, False, True):
        changes["miniEpoch"] = dice.pick(
            {"minSeconds": 1, "maxSeconds": 3}, {"minSeconds": 0.1, "maxSeconds": 100, "maxFraction": 0.9}
        )
    if dice.pick(False, False, False, False, True):
        at = {role: dice.whole(changes[role]["min"], changes[role]["max"]) for role in ("workers", "servers")}
        changes["policy"] = {"name": "static", **at}
    if dice.pick(False, False, False, False, True):
        factors = {key: dice.pick(1.0, 0.3, 3.0) for key in ("speed", "cost", "convergence")}
        changes["testing"] = {"errorFactors": factors}
    return changes


def _known(dice: Draws, dynamics: FaultyDynamics) -> dict[str, Any]:
    if dice.pick(True, True, True, False):
        return {}
    points = ((1, 1), (2, 1), (2, 2), (3, 3))[: dice.whole(1, 4)]
    known = {"known_points": tuple(KnownSpeed(w, s, dynamics.speed(w, s)) for w, s in points)}
    return {**known, "known_epochs": dice.pick(None, 3.0, 40.0)}


def play(scenario: Scenario, *, shadow: bool = True) -> World:
    """Play it to the end, with every fault at its place; then resume what was stopped, and again to the end."""
    world = World.of(scenario.cluster, shadow=shadow)
    for account in scenario.accounts:
        world.set_account(*account)
    faults = sorted(scenario.faults, key=lambda fault: fault.after)
    waiting = sorted(scenario.files, key=lambda file: scenario.submissions[file["metadata"]["name"]])
    events = 0
    while True:
        while waiting and scenario.submissions[waiting[0]["metadata"]["name"]] <= events:
            file = waiting.pop(0)
            name = file["metadata"]["name"]
            world.submit(file, scenario.dynamics[name], **scenario.more[name])
        while faults and faults[0].after <= events:
            _strike(world, faults.pop(0))
        going = world.step()
        events += 1
        if not going and not waiting and not faults:
            break
        assert events < 5_000, f"still going: {world.history[-20:]}"
    world.check_rest()
    for name, job in list(world.reducer.jobs.items()):
        if not job.ended:
            world.resume(name)
    world.run()
    assert all(job.ended for job in world.reducer.jobs.values())
    if shadow:
        world.check_fold()
    return world


def _strike(world: World, fault: Fault) -> None:
    if fault.kind == "restart":
        world.restart(down=fault.number * 10.0)
        return
    if fault.kind == "nodes":
        names = [node.name for node in world.reducer.nodes.all]
        count = 1 + fault.number % len(names)
        world.lose_nodes(*names[-count:], back=fault.number * 2.0)
        return
    if fault.kind in ("account", "remove", "label"):
        name, account = next(iter(world.reducer.accounts.known.items()))
        amount = to_amount(account.amount) * (fault.number / 25 if fault.kind != "remove" else 0)
        labels = {"team": "vision"} if fault.kind == "label" else {}
        world.set_account(name, amount, account.period.kind, "", labels, fault.kind == "remove")
        return
    if fault.kind == "nodes cost":
        world.reprice_nodes(fault.number / 10)
        return
    job = world.reducer.jobs.get(fault.job)
    if job is None:
        world.send(ev.CancelRequested(world.now, fault.job))
        return
    match fault.kind:
        case "lose" if job.gang.pods:
            world.lose(sorted(job.gang.pods)[fault.number % len(job.gang.pods)])
        case "again":
            answers = (
                ev.EpochFinished,
                ev.EpochFailed,
                ev.PodReady,
                ev.ModelsFitted,
                ev.TimerFired,
                ev.JobSubmitted,
            )
            # A pod's second answer can only come while it exists.
            past = [
                event
                for event in world.history
                if isinstance(event, answers)
                and not (isinstance(event, ev.PodReady) and (r := world.pods.get(event.pod)) and not r.ready)
            ]
            if past:
                world.send(past[-1 - fault.number % len(past)])
        case "reprice" if job.spec.prices != "nodes":
            kind = ("parts", "whole", "hour")[fault.number % 3]
            world.reprice(job.name, machine(fault.number / 5, kind, cpu=8.0))
        case "cancel":
            world.cancel(job.name)
        case "interrupt" | "stop":
            world.suspend(job.name, now=fault.kind == "stop")
        case "resume":
            left = (job.money.ledger.budget or 0) * fault.number // 25
            world.resume(job.name, left)
        case "early":
            # An epoch that fails for a reason of its own, just now.
            order = world.epochs.get(job.name)
            if order:
                world.fail(order, 0.0, EPOCH_FAULTS[fault.number % len(EPOCH_FAULTS)])


def main(count: int, seed: int, drawn: Callable[[Draws], Scenario] = draw) -> int:
    """Run `count` histories; a table of how they ended. Returns the number of histories that broke a rule."""
    began = time.monotonic()
    states, counts, faults = Counter[str](), Counter[str](), Counter[str]()
    broken: list[tuple[int, str]] = []
    for number in range(count):
        scenario = drawn(SeededDraws(f"{seed} {number}"))
        try:
            world = play(scenario, shadow=False)
        except Exception as error:
            broken.append((number, f"{type(error).__name__}: {error}"[:300]))
            continue
        counts["events"] += sum(hasattr(ev, type(record).__name__) for record in world.history)
        for job in world.reducer.jobs.values():
            counts["jobs"] += 1
            counts["epochs"] += len(job.epochs)
            counts["failed attempts"] += job.attempts.count - len(job.epochs)
            states[job.state.value] += 1
            counts["with an account"] += bool(world.reducer.accounts.of(job))
            if job.money.ledger.budget is not None:
                counts["with a budget"] += 1
                counts["overshoots"] += job.money.ledger.spent > job.money.ledger.budget
        counts["waits for an account"] += sum(
            isinstance(record, act.SetStatus) and record.reason is Reason.ACCOUNT_SPENT for record in world.history
        )
        running = set[str]()
        for record in world.history:
            running |= {record.job} if isinstance(record, act.RunEpoch) else set()
            running -= {record.job} if isinstance(record, ev.EpochFinished | ev.EpochFailed | act.Finish) else set()
            counts["gifts within an epoch"] += isinstance(record, act.ReleasePods) and record.job in running
        counts["notices"] += sum(isinstance(record, act.NoticeAccount) for record in world.history)
        faults.update(fault.kind for fault in scenario.faults)
    seconds = time.monotonic() - began
    print(f"{count} histories from seed {seed} in {seconds:.0f} s ({seconds / count * 1000:.0f} ms each)\n")
    rows = [
        *counts.items(),
        ("broken rules", len(broken)),
        *sorted((f"ended {k}", v) for k, v in states.items()),
        *sorted((f"fault: {k}", v) for k, v in faults.items()),
    ]
    print("| what | count |\n| --- | ---: |")
    for what, count in rows:
        print(f"| {what} | {count} |")
    for number, error in broken[:20]:
        print(f"history {number}: {error}")
    return len(broken)


if __name__ == "__main__":
    drawn = {"programs": draw_programs, "elastic": draw_elastic}.get("".join(sys.argv[3:]), draw)
    raise SystemExit(main(int(sys.argv[1]), int(sys.argv[2]), drawn) > 0)
