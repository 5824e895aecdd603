"""What `coach deploy nuclio --dry-run` prints is what Nuclio's controller acts on."""

import re
from pathlib import Path

import pytest
import yaml

from coach.cli.main import invoke
from coach.core.errors import UserError
from coach.core.spec.job import TrainingJob
from coach.platforms.nuclio import resources
from tests.core.lifecycle.faulty_cluster import spec

FUNCTIONS = Path(__file__).parents[3] / "functions"
GO = Path(__file__).parents[3] / "scheduler-plugins"


def _documents(**changes):
    job = TrainingJob.from_json(spec("demo", **changes))
    return [resources.project("training"), *resources.functions(job, FUNCTIONS, "training", None)]


def test_one_addressable_function_for_each_member_of_the_largest_gang():
    names = [document["metadata"]["name"] for document in _documents(workers={"max": 2}, servers={"max": 1})]
    assert names == ["coach", "demo-scheduler-0", "demo-server-0", "demo-worker-0", "demo-worker-1"]


def test_the_controller_acts_on_each_function():
    project, *functions = _documents()
    assert project["kind"] == "NuclioProject"
    for function in functions:
        spec_, labels = function["spec"], function["metadata"]["labels"]
        assert function["status"]["state"] == "waitingForResourceConfiguration"
        assert labels["nuclio.io/project-name"] == project["metadata"]["name"]
        assert spec_["triggers"]["http"]["kind"] == "http"
        assert spec_["image"] and spec_["handler"] and spec_["runtime"] == "python:3.11"
        # An HPA appears where the two differ; a park needs 0 replicas, which these would forbid.
        assert "minReplicas" not in spec_ and spec_["replicas"] == 0


def test_resources_are_those_of_the_job_file():
    worker = _documents()[-1]
    assert worker["spec"]["resources"]["requests"] == {"cpu": "1000m", "memory": "500Mi"}


def test_the_platform_config_sends_the_functions_to_our_scheduler():
    (augmented,) = resources.platform_config()["functionAugmentedConfigs"]
    (function, *_) = [document for document in _documents() if document["kind"] == "NuclioFunction"]
    assert augmented["labelSelector"]["matchLabels"].items() <= function["metadata"]["labels"].items()


def test_the_members_have_the_labels_that_our_scheduler_reads():
    labels = re.findall(r'Label += "(.+)"', (GO / "pkg" / "identity" / "identity.go").read_text())
    (member, *_) = [document for document in _documents() if document["kind"] == "NuclioFunction"]
    assert len(labels) == 3
    assert set(labels) <= member["metadata"]["labels"].keys()


def test_a_broken_function_file_is_one_clear_error(tmp_path):
    (tmp_path / "scheduler").mkdir()
    (tmp_path / "scheduler" / "function.yaml").write_text("[]")
    with pytest.raises(UserError, match="has a spec"):
        list(resources.functions(TrainingJob.from_json(spec()), tmp_path, "default", None))


def test_the_command_prints_what_kubectl_can_read(capsys):
    job = str(FUNCTIONS.parent / "jobs" / "a.yaml")
    assert invoke(["deploy", "nuclio", job, "--dry-run", "--image", "mine:1"]) == 0
    documents = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [document["kind"] for document in documents] == ["NuclioProject"] + 5 * ["NuclioFunction"]
    assert documents[1]["spec"]["image"] == "mine:1"


def test_without_dry_run_it_says_what_it_can_do(capsys):
    assert invoke(["deploy", "nuclio", str(FUNCTIONS.parent / "jobs" / "a.yaml")]) == 2
    assert "--dry-run" in capsys.readouterr().err
