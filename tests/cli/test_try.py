"""`coach try`, `coach model` and a whole PyTorch job, on real frameworks."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coach.platforms.local import pytorch_runtime
from tests.chaos.processes import writing
from tests.cli.test_run import coach, started
from tests.functions.hosting import is_alive

ROOT = Path(__file__).parents[2]
JOB = """
apiVersion: coach.dev/v1alpha1
kind: TrainingJob
metadata: {{name: tried}}
spec:
  model: {{file: {model}}}
  data: {{uri: {digits}, format: digits-json, size: 640}}
  target: {{loss: 0.5}}
  budget: {{unlimited: true}}
  batchSize: 64
"""
TORCH = """
from torch import nn

def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))

loss = nn.CrossEntropyLoss()
"""

#: The loss of what was handed over on the test split, by PyTorch alone; Coach's code only reads the data.
MEASURED = """
import sys
sys.path[:0] = [{functions!r}, "."]
import torch
from model import loss, net
from training.data.formats import load
test = load({digits!r}, "digits-json", None, 640).test
data, labels = test.rows(slice(0, len(test)))
made = net()
made.load_state_dict(torch.load("tried.pt", weights_only=True)["model_state_dict"])
made.eval()
with torch.no_grad():
    print(float(loss(made(torch.from_numpy(data)), torch.from_numpy(labels).long())))
"""


def job(folder: Path, model: str | Path) -> Path:
    file = folder / "job.yaml"
    file.write_text(JOB.format(model=model, digits=ROOT / ".data/mnist-digits"))
    return file


@pytest.mark.mxnet
def test_mxnet_steps_are_tried(tmp_path: Path, functions: None) -> None:
    done = coach("try", str(job(tmp_path, ROOT / "functions/models/lenet.py")), "-o", "json")
    assert done.returncode == 0, done.stdout
    (found,) = json.loads(done.stdout)
    assert found["data"]["train"] == 640 and found["data"]["batch"][0] == "float32 (64, 1, 28, 28)"
    assert found["steps"][1]["loss"] < 3 and found["evaluation"]["samples"] == 256 and found["memory"] > 0


@pytest.mark.pytorch
def test_pytorch_steps_are_tried_and_shown(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(TORCH)
    done = coach("try", str(job(tmp_path, "model.py")))
    assert done.returncode == 0, done.stdout
    for words in (
        "640 samples to train on",
        "int32 (64,)",
        "samples/s",
        "of the 1 GiB that a worker requests",
    ):
        assert words in done.stdout


@pytest.mark.pytorch
def test_an_error_of_the_model_is_shown_from_its_own_line_on(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(TORCH.replace("784", "785"))
    done = coach("try", str(job(tmp_path, "model.py")))
    assert done.returncode == 2
    assert "shapes cannot be multiplied" in done.stderr and "training/" not in done.stderr


@pytest.mark.pytorch
def test_a_target_that_is_not_measured_is_said(tmp_path: Path) -> None:
    regression = TORCH.replace(
        "nn.CrossEntropyLoss()", "lambda outputs, labels: (outputs[:, 0] - labels).square().mean()"
    )
    (tmp_path / "model.py").write_text(regression.replace("(784, 10)", "(784, 1)"))
    file = job(tmp_path, "model.py")
    file.write_text(file.read_text().replace("target: {loss: 0.5}", "target: {accuracy: 0.5}"))
    done = coach("try", str(file))
    assert done.returncode == 2
    assert "spec.target cannot be reached: an accuracy is wanted" in done.stderr
    assert "define metrics(outputs, batch)" in done.stderr


OPTIONED = """
import argparse
import os

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--hidden", type=int, default=8)
given = parser.parse_args()

class Points(torch.utils.data.Dataset):
    def __len__(self):
        return 320

    def __getitem__(self, number):
        return torch.rand(6) + os.getpid() * 0, number % 2

class Small(nn.Module):
    def forward(self, x):
        assert len(x) <= (10 if self.training else 30), len(x)
        return x

def data(split):
    return Points()

def net(width):
    return nn.Sequential(Small(), nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 2))

loss = nn.CrossEntropyLoss()

metrics = {"confidence": lambda outputs, batch: outputs.softmax(1).max(1).values.mean()}
"""
OPTIONS = """
apiVersion: coach.dev/v1alpha1
kind: TrainingJob
metadata: {name: optioned}
spec:
  framework: pytorch
  model: {file: model.py, args: {width: 5}}
  data: {format: custom, readers: 2}
  target: {metric: confidence, value: 0.9, goal: maximize}
  budget: {unlimited: true}
  batchSize: 64
  microBatch: 10
  evaluationBatch: 30
  clip: {norm: 1.0}
  epoch: {time: 5m}
  optimizer: {name: SGD, lr: 0.1, schedule: {name: StepLR, step_size: 1, interval: epoch}}
"""


@pytest.mark.pytorch
def test_what_a_job_file_says_of_the_steps_is_tried_too(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(OPTIONED)
    (tmp_path / "job.yaml").write_text(OPTIONS)
    done = coach("try", str(tmp_path / "job.yaml"))
    assert done.returncode == 0, done.stderr
    assert "evaluation  30 samples: loss " in done.stdout and ", confidence 0." in done.stdout, done.stdout
    assert "float32 (10, 6), int64 (10,)" in done.stdout
    for before, after, said in (
        ("width: 5", "widht: 5", "has a parameter widht, as spec.model.args says"),
        (
            "metric: confidence",
            "metric: f1",
            "the metric f1 is wanted, and the model file has loss, confidence",
        ),
        ("evaluationBatch: 30", "evaluationBatch: 40", "AssertionError: 40"),
        ("microBatch: 10", "microBatch: 20", "AssertionError: 20"),
    ):
        (tmp_path / "job.yaml").write_text(OPTIONS.replace(before, after))
        done = coach("try", str(tmp_path / "job.yaml"))
        assert done.returncode == 2 and said in done.stderr, (done.stdout, done.stderr)


@pytest.mark.pytorch
def test_the_users_own_python_is_used(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(TORCH)
    file = str(job(tmp_path, "model.py"))
    python = str(pytorch_runtime.torch().python)
    done = coach("try", file, "--python", python, "-o", "json")
    assert done.returncode == 0, done.stderr
    without = coach("try", file, "--python", sys.executable)
    assert without.returncode == 5 and sys.executable in without.stderr


@pytest.mark.pytorch
def test_a_model_that_kills_its_process_is_told_from_an_error(tmp_path: Path) -> None:
    crashing = TORCH + "\nimport os\n\nclass Dies(nn.Flatten):\n    def forward(self, x):\n        os.abort()\n"
    (tmp_path / "model.py").write_text(crashing.replace("nn.Flatten()", "Dies()"))
    done = coach("try", str(job(tmp_path, "model.py")))
    assert done.returncode == 5
    assert (
        "died by itself during making the network and computing its first outputs (signal SIGABRT)" in done.stderr
        and "PyTorch" in done.stderr
    )


@pytest.mark.pytorch
def test_a_pytorch_job_runs_to_its_target_within_its_budget_and_hands_its_model_over(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(TORCH)
    file = job(tmp_path, "model.py")
    limits = "budget: {amount: 0.05, currency: USD}\n  workers: {min: 1, max: 2}\n  optimizer: {name: SGD, lr: 0.1}"
    roles = "resources: {scheduler: {cpu: 50m, memory: 256Mi}, worker: {cpu: 500m, memory: 512Mi}}"
    file.write_text(file.read_text().replace("budget: {unlimited: true}", f"{limits}\n  {roles}"))
    done = coach("run", str(file), "--no-live")
    assert done.returncode == 0, done.stdout + done.stderr
    shown = json.loads(coach("show", "tried", "-o", "json").stdout)
    assert shown["state"] == "Succeeded" and shown["loss"] <= 0.5
    assert {epoch["servers"] for epoch in shown["epochs"]} == {0}
    epochs = sum(epoch["cost"] for epoch in shown["epochs"])
    if "an epoch failed" in done.stdout:  # a busy machine; that is paid, too
        assert shown["spent"] > epochs
    else:
        assert shown["spent"] == pytest.approx(epochs), done.stdout
    assert 0 < shown["spent"] <= 0.05
    model = tmp_path / "tried.pt"
    assert coach("model", "tried", "-o", str(model)).returncode == 0
    again = coach("model", "tried", "-o", str(model))
    assert again.returncode == 2 and "--force" in again.stderr
    card = json.loads((tmp_path / "tried.pt.json").read_text())
    assert card["software"][0].startswith("PyTorch ") and len(card["data"]["sha256"]) == 64
    measured = MEASURED.format(functions=str(ROOT / "functions"), digits=str(ROOT / ".data/mnist-digits"))
    python = str(pytorch_runtime.torch().python)
    ran = subprocess.run([python, "-c", measured], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout) == pytest.approx(card["loss"], rel=1e-5)


SLOW = (
    TORCH.replace("nn.Sequential(", "Slow(")
    + """
import time

class Slow(nn.Sequential):
    def forward(self, x):
        time.sleep(0.05)
        return super().forward(x)
"""
)


@pytest.mark.pytorch
def test_an_epoch_goes_on_when_a_worker_is_killed(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(SLOW)
    file = job(tmp_path, "model.py")
    fixed = "maxEpochs: 4\n  policy: {name: static, workers: 2}\n  workers: {min: 1, max: 2}"
    roles = "resources: {scheduler: {cpu: 50m, memory: 256Mi}, worker: {cpu: 500m, memory: 512Mi}}"
    text = file.read_text().replace("loss: 0.5", "loss: 0.001").replace("size: 640", "size: 2560")
    file.write_text(f"{text.rstrip()}\n  {fixed}\n  {roles}\n")
    with started("run", str(file), "--no-live") as run:
        run.until("epoch 1:")
        time.sleep(1.0)  # into the next epoch, which takes two; or, on a busy machine, the one after it
        for pid in writing("tried-worker-1.log"):
            os.kill(pid, signal.SIGKILL)
        _, said = run.end()
    assert "tried-worker-1 is gone" in said
    assert re.search(r"epoch \d: 2 workers \(1 lost, late or given\)", said)
    shown = json.loads(coach("show", "tried", "-o", "json").stdout)
    assert [epoch["attempt"] for epoch in shown["epochs"]] == [1, 1, 1, 1]
    assert shown["spent"] == pytest.approx(sum(epoch["cost"] for epoch in shown["epochs"]))
    losses = [epoch["loss"] for epoch in shown["epochs"]]
    assert losses == sorted(losses, reverse=True)


#: A model file with what a script may have: arguments, a file next to it, a summed loss, and a process of its own.
SCRIPT = """
import argparse, subprocess
from pathlib import Path

from parts import loss
from torch import nn

PIDS = Path(__file__).with_name("pids")
rate = argparse.ArgumentParser().parse_args()

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(784, 10))
        PIDS.write_text(str(subprocess.Popen(["sleep", "600"], start_new_session=True).pid))
"""


@pytest.mark.pytorch
def test_a_script_is_tried_as_it_is_run(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(SCRIPT)
    (tmp_path / "parts.py").write_text("from torch import nn\nloss = nn.CrossEntropyLoss(reduction='sum')\n")
    file = job(tmp_path, "model.py:Net")
    done = coach("try", str(file))
    assert done.returncode == 0, done.stderr
    assert "the loss is a sum over the samples" in done.stdout and "loss 2." in done.stdout
    assert not is_alive(int((tmp_path / "pids").read_text()))


@pytest.mark.pytorch
def test_a_model_that_needs_more_memory_than_a_worker_requests_fails_as_it_would(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(TORCH.replace("nn.Flatten()", "nn.Flatten(), nn.Linear(784, 784 * 500)"))
    done = coach("try", str(job(tmp_path, "model.py")))
    assert done.returncode == 2 and "OutOfMemory" in done.stderr


@pytest.mark.pytorch
@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (
            "lambda outputs, labels: (outputs[0] - outputs[-1]).square().sum()",
            "is neither the mean nor the sum",
        ),
        ("lambda net, batch: net(batch[0]).square().mean()", ""),
    ],
)
def test_a_loss_that_depends_on_who_trains_what_is_said(tmp_path: Path, loss: str, said: str) -> None:
    (tmp_path / "model.py").write_text(TORCH.replace("nn.CrossEntropyLoss()", loss))
    done = coach("try", str(job(tmp_path, "model.py")))
    assert done.returncode == 0, done.stderr
    assert (said in done.stdout) if said else ("note" not in done.stdout)
