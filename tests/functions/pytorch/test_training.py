"""Real PyTorch groups train: the mathematics, the groups' life, checkpoints that PyTorch's users can read."""

import json
import math
import os
import signal
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest

from coach.platforms.local import pytorch_runtime
from tests.functions.hosting import ROOT, Gang, is_alive
from tests.functions.messages import epoch as message
from tests.functions.messages import model_file

pytestmark = pytest.mark.pytorch

MLP = """
    from torch import nn

    def net():
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))

    loss = nn.CrossEntropyLoss()
"""

NORMALISED = """
    from torch import nn

    def net():
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))

    loss = nn.CrossEntropyLoss()
"""


def epoch(folder: Path, after: dict | None = None, text: str = MLP, net: str = "net", **changes: Any) -> dict:
    """The next epoch's message, of a model file with this text, on 1,440 digits."""
    changes = {
        "model": {**model_file(folder / "model.py", text), "net": net},
        "data": {"uri": str(ROOT / ".data/mnist-digits"), "format": "digits-json", "size": 1440},
        "optimizer": {"name": "SGD", "learning_rate": 0.1, "momentum": 0.9},
        "elastic": True,  # as the handler starts them
        **changes,
    }
    return message(folder, after, **changes)


def in_torch(code: str) -> Any:
    """The JSON that a snippet prints in the functions' Python, which need not have Coach."""
    command = [str(pytorch_runtime.torch().python), "-c", textwrap.dedent(code)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def test_one_worker_trains_and_goes_on_in_the_same_process(gang: Gang, tmp_path: Path) -> None:
    first = gang.epoch(1, 0, **epoch(tmp_path))
    pid = gang.worker.health()["child_pid"]
    second = gang.epoch(1, 0, **epoch(tmp_path, first))
    assert gang.worker.health()["child_pid"] == pid
    assert second["loss"] < first["loss"] < math.log(10)
    assert 0.8 < second["accuracy"] <= 1


def test_an_epoch_that_ends_by_its_time_is_followed_by_another(gang: Gang, tmp_path: Path) -> None:
    slow = MLP.replace(
        "    def net():",
        """    class Slow(nn.Module):
        def forward(self, x):
            import time
            time.sleep(0.05)
            return x

    plain = lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))

    def net():
        return nn.Sequential(Slow(), plain())

    def unused():""",
    )
    first = gang.epoch(1, 0, **epoch(tmp_path, text=slow, samples=1440, seconds=0.2))
    assert 0 < first["samples"] < 1440
    second = gang.epoch(1, 0, **epoch(tmp_path, first, text=slow, samples=320))
    assert second["samples"] == 320


@pytest.mark.parametrize("workers", [2, 3])
def test_the_number_of_workers_does_not_change_the_mathematics(gang: Gang, tmp_path: Path, workers: int) -> None:
    losses = []
    for count in (1, workers):
        gang.fresh_group()
        first = gang.epoch(count, 0, **epoch(tmp_path))
        second = gang.epoch(count, 0, **epoch(tmp_path, first))
        losses.append([first["loss"], second["loss"], second["train_loss"], second["accuracy"]])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_one_worker_is_plain_training_to_the_last_bit(gang: Gang, tmp_path: Path) -> None:
    """The same batches in a loop that a user of PyTorch would write, in a process without Coach's functions."""
    first = gang.epoch(1, 0, **epoch(tmp_path))
    plain = in_torch(f"""
        import json, sys, torch
        sys.path.insert(0, {str(ROOT / "functions")!r})
        from training.data import formats
        from training.data.dataset import Stream
        namespace = {{}}
        exec(open({str(tmp_path / "model.py")!r}).read(), namespace)
        torch.set_num_threads(1)
        torch.manual_seed(3)
        net, loss = namespace["net"](), namespace["loss"]
        data = formats.load({str(ROOT / ".data/mnist-digits")!r}, "digits-json", None, 1440)
        stream, optimizer = Stream(1440, 3), torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        for position in range(0, 640, 32):
            x, y = data.train.rows(stream.rows(position, 32))
            optimizer.zero_grad()
            loss(net(torch.from_numpy(x)), torch.from_numpy(y).long()).backward()
            optimizer.step()
        saved = torch.load({first["weights_uri"].removeprefix("file://")!r}, weights_only=True)
        equal = [torch.equal(saved["model_state_dict"][name], value) for name, value in net.state_dict().items()]
        print(json.dumps(equal))
    """)
    assert plain == [True] * 4


@pytest.mark.parametrize(
    "optimizer",
    [
        {"name": "SGD", "learning_rate": 0.1, "momentum": 0.9},
        {"name": "adamw", "learning_rate": 0.01, "betas": [0.8, 0.99], "weight_decay": 0.1},
        {"name": "Adam", "learning_rate": 0.01, "schedule": {"name": "StepLR", "step_size": 7, "gamma": 0.5}},
    ],
)
def test_an_epoch_after_a_checkpoint_is_the_one_without_it(gang: Gang, tmp_path: Path, optimizer: dict) -> None:
    ends = []
    for restart in (False, True):
        gang.fresh_group()
        first = gang.epoch(1, 0, **epoch(tmp_path, optimizer=optimizer))
        if restart:
            gang.fresh_group()
        second = gang.epoch(1, 0, **epoch(tmp_path, first, optimizer=optimizer))
        ends.append((second["loss"], second["train_loss"]))
    assert ends[0] == ends[1]


def test_batch_normalisation_keeps_one_running_mean_for_all_workers(gang: Gang, tmp_path: Path) -> None:
    """Each worker normalises by its own share, as DistributedDataParallel does; what they measured is averaged."""
    first = gang.epoch(2, 0, **epoch(tmp_path, text=NORMALISED))
    second = gang.epoch(2, 0, **epoch(tmp_path, first, text=NORMALISED))
    assert second["loss"] < first["loss"] < math.log(10)
    path = second["weights_uri"].removeprefix("file://")
    counted = in_torch(f"""
        import json, torch
        state = torch.load({path!r}, weights_only=True)["model_state_dict"]
        print(json.dumps([int(state["2.num_batches_tracked"]), float(state["2.running_var"].min())]))
    """)
    assert counted[0] == 40 and counted[1] > 0


def test_a_damaged_checkpoint_is_refused(gang: Gang, tmp_path: Path) -> None:
    first = gang.epoch(1, 0, **epoch(tmp_path))
    file = Path(first["weights_uri"].removeprefix("file://"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    gang.fresh_group()
    wanted = epoch(tmp_path, first)
    gang.start(1, 0, **wanted)
    answer = gang.worker.wait(wanted["epoch"])
    assert answer["error"]["reason"] == "CheckpointInvalid", answer


HOSTILE = {
    "a pickle": """
        class Bomb:
            def __reduce__(self):
                return os.system, (f"touch {hit}",)
        torch.save({"model_state_dict": Bomb()}, file)
    """,
    "TorchScript": "torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), file)",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_checkpoint_that_would_run_something_is_refused_and_runs_nothing(
    gang: Gang, tmp_path: Path, kind: str
) -> None:
    first = gang.epoch(1, 0, **epoch(tmp_path))
    file, hit = first["weights_uri"].removeprefix("file://"), tmp_path / "hit"
    in_torch(f"import os, torch\nfile, hit = {file!r}, {str(hit)!r}\n{textwrap.dedent(HOSTILE[kind])}\nprint(1)")
    gang.fresh_group()
    wanted = epoch(tmp_path, first)
    gang.start(1, 0, **wanted)
    error = gang.worker.wait(wanted["epoch"])["error"]
    assert error["reason"] == "CheckpointInvalid" and not hit.exists(), error


def test_a_group_that_is_not_elastic_is_refused(gang: Gang, tmp_path: Path) -> None:
    wanted = epoch(tmp_path, elastic=False)
    gang.start(1, 0, **wanted)
    error = gang.worker.wait(wanted["epoch"])["error"]
    assert error["reason"] == "BadRequest" and "groups here are elastic" in error["message"], error


def test_what_the_models_code_has_started_is_said_and_ends_with_its_group(gang: Gang, tmp_path: Path) -> None:
    starts = """
        import subprocess
        from torch import nn

        read = subprocess.Popen(["sleep", "600"], start_new_session=True).pid

        def net():
            made = [subprocess.Popen(["sleep", "600"], start_new_session=True).pid]
            script = "for i in $(seq 20); do (trap '' TERM; setsid sleep 600 > /dev/null & echo $!); done"
            made += map(int, subprocess.run(["sh", "-c", script], stdout=subprocess.PIPE).stdout.split())
            open(PIDS, "w").write(" ".join(map(str, [read, *made])))
            return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))

        loss = nn.CrossEntropyLoss()
    """
    file = tmp_path / "pids"
    report = gang.epoch(1, 0, **epoch(tmp_path, text=starts.replace("PIDS", repr(str(file)))))
    read, *made = map(int, file.read_text().split())
    assert report["processes"] == ["sleep"] * 21 == ["sleep"] * len(made)
    assert all(map(is_alive, made))
    gang.stop()
    assert not any(map(is_alive, made))
    assert is_alive(read), "what was started when the file was read is there for the next group"
    os.kill(read, signal.SIGKILL)
