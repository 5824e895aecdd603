"""What goes wrong ends plainly: a reason, a message, no process left in the group, and the function still works."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.functions.hosting import FUNCTIONS, Gang, HostedFunction, eventually, is_alive
from tests.functions.messages import SLOW_MODEL, epoch, model_file

pytestmark = pytest.mark.mxnet


def fail(gang: Gang, **message: object) -> dict:
    """Start a (1, 1) group whose epoch must fail; worker 0's error."""
    gang.start(1, 1, **message)
    answer = gang.worker.wait(message["epoch"])
    gang.stop()  # the others may still wait for a worker that never came
    assert answer["state"] == "failed", answer
    return answer["error"]


def slow_epoch(gang: Gang, folder: Path, workers: int = 2, servers: int = 2, **changes: object) -> str:
    """Have a group in the middle of an epoch that takes minutes."""
    model = model_file(folder / "slow.py", SLOW_MODEL)
    message = epoch(folder, model=model, samples=1_000_000, **changes)
    for function in gang.start(workers, servers, **message):
        function.wait(message["epoch"], ("training",))
    return message["epoch"]


@pytest.mark.parametrize("role", ["worker", "server", "scheduler"])
def test_a_member_killed_from_outside_is_reported_by_every_function(gang: Gang, tmp_path: Path, role: str) -> None:
    token = slow_epoch(gang, tmp_path)
    pids = {key: function.health()["child_pid"] for key, function in gang.functions.items()}
    victim = (role, 0 if role == "scheduler" else 1)
    os.kill(pids[victim], signal.SIGKILL)
    for key, function in gang.functions.items():
        answer = function.wait(token, seconds=10)
        assert answer["state"] == "failed" and answer["error"]["reason"] == "PeerLost", (key, answer)
        named = "killed by signal 9" if key == victim else " ".join(map(str, victim)).removesuffix(" 0")
        assert named in answer["error"]["message"], (key, answer)
    eventually(lambda: not any(is_alive(pid) for pid in pids.values()))
    gang.fresh_group()
    assert gang.epoch(2, 2, **epoch(tmp_path))["loss"] > 0


def test_stop_ends_the_child_before_it_answers(gang: Gang, tmp_path: Path) -> None:
    token = slow_epoch(gang, tmp_path, 1, 1)
    pid = gang.worker.health()["child_pid"]
    assert gang.worker.post(op="stop", epoch=token) == (200, {"state": "stopped"})
    assert not is_alive(pid)
    assert gang.worker.wait(token)["state"] == "stopped"
    assert gang.worker.post(op="stop", epoch=token) == (200, {"state": "stopped"})


def test_stop_of_another_group_touches_nothing(gang: Gang, tmp_path: Path) -> None:
    token = slow_epoch(gang, tmp_path, 1, 1)
    assert gang.worker.post(op="stop", group="somebody-elses")[0] == 200
    assert gang.worker.post(op="status", epoch=token)[1]["state"] == "training"


def test_at_the_deadline_the_children_die_without_being_asked(gang: Gang, tmp_path: Path) -> None:
    token = slow_epoch(gang, tmp_path, 2, 1, deadline=4)
    members = [gang.functions[key] for key in gang.members(2, 1)]
    pids = [function.health()["child_pid"] for function in members]
    eventually(lambda: not any(is_alive(pid) for pid in pids))  # without requests to the functions meanwhile
    reasons = {function.wait(token)["error"]["reason"] for function in members}
    assert "DeadlineExceeded" in reasons and reasons <= {"DeadlineExceeded", "PeerLost"}


def test_a_deadline_that_cuts_loading_short_is_not_the_models_fault(gang: Gang, tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text("while True: pass")
    error = fail(gang, **epoch(tmp_path, model={"uri": str(tmp_path / "hangs.py")}, deadline=0.5))
    assert error["reason"] == "DeadlineExceeded" and "loading the model" in error["message"]


def test_the_deadline_counts_while_a_group_is_idle_and_each_epoch_renews_it(gang: Gang, tmp_path: Path) -> None:
    first = gang.epoch(1, 1, **epoch(tmp_path, deadline=60))
    second = gang.epoch(1, 1, **epoch(tmp_path, first, deadline=2, samples=64))
    pid = gang.worker.health()["child_pid"]
    assert is_alive(pid)
    eventually(lambda: not is_alive(pid))
    eventually(lambda: not any(function.health()["child_pid"] for function in gang.functions.values()))
    third = gang.epoch(1, 1, **epoch(tmp_path, second))  # the same group id: it forms again
    assert third["form_seconds"] > 0


def test_a_group_that_fell_apart_while_idle_forms_again(gang: Gang, tmp_path: Path) -> None:
    first = gang.epoch(2, 1, **epoch(tmp_path))
    members = [gang.functions[key] for key in gang.members(2, 1)]
    os.kill(members[-1].health()["child_pid"], signal.SIGKILL)
    eventually(lambda: not any(function.health()["child_pid"] for function in members))
    second = gang.epoch(2, 1, **epoch(tmp_path, first))
    assert second["loss"] < first["loss"]


def test_the_children_die_with_a_killed_function(tmp_path: Path, template, mark: str) -> None:
    gang = Gang(1, 1, 31, COACH_ZYGOTE_TEMPLATE=str(template.path), COACH_TEST_MARK=mark)
    try:
        token = slow_epoch(gang, tmp_path, 1, 1)
        health = gang.worker.health()
        gang.worker.process.kill()
        eventually(lambda: not is_alive(health["child_pid"]) and not is_alive(health["zygote_pid"]))
        answer = gang.functions["server", 0].wait(token)
        assert answer["error"]["reason"] == "PeerLost" and "worker 0" in answer["error"]["message"]
    finally:
        gang.close()


def test_a_killed_zygote_is_replaced(gang: Gang, tmp_path: Path) -> None:
    token = slow_epoch(gang, tmp_path, 1, 1)
    health = gang.worker.health()
    os.kill(health["zygote_pid"], signal.SIGKILL)
    answer = gang.worker.wait(token)
    assert answer["error"]["reason"] == "PeerLost"
    eventually(lambda: not is_alive(health["child_pid"]))
    gang.fresh_group()
    assert gang.epoch(1, 1, **epoch(tmp_path))["loss"] > 0


def test_a_start_is_idempotent_and_a_busy_function_refuses_another(gang: Gang, tmp_path: Path) -> None:
    model = model_file(tmp_path / "slow.py", SLOW_MODEL)
    message = epoch(tmp_path, model=model, samples=1_000_000)
    gang.start(1, 1, **message)
    gang.worker.wait(message["epoch"], ("training",))
    pid = gang.worker.health()["child_pid"]
    gang.start(1, 1, **message)
    assert gang.worker.health()["child_pid"] == pid
    for group in (gang.group, "another"):
        other = message | {"epoch": "another-epoch", "group": group, "host": gang.worker.address}
        common = {"role": "worker", "rank": 0, "workers": 1, "servers": 1, "root": "127.0.30.1:9999"}
        status, body = gang.worker.post(op="start", **common, **other)
        assert status == 409 and body["error"]["reason"] == "Busy"


def test_a_formed_group_refuses_an_epoch_of_another_shape(gang: Gang, tmp_path: Path) -> None:
    first = gang.epoch(1, 1, **epoch(tmp_path))
    message = epoch(tmp_path, first, batch_size=64, group=gang.group, host=gang.worker.address)
    root = f"{gang.functions['scheduler', 0].address}:{gang.port}"
    common = {"role": "worker", "rank": 0, "workers": 1, "servers": 1, "root": root}
    status, body = gang.worker.post(op="start", **common, **message)
    assert status == 400 and "batch_size" in body["error"]["message"]


MODELS = {
    "syntax error": ("def net(:\n", "ModelInvalid", "line 1"),
    "no net": ("def loss(): pass", "ModelInvalid", "net()"),
    "raises while loading": (
        "x = 1\nraise RuntimeError('broken')",
        "ModelInvalid",
        "line 2: RuntimeError: broken",
    ),
    "net raises": (
        "def net():\n    return 1 / 0\ndef loss(): pass",
        "ModelInvalid",
        "line 2: ZeroDivisionError",
    ),
    "net is no block": ("def net(): return 5\ndef loss(): return abs", "ModelInvalid", "int"),
    "exits": ("import sys\nsys.exit(0)", "ModelInvalid", "exit"),
    "exits hard": ("import os\nos._exit(0)", "ModelInvalid", "ended"),
    "kills": ("import os\nos.kill(os.getpid(), 9)", "ModelInvalid", "ended"),
    "hangs": ("while True: pass", "ModelTimeout", "1 s"),
    "hangs and catches all": (
        "while True:\n  try:\n    while True: pass\n  except BaseException: pass",
        "ModelTimeout",
        "1 s",
    ),
    "hangs beneath Python": (
        "import ctypes\nctypes.PyDLL(None).sleep(1000)",
        "ModelTimeout",
        "1 s",
    ),
    "wrong shape": (
        """
from mxnet import gluon
def net():
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Conv2D(4, kernel_size=99), gluon.nn.Dense(10))
    return net
def loss(): return gluon.loss.SoftmaxCrossEntropyLoss()
""",
        "ModelInvalid",
        "kernel",
    ),
    "labels outside": (
        """
from mxnet import gluon
def net(): return gluon.nn.Dense(5)
def loss(): return gluon.loss.SoftmaxCrossEntropyLoss()
""",
        "ModelInvalid",
        "labels go from 0 to 9, but the network has 5 outputs, which fit labels from 0 to 4",
    ),
    "mean loss": (
        """
from mxnet import gluon
def net(): return gluon.nn.Dense(10)
def loss(): return lambda out, y: gluon.loss.SoftmaxCrossEntropyLoss()(out, y).mean()
""",
        "ModelInvalid",
        "one loss per sample",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_broken_model_file_is_the_users_to_mend(gang: Gang, tmp_path: Path, name: str) -> None:
    text, reason, words = MODELS[name]
    (tmp_path / "broken.py").write_text(text)
    message = {"model": {"uri": str(tmp_path / "broken.py")}, "model_seconds": 1}
    error = fail(gang, **epoch(tmp_path, **message))
    if error["reason"] == "PeerLost":  # it ended its process, as anybody could have done once
        gang.fresh_group()
        error = fail(gang, **epoch(tmp_path, **message))
    assert error["reason"] == reason, error
    assert words in error["message"], error
    if name in ("kills", "hangs beneath Python", "wrong shape"):
        gang.fresh_group()
        assert gang.epoch(1, 1, **epoch(tmp_path))["loss"] > 0, "the function did not live on"


def test_a_loss_that_is_not_finite_fails_the_epoch(gang: Gang, tmp_path: Path) -> None:
    optimizer = {"name": "sgd", "learning_rate": 1e20}
    message = epoch(tmp_path, optimizer=optimizer)
    error = fail(gang, **message)
    assert error["reason"] == "LossNotFinite", error
    assert not Path(message["weights_out"].removeprefix("file://")).exists()


def test_checkpoints_that_are_missing_cut_or_of_another_place_have_different_reasons(
    gang: Gang, tmp_path: Path
) -> None:
    first = gang.epoch(1, 1, **epoch(tmp_path))
    whole = Path(first["weights_uri"].removeprefix("file://"))
    cut = tmp_path / "cut.npz"
    cut.write_bytes(whole.read_bytes()[:-1000])
    for changes, reason in (
        ({"weights_in": f"file://{tmp_path}/nowhere.npz"}, "CheckpointMissing"),
        ({"weights_in": f"file://{cut}"}, "CheckpointInvalid"),
        ({"position": 64}, "CheckpointInvalid"),
        ({"optimizer": {"name": "adam"}}, "CheckpointInvalid"),
    ):
        gang.fresh_group()
        error = fail(gang, **(epoch(tmp_path, first) | changes))
        assert error["reason"] == reason, error


def test_missing_and_unreadable_data_have_different_reasons(gang: Gang, tmp_path: Path) -> None:
    (tmp_path / "bad.npz").write_bytes(b"PK not really")
    for data, reason in (
        ({"uri": str(tmp_path / "nowhere"), "format": "idx"}, "DataMissing"),
        ({"uri": str(tmp_path / "bad.npz"), "format": "npz"}, "DataInvalid"),
    ):
        gang.fresh_group()
        assert fail(gang, **epoch(tmp_path, data=data))["reason"] == reason


def test_unwritable_weights_are_the_storages_fault(gang: Gang, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    message = epoch(tmp_path) | {"weights_out": f"file://{tmp_path}/file/weights.npz"}
    assert fail(gang, **message)["reason"] == "StorageFailed"


def test_a_child_over_its_memory_fails_with_that_reason(gang: Gang, tmp_path: Path) -> None:
    hungry = """
        import numpy as np
        from mxnet import gluon

        def net():
            net.kept = np.ones(2**28)
            return gluon.nn.Dense(10)

        def loss():
            return gluon.loss.SoftmaxCrossEntropyLoss()
    """
    message = epoch(tmp_path, model=model_file(tmp_path / "hungry.py", hungry), memory=1.0)
    assert fail(gang, **message)["reason"] == "OutOfMemory"
    wide = """
        from mxnet import gluon

        def net():
            layers = gluon.nn.HybridSequential()
            layers.add(gluon.nn.Dense(200_000), gluon.nn.Dense(2_000))
            return layers

        def loss():
            return gluon.loss.SoftmaxCrossEntropyLoss()
    """
    gang.fresh_group()
    message = epoch(tmp_path, model=model_file(tmp_path / "wide.py", wide), memory=1.0)
    assert fail(gang, **message)["reason"] == "OutOfMemory"
    gang.fresh_group()
    assert gang.epoch(1, 1, **epoch(tmp_path, memory=1.0))["loss"] > 0


def test_an_unknown_optimizer_is_a_bad_request(gang: Gang, tmp_path: Path) -> None:
    error = fail(gang, **epoch(tmp_path, optimizer={"name": "nonesuch"}))
    assert error["reason"] == "BadRequest" and "nonesuch" in error["message"]


def test_an_unknown_epoch_is_unknown_and_bodies_are_checked(gang: Gang) -> None:
    worker: HostedFunction = gang.worker
    assert worker.post(op="status", epoch="never-heard-of")[1]["state"] == "unknown"
    for body in (
        {},
        {"op": "dance"},
        {"op": "status"},
        {"op": "stop"},
        {"op": "status", "epoch": "e", "wait": 60},
    ):
        status, answer = worker.post(**body)
        assert status == 400 and answer["error"]["reason"] == "BadRequest"


def test_a_function_without_requests_for_a_while_does_not_count_as_stuck(gang: Gang, tmp_path: Path) -> None:
    server = gang.functions["server", 0]
    pid = server.health()["zygote_pid"]
    message = epoch(tmp_path)
    gang.epoch(1, 1, **message)
    time.sleep(11)  # longer than a zygote may take to obey; what it said lies unread
    assert server.wait(message["epoch"])["state"] == "done"
    assert server.health()["zygote_pid"] == pid and is_alive(pid)


def test_a_stopped_zygote_is_replaced_and_no_model_is_blamed(gang: Gang, tmp_path: Path) -> None:
    first = gang.epoch(1, 1, **epoch(tmp_path))
    pid = gang.worker.health()["zygote_pid"]
    os.kill(pid, signal.SIGSTOP)
    gang.fresh_group()
    error = fail(gang, **epoch(tmp_path, first))
    assert error["reason"] == "PeerLost", error
    eventually(lambda: not is_alive(pid))
    gang.fresh_group()
    assert gang.epoch(1, 1, **epoch(tmp_path, first))["loss"] < first["loss"]


def test_a_zygote_that_is_killed_while_it_loads_the_model_does_not_make_the_model_invalid(
    gang: Gang, tmp_path: Path
) -> None:
    model = model_file(tmp_path / "slow.py", SLOW_MODEL)
    file, begun = tmp_path / "slow.py", tmp_path / "begun"
    waits = f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\ntime.sleep(60)\n"
    file.write_text(waits + file.read_text())
    message = epoch(tmp_path, model=model)
    gang.start(1, 1, **message)
    eventually(begun.exists)
    pid = gang.worker.health()["zygote_pid"]
    os.kill(pid, signal.SIGKILL)
    answer = gang.worker.wait(message["epoch"])
    gang.stop()
    assert answer["error"]["reason"] == "PeerLost" and "loading the model" in answer["error"]["message"]


def test_a_function_that_cannot_import_its_framework_says_so(tmp_path: Path) -> None:
    (tmp_path / "mxnet.py").write_text("raise OSError('libgomp.so.1: cannot open shared object file')")
    function = HostedFunction("worker", "127.0.0.1", PYTHONPATH=f"{FUNCTIONS}:{tmp_path}")
    try:
        message = {**epoch(tmp_path), "role": "worker", "rank": 0, "workers": 1, "servers": 0, "group": "alone"}
        function.start(**message, root="127.0.0.1:9999", host="127.0.0.1")
        error = function.wait(message["epoch"])["error"]
        assert error["reason"] == "Internal"
        said = "the function cannot import what it needs: OSError: libgomp.so.1: cannot open shared object file"
        assert error["message"] == said
    finally:
        function.close()
