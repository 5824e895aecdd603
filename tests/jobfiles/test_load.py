"""What a job file's author may rely on: every mistake at once, with its place, and nothing half read."""

import hashlib
import math
import re
from pathlib import Path

import pytest

from coach.core.errors import UserError
from coach.jobfiles.changes import Changes
from coach.jobfiles.diagnostics import JobFileError
from coach.jobfiles.load import load_jobs, local_path
from tests.jobfiles.datasets import npz
from tests.jobfiles.reading import read_jobs

GOOD = """\
apiVersion: coach.dev/v1alpha1
kind: TrainingJob
metadata:
  name: a
spec:
  model: {file: model.py}
  data: {format: digits8x8}
  target: {loss: 0.35}
  budget: {unlimited: true}
"""


def mistakes(text):
    """The messages about a file, without the file's name."""
    with pytest.raises(JobFileError) as caught:
        read_jobs(text, "f")
    return [str(problem).removeprefix("f:") for problem in caught.value.problems]


def one_mistake():
    """(lines, message) pairs of the golden file."""
    text = (Path(__file__).parent / "mistakes.txt").read_text(encoding="utf-8")
    for block in text.split("\n\n")[1:]:
        *lines, message = block.strip("\n").split("\n")
        yield "\n".join(lines), message


ONE_MISTAKE = list(one_mistake())


@pytest.mark.parametrize(("lines", "message"), ONE_MISTAKE, ids=[lines.strip() for lines, _ in ONE_MISTAKE])
def test_a_mistake_is_told_with_its_place_the_value_seen_and_what_is_right(lines, message):
    assert mistakes(f"{GOOD}{lines}\n") == [message]


def test_another_metric_as_a_target_is_said_in_its_form():
    text = GOOD.replace("target: {loss: 0.35}", "target: {val_loss: 0.35}")
    assert text != GOOD
    (said,) = mistakes(text)
    assert said.endswith(
        'spec.target.val_loss: no such field ("val_loss") - of another metric: {metric: val_loss, value: 0.35}'
    )


NOT_YAML = [
    ("a: [1,\n", "2:1: not YAML: expected the node content, but found '<stream end>'"),
    ("a: b: c\n", "1:5: not YAML: mapping values are not allowed here"),
    ("\ta: 1\n", "1:1: not YAML: found character '\\\\t' that cannot start any token"),
    ('a: "\\Uffffffff"\n', "not YAML"),
    ("%YAML 9.9\n---\na: 1\n", "not YAML: found incompatible YAML document"),
    ("a: 'x\n", "not YAML: found unexpected end of stream"),
    ("[" * 100_000, "1:33: too deep (level 33) - at most 32 with all aliases put in"),
    ("", "1:1: no job in the file (nothing)"),
    ("# only a comment\n---\n...\n", "1:1: no job in the file (nothing)"),
    ("- 1\n", "1:1: not a mapping (a list of 1)"),
    ("just words\n", '1:1: not a mapping ("just words")'),
    ("a: 1\n\x07", "2:1: a control character (\\x07) - printable text"),
    ("x" * (1 << 20) + "x", "1:1: too large (1048577 bytes or more) - at most 1048576 bytes"),
]


@pytest.mark.parametrize(("text", "message"), NOT_YAML, ids=[message for _, message in NOT_YAML])
def test_what_is_not_yaml_or_too_much_of_it_is_one_mistake(text, message):
    found = mistakes(text)
    assert len(found) == 1
    assert message in found[0]


def test_bytes_that_are_not_utf8_are_one_mistake():
    assert mistakes(b"a: 1\nb: \xff\n") == ["2:4: not UTF-8 (byte 0xff) - a text file in UTF-8"]


def test_a_billion_laughs_are_one_mistake():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    assert ["too many values" in message for message in mistakes("\n".join(lines))] == [True]


def test_aliases_serve_for_what_repeats():
    text = GOOD + "  resources: {server: &r {cpu: 250m, memory: 1Gi}, worker: *r}\n"
    resources = read_jobs(text)[0].spec.resources
    assert resources.server == resources.worker


def test_all_mistakes_of_fields_come_at_once_and_then_all_between_fields():
    text = GOOD.replace("budget: {unlimited: true}", "budget: {amount: 5, currency: EUR}")
    text += "  seed: x\n  batchSize: 2\n  workers: {min: 3}\n---\n" + GOOD.replace("loss", "lost")
    assert mistakes(text) == [
        '10:9 spec.seed: not a whole number ("x") - a whole number from 0 to 2147483647',
        '21:12 spec.target.lost: no such field ("lost") - did you mean loss?',
    ]
    assert mistakes(text.replace("seed: x", "seed: 1")) == [
        "9:33 spec.budget.currency: not the currency of the price book cloud-functions, which is USD "
        '("EUR") - USD, or other prices',
        "11:14 spec.workers.max: more than batchSize, which is 2 (the default, 4) - at most one worker a sample",
        '21:12 spec.target.lost: no such field ("lost") - did you mean loss?',
    ]


def budget(text):
    return GOOD.replace("budget: {unlimited: true}", f"budget: {text}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "9:3 spec.budget: no amount (an empty mapping)"),
        ("{amount: 1}", "9:20 spec.budget.currency: required (not there)"),
        ("{currency: USD}", "9:22 spec.budget.amount: required (not there)"),
        (
            "{amount: 1, currency: USD, unlimited: true}",
            "9:3 spec.budget: both unlimited and amount (a mapping of 3)",
        ),
    ],
)
def test_a_budget_is_an_amount_or_unlimited(text, message):
    assert mistakes(budget(text)) == [f"{message} - amount and currency, an account, or unlimited: true alone"]


def test_what_only_a_cluster_obeys_is_a_warning(folder):
    (folder / "job.yaml").write_text(GOOD + "  suspend: true\n")
    [loaded] = load_jobs([folder / "job.yaml"])
    [warning] = loaded.warnings
    assert str(warning).removeprefix(f"{folder}/job.yaml:").partition(":")[2] == (
        "12 spec.suspend: suspended (true) - nothing on this machine: only a cluster obeys it"
    )
    (folder / "job.yaml").write_text(GOOD)
    assert load_jobs([folder / "job.yaml"])[0].warnings == ()


def test_several_jobs_in_one_file_come_in_order():
    text = GOOD + "---\n# nothing\n---\n" + GOOD.replace("name: a", "name: b")
    assert [job.name for job in read_jobs(text)] == ["a", "b"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model.py").write_text("def net(): ...\n")
    (tmp_path / "job.yaml").write_text(GOOD)
    return tmp_path


def load_mistakes(*paths, **options):
    with pytest.raises(JobFileError) as caught:
        load_jobs(paths, **options)
    return str(caught.value).splitlines()


def test_a_loaded_job_names_exactly_what_it_will_run(folder):
    [loaded] = load_jobs([folder / "job.yaml"])
    assert loaded.path == folder / "job.yaml"
    assert loaded.spec.spec.model.file == f"file://{folder}/model.py"
    assert loaded.spec.spec.model.sha256 == hashlib.sha256(b"def net(): ...\n").hexdigest()


@pytest.mark.parametrize(
    ("source", "framework"),
    [
        ("import torch\n", "pytorch"),
        ("from torch import nn\n", "pytorch"),
        ("def net():\n    from transformers import GPT2LMHeadModel\n", "pytorch"),
        ("import torchvision.models as m\n", "pytorch"),
        ("from mxnet import gluon\n", "mxnet"),
        ("import mxnet, torch\n", "mxnet"),
        ("import torchaudio_like\n", "mxnet"),
        ("from .torch import x\n", "mxnet"),
        ("import torch\nnot Python at all\n", "mxnet"),
        ("import torch\nx = '\0'\n", "mxnet"),
        ("import torch\nraise SystemExit('ran')\n", "pytorch"),
        ("import torch\n" + "(" * 500 + ")" * 500, "mxnet"),
    ],
)
def test_the_framework_is_guessed_from_the_model_files_imports(folder, source, framework):
    (folder / "model.py").write_text(source)
    [loaded] = load_jobs([folder / "job.yaml"])
    assert loaded.spec.spec.framework == framework
    warnings = [str(warning).removeprefix(f"{folder}/") for warning in loaded.warnings]
    said = 'job.yaml:6:17 spec.framework: guessed ("pytorch") - say it in the job file; the model file imports PyTorch'
    assert warnings == ([said] if framework == "pytorch" else [])


def test_a_guessed_framework_rules_the_rest_of_the_file(folder):
    (folder / "model.py").write_text("import torch\n")
    spec = "  optimizer: {name: AdamW, lr: 0.1}\n  policy: {name: static, workers: 2}\n"
    (folder / "job.yaml").write_text(GOOD.replace("model.py", "model.py:LeNet") + spec)
    loaded = load_jobs([folder / "job.yaml"])[0].spec.spec
    assert (local_path(loaded.model.file), loaded.model.net) == (folder / "model.py", "LeNet")
    assert loaded.model.sha256 == hashlib.sha256(b"import torch\n").hexdigest()
    assert loaded.limits.largest == (2, 0)
    (folder / "job.yaml").write_text(GOOD + "  servers: {min: 0}\n")
    chosen = load_jobs([folder / "job.yaml"])[0].spec.spec
    assert (chosen.limits.smallest, chosen.limits.largest) == ((1, 0), (4, 4)), "Coach chooses from these"


def test_what_the_file_says_of_the_framework_counts(folder):
    (folder / "model.py").write_text("import torch\n")
    (folder / "job.yaml").write_text(GOOD + "  framework: mxnet\n")
    [loaded] = load_jobs([folder / "job.yaml"])
    assert (loaded.spec.spec.framework, loaded.warnings) == ("mxnet", ())


def test_no_model_outside_of_the_allowed_folders_is_looked_at(folder):
    (folder / "model.py").write_text("import torch\n")
    inner = folder / "inner"
    inner.mkdir()
    (inner / "job.yaml").write_text(
        GOOD.replace("model.py", "../model.py") + "  optimizer: {lr: 1, schedule: {name: StepLR}}\n"
    )
    messages = load_mistakes(inner / "job.yaml", inside=[inner])
    assert any("has no meaning for an MXNet job" in message for message in messages)


def test_paths_are_relative_to_the_job_file_and_may_hold_any_character(folder, monkeypatch):
    odd = folder / "a b%20ü#?"
    odd.mkdir()
    (odd / "job.yaml").write_text(GOOD.replace("model.py", "../model.py") + "  checkpoint: {uri: keep}\n")
    monkeypatch.chdir("/")
    spec = load_jobs([odd / "job.yaml"])[0].spec.spec
    assert local_path(spec.model.file) == folder / "model.py"
    assert local_path(spec.checkpoint.uri) == odd / "keep"


def test_remote_uris_stay_as_they_are(folder):
    text = GOOD.replace("model.py", "s3://bucket/m.py").replace("format: digits8x8", "format: idx, uri: gs://b/d")
    (folder / "job.yaml").write_text(text)
    spec = load_jobs([folder / "job.yaml"])[0].spec.spec
    assert (spec.model.file, spec.model.sha256, spec.data.uri) == ("s3://bucket/m.py", None, "gs://b/d")
    assert local_path(spec.data.uri) is None


def test_files_that_are_not_there_are_told_with_the_mistakes_of_other_files(folder):
    text = GOOD.replace("model.py", "lenet.py").replace("format: digits8x8", "format: digits-json, uri: digits")
    (folder / "job.yaml").write_text(text)
    place = f"{folder}/job.yaml"
    assert load_mistakes(folder / "job.yaml", folder / "none.yaml", folder) == [
        f'{place}:6:17 spec.model.file: no such file ("{folder}/lenet.py") - '
        "the path of the model file, relative to the job file",
        f'{place}:7:36 spec.data.uri: no such file ("{folder}/digits") - '
        "the path of the data, relative to the job file",
        f"{folder}/none.yaml:1:1: cannot be read (No such file or directory) - a YAML file with jobs",
        f"{folder}:1:1: cannot be read (not a file) - a YAML file with jobs",
    ]


def test_files_need_not_be_there_for_a_simulation(folder):
    (folder / "job.yaml").write_text(GOOD.replace("model.py", "lenet.py"))
    spec = load_jobs([folder / "job.yaml"], check_files=False)[0].spec.spec
    assert (spec.model.file, spec.model.sha256) == (f"file://{folder}/lenet.py", None)


def test_another_hash_than_the_files_is_a_mistake(folder):
    hexes = "0" * 64
    (folder / "job.yaml").write_text(GOOD.replace("model.py", f"model.py, sha256: '{hexes}'"))
    [message] = load_mistakes(folder / "job.yaml")
    digest = hashlib.sha256(b"def net(): ...\n").hexdigest()
    assert f':6:35 spec.model.sha256: not this file\'s hash ("{hexes}") - {digest}' in message


def test_the_hash_of_a_data_file_is_checked(folder):
    content = npz(folder / "data.npz").read_bytes()
    data = "format: npz, uri: data.npz, sha256: '{}'"
    (folder / "job.yaml").write_text(GOOD.replace("format: digits8x8", data.format("0" * 64)))
    [message] = load_mistakes(folder / "job.yaml")
    assert "spec.data.sha256: not this file's hash" in message
    right = hashlib.sha256(content).hexdigest()
    (folder / "job.yaml").write_text(GOOD.replace("format: digits8x8", data.format(right)))
    assert load_jobs([folder / "job.yaml"])[0].spec.spec.data.sha256 == right


@pytest.mark.parametrize("model", [".", "/dev/zero", "/dev/null"])
def test_a_model_file_is_a_file(folder, model):
    (folder / "job.yaml").write_text(GOOD.replace("model.py", model))
    [message] = load_mistakes(folder / "job.yaml")
    assert "spec.model.file: not a file" in message


def test_two_jobs_of_one_name_are_a_mistake_over_all_files(folder):
    (folder / "other.yaml").write_text(GOOD.replace("name: a", 'name: "a"'))
    assert load_mistakes(folder / "job.yaml", folder / "other.yaml") == [
        f'{folder}/other.yaml:4:9 metadata.name: a second job of this name ("a") - '
        f"another name: {folder}/job.yaml:4 has this one"
    ]


def test_paths_may_be_kept_inside_of_folders(folder):
    inner = folder / "inner"
    inner.mkdir()
    (inner / "link.py").symlink_to(folder / "model.py")
    for model in ("../model.py", "link.py", "/etc/passwd"):
        (inner / "job.yaml").write_text(GOOD.replace("model.py", model))
        [message] = load_mistakes(inner / "job.yaml", inside=[inner])
        assert "spec.model.file: outside of what is allowed" in message
        assert message.endswith(f"a path inside of {inner}")
    (inner / "own.py").write_text("")
    (inner / "job.yaml").write_text(GOOD.replace("model.py", "own.py"))
    assert len(load_jobs([inner / "job.yaml"], inside=[inner])) == 1


def test_the_error_is_the_users_and_ends_commands_with_2(folder):
    with pytest.raises(UserError) as caught:
        load_jobs([Path(folder / "nothing.yaml")])
    assert caught.value.exit_code == 2


def test_a_file_with_endless_mistakes_is_told_briefly():
    with pytest.raises(JobFileError) as caught:
        read_jobs("".join(f"--- {n}\n" for n in range(500)))
    assert len(caught.value.problems) == 500
    assert str(caught.value).splitlines()[-1] == "and 400 more"


def test_a_path_that_becomes_too_long_with_its_folder_is_one_mistake(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    long = "/".join(["a" * 200] * 10) + ".py"
    file.write_text(
        (Path(__file__).parents[2] / "jobs" / "a.yaml").read_text().replace("../functions/models/mlp.py", long)
    )
    with pytest.raises(JobFileError) as caught:
        load_jobs([file], check_files=False)
    (problem,) = caught.value.problems
    assert "too long a path" in str(problem)


def test_a_budget_that_counts_no_gpu_of_the_job_is_refused_with_the_ways_out(folder):
    job = (folder / "job.yaml").read_text().rstrip("\n") + "\n  resources: {worker: {cpu: 1, memory: 1Gi, gpu: 1}}\n"

    def load(budget):
        (folder / "job.yaml").write_text(re.sub(r"budget: .*", f"budget: {budget}", job))
        return load_jobs([folder / "job.yaml"])

    for budget in ("{amount: 5, currency: USD}", "{account: team-a}"):
        with pytest.raises(JobFileError) as caught:
            load(budget)
        (problem,) = caught.value.problems
        assert problem.field == "spec.resources.worker.gpu" and problem.problem.startswith("the budget counts no GPU")
        assert all(way in problem.right for way in ("20gpuh", "coach prices set 0.40USD/gpuh", "--prices OFFER"))
    for right in ("{amount: 20, currency: gpuh}", "{amount: 8, currency: coreh}", "{unlimited: true}"):
        assert load(right)[0].warnings == ()


@pytest.mark.parametrize(
    ("currency", "rate"), [("gpuh", 2.0), ("coreh", 8.0), ("h", 1.0)], ids=["of GPUs", "of cores", "of the job"]
)
def test_a_budget_in_hours_needs_no_prices_and_counts_what_it_names(folder, currency, rate):
    job = re.sub(r"budget: .*", f"budget: {{amount: 20, currency: {currency}}}", (folder / "job.yaml").read_text())
    (folder / "job.yaml").write_text(f"{job.rstrip()}\n  resources: {{worker: {{cpu: 4, memory: 1Gi, gpu: 1}}}}\n")
    spec = load_jobs([folder / "job.yaml"])[0].spec.spec
    assert spec.price_book.currency == currency and spec.budget_money == 20 * 10**9
    two = spec.resources.worker.resources * 2
    assert spec.price_book.cost(two, 3600.0, 100) == rate * 10**9
    assert spec.price_book.cost(two, 1.0) == math.ceil(rate * 10**9 / 3600)


def test_hours_of_gpus_of_a_job_without_are_refused(folder):
    job = re.sub(r"budget: .*", "budget: {amount: 20, currency: gpuh}", (folder / "job.yaml").read_text())
    (folder / "job.yaml").write_text(job)
    with pytest.raises(JobFileError, match=r"spec\.budget\.currency: hours of GPUs, of a job without"):
        load_jobs([folder / "job.yaml"])


def test_hours_are_counted_whatever_prices_the_user_has_by_default(folder):
    defaults = folder / "defaults.yaml"
    defaults.write_text("prices: flat\n")
    job = re.sub(r"budget: .*", "budget: {amount: 20, currency: coreh}", (folder / "job.yaml").read_text())
    (folder / "job.yaml").write_text(job)
    [loaded] = load_jobs([folder / "job.yaml"], changes=Changes.read(defaults=defaults))
    assert loaded.spec.spec.price_book.name == "core-hours" and loaded.defaults == ()


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_files_beside_the_model_file_that_it_imports_are_the_jobs_with_their_hashes(folder):
    (folder / "model.py").write_text("import json, parts\nfrom lib.nets import Net\nfrom pack import thing\n")
    beside = {
        "parts.py": "def late():\n    import deeper\n",
        "deeper.py": "import model\n",
        "lib/nets.py": "from . import unknown\nfrom .. import parts\nNet = 1\n",
        "pack/__init__.py": "",
        "pack/found_at_run_time.py": "",
        "pack/inner/more.py": "from ..found_at_run_time import x",
    }
    for name, text in {**beside, "unused.py": "", "json/unused.py": ""}.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(text)
    [loaded] = load_jobs([folder / "job.yaml"])
    assert loaded.spec.spec.model.files == {name: sha256(folder / name) for name in sorted(beside)}
    (folder / "model.py").write_text("import numpy\n")
    [loaded] = load_jobs([folder / "job.yaml"])
    assert loaded.spec.spec.model.files is None


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"parts.py": "0" * 64}, "not this file's hash"),
        ({"none.py": "0" * 64}, "cannot be read"),
        ({"../parts.py": "0" * 64}, "a Python file in the model file's folder or below it"),
    ],
)
def test_files_beside_the_model_file_that_a_job_file_names_are_checked(folder, files, message):
    (folder / "model.py").write_text("")
    (folder / "parts.py").write_text("x = 1")
    text = (folder / "job.yaml").read_text()
    named = "".join(f"\n      {name}: '{digest}'" for name, digest in files.items())
    (folder / "job.yaml").write_text(text.replace("{file: model.py}", f"\n    file: model.py\n    files:{named}"))
    [found] = load_mistakes(folder / "job.yaml")
    assert message in found and "model.files" in found


def test_files_beside_the_model_file_have_to_be_inside_of_the_folders_too(folder, tmp_path):
    (tmp_path / "secret.py").write_text("password = 1")
    inner = folder / "inner"
    inner.mkdir()
    (inner / "model.py").write_text("import parts")
    (inner / "parts.py").symlink_to(tmp_path / "secret.py")
    (inner / "job.yaml").write_text((folder / "job.yaml").read_text())
    [message] = load_mistakes(inner / "job.yaml", inside=[inner])
    assert "outside of what is allowed" in message and message.endswith(f"a path inside of {inner}")
