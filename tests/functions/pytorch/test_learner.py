"""What a job file says of the steps is what a user's own loop would do, with any number of workers."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.functions.hosting import ROOT, Gang
from tests.functions.pytorch.test_training import MLP, epoch, in_torch

pytestmark = pytest.mark.pytorch

#: A loop that a user would write: BEFORE the optimizer's step, AFTER it; `sizes` are those of the micro-batches.
PLAIN = """
    import json, sys, torch
    sys.path.insert(0, FUNCTIONS)
    from training.data import formats
    from training.data.dataset import Stream
    namespace = {}
    exec(open(MODEL).read(), namespace)
    torch.set_num_threads(1)
    torch.manual_seed(3)
    net, loss = namespace["net"](), namespace["loss"]
    data = formats.load(DIGITS, "digits-json", None, 1440)
    stream, optimizer = Stream(1440, 3), torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    schedule = SCHEDULE
    for position in range(0, SAMPLES, 32):
        x, y = data.train.rows(stream.rows(position, 32))
        x, y = torch.from_numpy(x), torch.from_numpy(y).long()
        optimizer.zero_grad()
        for some, labels in zip(x.split(MICRO), y.split(MICRO)):
            (loss(net(some), labels) * (len(some) / 32)).backward()
        BEFORE
        optimizer.step()
        AFTER
    saved = torch.load(SAVED, weights_only=True)["model_state_dict"]
    print(json.dumps([float((saved[name] - value).abs().max()) for name, value in net.state_dict().items()]))
"""


def differences(
    folder: Path,
    report: dict,
    *,
    schedule: str = "StepLR(optimizer, 1, 0.5)",
    before: str = "",
    after: str = "",
    micro: int = 32,
    samples: int = 640,
) -> list[float]:
    """The largest difference of each weight between a report's checkpoint and plain training."""
    given: dict[str, Any] = {
        "FUNCTIONS": str(ROOT / "functions"),
        "MODEL": str(folder / "model.py"),
        "DIGITS": str(ROOT / ".data/mnist-digits"),
        "SAVED": report["weights_uri"].removeprefix("file://"),
        "MICRO": micro,
        "SAMPLES": samples,
    }
    code = PLAIN.replace("BEFORE", before or "pass").replace("AFTER", after or "pass")
    code = code.replace("SCHEDULE", f"torch.optim.lr_scheduler.{schedule}")
    for name, value in given.items():
        code = code.replace(name, json.dumps(value))
    return in_torch(code)


@pytest.mark.parametrize(
    ("clip", "before"),
    [
        ({"norm": 0.3}, "torch.nn.utils.clip_grad_norm_(net.parameters(), 0.3)"),
        ({"value": 0.004}, "torch.nn.utils.clip_grad_value_(net.parameters(), 0.004)"),
    ],
)
def test_gradients_are_clipped_as_pytorch_clips_them(gang: Gang, tmp_path: Path, clip: dict, before: str) -> None:
    one = gang.epoch(1, 0, **epoch(tmp_path, clip=clip))
    assert differences(tmp_path, one, before=before) == [0.0] * 4
    assert max(differences(tmp_path, one)) > 1e-2, "the same without clipping: this test shows nothing"
    gang.fresh_group()
    two = gang.epoch(2, 0, **epoch(tmp_path, clip=clip))
    assert max(differences(tmp_path, two, before=before)) < 1e-5


SMALL = MLP.replace(
    "return nn.Sequential(",
    """class Small(nn.Module):
            def forward(self, x):
                assert len(x) <= (7 if self.training else 10), len(x)
                return x

        return nn.Sequential(Small(), """,
)


def test_a_batch_in_micro_batches_gives_the_weights_of_the_whole_one(gang: Gang, tmp_path: Path) -> None:
    """With no more samples at once than was said, in steps and in evaluations."""
    small = {"text": SMALL, "micro_batch": 7, "evaluation_batch": 10}
    one = gang.epoch(1, 0, **epoch(tmp_path, **small))
    assert differences(tmp_path, one, micro=7) == [0.0] * 4
    gang.fresh_group()
    two = gang.epoch(2, 0, **epoch(tmp_path, **small))
    assert max(differences(tmp_path, two, micro=7)) < 1e-5
    gang.fresh_group()
    whole = gang.epoch(1, 0, **epoch(tmp_path))
    for each in (one, two):
        assert (each["loss"], each["train_loss"]) == pytest.approx((whole["loss"], whole["train_loss"]), rel=1e-5)
        assert each["accuracy"] == whole["accuracy"]


IN_MODEL_FILE = (
    MLP
    + """
    import torch

    def optimizer(net):
        return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def schedule(optimizer):
        return {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5), "interval": "epoch"}
"""
)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("of_model_file", [True, False])
def test_a_schedule_of_epochs_is_stepped_after_each_pass_over_the_data(
    gang: Gang, tmp_path: Path, workers: int, of_model_file: bool
) -> None:
    """Whatever the job calls an epoch: here 960 of 1,440 samples, each in another group, and 3 passes end."""
    schedule = {"name": "StepLR", "step_size": 1, "gamma": 0.5, "interval": "epoch"}
    optimizer = {"name": "SGD", "learning_rate": 0.1, "momentum": 0.9, "schedule": schedule}
    given = {"text": IN_MODEL_FILE, "optimizer": None} if of_model_file else {"optimizer": optimizer}
    report = None
    for _ in range(5):
        gang.fresh_group()
        report = gang.epoch(workers, 0, **epoch(tmp_path, report, samples=960, **given))
    after = "if (position + 32) % 1440 == 0: schedule.step()"
    found = differences(tmp_path, report, after=after, samples=5 * 960)
    assert found == [0.0] * 4 if workers == 1 else max(found) < 1e-5
    assert max(differences(tmp_path, report, samples=5 * 960)) > 1e-2


def test_a_schedule_with_an_unknown_interval_is_refused(gang: Gang, tmp_path: Path) -> None:
    wanted = epoch(tmp_path, text=IN_MODEL_FILE.replace('"epoch"', '"week"'), optimizer=None)
    gang.start(1, 0, **wanted)
    error = gang.worker.wait(wanted["epoch"])["error"]
    assert error["reason"] == "ModelInvalid" and '"step" or "epoch"' in error["message"], error


FOLLOWS = IN_MODEL_FILE.replace("StepLR(optimizer, 1, 0.5)", "ReduceLROnPlateau(optimizer, MODE, 0.5, 0, 0.1)")
#: What a user's loop does after each of its evaluations.
AFTER_EVALUATION = """
        if position + 32 in range(1280, 5000, 960):
            x, y = data.test.rows(range(len(data.test)))
            net.eval()
            with torch.no_grad():
                scores, y = net(torch.from_numpy(x)), torch.from_numpy(y).long()
            net.train()
            found = {"loss": loss(scores, y).item(), "accuracy": (scores.argmax(1) == y).float().mean().item()}
            schedule.step(found[METRIC])
"""


@pytest.mark.parametrize(
    ("workers", "servers", "mode", "metric"), [(1, 0, "min", "loss"), (2, 0, "max", "accuracy"), (1, 1, "min", "loss")]
)
def test_a_schedule_that_follows_a_metric_is_stepped_after_each_evaluation(
    gang: Gang, tmp_path: Path, workers: int, servers: int, mode: str, metric: str
) -> None:
    """As in a loop that evaluates after each 960 samples; half-way in another group. A mini-epoch does not count."""
    text = FOLLOWS.replace("MODE", f'"{mode}"').replace('"interval": "epoch"', f'"monitor": "{metric}"')
    report, given = None, {"text": text, "optimizer": None, "samples": None, "epoch_samples": 960}
    for number, fraction in enumerate((1 / 3, 1.0, 1.0, 1.0)):
        if number in (0, 3):
            gang.fresh_group()
        report = gang.epoch(workers, servers, **epoch(tmp_path, report, fraction=fraction, **given))
    schedule = f'ReduceLROnPlateau(optimizer, "{mode}", 0.5, 0, 0.1)'
    after = AFTER_EVALUATION.replace("METRIC", f'"{metric}"')
    found = differences(tmp_path, report, schedule=schedule, after=after, samples=3200)
    alone = workers == 1 and not servers
    assert found == [0.0] * 4 if alone else max(found) < 1e-5
    if alone:
        assert max(differences(tmp_path, report, samples=3200)) > 1e-4, "the same at one rate: this test shows nothing"


def test_a_schedule_that_follows_what_was_not_measured_is_refused(gang: Gang, tmp_path: Path) -> None:
    text = FOLLOWS.replace("MODE", '"min"').replace('"interval": "epoch"', '"monitor": "f1"')
    wanted = epoch(tmp_path, text=text, optimizer=None, samples=64)
    gang.start(1, 0, **wanted)
    error = gang.worker.wait(wanted["epoch"])["error"]
    assert error["reason"] == "ModelInvalid" and "follows f1; an evaluation has loss, accuracy" in error["message"]
