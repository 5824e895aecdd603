"""A job without a target, on real MXNet groups: it ends within its money, and hands its best model over."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from coach.platforms.local.environment import Functions
from tests.cli.conftest import ROOT
from tests.cli.test_try import coach
from tests.platforms.local.test_platform import MODEL

pytestmark = [pytest.mark.mxnet, pytest.mark.usefixtures("functions"), pytest.mark.timeout(240)]

JOB = """
apiVersion: coach.dev/v1alpha1
kind: TrainingJob
metadata: {name: best}
spec:
  model: {file: model.py}
  data: {format: digits8x8}
  budget: {amount: 0.00012, currency: USD}
  workers: {max: 2}
  servers: {max: 1}
  resources:
    scheduler: {cpu: 10m, memory: 300Mi}
    server: {cpu: 50m, memory: 300Mi}
    worker: {cpu: 100m, memory: 500Mi}
  optimizer: {name: sgd, learningRate: 0.3, momentum: 0.9}
"""
#: The loss of the model on the test split, by MXNet alone; Coach's code only reads the data.
MEASURED = """
import json, sys
sys.path[:0] = [{functions!r}, {folder!r}]
import mxnet, numpy
from model import loss, net
from training.data.formats import load
arrays = numpy.load({file!r})
test = load("sklearn:digits", "digits8x8").test
data, labels = test.rows(slice(0, len(test)))
made = net()
made.initialize()
made(mxnet.nd.array(data[:1]))
for name, parameter in made._collect_params_with_prefix().items():
    parameter.set_data(mxnet.nd.array(arrays["weights/" + name]))
print(json.dumps(float(loss()(made(mxnet.nd.array(data)), mxnet.nd.array(labels)).mean().asscalar())))
"""


def test_the_money_is_used_for_epochs_and_the_best_model_is_handed_over(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "best.yaml").write_text(JOB)
    done = coach("run", str(tmp_path / "best.yaml"), "--no-live")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "coach model best" in done.stdout
    shown = json.loads(coach("show", "best", "-o", "json").stdout)
    assert (shown["state"], shown["target"]) == ("Succeeded", None)
    assert shown["reason"] in ("BudgetUsed", "NoGainExpected")
    assert 0 < shown["spent"] <= 0.00012

    file = tmp_path / "best.npz"
    assert coach("model", "best", "-o", str(file)).returncode == 0
    card = json.loads((tmp_path / "best.npz.json").read_text())
    full = [epoch for epoch in shown["epochs"] if epoch["loss"] is not None and epoch["kind"] != "mini"]
    assert card["loss"] == min(epoch["loss"] for epoch in full) == shown["best_loss"]
    assert card["cost"] <= shown["spent"] and card["model"]["sha256"]
    code = MEASURED.format(functions=str(ROOT / "functions"), folder=str(tmp_path), file=str(file))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    found = subprocess.run(
        [str(Functions.find().python), "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == pytest.approx(card["loss"], rel=1e-6)

    last = coach("model", "best", "-o", str(tmp_path / "last.npz"), "--epoch", "last", "--format", "json")
    assert json.loads(last.stdout)["epoch"] == shown["epochs"][-1]["epoch"]
    wrong = coach("model", "best", "-o", str(tmp_path / "x.npz"), "--epoch", "first")
    assert wrong.returncode == 2 and "must be best, last, or a number" in wrong.stderr
