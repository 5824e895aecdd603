"""Model files as PyTorch's users have them: losses, data, optimizers and metrics of their own."""

import hashlib
import math
from pathlib import Path
from textwrap import dedent

import pytest

from coach.platforms.local.cluster import machine
from tests.functions.hosting import Gang
from tests.functions.pytorch.test_training import MLP, epoch, in_torch

pytestmark = pytest.mark.pytorch

#: As Hugging Face's models: a batch of keyword arguments, outputs with their own loss, a head tied to the embedding.
LANGUAGE_MODEL = """
    from dataclasses import dataclass

    import torch
    from torch import nn
    from torch.nn import functional as F

    TEXT = ("the quick brown fox jumps over the lazy dog and runs away. " * 40).encode()

    @dataclass
    class Output:
        loss: torch.Tensor
        logits: torch.Tensor

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(128, 24)
            self.body = nn.TransformerEncoderLayer(24, 2, 48, dropout=0.1, batch_first=True)
            self.head = nn.Linear(24, 128, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, input_ids, labels):
            length = input_ids.shape[1]
            mask = torch.triu(torch.full((length, length), float("-inf")), 1)
            logits = self.head(self.body(self.embedding(input_ids), src_mask=mask))
            return Output(F.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits)

    class Windows(torch.utils.data.Dataset):
        def __init__(self, text):
            self.ids = torch.tensor(list(text))

        def __len__(self):
            return len(self.ids) - 16

        def __getitem__(self, number):
            window = self.ids[number:number + 17]
            return {"input_ids": window[:-1], "labels": window[1:]}

    def data(split):
        return Windows(TEXT[:1800] if split == "train" else TEXT[1800:])

    def optimizer(net):
        return torch.optim.AdamW(net.parameters(), lr=0.003)

    def schedule(optimizer):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
"""

WHOLE_LOSS = """
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Autoencoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.down, self.up = nn.LazyLinear(16), nn.Linear(16, 784)

        def forward(self, x):
            code = torch.relu(self.down(x.flatten(1)))
            return self.up(code), code

    def loss(net, batch):
        x, _ = batch
        rebuilt, code = net(x)
        return F.mse_loss(rebuilt, x.flatten(1)) + 1e-4 * code.abs().mean(), (rebuilt, code)
"""

COLLATED = """
    import torch
    from torch import nn

    class Pairs(torch.utils.data.Dataset):
        def __init__(self, count):
            generator = torch.Generator().manual_seed(count)
            self.lengths = torch.randint(1, 9, (count,), generator=generator).tolist()

        def __len__(self):
            return len(self.lengths)

        def __getitem__(self, number):
            return torch.ones(self.lengths[number]), float(self.lengths[number])

    def data(split):
        return Pairs(640 if split == "train" else 100)

    def collate(samples):
        padded = nn.utils.rnn.pad_sequence([each for each, _ in samples], batch_first=True)
        padded = nn.functional.pad(padded, (0, 8 - padded.shape[1]))
        return padded, torch.tensor([length for _, length in samples])

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 1)

        def forward(self, x):
            return self.linear(x).squeeze(1)

    loss = nn.MSELoss

    def metrics(outputs, batch):
        return {"accuracy": float(((outputs - batch[1]).abs() < 0.5).float().mean())}
"""

TRANSFORMER = """
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    def net():
        sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
        return BertForSequenceClassification(BertConfig(intermediate_size=64, num_labels=2, **sizes))

    class Words(torch.utils.data.Dataset):
        def __init__(self, count):
            self.words = torch.randint(2, 64, (count, 12), generator=torch.Generator().manual_seed(count))

        def __len__(self):
            return len(self.words)

        def __getitem__(self, number):
            words = self.words[number]
            return {"input_ids": words, "labels": int(words[0] > 32)}

    def data(split):
        return Words(1280 if split == "train" else 200)
"""

CUSTOM = {"format": "model"}


def test_a_language_model_with_its_own_loss_tied_weights_and_schedule(gang: Gang, tmp_path: Path) -> None:
    job = {"text": LANGUAGE_MODEL, "net": "Tied", "data": CUSTOM, "optimizer": None}
    first = gang.epoch(2, 0, **epoch(tmp_path, samples=1784, **job))
    second = gang.epoch(2, 0, **epoch(tmp_path, first, samples=1784, **job))
    assert second["loss"] < 0.7 * first["loss"] < math.log(128)
    assert second["accuracy"] is None
    path = second["weights_uri"].removeprefix("file://")
    tied = in_torch(f"""
        import json, torch
        saved = torch.load({path!r}, weights_only=True)
        state = saved["model_state_dict"]
        lr = json.loads(saved["settings"])["param_groups"][0]["lr"]
        print(json.dumps([torch.equal(state["head.weight"], state["embedding.weight"]), lr]))
    """)
    assert tied == [True, 0.003]


def test_a_model_of_transformers_trains_with_its_own_loss(gang: Gang, tmp_path: Path) -> None:
    if not in_torch("import importlib.util as u, json; print(json.dumps(u.find_spec('transformers') is not None))"):
        pytest.skip("transformers is not there; make test-torch2 has it")
    optimizer = {"name": "AdamW", "learning_rate": 0.003}
    job = {"text": TRANSFORMER, "data": CUSTOM, "optimizer": optimizer}
    first = gang.epoch(2, 0, **epoch(tmp_path, samples=1280, **job))
    second = gang.epoch(2, 0, **epoch(tmp_path, first, samples=1280, **job))
    assert second["loss"] < 0.1 * math.log(2) and second["accuracy"] > 0.95


def test_a_loss_of_net_and_batch_with_lazy_layers(gang: Gang, tmp_path: Path) -> None:
    job = {"text": WHOLE_LOSS, "net": "Autoencoder", "optimizer": None}
    first = gang.epoch(1, 0, **epoch(tmp_path, **job))
    second = gang.epoch(1, 0, **epoch(tmp_path, first, **job))
    assert second["loss"] < first["loss"]


def test_a_dataset_with_its_collate_function_and_metrics(gang: Gang, tmp_path: Path) -> None:
    optimizer = {"name": "SGD", "learning_rate": 0.05}
    job = {"text": COLLATED, "net": "Net", "data": CUSTOM, "optimizer": optimizer}
    losses = {}
    for workers in (1, 2):
        gang.fresh_group()
        first = gang.epoch(workers, 0, **epoch(tmp_path, **job))
        second = gang.epoch(workers, 0, **epoch(tmp_path, first, **job))
        losses[workers] = [first["loss"], second["loss"], second["accuracy"]]
    assert losses[1] == pytest.approx(losses[2], rel=1e-4)
    assert losses[1][1] < losses[1][0] and losses[1][2] > 0.5


@pytest.mark.parametrize(
    ("change", "reason", "message"),
    [
        (("def net", "def made"), "ModelInvalid", "defines no function or class net"),
        (("loss = nn.CrossEntropyLoss()", "loss = 3"), "ModelInvalid", "loss is int"),
        (
            ("nn.CrossEntropyLoss()", "nn.CrossEntropyLoss(reduction='none')"),
            "ModelInvalid",
            "the loss is float32 (8,); it has to be one number",
        ),
        (
            ("loss = ", "def metrics(outputs, batch):\n    return {'accuracy': 1.216}\nloss = "),
            "ModelInvalid",
            "an accuracy of 1.216; it has to be the share of right answers, 0 to 1",
        ),
        (
            ("loss = ", "def metrics(outputs, batch):\n    return {'accuracy': batch[1]}\nloss = "),
            "ModelInvalid",
            "of shape (8,); it has to be one number of 0 to 1",
        ),
        (("loss = nn.CrossEntropyLoss()", ""), "ModelInvalid", "define loss(net, batch)"),
        (("nn.Linear(32, 10)", "nn.Linear(31, 10)"), "ModelInvalid", "shapes cannot be multiplied"),
        (
            ("return nn.Sequential", "return 5\n    nn.Sequential"),
            "ModelInvalid",
            "net made int, no torch.nn.Module",
        ),
        (("loss = ", "net = net()\nloss = "), "ModelInvalid", "name its class after the file: model.py:Net"),
        (
            ("loss = ", "def metrics(outputs, batch):\n    return 0.5\nloss = "),
            "ModelInvalid",
            "returned float",
        ),
        (
            (
                "from torch",
                "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\nfrom torch",
            ),
            "ModelInvalid",
            "starts 1 thread when it is read",
        ),
        (
            (
                "loss =",
                "import torch\ntorch.set_num_threads(2)\ntorch.ones(900, 900) @ torch.ones(900, 900)\nloss =",
            ),
            "ModelInvalid",
            "when it is read. A worker is a fork of the process that reads it",
        ),
        (
            ("from torch import nn", "from torch import nn\nimport my_layers"),
            "ModelInvalid",
            "where Coach finds what import statements name",
        ),
        (("from torch import nn", "from torch import nn\nexit(3)"), "ModelInvalid", "called exit(3)"),
    ],
)
def test_what_is_wrong_with_a_model_file_is_said(
    gang: Gang, tmp_path: Path, change: tuple[str, str], reason: str, message: str
) -> None:
    wanted = epoch(tmp_path, text=dedent(MLP).replace(*change))
    gang.start(1, 0, **wanted)
    error = gang.worker.wait(wanted["epoch"])["error"]
    assert error["reason"] == reason and message in error["message"] and "model.py" in error["message"], error


#: Random text: nobody can be right in more than some 2 % of its characters.
TOKENS = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(50, 50)

        def forward(self, x):
            return self.table(x).flatten(0, 1)

    loss = nn.CrossEntropyLoss()

    def collate(samples):
        text = torch.stack(samples)
        return text[:, :-1], text[:, 1:].flatten()

    def data(split):
        text = torch.randint(50, (321, 65), generator=torch.Generator().manual_seed(int(split == "test")))
        return torch.utils.data.Subset(text, range(321))
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_the_accuracy_of_tokens_is_the_share_of_right_tokens(gang: Gang, tmp_path: Path, workers: int) -> None:
    job = {"text": TOKENS, "net": "Net", "data": CUSTOM, "optimizer": None, "samples": 320}
    report = gang.epoch(workers, 0, **epoch(tmp_path, **job))
    assert 0.01 < report["accuracy"] < 0.03


def test_labels_that_the_criterion_ignores_are_no_questions(gang: Gang, tmp_path: Path) -> None:
    text = """
        import torch
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.zeros(()))

            def forward(self, x):
                return torch.stack([x - 1e-9 * self.weight, -x], dim=2).flatten(0, 1)

        loss = nn.CrossEntropyLoss()

        def collate(samples):
            x, labels = zip(*samples)
            return torch.stack(x), torch.cat(labels)

        def data(split):
            x = torch.ones(64, 4)
            labels = torch.tensor([0, 0, 1, -100]).repeat(64, 1)
            return torch.utils.data.TensorDataset(x, labels)
    """
    job = {"text": text, "net": "Net", "data": CUSTOM, "optimizer": None, "samples": 64}
    assert gang.epoch(2, 0, **epoch(tmp_path, **job))["accuracy"] == pytest.approx(2 / 3)


def test_outputs_that_are_no_answers_to_the_samples_are_refused(gang: Gang, tmp_path: Path) -> None:
    text = TOKENS.replace("return text[:, :-1], text[:, 1:].flatten()", "return text[:, 0], text[1:, 1]")
    text = text.replace("self.table(x).flatten(0, 1)", "self.table(x)[1:]")
    wanted = epoch(tmp_path, text=text, net="Net", data=CUSTOM, optimizer=None)
    gang.start(1, 0, **wanted)
    error = gang.worker.wait(wanted["epoch"])["error"]
    found = "outputs float32 (7, 50), labels int64 (7,): 7 outputs and 7 labels for 8 samples"
    assert error["reason"] == "ModelInvalid" and found in error["message"], error


#: What the network returns, as nanoGPT's does, in which `RETURNED` stands for the tuple.
OWN_LOSS = """
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(4, 2)

        def forward(self, x, targets=None):
            logits = self.out(x)
            loss = None if targets is None else F.cross_entropy(logits, targets)
            return RETURNED

    class Rows(torch.utils.data.Dataset):
        def __init__(self, seed):
            self.x = torch.randn(320, 4, generator=torch.Generator().manual_seed(seed))

        def __len__(self):
            return len(self.x)

        def __getitem__(self, i):
            return {"x": self.x[i], "targets": (self.x[i].sum() > 0).long()}

    def data(split):
        return Rows(int(split == "test"))
"""


@pytest.mark.parametrize("returned", ["logits, loss", "loss, logits", "{'logits': logits, 'loss': loss}"])
def test_the_one_number_that_a_network_returns_is_its_loss(gang: Gang, tmp_path: Path, returned: str) -> None:
    text = OWN_LOSS.replace("RETURNED", returned)
    optimizer = {"name": "SGD", "learning_rate": 0.1}
    job = {"text": text, "net": "Net", "data": CUSTOM, "optimizer": optimizer, "samples": 320}
    report = gang.epoch(1, 0, **epoch(tmp_path, **job))
    assert 0.2 < report["loss"] < math.log(2) and report["accuracy"] > 0.6


@pytest.mark.parametrize(
    ("returned", "found"),
    [
        ("logits, x", "the outputs are (float32 (8, 2), float32 (8, 4)), and none of them is the loss"),
        ("logits, loss, loss", "the outputs are (float32 (8, 2), float32 (), float32 ()), and none"),
        ("{'logits': logits}", "the outputs are {logits: float32 (8, 2)}, and none of them is the loss"),
    ],
)
def test_outputs_without_one_number_need_a_loss(gang: Gang, tmp_path: Path, returned: str, found: str) -> None:
    text = OWN_LOSS.replace("RETURNED", returned)
    wanted = epoch(tmp_path, text=text, net="Net", data=CUSTOM, optimizer=None)
    gang.start(1, 0, **wanted)
    error = gang.worker.wait(wanted["epoch"])["error"]
    assert error["reason"] == "ModelInvalid" and found in error["message"], error
    assert "define loss(net, batch)" in error["message"]


SUMMED = """
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Net(nn.Linear):
        def __init__(self):
            super().__init__(4, 2)

    LOSS

    def data(split):
        x = torch.randn(320, 4, generator=torch.Generator().manual_seed(int(split == "test")))
        return x, (x.sum(1) > 0).long()
"""


@pytest.mark.parametrize(
    "loss",
    [
        "loss = nn.CrossEntropyLoss(reduction='sum')",
        "loss = lambda outputs, labels: F.cross_entropy(outputs, labels, reduction='sum')",
        "loss = lambda net, batch: F.cross_entropy(net(batch[0]), batch[1], reduction='sum')",
    ],
)
def test_the_number_of_workers_changes_nothing_with_a_summed_loss(gang: Gang, tmp_path: Path, loss: str) -> None:
    reports = {}
    for name, written, rate in (("sum", loss, 0.003), ("mean", "loss = nn.CrossEntropyLoss()", 0.003 * 30)):
        job = {"text": SUMMED.replace("LOSS", written), "net": "Net", "data": CUSTOM, "samples": 300}
        for workers in (1, 2, 3):
            gang.fresh_group()
            optimizer = {"name": "SGD", "learning_rate": rate}
            wanted = {**epoch(tmp_path, **job, optimizer=optimizer), "batch_size": 30}
            reports[name, workers] = gang.epoch(workers, 0, **wanted)
    for measure in ("loss", "train_loss"):
        first = reports["mean", 1][measure]
        assert [one[measure] for one in reports.values()] == pytest.approx([first] * 6, rel=1e-4), measure


def beside(folder: Path, **texts: str) -> dict[str, str]:
    """Files next to the model file, by name: their hashes."""
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(dedent(text))
    files = [folder / f"{name}.py" for name in texts]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


IMPORTS_LOSS = dedent(MLP).replace("loss = nn.CrossEntropyLoss()", "from parts import loss")


def test_a_model_file_imports_the_files_beside_it_that_the_job_names(gang: Gang, tmp_path: Path) -> None:
    wanted = epoch(tmp_path, text=IMPORTS_LOSS)
    wanted["model"]["files"] = beside(tmp_path, parts="from torch import nn\nloss = nn.CrossEntropyLoss()")
    assert gang.epoch(1, 0, **wanted)["loss"] < math.log(10)
    gang.fresh_group()  # the same process reads the model, and its files are other ones now
    wanted = epoch(tmp_path, text=IMPORTS_LOSS)
    wanted["model"]["files"] = beside(tmp_path, parts="loss = lambda outputs, labels: 0 * outputs.sum() + 7")
    assert gang.epoch(1, 0, **wanted)["loss"] == 7


@pytest.mark.parametrize(
    ("texts", "named", "message"),
    [
        ({"parts": "loss = len"}, {"parts.py": "0" * 64}, "parts.py has sha256"),
        ({"parts": "loss = len"}, {}, "No module named 'parts'; install it in"),
        ({"parts": "loss = 1 / 0"}, None, "parts.py line 1: ZeroDivisionError"),
        ({"parts": "import torch", "json": ""}, None, "`import json` means"),
    ],
)
def test_what_is_wrong_with_a_file_beside_it_is_said(
    gang: Gang, tmp_path: Path, texts: dict, named: dict | None, message: str
) -> None:
    wanted = epoch(tmp_path, text=IMPORTS_LOSS)
    files = beside(tmp_path, **texts)
    wanted["model"]["files"] = files if named is None else named
    gang.start(1, 0, **wanted)
    error = gang.worker.wait(wanted["epoch"])["error"]
    assert error["reason"] == "ModelInvalid" and message in error["message"], error


def test_a_model_file_sees_its_own_path_as_its_arguments(gang: Gang, tmp_path: Path) -> None:
    text = "import argparse, sys\nassert sys.argv == [__file__]\nargparse.ArgumentParser().parse_args()\n"
    report = gang.epoch(1, 0, **epoch(tmp_path, text=text + dedent(MLP)))
    assert report["loss"] is not None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("optimizer = torch.optim.Adam(net().parameters())", "write `def optimizer(net): return ...`"),
        (
            "def optimizer(net): return torch.optim.LBFGS(net.parameters())",
            "by a closure that Coach does not have",
        ),
        (
            "def optimizer(parameters): return torch.optim.Adam(parameters)\n"
            "schedule = torch.optim.lr_scheduler.StepLR(optimizer(net().parameters()), 9)",
            "schedule is a StepLR; write `def schedule(optimizer): return ...`",
        ),
    ],
)
def test_what_is_wrong_with_its_optimizer_or_schedule_is_said(
    gang: Gang, tmp_path: Path, text: str, message: str
) -> None:
    wanted = epoch(tmp_path, text=f"{dedent(MLP)}\nimport torch\n{text}\n", optimizer=None)
    gang.start(1, 0, **wanted)
    error = gang.worker.wait(wanted["epoch"])["error"]
    assert error["reason"] == "ModelInvalid" and message in error["message"], error


def test_data_as_tensors_keeps_its_types_and_comes_from_a_plain_path(gang: Gang, tmp_path: Path) -> None:
    text = """
        from pathlib import Path

        import torch
        from torch import nn

        class Net(nn.Sequential):
            def __init__(self):
                super().__init__(nn.Embedding(4, 4), nn.Flatten(), nn.Linear(8, 4))

        loss = nn.CrossEntropyLoss()

        def data(split, folder):
            numbers = Path(folder, "numbers").read_text().split() * (40 if split == "train" else 10)
            tokens = torch.tensor([int(each) for each in numbers]).reshape(-1, 2)
            assert Path(__file__).parent == Path(folder)
            return tokens, tokens[:, 0].clone()
    """
    (tmp_path / "numbers").write_text("0 1 1 2 2 3 3 0")
    job = {"text": text, "net": "Net", "data": {**CUSTOM, "uri": f"file://{tmp_path}"}}
    wanted = epoch(tmp_path, **job)
    report = gang.epoch(2, 0, **{**wanted, "samples": 640})
    assert report["data_size"] == 160 and report["accuracy"] == 1


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ("torch.utils.data.DataLoader([1, 2])", "is a DataLoader; return its dataset"),
        ("5", "is a int, no Dataset"),
        ("[]", "has no samples"),
    ],
)
def test_what_is_wrong_with_its_data_is_said(gang: Gang, tmp_path: Path, made: str, message: str) -> None:
    text = dedent(MLP) + f"\nimport torch\ndef data(split):\n    return {made}\n"
    wanted = epoch(tmp_path, text=text, data=CUSTOM)
    gang.start(1, 0, **wanted)
    error = gang.worker.wait(wanted["epoch"])["error"]
    assert error["reason"] == "DataInvalid" and message in error["message"], error


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ({"name": "Sgdd", "learning_rate": 0.1}, "has no Sgdd; did you mean SGD?"),
        ({"name": "SGD", "learning_rate": 0.1, "momentun": 0.9}, "momentun"),
    ],
)
def test_an_optimizer_that_pytorch_does_not_have_is_said(
    gang: Gang, tmp_path: Path, optimizer: dict, message: str
) -> None:
    wanted = epoch(tmp_path, optimizer=optimizer)
    gang.start(1, 0, **wanted)
    error = gang.worker.wait(wanted["epoch"])["error"]
    assert error["reason"] == "BadRequest" and message in error["message"], error


def test_forward_passes_run_in_the_number_type_that_was_asked_for(gang: Gang, tmp_path: Path) -> None:
    """Weights and gradients keep theirs: the layer says which type it computed in, and the losses hardly differ."""
    checked = MLP.replace(
        "    loss =",
        """    class Seen(nn.Module):
        def forward(self, x):
            import torch
            assert x.dtype == torch.TYPE, x.dtype
            return x

    plain = net

    def net():
        return nn.Sequential(plain(), Seen())

    loss =""",
    )
    losses = []
    for autocast in (None, "bfloat16"):
        text = checked.replace("TYPE", autocast or "float32")
        gang.fresh_group()
        first = gang.epoch(2, 0, **epoch(tmp_path, text=text, autocast=autocast))
        losses.append(gang.epoch(2, 0, **epoch(tmp_path, first, text=text, autocast=autocast))["loss"])
    assert losses[0] != losses[1] == pytest.approx(losses[0], rel=0.05)


@pytest.mark.skipif(machine().gpu > 0, reason="this machine has a GPU")
def test_a_worker_that_requests_a_gpu_where_there_is_none_says_so(gang: Gang, tmp_path: Path) -> None:
    wanted = epoch(tmp_path, gpu=True)
    gang.start(1, 0, **wanted)
    error = gang.worker.wait(wanted["epoch"])["error"]
    assert error["reason"] == "ModelInvalid", error
    assert "requests a GPU, and PyTorch" in error["message"] and "sees none" in error["message"]
