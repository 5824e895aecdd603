"""Metrics of a model file by name, and arguments for its functions."""

from pathlib import Path

import pytest

from tests.functions.hosting import Gang
from tests.functions.pytorch.test_training import epoch, in_torch

pytestmark = pytest.mark.pytorch

#: F1 and perplexity are no means of batches: they are made of means.
SCORED = """
    import math

    import torch
    from torch import nn
    from torch.nn import functional as F

    def data(split):
        generator = torch.Generator().manual_seed(len(split))
        x = torch.randn(960 if split == "train" else 301, 6, generator=generator)
        return x, (x[:, 0] * x[:, 1] + 0.3 * torch.randn(len(x), generator=generator) > 0.4).long()

    def net(width=4):
        return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 2))

    loss = nn.CrossEntropyLoss()

    def metrics(outputs, batch):
        said, labels = outputs.argmax(1) == 1, batch[-1] == 1
        mean = lambda each: float(each.float().mean())
        return {"tp": mean(said & labels), "wrong": mean(said ^ labels), "accuracy": mean(said == labels)}

    def final_metrics(means, beta=1.0):
        f1 = (1 + beta) * means["tp"] / ((1 + beta) * means["tp"] + means["wrong"])
        return {"f1": f1, "perplexity": math.exp(means["loss"])}
"""

NAMED = """
    metrics = {
        "confidence": lambda outputs, batch: outputs.softmax(1).max(1).values.mean(),
        "logits/low": lambda outputs, batch: outputs.min(1).values.mean(),
    }
    final_metrics = None
"""

OWN = {"data": {"format": "model"}, "samples": 1920, "batch_size": 32}


def plain(folder: Path, report: dict, code: str) -> dict[str, float]:
    """What a user's own evaluation of the checkpoint gives, over the whole split at once."""
    return in_torch(f"""
        import json, math, torch
        namespace = {{"__name__": "model"}}
        exec(open({str(folder / "model.py")!r}).read(), namespace)
        net = namespace["net"]()
        saved = torch.load({report["weights_uri"].removeprefix("file://")!r}, weights_only=True)
        net.load_state_dict(saved["model_state_dict"])
        x, y = namespace["data"]("test")
        x, y = torch.as_tensor(x), torch.as_tensor(y)
        with torch.no_grad():
            outputs = net(x)
        said = outputs.argmax(1)
        print(json.dumps({code}))
    """)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_metrics_that_are_no_means_are_those_of_the_whole_split(gang: Gang, tmp_path: Path, workers: int) -> None:
    report = gang.epoch(workers, 0, **epoch(tmp_path, text=SCORED, evaluation_batch=20, **OWN))
    right = plain(
        tmp_path,
        report,
        """{
            "f1": float(2 * (said * y).sum() / (said.sum() + y.sum())),
            "perplexity": math.exp(float(torch.nn.functional.cross_entropy(outputs, y))),
        }""",
    )
    assert report["metrics"] == pytest.approx(right, rel=1e-5)
    assert 0.3 < report["metrics"]["f1"] < 1.0, "nothing was learnt: this test shows little"


@pytest.mark.parametrize("workers", [1, 2])
def test_metrics_may_be_functions_by_name(gang: Gang, tmp_path: Path, workers: int) -> None:
    report = gang.epoch(workers, 0, **epoch(tmp_path, text=SCORED + NAMED, **OWN))
    right = plain(
        tmp_path,
        report,
        '{"confidence": float(outputs.softmax(1).max(1).values.mean()), '
        '"logits/low": float(outputs.min(1).values.mean())}',
    )
    assert report["metrics"] == pytest.approx(right, rel=1e-5)
    assert report["accuracy"] is None


@pytest.mark.parametrize(
    ("code", "reason", "message"),
    [
        ("metrics = 3", "ModelInvalid", "metrics is a int; it has to be a function of (outputs, batch)"),
        ("metrics = {'loss': lambda outputs, batch: 1.0}", "ModelInvalid", "a metric named 'loss'"),
        ("metrics = {'f 1': lambda outputs, batch: 1.0}", "ModelInvalid", "a metric named 'f 1'"),
        (
            "metrics = {'f1': lambda outputs, batch: outputs}",
            "ModelInvalid",
            "the f1 is a Tensor of shape (8, 2)",
        ),
        (
            "def metrics(outputs, batch): return {f'f{len(outputs)}': 1.0}",
            "ModelInvalid",
            "metrics returned f301, and f8 at first",
        ),
        (
            "metrics = {'f1': lambda outputs, batch: float('nan')}\nfinal_metrics = None",
            "LossNotFinite",
            "the metric f1 is nan on the test split",
        ),
        (
            "net = lambda: nn.Linear(6, 1)",
            "ModelInvalid",
            "labels go from 0 to 1, but the network has 1 output, which fits labels from 0 to 0",
        ),
        ("def final_metrics(means): return 1 / 0", "ModelInvalid", "ZeroDivisionError"),
        ("def final_metrics(means): return {'accuracy': 7}", "ModelInvalid", "an accuracy of 7"),
    ],
)
def test_what_is_wrong_with_metrics_is_said(gang: Gang, tmp_path: Path, code: str, reason: str, message: str) -> None:
    text = SCORED + "".join(f"\n    {line}" for line in code.split("\n")) + "\n"
    wanted = epoch(tmp_path, text=text, evaluation_batch=1000, **{**OWN, "samples": 32})
    gang.start(1, 0, **wanted)
    error = gang.worker.wait(wanted["epoch"])["error"]
    assert error["reason"] == reason and message in error["message"], error


def test_functions_get_the_arguments_that_they_have_parameters_for(gang: Gang, tmp_path: Path) -> None:
    """Also where the next group, in the same warm processes, has others."""
    said = SCORED.replace("def net(width=4):", "def net(width=4, *, name='none'):")
    said = said.replace("def final_metrics(means, beta=1.0):", "def final_metrics(means, beta=1.0, **args):")
    said = said.replace('return {"f1": f1,', 'return {"arguments": len(args), "beta": beta, "f1": f1,')
    for args in ({"width": 3, "beta": 4.0, "name": "a b"}, {"width": 5}, {}):
        gang.fresh_group()
        wanted = epoch(tmp_path, text=said, **OWN)
        wanted["model"]["args"] = args
        report = gang.epoch(2, 0, **wanted)
        assert report["metrics"]["beta"] == args.get("beta", 1.0)
        assert report["metrics"]["arguments"] == len(args.keys() - {"beta"})
        shapes = in_torch(f"""
            import json, torch
            saved = torch.load({report["weights_uri"].removeprefix("file://")!r}, weights_only=True)
            print(json.dumps(len(saved["model_state_dict"]["0.bias"])))
        """)
        assert shapes == args.get("width", 4)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"widht": 3}, "no function of {} has a parameter widht, as spec.model.args says"),
        ({"outputs": 3}, "its parameter outputs, an argument of the job, comes before batch"),
    ],
)
def test_arguments_that_no_function_can_take_are_refused(gang: Gang, tmp_path: Path, args: dict, message: str) -> None:
    wanted = epoch(tmp_path, text=SCORED, **OWN)
    wanted["model"]["args"] = args
    gang.start(1, 0, **wanted)
    error = gang.worker.wait(wanted["epoch"])["error"]
    assert error["reason"] == "ModelInvalid", error
    assert message.format(tmp_path / "model.py") in error["message"], error
