"""What `coach deploy nuclio --dry-run` prints is what Nuclio's controller acts on."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from coach.cli.main import invoke
from coach.core.errors import UserError
from coach.core.spec.job import TrainingJob
from coach.platforms.kubernetes.settings import Settings
from coach.platforms.nuclio import resources
from tests.core.lifecycle.faulty_cluster import spec
from tests.docs.pages import ROOT

FUNCTIONS = ROOT / "functions"
SETTINGS = Settings("image:1", handler="h")


def demo(**changes: Any) -> TrainingJob:
    return TrainingJob.from_json(spec("demo", **changes))


def made(settings: Settings = SETTINGS, **changes: Any) -> list[dict[str, Any]]:
    return list(resources.functions(demo(**changes), FUNCTIONS, settings))


def test_one_addressable_function_for_each_member_of_the_largest_gang() -> None:
    names = [one["metadata"]["name"] for one in made(workers={"max": 2}, servers={"max": 1})]
    assert names == ["demo-scheduler-0", "demo-server-0", "demo-worker-0", "demo-worker-1"]


def test_the_controller_acts_on_each_function_and_makes_no_pod_yet() -> None:
    for function in made():
        spec_, labels = function["spec"], function["metadata"]["labels"]
        assert function["status"]["state"] == "waitingForResourceConfiguration"
        assert labels["nuclio.io/project-name"] == resources.project()["metadata"]["name"]
        assert spec_["triggers"]["http"]["kind"] == "http"
        assert spec_["image"] and spec_["handler"] and spec_["runtime"] == "python:3.11"
        assert spec_["imagePullPolicy"] == "IfNotPresent"
        assert spec_["deploymentStrategy"] == {"type": "Recreate"}
        # An HPA appears where the two differ; a park needs 0 replicas, which these would forbid.
        assert "minReplicas" not in spec_ and spec_["replicas"] == 0


def test_a_function_has_the_resources_the_volume_and_the_node_that_its_pod_would_have() -> None:
    settings = replace(SETTINGS, volume_claim="claim", service_account="who", pull_secrets=("secret",))
    function = made(settings)[-1]["spec"]
    assert function["resources"]["requests"] == {"cpu": "1000m", "memory": "500Mi"}
    places = {one["volumeMount"]["mountPath"]: one["volume"] for one in function["volumes"]}
    assert places["/var/lib/coach/data"]["persistentVolumeClaim"] == {"claimName": "claim"}
    assert places["/tmp"] == {"name": "tmp", "emptyDir": {}}
    assert (function["serviceAccount"], function["imagePullSecrets"]) == ("who", "secret")
    assert "affinity" not in function


def test_the_platform_config_sends_the_functions_to_our_scheduler() -> None:
    (augmented,) = resources.platform_config("mine")["functionAugmentedConfigs"]
    assert augmented["labelSelector"]["matchLabels"].items() <= made()[0]["metadata"]["labels"].items()
    assert augmented["kubernetes"]["deployment"]["spec"]["template"]["spec"]["schedulerName"] == "mine"


def test_the_values_for_nuclios_chart_are_this_config() -> None:
    values = yaml.safe_load((ROOT / "deploy/nuclio-values.yaml").read_text())
    assert values["platform"] == resources.platform_config()


def test_the_members_have_the_labels_that_our_scheduler_reads() -> None:
    labels = re.findall(r'Label += "(.+)"', (ROOT / "scheduler-plugins/pkg/identity/identity.go").read_text())
    assert len(labels) == 3
    assert set(labels) <= made()[0]["metadata"]["labels"].keys()


def test_a_broken_function_file_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "scheduler").mkdir()
    (tmp_path / "scheduler" / "function.yaml").write_text("[]")
    with pytest.raises(UserError, match="has a spec"):
        list(resources.functions(demo(), tmp_path, SETTINGS))


def test_the_command_prints_what_kubectl_can_read(capsys: pytest.CaptureFixture[str]) -> None:
    job = str(ROOT / "jobs" / "a.yaml")
    assert invoke(["deploy", "nuclio", job, "--dry-run", "--image", "mine:1", "--namespace", "other"]) == 0
    documents = list(yaml.safe_load_all(capsys.readouterr().out))
    kinds = ["NuclioProject", "Gang", "ConfigMap", *5 * ["NuclioFunction"]]
    assert [document["kind"] for document in documents] == kinds
    assert documents[3]["spec"]["image"] == "mine:1"
    assert {document["metadata"]["namespace"] for document in documents} == {"other"}


def test_a_cluster_that_cannot_be_found_is_one_clear_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert invoke(["deploy", "nuclio", str(ROOT / "jobs" / "a.yaml")]) != 0
    assert f"no cluster: there is no {tmp_path}/none; set KUBECONFIG" in capsys.readouterr().err
