"""Real groups train: the mathematics, the groups' life, what reports say."""

import math
from pathlib import Path

import numpy as np
import pytest

from tests.functions.hosting import FUNCTIONS, Gang
from tests.functions.messages import DIGITS, epoch, model_file

pytestmark = pytest.mark.mxnet


def test_a_group_is_kept_between_epochs_and_formed_anew_for_other_sizes(gang: Gang, tmp_path: Path) -> None:
    first = gang.epoch(2, 2, **epoch(tmp_path))
    pids = {key: function.health()["child_pid"] for key, function in gang.functions.items()}
    second = gang.epoch(2, 2, **epoch(tmp_path, first))
    assert pids == {key: function.health()["child_pid"] for key, function in gang.functions.items()}
    assert first["form_seconds"] > 0 and second["load_seconds"] < first["load_seconds"]

    gang.fresh_group()
    third = gang.epoch(1, 2, **epoch(tmp_path, second))
    assert gang.worker.health()["child_pid"] != pids["worker", 0]
    assert third["position"] == 3 * 640 == third["samples"] + second["position"]
    assert third["loss"] < second["loss"] < first["loss"] < math.log(10)
    assert 0.8 < third["accuracy"] <= 1


def test_obsolete_checkpoints_go_once_another_is_written(gang: Gang, tmp_path: Path) -> None:
    first = gang.epoch(1, 1, **epoch(tmp_path))
    second = gang.epoch(1, 1, **epoch(tmp_path, first))
    old = [first["weights_uri"], f"file://{tmp_path}/never-there.ckpt"]
    third = gang.epoch(1, 1, **epoch(tmp_path, second), obsolete=old)
    left = {file.as_uri() for file in tmp_path.glob("*.npz")}
    assert left == {second["weights_uri"], third["weights_uri"]}


def test_every_role_says_that_the_epoch_is_done(gang: Gang, tmp_path: Path) -> None:
    message = epoch(tmp_path)
    gang.epoch(2, 1, **message)
    for role, rank in gang.members(2, 1):
        answer = gang.functions[role, rank].wait(message["epoch"], seconds=5)
        assert answer["state"] == "done"
        assert answer["report"]["cpu_seconds"] >= 0 and answer["report"]["max_rss_gib"] > 0


NOTES_ENVIRONMENT = """
    import ctypes
    from pathlib import Path
    from mxnet import gluon

    def names():
        environment = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
        found, each = [], 0
        while environment[each]:
            found.append(environment[each].split(b"=")[0].decode())
            each += 1
        return found

    before = names()

    def net():
        layers = gluon.nn.Sequential()
        layers.add(gluon.nn.Flatten(), gluon.nn.Dense(10))
        return layers

    def loss():
        of_samples = gluon.loss.SoftmaxCrossEntropyLoss()

        def noting(output, labels):
            Path(FILE).write_text(" ".join(set(names()) - set(before)) + "." + " ".join(before))
            return of_samples(output, labels)

        return noting
"""


def test_forming_a_group_adds_no_name_to_the_environment_that_other_threads_read(gang: Gang, tmp_path: Path) -> None:
    file = tmp_path / "names"
    model = model_file(tmp_path / "notes.py", NOTES_ENVIRONMENT.replace("FILE", repr(str(file))))
    gang.epoch(1, 1, **epoch(tmp_path, model=model))
    added, _, before = file.read_text().partition(".")
    assert not added
    assert "DMLC_RANK" in before


@pytest.mark.parametrize("network", ["mlp", "dropout"])
def test_workers_and_servers_do_not_change_the_mathematics(gang: Gang, tmp_path: Path, network: str) -> None:
    """With dropout each worker draws its own units, so only sizes with one worker must agree there."""
    model = {"uri": str(FUNCTIONS / "models" / "mlp.py")}
    if network == "dropout":
        model = model_file(tmp_path / "dropout.py", DROPOUT)
    losses = {}
    for workers, servers in ((1, 1), (1, 2)) if network == "dropout" else ((1, 1), (2, 1), (2, 2)):
        gang.fresh_group()
        first = gang.epoch(workers, servers, **epoch(tmp_path, model=model))
        second = gang.epoch(workers, servers, **epoch(tmp_path, first, model=model))
        losses[workers, servers] = [first["loss"], second["loss"], second["train_loss"]]
    for found in losses.values():
        assert found == pytest.approx(losses[1, 1], rel=1e-4)


DROPOUT = """
    from mxnet import gluon

    def net():
        layers = gluon.nn.HybridSequential()
        layers.add(gluon.nn.Dense(32, activation="relu"), gluon.nn.Dropout(0.5), gluon.nn.Dense(10))
        return layers

    def loss():
        return gluon.loss.SoftmaxCrossEntropyLoss()
"""


def test_a_repeated_job_gives_exactly_the_same_numbers(gang: Gang, tmp_path: Path) -> None:
    model = model_file(tmp_path / "dropout.py", DROPOUT)
    runs = []
    for _ in range(2):
        gang.fresh_group()
        first = gang.epoch(1, 1, **epoch(tmp_path, model=model))
        runs.append((first["loss"], first["train_loss"], read(first)))
    assert runs[0][:2] == runs[1][:2]
    assert_same(runs[0][2], runs[1][2])


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "model", "not compiled"])
def test_an_epoch_resumed_in_a_new_group_equals_one_in_the_kept_group(
    gang: Gang, tmp_path: Path, optimizer: str
) -> None:
    changes = {
        "model": model_file(tmp_path / "scheduled.py", DROPOUT + SCHEDULED),
        "optimizer": {
            "sgd": {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9, "weight_decay": 0.001},
            "adam": {"name": "adam", "learning_rate": 0.01},
            "model": None,
        }.get(optimizer),
    }
    if optimizer == "not compiled":  # convolutions outside a HybridBlock, whose weights oneDNN likes to rearrange
        changes["model"] = model_file(tmp_path / "counting.py", COUNTING)
    first = gang.epoch(1, 1, **epoch(tmp_path, **changes))
    kept = gang.epoch(1, 1, **epoch(tmp_path, first, **changes))
    gang.fresh_group()
    resumed = gang.epoch(1, 1, **epoch(tmp_path, first, **changes))
    assert kept["loss"] == resumed["loss"]
    # A sum of float32, read in other portions: a new group's after its first step too.
    assert kept["train_loss"] == pytest.approx(resumed["train_loss"], rel=1e-6)
    assert_same(read(kept), read(resumed))


SCHEDULED = """
    from mxnet import lr_scheduler, optimizer as optimizers

    def optimizer():
        schedule = lr_scheduler.FactorScheduler(step=7, factor=0.8, base_lr=0.2)
        return optimizers.SGD(momentum=0.9, lr_scheduler=schedule)
"""


def test_a_formed_group_can_go_back_to_an_earlier_checkpoint(gang: Gang, tmp_path: Path) -> None:
    first = gang.epoch(2, 1, **epoch(tmp_path))
    second = gang.epoch(2, 1, **epoch(tmp_path, first))
    third = gang.epoch(2, 1, **epoch(tmp_path, second))
    again = gang.epoch(2, 1, **epoch(tmp_path, first))
    assert third["loss"] != second["loss"] == again["loss"]


def test_evaluating_a_checkpoint_again_gives_its_loss_again(gang: Gang, tmp_path: Path) -> None:
    trained = gang.epoch(2, 1, **epoch(tmp_path))
    gang.fresh_group()
    evaluated = gang.epoch(1, 1, **epoch(tmp_path, trained, samples=0))
    assert evaluated["samples"] == 0 and evaluated["position"] == trained["position"]
    assert evaluated["loss"] == pytest.approx(trained["loss"], rel=1e-5)
    assert evaluated["accuracy"] == trained["accuracy"]


def test_batch_normalisation_is_the_same_on_all_workers_at_the_checkpoint(gang: Gang, tmp_path: Path) -> None:
    """Else an epoch in a kept group would differ from the same one after the checkpoint was read by all."""
    model = model_file(tmp_path / "normal.py", NORMALISED)
    first = gang.epoch(2, 1, **epoch(tmp_path, model=model))
    kept = gang.epoch(2, 1, **epoch(tmp_path, first, model=model))
    gang.fresh_group()
    resumed = gang.epoch(2, 1, **epoch(tmp_path, first, model=model))
    assert kept["loss"] == resumed["loss"]
    assert_same(read(kept), read(resumed))


NORMALISED = """
    from mxnet import gluon

    def net():
        layers = gluon.nn.HybridSequential()
        layers.add(gluon.nn.Dense(32), gluon.nn.BatchNorm(), gluon.nn.Activation("relu"), gluon.nn.Dense(10))
        return layers

    def loss():
        return gluon.loss.SoftmaxCrossEntropyLoss()
"""


def test_samples_are_rounded_up_to_whole_batches_and_a_fraction_is_of_the_data_set(gang: Gang, tmp_path: Path) -> None:
    report = gang.epoch(1, 1, **epoch(tmp_path, samples=33))
    assert (report["samples"], report["data_size"]) == (64, DIGITS)
    gang.fresh_group()
    report = gang.epoch(1, 1, **epoch(tmp_path, samples=None, fraction=0.25))
    assert report["samples"] == math.ceil(DIGITS / 4 / 32) * 32
    gang.fresh_group()
    report = gang.epoch(1, 1, **epoch(tmp_path, data={"format": "digits8x8", "size": 100}, samples=1000))
    assert (report["samples"], report["data_size"]) == (1024, 100)


def test_a_part_for_a_new_learner_is_two_steps_at_least(gang: Gang, tmp_path: Path) -> None:
    part = {"samples": None, "fraction": 0.001}
    first = gang.epoch(1, 1, **epoch(tmp_path, **part))
    assert (first["samples"], first["warm_up_samples"]) == (64, 32)
    second = gang.epoch(1, 1, **epoch(tmp_path, first, **part))
    assert (second["samples"], second["warm_up_samples"]) == (32, 0)
    gang.fresh_group()
    few = epoch(tmp_path, data={"format": "digits8x8", "size": 32}, **part)
    assert gang.epoch(1, 1, **few)["samples"] == 32


#: Its first passes forward and backward take half a second longer than the others.
SLOW_FIRST = """
    import time
    from mxnet import autograd, gluon

    class Slow(autograd.Function):
        steps = 0

        def forward(self, x):
            return x * 1

        def backward(self, gradient):
            Slow.steps += 1
            time.sleep(0.5 if Slow.steps == 1 else 0)
            return gradient

    class Net(gluon.nn.Sequential):
        def forward(self, x):
            time.sleep(0.5 if autograd.is_recording() and Slow.steps == 0 else 0)
            return Slow()(super().forward(x))

    def net():
        layers = Net()
        layers.add(gluon.nn.Flatten(), gluon.nn.Dense(10))
        return layers

    def loss():
        return gluon.loss.SoftmaxCrossEntropyLoss()
"""


def test_the_warm_up_is_all_of_the_first_step(gang: Gang, tmp_path: Path) -> None:
    model = model_file(tmp_path / "slow.py", SLOW_FIRST)
    report = gang.epoch(1, 1, **epoch(tmp_path, model=model))
    assert 1.0 <= report["warm_up_seconds"] < report["train_seconds"]


def test_a_timed_probe_measures_for_its_seconds_after_the_warm_up(gang: Gang, tmp_path: Path) -> None:
    model = model_file(tmp_path / "slow.py", SLOW_FIRST)
    report = gang.epoch(1, 1, **epoch(tmp_path, model=model, samples=10_000_000, seconds=0.2))
    assert report["train_seconds"] - report["warm_up_seconds"] >= 0.2
    assert report["samples"] > report["warm_up_samples"]


#: It waits in its evaluation until the epoch's checkpoint is there.
WAITING = """
    import time
    from pathlib import Path
    from mxnet import autograd, gluon

    class Net(gluon.nn.Sequential):
        trained = False

        def forward(self, x):
            ends = time.monotonic() + 60
            Net.trained |= autograd.is_recording()
            while Net.trained and not autograd.is_recording() and not list(Path(__file__).parent.glob("*.npz")):
                assert time.monotonic() < ends, "no checkpoint came"
                time.sleep(0.01)
            return super().forward(x)

    def net():
        layers = Net()
        layers.add(gluon.nn.Flatten(), gluon.nn.Dense(10))
        return layers

    def loss():
        return gluon.loss.SoftmaxCrossEntropyLoss()
"""


def test_the_checkpoint_is_written_while_the_epoch_is_evaluated(gang: Gang, tmp_path: Path) -> None:
    gang.epoch(1, 1, **epoch(tmp_path, model=model_file(tmp_path / "waiting.py", WAITING)))


def test_a_timed_probe_stops_at_its_seconds(gang: Gang, tmp_path: Path) -> None:
    report = gang.epoch(1, 1, **epoch(tmp_path, samples=10_000_000, seconds=0.2))
    assert 0 < report["samples"] < 10_000_000
    assert report["train_seconds"] >= 0.2
    assert report["train_ended_at"] - report["train_started_at"] >= 0.2


def test_an_asynchronous_group_learns_and_goes_on(gang: Gang, tmp_path: Path) -> None:
    changes = {"mode": "async", "optimizer": {"name": "sgd", "learning_rate": 0.05, "momentum": 0.5}}
    first = gang.epoch(2, 2, **epoch(tmp_path, **changes))
    second = gang.epoch(2, 2, **epoch(tmp_path, first, **changes))
    gang.fresh_group()
    third = gang.epoch(1, 1, **epoch(tmp_path, second, **changes))
    assert third["loss"] < first["loss"] < math.log(10)


def test_a_model_file_may_read_its_own_data(gang: Gang, tmp_path: Path) -> None:
    model = model_file(
        tmp_path / "own.py",
        DROPOUT
        + """
    import numpy as np

    def data(split, path):
        assert path == "anywhere"
        labels = np.arange(96 if split == "train" else 48) % 3
        return np.eye(3, dtype="float32")[labels], labels
    """,
    )
    data = {"format": "custom", "uri": "anywhere"}
    report = gang.epoch(2, 1, **epoch(tmp_path, model=model, data=data))
    assert report["data_size"] == 96
    assert report["accuracy"] == 1.0


def test_a_worker_uses_the_threads_it_is_given(gang: Gang, tmp_path: Path) -> None:
    model = model_file(tmp_path / "counting.py", COUNTING)
    found = {}
    for threads in (1, 3):
        gang.fresh_group()
        gang.epoch(1, 1, **epoch(tmp_path, model=model, threads=threads))
        found[threads] = int((tmp_path / "threads").read_text())
    assert found[3] == found[1] + 2


#: Writes down how many threads its process has while it trains.
COUNTING = """
    import os
    from pathlib import Path
    from mxnet import autograd, gluon

    class Counting(gluon.nn.Sequential):
        def forward(self, x):
            y = super().forward(x)
            y.wait_to_read()
            if autograd.is_recording():
                Path(__file__).with_name("threads").write_text(str(len(os.listdir("/proc/self/task"))))
            return y

    def net():
        layers = Counting()
        layers.add(gluon.nn.Conv2D(32, kernel_size=3), gluon.nn.Dense(256), gluon.nn.Dense(10))
        return layers

    def loss():
        return gluon.loss.SoftmaxCrossEntropyLoss()
"""


def test_progress_is_seen_while_training(gang: Gang, tmp_path: Path) -> None:
    message = epoch(tmp_path, samples=10_000_000, seconds=2)
    gang.start(1, 1, **message)
    seen = []
    while (answer := gang.worker.post(op="status", epoch=message["epoch"], wait=0.5)[1])["state"] != "done":
        assert answer["state"] != "failed", answer
        seen.append((answer["version"], answer["progress"].get("samples", 0)))
    assert seen == sorted(seen) and seen[-1][1] > seen[0][1]


def read(report: dict) -> dict[str, np.ndarray]:
    """A checkpoint's arrays, as a user without Coach would read them."""
    with np.load(report["weights_uri"].removeprefix("file://"), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files if name != "meta.json"}


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys() and one
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)
