"""What Coach writes as a job file, it reads again as the same job; kubectl reads it so too."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from coach.core.spec.job import TrainingJob
from coach.jobfiles.dump import to_yaml, to_yaml_file
from tests.jobfiles.reading import read_jobs

JOB = {
    "apiVersion": "coach.dev/v1alpha1",
    "kind": "TrainingJob",
    "metadata": {"name": "a"},
    "spec": {
        "model": {"file": "m.py"},
        "data": {"format": "digits8x8"},
        "target": {"accuracy": 0.97},
        "budget": {"amount": 5.0, "currency": "USD"},
        "timeLimit": "90m",
        "resources": {"worker": {"cpu": "2", "memory": "1Gi"}},
        "optimizer": {"learningRate": 1e-05, "momentum": 0.9, "lazy_update": True},
    },
}


def test_a_job_is_written_briefly_and_in_order():
    text = to_yaml(TrainingJob.from_json(JOB), {(): "On top.", ("spec", "target", "accuracy"): "High."})
    assert (
        text
        == """\
# On top.
apiVersion: coach.dev/v1alpha1
kind: TrainingJob
metadata:
  name: a
spec:
  model: {file: m.py}
  data: {format: digits8x8}
  target:
    # High.
    accuracy: 0.97
  budget: {amount: 5.0, currency: USD}
  timeLimit: 90m
  resources:
    worker: {cpu: "2", memory: 1Gi}
  optimizer: {learningRate: 1e-05, momentum: 0.9, lazy_update: true}
"""
    )
    assert read_jobs(text) == [TrainingJob.from_json(JOB)]


awkward = st.sampled_from(["yes", "no", "null", "1e3", "0777", "1:30", "2020-01-01", "true", "5", "x", "a.b", ""])
paths = st.one_of(
    awkward.filter(bool),
    st.text(min_size=1, max_size=30),
    st.sampled_from(
        ["a: b", "a #b", "- a", "é\u2028x", "😀", "'", '"', "\\x", "a:", "{a}", "*a", "&a", "!a", "%a", "@a"]
    ),
)


@given(paths, awkward, st.text(max_size=50))
def test_any_text_comes_back(path, label, comment):
    document = {**JOB, "metadata": {"name": "5", "labels": {"null": label}}}
    document["spec"] = {**JOB["spec"], "model": {"file": path}}
    try:
        job = TrainingJob.from_json(document)
    except ValueError:
        return  # control characters, unknown schemes: no job to write
    text = to_yaml_file([to_yaml(job, {("spec", "model"): comment})], comment)
    assert read_jobs(text) == [job]
    # A reader of YAML 1.1 sees the same words.
    assert yaml.safe_load(text)["spec"]["model"] == {"file": path}
    assert yaml.safe_load(text)["metadata"] == {"name": "5", "labels": {"null": label}}


@pytest.mark.parametrize("fewest", [1, 2, 4])
@pytest.mark.parametrize("most", [1, 2, 4, 5])
@pytest.mark.parametrize("target", [{"target": {"loss": 0.3}}, {}], ids=["target", "best"])
@pytest.mark.parametrize("kind", ["program", "mxnet", "pytorch", "pytorch with servers"])
def test_a_job_with_any_number_of_workers_comes_back(kind, target, fewest, most):
    if fewest > most:
        return
    work = {"model": {"file": "m.py"}, "data": {"format": "digits8x8"}, "framework": kind.split()[0]}
    if "servers" in kind:
        work["servers"] = {"min": 1, "max": 2}
    if kind == "program":
        work = {"program": {"command": ["python", "a.py"], "resumes": True}}
    spec = {**work, **target, "budget": JOB["spec"]["budget"], "workers": {"min": fewest, "max": most}}
    job = TrainingJob.from_json(JOB | {"spec": spec})
    assert read_jobs(to_yaml(job)) == [job]
