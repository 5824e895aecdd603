"""Real MXNet groups on this machine, under the real handler and a real journal."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from coach.core.cluster import Allocation, Role
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.epoch import EpochKind
from coach.core.jobs.reasons import Reason, State
from coach.core.lifecycle.reducer import Reducer
from coach.core.spec.job import TrainingJob
from coach.handler.handler import Handler
from coach.handler.state.journal import Journal
from coach.platforms.local.cluster import parse_nodes
from coach.platforms.local.environment import Functions
from coach.platforms.local.platform import LocalPlatform
from coach.plugins import policy

pytestmark = [pytest.mark.mxnet, pytest.mark.timeout(600)]
borrows = pytest.mark.usefixtures("one_template")

MODEL = """
from mxnet import gluon

def net():
    layers = gluon.nn.HybridSequential()
    layers.add(gluon.nn.Flatten(), gluon.nn.Dense(32, activation="relu"), gluon.nn.Dense(10))
    return layers

def loss():
    return gluon.loss.SoftmaxCrossEntropyLoss()
"""


def job(name: str, folder: Path, **changes) -> TrainingJob:
    """A small job whose model file lies outside the checkout."""
    model = folder / "mine.py"
    model.write_text(MODEL)
    return TrainingJob.from_json(
        {
            "apiVersion": "coach.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": name},
            "spec": {
                "model": {"file": model.as_uri()},
                "data": {"format": "digits8x8"},
                "target": {"accuracy": 0.9},
                "budget": {"amount": 0.05, "currency": "USD"},
                "workers": {"max": 2},
                "servers": {"max": 2},
                "resources": {
                    "scheduler": {"cpu": "10m", "memory": "300Mi"},
                    "server": {"cpu": "50m", "memory": "300Mi"},
                    "worker": {"cpu": "100m", "memory": "500Mi"},
                },
                "optimizer": {"name": "sgd", "learningRate": 0.1},
                "seed": 3,
                **changes,
            },
        }
    )


@contextlib.asynccontextmanager
async def handler_on(folder: Path, nodes: str | None = None, chosen="coach", kind=LocalPlatform, **options):
    journal = Journal.write(folder / "journal.db")
    holder: list[Handler] = []
    platform = kind(
        parse_nodes(nodes),
        Functions.find(),
        lambda name: folder / "logs" / name,
        lambda: holder[0].now(),  # noqa: PLW0108 (not there yet)
        **options,
    )
    handler = Handler(platform, journal, policy(chosen) if isinstance(chosen, str) else chosen)
    holder.append(handler)
    try:
        async with handler:
            yield handler
    finally:
        journal.close()


def submit(handler: Handler, spec: TrainingJob, folder: Path) -> None:
    handler.submit(spec, (folder / "checkpoints" / spec.name).as_uri())


def ended(handler: Handler, *names: str):
    return lambda: all(name in handler.jobs and handler.jobs[name].ended for name in names)


def descendants(pid: int) -> dict[int, str]:
    """Command lines of all processes that come from `pid`, by parent links."""
    parents, commands = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text()
                parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
                commands[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
    found: dict[int, str] = {}
    grew = True
    while grew:
        more = {p for p, parent in parents.items() if (parent == pid or parent in found) and p not in found}
        found |= {p: commands[p] for p in more}
        grew = bool(more)
    return found


def processes_of(folder: Path) -> list[str]:
    """Processes whose environment or command line names `folder`, or that have a file open in it or work there."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                for link in (entry / "cwd", *(entry / "fd").iterdir()):
                    with contextlib.suppress(OSError):
                        text += os.readlink(link).encode()  # noqa: PTH115 - a pipe has no path
                if str(folder).encode() in text:
                    found.append(text[:200].decode(errors="replace"))
    return found


def kill_a_worker(platform: LocalPlatform) -> None:
    pid = next((f.pid for pod, f in platform._processes.items() if pod.role is Role.WORKER), None)
    if pid:
        os.kill(pid, signal.SIGKILL)


def gone(check, seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not check():
            return True
        time.sleep(0.05)
    return False


@borrows
def test_a_job_reaches_its_target_on_a_group_of_two_workers_and_two_servers_which_stays_formed(tmp_path):
    async def main():
        async with handler_on(tmp_path) as handler:
            policy = {"name": "static", "workers": 2, "servers": 2}
            submit(handler, job("real", tmp_path, policy=policy), tmp_path)
            await handler.wait(ended(handler, "real"))
            return handler.jobs["real"]

    finished = asyncio.run(main())
    assert finished.state is State.SUCCEEDED, finished.message
    assert {epoch.allocation for epoch in finished.epochs} == {Allocation(2, 2)}
    assert {epoch.kind for epoch in finished.epochs} == {EpochKind.FULL} and finished.gang.groups == 1
    first, *later = (epoch.report.form_seconds for epoch in finished.epochs)
    assert later and max(later) < first
    assert all(epoch.report.accuracy >= 0.9 for epoch in finished.full_epochs[-3:])
    assert finished.progress.position == sum(epoch.report.samples for epoch in finished.epochs)
    assert 0 < finished.money.ledger.spent == sum(epoch.cost for epoch in finished.epochs)
    assert finished.money.ledger.spent <= finished.money.ledger.budget
    assert Path(finished.progress.weights.removeprefix("file://")).is_file()
    assert len(list((tmp_path / "checkpoints" / "real").iterdir())) <= 2


def test_nothing_is_left_of_the_processes_of_functions(tmp_path):
    others = descendants(os.getpid())

    async def main():
        async with handler_on(tmp_path) as handler:
            pods, family = set(), set()

            def watch(event, actions):
                if isinstance(event, ev.PodReady):
                    pods.add(handler._platform._processes[event.pod].pid)
                    family.update(descendants(os.getpid()).keys() - others)

            handler.observers.append(watch)
            spec = job("few", tmp_path, policy={"name": "static", "workers": 2, "servers": 1}, maxEpochs=3)
            submit(handler, spec, tmp_path)
            await handler.wait(ended(handler, "few"))
        return handler.jobs["few"], pods, family

    finished, pods, family = asyncio.run(main())
    assert finished.reason in (Reason.EPOCH_LIMIT, Reason.TARGET_REACHED)
    assert len(pods) == 4
    assert pods < family
    assert gone(lambda: [pid for pid in family if Path(f"/proc/{pid}").exists()])
    assert not processes_of(tmp_path)


@borrows
def test_a_killed_worker_costs_one_attempt_and_changes_no_loss(tmp_path):
    static = {"name": "static", "workers": 2, "servers": 1}

    async def main(folder: Path, kill: bool):
        folder.mkdir()
        async with handler_on(folder) as handler:
            failures = []

            def watch(event, actions):
                if isinstance(event, ev.EpochFailed):
                    failures.append(event)
                for action in actions:
                    if kill and isinstance(action, act.RunEpoch) and action.number == 3 and not failures:
                        asyncio.get_running_loop().call_later(0.02, kill_a_worker, handler._platform)

            handler.observers.append(watch)
            submit(handler, job("shot", folder, policy=static, maxEpochs=6, target={"accuracy": 1.0}), folder)
            await handler.wait(ended(handler, "shot"))
            return handler.jobs["shot"], failures

    calm, none = asyncio.run(main(tmp_path / "calm", kill=False))
    shot, failures = asyncio.run(main(tmp_path / "shot", kill=True))
    assert not none
    assert 1 <= len(failures) <= 2
    assert [epoch.number for epoch in shot.epochs] == [epoch.number for epoch in calm.epochs]
    assert [e.report.loss for e in shot.epochs] == pytest.approx([e.report.loss for e in calm.epochs], rel=1e-5)


@borrows
def test_a_model_file_with_a_mistake_fails_the_job_at_once(tmp_path):
    async def main():
        async with handler_on(tmp_path) as handler:
            spec = job("broken", tmp_path)
            (tmp_path / "mine.py").write_text("def net(:\n")
            submit(handler, spec, tmp_path)
            await handler.wait(ended(handler, "broken"))
            return handler.jobs["broken"]

    finished = asyncio.run(main())
    assert (finished.state, finished.reason) == (State.FAILED, Reason.MODEL_INVALID)
    assert "line 1" in finished.message
    assert finished.attempts.count == 1


@borrows
def test_a_budget_for_some_epochs_is_never_overspent(tmp_path):
    async def main():
        async with handler_on(tmp_path) as handler:
            small = {"amount": 0.0001, "currency": "USD"}
            endless = {"accuracy": 0.01, "epochsInARow": 1000}
            submit(handler, job("poor", tmp_path, budget=small, target=endless, maxEpochs=1000), tmp_path)
            await handler.wait(ended(handler, "poor"))
            return handler.jobs["poor"]

    finished = asyncio.run(main())
    assert finished.state is State.BUDGET_EXHAUSTED
    assert finished.epochs
    assert finished.money.ledger.spent <= finished.money.ledger.budget
    assert "left" in finished.message


@borrows
def test_two_jobs_share_two_nodes_without_over_committing_them(tmp_path):
    async def main():
        async with handler_on(tmp_path, "2x1") as handler:
            resources = {
                "scheduler": {"cpu": "50m", "memory": "300Mi"},
                "server": {"cpu": "150m", "memory": "300Mi"},
                "worker": {"cpu": "250m", "memory": "500Mi"},
            }
            for name in ("one", "two"):
                submit(handler, job(name, tmp_path, resources=resources), tmp_path)
            most = 0.0

            def watch(event, actions):
                nonlocal most
                for node in ("node-0", "node-1"):
                    held = [h.pod for j in handler.jobs.values() for h in j.gang.pods.values() if h.pod.node == node]
                    most = max(most, sum(pod.requests.cpu for pod in held))

            handler.observers.append(watch)
            await handler.wait(ended(handler, "one", "two"))
            return handler.jobs, most

    jobs, most = asyncio.run(main())
    assert [(f.state, f.message) for f in jobs.values() if f.state is not State.SUCCEEDED] == []
    assert 0 < most <= 1.0 + 1e-9


@borrows
@pytest.mark.parametrize("name", ["coach", pytest.param("kod2", marks=pytest.mark.full)])
def test_the_events_of_a_live_run_with_probes_and_a_kill_lead_to_the_same_actions_again(tmp_path, name):
    """Two jobs, and a worker killed in a full epoch: the decisions follow from the events alone."""

    async def main():
        async with handler_on(tmp_path, chosen=name) as handler:
            killed = False

            def watch(event, actions):
                nonlocal killed
                for action in actions:
                    full = isinstance(action, act.RunEpoch) and action.kind is EpochKind.FULL
                    if full and action.number > 6 and not killed:
                        killed = True
                        asyncio.get_running_loop().call_later(0.02, kill_a_worker, handler._platform)

            handler.observers.append(watch)
            for one in ("one", "two"):
                submit(handler, job(one, tmp_path, maxEpochs=12, target={"accuracy": 1.0}), tmp_path)
            await handler.wait(ended(handler, "one", "two"))

    asyncio.run(main())
    journal = Journal.read(tmp_path / "journal.db")
    records = [record for _, record in journal.records()]
    journal.close()
    orders = [record for record in records if isinstance(record, act.RunEpoch)]
    assert {order.job for order in orders if order.kind is EpochKind.PROBE} == {"one", "two"}
    assert any(isinstance(record, ev.EpochFailed | ev.PodLost) for record in records)
    reducer = Reducer(policy(name))
    again = []
    for record in records:
        if isinstance(record, ev.Event):
            again += [record, *reducer.react(record)]
    assert again == records


SCRIPT = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.platforms.local.test_platform import handler_on, job, submit
async def main():
    folder = Path({folder!r})
    async with handler_on(folder) as handler:
        if "killed" not in handler.jobs:
            submit(handler, job("killed", folder, target={{"accuracy": 1.0}}, maxEpochs=7), folder)
        await handler.wait(lambda: "killed" in handler.jobs and handler.jobs["killed"].ended)
asyncio.run(main())
"""


def test_functions_end_with_a_killed_handler_and_a_restart_goes_on_from_the_checkpoint(tmp_path):
    root = str(Path(__file__).parents[3])

    async def start():
        script = SCRIPT.format(root=root, folder=str(tmp_path))
        return await asyncio.create_subprocess_exec(sys.executable, "-c", script, start_new_session=True)

    async def epochs() -> int:
        with contextlib.suppress(Exception):
            journal = Journal.read(tmp_path / "journal.db")
            try:
                return len(journal.jobs()["killed"].epochs)
            finally:
                journal.close()
        return 0

    async def main():
        handler = await start()
        async with asyncio.timeout(400):
            while await epochs() < 6:
                await asyncio.sleep(0.02)
        family = descendants(handler.pid)
        assert family
        handler.kill()
        await handler.wait()
        assert gone(lambda: [p for p in family if Path(f"/proc/{p}").exists()]), "functions outlive the handler"
        before = await epochs()
        again = await start()
        assert await again.wait() == 0
        return before

    before = asyncio.run(main())
    journal = Journal.read(tmp_path / "journal.db")
    finished = journal.jobs()["killed"]
    journal.close()
    assert finished.reason is Reason.EPOCH_LIMIT
    assert len(finished.epochs) > before
    assert [epoch.number for epoch in finished.epochs] == list(range(1, len(finished.epochs) + 1))
    assert finished.progress.position == sum(epoch.report.samples for epoch in finished.epochs)
    assert finished.money.ledger.spent == sum(finished.money.charges.values()) <= finished.money.ledger.budget
    assert not processes_of(tmp_path)
