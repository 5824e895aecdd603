"""Elastic parameter servers in real processes: workers and servers join, leave and die inside an epoch."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.functions.hosting import Elastic, Gang, Template, eventually
from tests.functions.messages import epoch, model_file

pytestmark = pytest.mark.mxnet

#: Takes long enough by sleeping that a test can act within an epoch, until the test lets it go.
SLOW = """
    import time
    from pathlib import Path
    from mxnet import autograd, gluon

    GO, STEPS = (Path(__file__).with_name(name) for name in ("go", "steps"))

    class Slow(gluon.nn.Sequential):
        def forward(self, x):
            if autograd.is_training():
                time.sleep(0.0 if GO.exists() else 0.02)
                with STEPS.open("ab") as steps:
                    steps.write(b".")
            return super().forward(x)

    def net():
        layers = Slow()
        layers.add(gluon.nn.Flatten(), gluon.nn.Dense(32, activation="relu"), gluon.nn.BatchNorm(), gluon.nn.Dense(10))
        return layers

    def loss():
        return gluon.loss.SoftmaxCrossEntropyLoss()
"""
MLP = SLOW.replace("gluon.nn.BatchNorm(), ", "")
SAMPLES = 32 * 250
#: A change of the group alters the order of sums of float32 only.
CLOSE = {"rel": 2e-4, "abs": 2e-5}


def message(folder: Path, after: dict | None = None, text: str = MLP, **changes: object) -> dict:
    """The next epoch's message."""
    optimizer, clip = {"name": "adam", "learning_rate": 0.002}, {"norm": 1.0, "value": None}
    changes = {"deadline": 120, "samples": SAMPLES, "optimizer": optimizer, "clip": clip, **changes}
    return {"elastic": True, **epoch(folder, after, model=model_file(folder / "slow.py", text), **changes)}


@pytest.fixture
def group(gang: Gang) -> Elastic:
    return Elastic(gang)


@pytest.fixture(scope="module")
def undisturbed(warm_gang: Gang, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict]:
    """The report of one worker and one server that train the same in peace."""
    warm_gang.fresh_group()
    group, folder = Elastic(warm_gang), tmp_path_factory.mktemp("peace")
    group.start([0], message(folder), 1)
    (report,) = group.done(0)
    yield report
    warm_gang.stop()


@pytest.mark.parametrize(
    ("text", "optimizer"),
    [
        (MLP, {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9, "weight_decay": 0.001}),
        (SLOW, {"name": "nag", "learning_rate": 0.05, "momentum": 0.9}),
    ],
    ids=["sgd", "nag-batchnorm"],
)
def test_it_trains_as_ps_lite_does(group: Elastic, tmp_path: Path, optimizer: dict, text: str) -> None:
    changes = {"text": text, "optimizer": optimizer, "clip": {"norm": None, "value": 0.1}, "samples": 320}
    (tmp_path / "go").touch()
    reports = []
    for elastic in (True, False):
        first = group.gang.epoch(1, 1, **{**message(tmp_path, **changes), "elastic": elastic})
        second = group.gang.epoch(1, 1, **{**message(tmp_path, first, **changes), "elastic": elastic})
        reports.append((first, second))
        group.gang.stop()
        group.gang.fresh_group()
    for ours, theirs in zip(*reports, strict=True):
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], rel=1e-5)
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)


def test_a_checkpoint_goes_on_to_the_last_bit(group: Elastic, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    first = group.gang.epoch(1, 2, **message(tmp_path, samples=320))
    kept = group.gang.epoch(1, 2, **message(tmp_path, first, samples=320))
    group.gang.stop()
    group.gang.fresh_group()
    anew = group.gang.epoch(1, 1, **message(tmp_path, first, samples=320))
    assert (anew["loss"], anew["train_loss"]) == (kept["loss"], kept["train_loss"])


def test_servers_and_workers_join_and_leave_inside_an_epoch(group: Elastic, tmp_path: Path, undisturbed: dict) -> None:
    group.start([0], message(tmp_path), 1)
    group.until_trained(0)
    group.serve(1)
    group.resize(0, servers=[0, 1])
    assert group.until_servers(0, 1)["migration_ms"] >= 0
    group.join(1)
    group.resize(0, 1, servers=[0, 1])
    group.until_members(0, 1)
    group.resize(0, 1, servers=[1])
    group.until_servers(1)
    eventually(lambda: group.status(group.server(0)).get("report") == {"left": True}, 20)
    group.serve(0)
    group.resize(0, 1, servers=[0, 1])
    group.until_servers(0, 1)
    group.resize(0, servers=[1])
    assert group.left(1)["samples"] > 0
    (report,) = group.done(0)
    assert report["samples"] == SAMPLES
    assert report["train_loss"] == pytest.approx(undisturbed["train_loss"], **CLOSE)
    assert report["loss"] == pytest.approx(undisturbed["loss"], **CLOSE)


def test_a_worker_that_dies_costs_its_step(group: Elastic, tmp_path: Path, undisturbed: dict) -> None:
    group.start([0, 1], message(tmp_path), 2)
    group.until_trained(0)
    os.kill(group.worker(1).health()["child_pid"], signal.SIGKILL)
    group.until_members(0)
    (report,) = group.done(0)
    assert report["train_loss"] == pytest.approx(undisturbed["train_loss"], **CLOSE)
    assert report["loss"] == pytest.approx(undisturbed["loss"], **CLOSE)


def test_a_server_that_dies_costs_the_steps_since_the_last_copy(
    group: Elastic, tmp_path: Path, undisturbed: dict
) -> None:
    group.start([0], message(tmp_path), 2)
    group.until_trained(0, 32)
    before = group.pids(0)
    again = group.kill_server(1, left=0)
    (report,) = group.done(0)
    assert group.pids(0) == before
    assert 0 <= report["repeated"] <= again
    # The first passes show the layers' shapes; one step was cut off by the death.
    computed = len((tmp_path / "steps").read_bytes()) - (SAMPLES + report["repeated"]) // 32
    assert 0 <= computed <= 3
    assert report["samples"] == SAMPLES
    assert report["train_loss"] == pytest.approx(undisturbed["train_loss"], **CLOSE)
    assert report["loss"] == pytest.approx(undisturbed["loss"], **CLOSE)


def test_workers_whose_server_has_died_found_the_group_anew_in_the_same_processes(
    group: Elastic, tmp_path: Path, undisturbed: dict
) -> None:
    group.start([0, 1], message(tmp_path), 2)
    group.until_trained(0, 32)
    before = group.pids(0, 1)
    os.kill(group.server(1).health()["child_pid"], signal.SIGKILL)
    group.until_servers(0)
    reports = group.done(0, 1)
    assert group.pids(0, 1) == before
    for report in reports:
        assert report["samples"] == SAMPLES
        assert report["loss"] == pytest.approx(undisturbed["loss"], **CLOSE)


def test_an_epoch_that_is_cut_counts_and_the_next_trains_the_rest(
    group: Elastic, tmp_path: Path, undisturbed: dict
) -> None:
    group.start([0], message(tmp_path), 1)
    group.until_trained(0)
    cut = {"group": group.gang.group, "epoch": group.message["epoch"]}
    assert group.scheduler.post(op="cut", **cut) == (200, cut)
    first = group.worker(0).wait(group.message["epoch"])["report"]
    assert 0 < first["samples"] < SAMPLES
    group.start([0], message(tmp_path, first, samples=SAMPLES - first["samples"]), 1)
    (second,) = group.done(0)
    assert (second["position"], second["loss"]) == (SAMPLES, pytest.approx(undisturbed["loss"], **CLOSE))
    assert 0 <= len((tmp_path / "steps").read_bytes()) - SAMPLES // 32 <= 2, "no step was trained twice"


def test_a_worker_that_is_released_between_epochs_is_done_without(
    template: Template, mark: str, tmp_path: Path
) -> None:
    gang = Gang(2, 2, network=33, COACH_ZYGOTE_TEMPLATE=str(template.path), COACH_TEST_MARK=mark)
    (tmp_path / "go").touch()
    try:
        members = {"members": [0, 1], "server_members": [0, 1]}
        first = gang.epoch(2, 2, scheduler=members, **message(tmp_path, samples=320))
        gang.functions.pop(("worker", 1)).close()
        second = gang.epoch(1, 2, scheduler=members | {"members": [0]}, **message(tmp_path, first, samples=320))
        assert second["samples"] == 320 and second["workers"] == 1
    finally:
        gang.close()


def test_the_next_epoch_has_other_servers(group: Elastic, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    start = message(tmp_path, samples=320)
    group.start([0], start, 1)
    (first,) = group.done(0)
    group.message = message(tmp_path, first, samples=320)
    group._start("scheduler", 0, 1, members=[0], server_members=[1], servers=1)
    group.serve(1)
    group.join(0, 1, 1)
    (second,) = group.done(0)
    assert second["position"] == 640
    eventually(lambda: group.server(0).health()["child_pid"] is None, 10)


def test_an_optimizer_that_servers_lack_is_refused(group: Elastic, tmp_path: Path) -> None:
    group.start([0], message(tmp_path, optimizer={"name": "sgld"}), 1)
    answer = group.worker(0).wait(group.message["epoch"])
    assert answer["error"]["reason"] == "BadRequest"
    assert "sgld does not run on elastic parameter servers; use one of sgd" in answer["error"]["message"]
