"""A program with an image is for a cluster: its folders are the image's and its volumes', its secrets the cluster's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from coach.core.spec.job import TrainingJob
from coach.jobfiles.diagnostics import JobFileError
from coach.jobfiles.dump import to_yaml
from coach.jobfiles.load import load_contents
from tests.jobfiles.reading import read_jobs

IMAGE = "registry.example.com/me/train:1"


def document(program: dict[str, Any], **spec: Any) -> str:
    fields = {
        "program": {"command": ["python", "train.py"], **program},
        "target": {"loss": 0.1},
        "budget": {"amount": 1, "currency": "USD"},
        **spec,
    }
    head = {"apiVersion": "coach.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "own"}}
    return yaml.safe_dump({**head, "spec": fields}, sort_keys=False)


@pytest.mark.parametrize(
    ("program", "spec", "field", "words"),
    [
        (
            {"secrets": {"A": {"secret": "hub", "key": "token"}}},
            {},
            "spec.program.secrets",
            "only with an image",
        ),
        ({"volumes": {"/data": "claim"}}, {}, "spec.program.volumes", "only with an image"),
        (
            {"volumes": {"data": "claim"}},
            {"image": IMAGE},
            "spec.program.volumes.data",
            "a folder by its whole path",
        ),
        ({"directory": "src"}, {"image": IMAGE}, "spec.program.directory", "not a whole path"),
        (
            {"volumes": {"/data": "claim"}},
            {"image": IMAGE, "checkpoint": {"uri": "/database"}},
            "spec.checkpoint.uri",
            "on no volume of the program",
        ),
        (
            {"env": {"A": "1"}, "secrets": {"A": {"secret": "hub", "key": "token"}}},
            {"image": IMAGE},
            "spec.program.secrets.A",
            "said twice",
        ),
        (
            {"secrets": {"A": {"secret": "Hub", "key": "token"}}},
            {"image": IMAGE},
            "spec.program.secrets.A.secret",
            "the name of an object of the cluster",
        ),
    ],
)
def test_what_does_not_go_together_is_said_at_its_field(
    program: dict[str, Any], spec: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(JobFileError) as wrong:
        read_jobs(document(program, **spec))
    (problem,) = wrong.value.problems
    assert problem.field == field and words in f"{problem.problem} - {problem.right}", problem


def test_what_is_in_the_image_is_not_looked_for_here(tmp_path: Path) -> None:
    volumes = {"/data": "imagenet", "/data/kept": "others"}
    text = document({"directory": "/workspace", "volumes": volumes}, image=IMAGE, checkpoint={"uri": "/data/kept"})
    (loaded,) = load_contents([(tmp_path / "job.yaml", text.encode())], inside=[tmp_path])
    program = loaded.spec.spec.program
    assert program is not None and program.directory == "/workspace" and program.sha256 is None
    assert loaded.spec.spec.checkpoint.uri == "/data/kept"
    (bare,) = load_contents([(tmp_path / "job.yaml", document({}, image=IMAGE).encode())])
    assert bare.spec.spec.program is not None and bare.spec.spec.program.directory is None


def test_a_job_file_of_a_program_on_a_cluster_reads_again_as_the_same_job() -> None:
    secrets = {"HF_TOKEN": {"secret": "hub", "key": "token"}}
    text = document({"secrets": secrets, "volumes": {"/data": "imagenet"}}, image=IMAGE)
    (job,) = read_jobs(text)
    assert read_jobs(to_yaml(job)) == [job] == [TrainingJob.from_json(job.to_json())]
