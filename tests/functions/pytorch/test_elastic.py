"""Elastic groups of real processes: workers join, leave, die and hang inside an epoch, and the others train on."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.functions.hosting import ROOT, Elastic, eventually
from tests.functions.pytorch.test_training import MLP, epoch, in_torch

pytestmark = pytest.mark.pytorch

#: Takes long enough by sleeping that a test can act within an epoch, until the test lets it go.
SLOW = """
    import time
    from pathlib import Path
    from torch import nn

    GO, STEPS = (Path(__file__).with_name(name) for name in ("go", "steps"))

    class Slow(nn.Sequential):
        def forward(self, x):
            if self.training:
                time.sleep(0.0 if GO.exists() else 0.02)
                with STEPS.open("ab") as steps:
                    steps.write(b".")
            return super().forward(x)

    def net():
        return Slow(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))

    loss = nn.CrossEntropyLoss()
"""
SAMPLES = 32 * 600
OPTIMIZER = {"name": "SGD", "learning_rate": 0.02, "momentum": 0.9}


def slow(folder: Path, after: dict | None = None, **changes: Any) -> dict:
    """The next epoch's message."""
    return {
        "elastic": True,
        **epoch(folder, after, **{"text": SLOW, "samples": SAMPLES, "optimizer": OPTIMIZER, **changes}),
    }


def assert_as_undisturbed(reports: list[dict], undisturbed: dict) -> None:
    for report in reports:
        assert report["samples"] == SAMPLES and report["position"] == SAMPLES
        assert report["loss"] == pytest.approx(undisturbed["loss"], rel=1e-4)
        assert report["train_loss"] == pytest.approx(undisturbed["train_loss"], rel=1e-4)
        assert report["accuracy"] == pytest.approx(undisturbed["accuracy"], abs=0.002)


def test_a_group_that_nothing_happens_to_trains_epochs_like_a_fixed_one(
    group: Elastic, tmp_path: Path, undisturbed: dict
) -> None:
    group.start([0, 1, 2], slow(tmp_path, samples=SAMPLES // 2))
    (first, *_) = group.done(0, 1, 2)
    pids = group.pids(0, 1, 2)
    group.start([0, 1, 2], slow(tmp_path, first, samples=SAMPLES // 2))
    reports = group.done(0, 1, 2)
    assert pids == group.pids(0, 1, 2)
    assert reports[0]["loss"] == pytest.approx(undisturbed["loss"], rel=1e-4)
    assert Path(reports[0]["weights_uri"].removeprefix("file://")).exists()
    answer = group.scheduler.wait(group.message["epoch"], seconds=5)
    assert answer["state"] == "done" and answer["progress"]["members"] == [0, 1, 2]


def test_a_group_that_changes_between_epochs_keeps_its_processes(
    group: Elastic, tmp_path: Path, undisturbed: dict
) -> None:
    third = SAMPLES // 3
    group.start([0], slow(tmp_path, samples=third))
    (first,) = group.done(0)
    (pid,) = group.pids(0)
    group.go.unlink()  # so slow that the newcomer finds it under way
    group.go_on([0, 1], slow(tmp_path, first, samples=third))
    group.until_members(0, 1)
    grown, joined = group.done(0, 1)
    assert group.pids(0) == [pid]
    assert grown["workers"] == joined["workers"] == 2
    # The speed of one worker is not taken for that of two.
    assert 0 < grown["warm_up_samples"] < grown["samples"] == joined["samples"] == third
    assert 0 < grown["warm_up_seconds"] < grown["train_seconds"]
    group.worker(1).post(op="stop", group=group.gang.group)  # its pod is released
    group.go_on([0], slow(tmp_path, grown, samples=third))
    (report,) = group.done(0)
    assert group.pids(0) == [pid] and report["workers"] == 1
    assert report["loss"] == pytest.approx(undisturbed["loss"], rel=1e-4)


def test_an_epoch_that_waits_for_all_measures_nothing_without_them(group: Elastic, tmp_path: Path) -> None:
    group.start([0], slow(tmp_path, samples=640))
    (first,) = group.done(0)
    (pid,) = group.pids(0)
    group.go_on([0, 1, 2], slow(tmp_path, first, samples=640, wait_for_all=True))
    reports = group.done(0, 1, 2)
    assert group.pids(0) == [pid]
    assert [report["workers"] for report in reports] == [3, 3, 3]
    assert reports[0]["warm_up_samples"] == 0 and reports[0]["samples"] == 640


def test_survivors_of_a_kill_go_on_in_the_same_processes(group: Elastic, tmp_path: Path, undisturbed: dict) -> None:
    group.start([0, 1, 2], slow(tmp_path))
    group.until_trained(0)
    pids = group.pids(0, 1, 2)
    os.kill(pids[1], signal.SIGKILL)
    reports = group.done(0, 2)
    assert group.pids(0, 2) == [pids[0], pids[2]]
    assert_as_undisturbed(reports, undisturbed)
    view = group.view()
    assert view["members"] == [0, 2] and view["lost"][0]["worker"] == 1


def test_a_group_that_reads_ahead_in_parts_and_clips_changes_as_any_other(group: Elastic, tmp_path: Path) -> None:
    """A worker joins, another one dies: each step is read anew for those that are there, and clipped once."""
    given = {"readers": 2, "micro_batch": 5, "clip": {"norm": 0.2}}
    plain = group.gang.epoch(1, 0, **epoch(tmp_path, text=MLP, samples=SAMPLES, optimizer=OPTIMIZER, **given))
    group.gang.fresh_group()
    group.start([0, 1], slow(tmp_path, **given))
    group.until_trained(0)
    group.join(2)
    group.resize(0, 1, 2)
    group.until_members(0, 1, 2)
    os.kill(group.pids(0)[0], signal.SIGKILL)
    assert_as_undisturbed(group.done(1, 2), plain)


def test_a_worker_joins_within_an_epoch_and_gets_the_whole_state(
    group: Elastic, tmp_path: Path, undisturbed: dict
) -> None:
    group.start([0], slow(tmp_path))
    group.until_trained(0)
    (pid,) = group.pids(0)
    group.join(1)
    group.resize(0, 1)
    view = group.until_members(0, 1)
    reports = group.done(0, 1)
    assert group.pids(0) == [pid]
    assert_as_undisturbed(reports, undisturbed)
    change = view["changes"][-1]
    assert change["workers"] == [0, 1] and 0 < change["step"] < 600 and change["pause_ms"] > 0


@pytest.mark.parametrize(
    "optimizer",
    [
        {
            "name": "Adam",
            "learning_rate": 0.003,
            "schedule": {"name": "StepLR", "step_size": 30, "gamma": 0.5},
        },
        {"name": "RMSprop", "learning_rate": 0.001, "centered": True, "momentum": 0.5},
    ],
)
def test_a_newcomer_has_the_optimizer_and_the_schedule_of_the_others(
    group: Elastic, tmp_path: Path, optimizer: dict
) -> None:
    """Worker 0 leaves when worker 1 has joined: what is trained from then on is trained with what was handed over."""
    first = epoch(tmp_path, text=MLP, samples=SAMPLES, optimizer=optimizer)
    plain = group.gang.epoch(1, 0, **first)
    group.gang.fresh_group()
    group.start([0], slow(tmp_path, optimizer=optimizer))
    group.until_trained(0)
    group.join(1)
    group.resize(1)
    group.until_members(1)
    left = group.left(0)
    assert 320 <= left["samples"] < SAMPLES
    (report,) = group.done(1)
    assert report["samples"] == SAMPLES
    assert report["loss"] == pytest.approx(plain["loss"], rel=1e-4)
    assert report["train_loss"] == pytest.approx(plain["train_loss"], rel=1e-4)


FOLLOWS = """
    import torch

    def optimizer(net):
        return torch.optim.SGD(net.parameters(), 0.02, momentum=0.9)

    def schedule(optimizer):
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "min", 0.1, 0, 0.5)
"""


def test_a_schedule_that_follows_a_metric_outlives_a_kill_and_is_handed_over(group: Elastic, tmp_path: Path) -> None:
    """In the first epoch a worker is killed, in the second a newcomer takes over, which evaluates it and the third."""
    plain = None
    for _ in range(3):
        plain = group.gang.epoch(1, 0, **epoch(tmp_path, plain, text=MLP + FOLLOWS, optimizer=None, samples=3200))
    group.gang.fresh_group()
    given = {"text": SLOW + FOLLOWS, "optimizer": None, "samples": 3200}
    group.start([0, 1], slow(tmp_path, **given))
    group.until_trained(0)
    os.kill(group.pids(1)[0], signal.SIGKILL)
    (report,) = group.done(0)
    group.go.unlink()
    group.go_on([0], slow(tmp_path, report, **given))
    group.until_trained(0)
    group.join(1)
    group.resize(1)
    group.until_members(1)
    assert group.left(0)["samples"] < 3200
    (report,) = group.done(1)
    group.go_on([1], slow(tmp_path, report, **given))
    (report,) = group.done(1)
    assert report["loss"] == pytest.approx(plain["loss"], rel=1e-4)
    files = [each["weights_uri"].removeprefix("file://") for each in (plain, report)]
    rates = in_torch(f"""
        import json, torch
        settings = [json.loads(torch.load(each, weights_only=True)["settings"]) for each in {files!r}]
        print(json.dumps([each["param_groups"][0]["lr"] for each in settings]))
    """)
    assert rates[0] == rates[1] < 0.02


def test_a_worker_leaves_within_an_epoch(group: Elastic, tmp_path: Path, undisturbed: dict) -> None:
    group.start([0, 1], slow(tmp_path))
    group.until_trained(0)
    (pid,) = group.pids(0)
    group.resize(0)
    left = group.left(1)
    assert 320 <= left["samples"] < SAMPLES
    eventually(lambda: group.pids(1) == [None])
    assert_as_undisturbed(group.done(0), undisturbed)
    assert group.pids(0) == [pid] and not group.view()["lost"]


def test_a_worker_that_left_comes_back_within_the_same_epoch(group: Elastic, tmp_path: Path, undisturbed: dict) -> None:
    group.start([0, 1], slow(tmp_path))
    group.until_trained(0)
    group.resize(0)
    group.left(1)
    group.join(1)
    group.resize(0, 1)
    group.until_members(0, 1)
    assert_as_undisturbed(group.done(0, 1), undisturbed)


def test_two_changes_at_once(group: Elastic, tmp_path: Path, undisturbed: dict) -> None:
    """One worker joins while another is killed."""
    group.start([0, 1], slow(tmp_path))
    group.until_trained(0)
    pids = group.pids(0, 1)
    group.resize(0, 1, 2)
    group.join(2)
    os.kill(pids[1], signal.SIGKILL)
    group.until_members(0, 2)
    assert_as_undisturbed(group.done(0, 2), undisturbed)
    assert group.pids(0) == [pids[0]]


def test_a_worker_that_hangs_is_left_behind_and_told_from_a_dead_one(
    group: Elastic, tmp_path: Path, undisturbed: dict
) -> None:
    group.start([0, 1, 2], slow(tmp_path))
    group.until_trained(0)
    pids = group.pids(0, 1, 2)
    os.kill(pids[2], signal.SIGSTOP)
    try:
        view = group.until_members(0, 1)
        assert view["lost"][0]["worker"] == 2 and "hung" in view["lost"][0]["because"]
    finally:
        os.kill(pids[2], signal.SIGCONT)
    answer = group.worker(2).wait(group.message["epoch"])
    assert answer["error"]["reason"] == "PeerLost" and "hung" in answer["error"]["message"]
    assert_as_undisturbed(group.done(0, 1), undisturbed)
    assert group.pids(0, 1) == pids[:2]


def test_a_pause_that_is_no_hang_changes_nothing(group: Elastic, tmp_path: Path, undisturbed: dict) -> None:
    group.start([0, 1], slow(tmp_path))
    group.until_trained(0)
    pids = group.pids(0, 1)
    os.kill(pids[1], signal.SIGSTOP)
    time.sleep(2)  # longer than members wait before they say so
    os.kill(pids[1], signal.SIGCONT)
    assert_as_undisturbed(group.done(0, 1), undisturbed)
    assert group.pids(0, 1) == pids and not group.view()["lost"]


@pytest.mark.parametrize("stage", ["loading", "forming"])
def test_a_newcomer_that_dies_before_it_trains_is_not_waited_for(
    group: Elastic, tmp_path: Path, undisturbed: dict, stage: str
) -> None:
    group.start([0, 1], slow(tmp_path))
    group.until_trained(0)
    if stage == "loading":
        group.resize(0, 1, 2)
    group.join(2)
    eventually(lambda: group.pids(2) != [None])
    if stage == "forming":
        time.sleep(0.2)
        group.resize(0, 1, 2)
    os.kill(group.pids(2)[0], signal.SIGKILL)
    assert_as_undisturbed(group.done(0, 1), undisturbed)


def test_workers_train_on_without_a_scheduler_and_the_next_one_takes_over(
    group: Elastic, tmp_path: Path, undisturbed: dict
) -> None:
    group.start([0, 1], slow(tmp_path))
    group.until_trained(0)
    pids = group.pids(0, 1)
    os.kill(group.scheduler.health()["child_pid"], signal.SIGKILL)
    assert group.scheduler.wait(group.message["epoch"])["error"]["reason"] == "PeerLost"
    trained = group.status(group.worker(0))["progress"]["samples"]
    group.until_trained(0, trained + 160)
    group._start("scheduler", 0, 2)
    view = group.until_members(0, 1)
    os.kill(pids[1], signal.SIGKILL)
    group.until_members(0)
    assert_as_undisturbed(group.done(0), undisturbed)
    assert group.pids(0) == [pids[0]] and view["members"] == [0, 1]


def test_sizes_change_between_epochs_without_a_new_process(group: Elastic, tmp_path: Path, undisturbed: dict) -> None:
    group.start([0], slow(tmp_path, samples=SAMPLES // 2))
    (first,) = group.done(0)
    (pid,) = group.pids(0)
    group.message = slow(tmp_path, first, samples=SAMPLES // 2)
    group.join(1)
    group.resize(0, 1)
    group._start("scheduler", 0, 2)
    group.join(0)
    reports = group.done(0, 1)
    assert group.pids(0) == [pid]
    for report in reports:
        assert report["loss"] == pytest.approx(undisturbed["loss"], rel=1e-4)
        assert report["position"] == SAMPLES


def test_a_worker_that_left_between_epochs_comes_back(group: Elastic, tmp_path: Path) -> None:
    """Once its leaving was taken for the group's end: no view was ordered any more, and this waited for ever."""
    group.start([0, 1], slow(tmp_path, samples=320))
    report = group.done(0, 1)[0]
    for ranks in ([0], [0, 1], [0], [0, 1], [0], [0, 1]):
        group.go_on(ranks, slow(tmp_path, report, samples=320, wait_for_all=True))
        report = group.done(*ranks)[0]
        assert report["workers"] == len(ranks)


def replayed(tmp_path: Path, report: dict, views: list[tuple[int, int]]) -> bool:
    """Whether the checkpoint has the bits of one plain process that adds the same shares in the order of ranks.

    `views`: from which step how many workers trained.
    """
    return in_torch(f"""
        import json, sys, torch
        sys.path.insert(0, {str(ROOT / "functions")!r})
        from training.data import formats
        from training.data.dataset import Stream, share
        namespace = {{"__file__": {str(tmp_path / "model.py")!r}}}
        exec(open({str(tmp_path / "model.py")!r}).read(), namespace)
        torch.set_num_threads(1)
        torch.manual_seed(3)
        net, loss, views = namespace["net"](), namespace["loss"], {views!r}
        data = formats.load({str(ROOT / ".data/mnist-digits")!r}, "digits-json", None, 1440)
        stream, optimizer = Stream(1440, 3), torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
        for step in range({report["samples"]} // 32):
            workers = [count for first, count in views if first <= step][-1]
            total = None
            for rank in range(workers):
                rows = stream.rows(32 * step, 32)[share(32, rank, workers)]
                x, y = data.train.rows(rows)
                optimizer.zero_grad()
                part = loss(net(torch.from_numpy(x)), torch.from_numpy(y).long())
                (part if len(rows) == 32 else part * (len(rows) / 32)).backward()
                mine = [each.grad.clone() for each in net.parameters()]
                total = mine if total is None else [old.add_(new) for old, new in zip(total, mine)]
            for parameter, gradient in zip(net.parameters(), total):
                parameter.grad = gradient
            optimizer.step()
        saved = torch.load({report["weights_uri"].removeprefix("file://")!r}, weights_only=True)["model_state_dict"]
        print(json.dumps(all(torch.equal(saved[name], value) for name, value in net.state_dict().items())))
    """)


@pytest.mark.parametrize("workers", [2, 3])
def test_a_deterministic_group_has_the_bits_of_one_process_that_replays_its_shares(
    group: Elastic, tmp_path: Path, workers: int
) -> None:
    message = slow(tmp_path, samples=SAMPLES // 4, deterministic=True)
    report = group.gang.epoch(workers, 0, **message)
    assert replayed(tmp_path, report, [(0, workers)])


def test_after_a_kill_every_step_was_applied_once_to_the_last_bit(group: Elastic, tmp_path: Path) -> None:
    """The survivors' weights are those of a replay that knows only when the group changed: no step twice, none lost."""
    group.start([0, 1, 2], slow(tmp_path, samples=SAMPLES // 4, deterministic=True))
    group.until_trained(0)
    os.kill(group.pids(1)[0], signal.SIGKILL)
    group.until_members(0, 2)
    (report, _) = group.done(0, 2)
    changes = group.view()["changes"]
    assert [change["workers"] for change in changes] == [[0, 1, 2], [0, 2]]
    assert 0 < changes[1]["step"] < SAMPLES // 4 // 32
    assert replayed(tmp_path, report, [(0, 3), (changes[1]["step"], 2)])


@pytest.mark.parametrize(
    ("role", "message", "said"),
    [
        ("worker", {"members": [0]}, "this is for the scheduler"),
        ("scheduler", {"members": []}, "members is []"),
        ("scheduler", {"members": [0, 0]}, "members is [0, 0]"),
        ("scheduler", {"members": [True]}, "members is [True]"),
        ("scheduler", {"members": [0], "group": "other"}, "no elastic group 'other' here"),
    ],
)
def test_a_resize_that_cannot_be_is_refused(
    group: Elastic, tmp_path: Path, role: str, message: dict, said: str
) -> None:
    group.start([0], slow(tmp_path))
    answer = group.gang.functions[role, 0].post(op="resize", **{"group": group.gang.group, **message})
    assert answer[0] == 400 and said in answer[1]["error"]["message"], answer
