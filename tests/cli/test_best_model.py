"""A job without a target, on real MXNet groups: it ends within its money, and hands its best model over.

The model is the README's, with its convolutions.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from coach.platforms.local.environment import Functions
from tests.cli.conftest import ROOT
from tests.cli.test_try import coach

pytestmark = [pytest.mark.mxnet, pytest.mark.usefixtures("functions", "one_template"), pytest.mark.timeout(600)]

JOB = """
apiVersion: coach.dev/v1alpha1
kind: TrainingJob
metadata: {name: best}
spec:
  model: {file: model.py, args: {padding: 2, dense: [64]}}
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
MODEL = (ROOT / "functions/models/lenet.py").read_text()
#: Its money is used by time, and not by the machine's: each batch waits.
UNHURRIED = f"""import time
{MODEL.replace("def loss", "def plain")}

def loss():
    entropy = plain()
    return lambda outputs, labels: time.sleep(0.01) or entropy(outputs, labels)
"""
#: The losses of what was handed over on the test split, by MXNet alone; Coach's code only reads the data.
MEASURED = """
import json, sys
sys.path[:0] = [{functions!r}, {folder!r}]
import mxnet, numpy
from model import loss, net
from training.data.formats import load
test = load("sklearn:digits", "digits8x8").test
data, labels = (mxnet.nd.array(each) for each in test.rows(slice(0, len(test))))
make = lambda: net(padding=2, dense=[64])
arrays, made = numpy.load("best.npz"), make()
made.initialize()
made(data[:1])
for name, parameter in made._collect_params_with_prefix().items():
    parameter.set_data(mxnet.nd.array(arrays["weights/" + name]))
again = make()
again.load_parameters("best.params")
bare = mxnet.gluon.SymbolBlock.imports("best-symbol.json", ["data"], "best-0000.params")
print(json.dumps([float(loss()(each(data), labels).mean().asscalar()) for each in (made, again, bare)]))
"""


@pytest.mark.full
def test_the_money_is_used_for_epochs(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(UNHURRIED)
    (tmp_path / "best.yaml").write_text(JOB)
    done = coach("run", str(tmp_path / "best.yaml"), "--no-live")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "coach model best" in done.stdout
    shown = json.loads(coach("show", "best", "-o", "json").stdout)
    assert (shown["state"], shown["target"]) == ("Succeeded", None)
    assert shown["reason"] in ("BudgetUsed", "NoGainExpected")
    assert 0 < shown["spent"] <= 0.00012


def test_the_best_model_is_handed_over_in_files_that_mxnet_alone_reads(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    enough = JOB.replace("0.00012", "1").replace("max: 2", "max: 1")
    (tmp_path / "best.yaml").write_text(enough.replace("  servers:", "  maxEpochs: 2\n  servers:"))
    done = coach("run", str(tmp_path / "best.yaml"), "--no-live")
    assert done.returncode == 0, done.stdout + done.stderr
    shown = json.loads(coach("show", "best", "-o", "json").stdout)

    for to in (tmp_path, tmp_path / "best.npz"):
        done = coach("model", "best", "-o", str(to))
        assert done.returncode == 0, done.stderr
    card = json.loads((tmp_path / "best.params.json").read_text())
    full = [epoch for epoch in shown["epochs"] if epoch["loss"] is not None and epoch["kind"] != "probe"]
    assert card["loss"] == min(epoch["loss"] for epoch in full) == shown["best_loss"]
    assert card["cost"] <= shown["spent"] and card["model"]["sha256"] and len(card["data"]["sha256"]) == 64
    assert card["software"][0].startswith("MXNet ") and "Python 3" in card["software"][0]
    assert sum(each["epochs"] for each in card["allocations"]) == card["epoch"]
    found = subprocess.run(
        [
            str(Functions.find().python),
            "-c",
            MEASURED.format(functions=str(ROOT / "functions"), folder=str(tmp_path)),
        ],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == pytest.approx([card["loss"]] * 3, rel=1e-6)

    last = coach("model", "best", "-o", str(tmp_path / "last.npz"), "--epoch", "last", "--format", "json")
    assert json.loads(last.stdout)["epoch"] == shown["epochs"][-1]["epoch"]
    wrong = coach("model", "best", "-o", str(tmp_path / "x.npz"), "--epoch", "first")
    assert wrong.returncode == 2 and "must be best, last, or a number" in wrong.stderr
    wrong = coach("model", "best", "-o", "-")
    assert wrong.returncode == 2 and "-o NAME.npz" in wrong.stderr


@pytest.mark.full
def test_a_plan_trains_the_job_for_a_stated_price_where_nothing_is_known(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "best.yaml").write_text(JOB.replace("name: best", "name: planned"))
    figure = tmp_path / "plan.png"
    words = ("plan", str(tmp_path / "best.yaml"), "--budget", "0.0002,0.001")
    done = coach(*words, "--probe", "0.0002", "--figure", str(figure), "-o", "json")
    assert done.returncode == 0, done.stderr
    [found] = json.loads(done.stdout)
    assert found["rows"][0]["epochs"] < found["rows"][1]["epochs"] and found["points"] >= 4
    assert figure.stat().st_size > 1000
    [probe] = json.loads(coach("ps", "-o", "json").stdout)
    assert probe["name"] == "planned-probe" and 0 < probe["spent"] <= 0.0002
    assert coach(*words).returncode == 0  # from then on it is known
