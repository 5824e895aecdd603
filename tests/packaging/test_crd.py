"""The TrainingJob's CRD in a real API server: it takes a job file's jobs, and refuses by types and a few rules."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from coach.core.errors import UserError
from coach.core.spec.job import TrainingJob
from coach.jobfiles.resource_status import Condition, Metric, TrainerStatus, TrainingJobStatus
from scripts.generate.crd import CHART_FILE
from tests.docs.pages import ROOT
from tests.jobfiles.reading import read_jobs
from tests.jobfiles.test_load import GOOD
from tests.packaging.api_server import ApiServer, Client, served

pytestmark = pytest.mark.processes

JOBS = "/apis/coach.dev/v1alpha1/namespaces/default/trainingjobs"
Document = dict[str, Any]


@pytest.fixture(scope="module")
def admin(cluster: ApiServer) -> Client:
    served(cluster.admin, yaml.safe_load((ROOT / CHART_FILE).read_text()))
    return cluster.admin


def refusal(admin: Client, document: Document) -> str:
    """What the API server says against a new object, asked as `kubectl apply` asks; "" where it takes it."""
    answer = admin.http.post(JOBS, json=document, params={"dryRun": "All", "fieldValidation": "Strict"})
    if answer.status_code == 201:
        return ""
    assert answer.status_code in (400, 422), answer.text
    return str(answer.json()["message"])


def good(**changes: Any) -> Document:
    document: Document = yaml.safe_load(GOOD)
    document["spec"].update(changes)
    return document


@pytest.mark.parametrize("path", sorted((ROOT / "jobs").rglob("*.yaml")), ids=lambda path: path.stem)
def test_every_job_file_of_ours_is_taken_and_means_the_same(admin: Client, path: Any) -> None:
    for document in yaml.safe_load_all(path.read_text()):
        answer = admin.http.post(JOBS, json=document, params={"dryRun": "All", "fieldValidation": "Strict"})
        assert answer.status_code == 201, answer.text
        stored = {key: answer.json()[key] for key in ("apiVersion", "kind", "spec")}
        [ours] = read_jobs(json.dumps(document))
        assert TrainingJob.from_json({**stored, "metadata": document["metadata"]}) == ours
        said, filled = document["spec"], ours.to_json()["spec"]
        # These depend on others, so the server fills in nothing, and keeps short forms as they are.
        other = {"servers", "objective", "prices"} - said.keys()
        other |= {"framework", "workers", "resources", "stopEarly"}
        other |= {"model"} if ":" in said["model"]["file"] else set()
        other |= {"optimizer"} if "lr" in said.get("optimizer", {}) else set()
        if "net" not in said["model"]:
            del filled["model"]["net"]
        for key in other:
            filled.pop(key, None)
            stored["spec"].pop(key, None)
        assert stored["spec"] == filled, "the server fills in the same defaults"


def test_a_budget_in_hours_has_their_prices_as_in_a_file(admin: Client) -> None:
    document = good(budget={"amount": 5, "currency": "coreh"})
    answer = admin.http.post(JOBS, json=document, params={"dryRun": "All", "fieldValidation": "Strict"})
    stored = {key: answer.json()[key] for key in ("apiVersion", "kind", "spec")}
    read = TrainingJob.from_json({**stored, "metadata": document["metadata"]})
    assert read.spec.price_book.currency == "coreh"


def test_a_pytorch_job_is_taken_as_in_a_file_and_has_no_servers(admin: Client) -> None:
    schedule = {"name": "MultiStepLR", "milestones": [2000, 4000], "gamma": 0.1}
    document = good(
        framework="pytorch",
        model={"file": "model.py:LeNet"},
        optimizer={"name": "AdamW", "lr": 0.001, "betas": [0.9, 0.999], "schedule": schedule},
        policy={"name": "static", "workers": 2},
    )
    answer = admin.http.post(JOBS, json=document, params={"dryRun": "All", "fieldValidation": "Strict"})
    assert answer.status_code == 201, answer.text
    [ours] = read_jobs(json.dumps(document))
    stored = TrainingJob.from_json({**document, "spec": answer.json()["spec"]})
    assert stored == ours
    assert ours.spec.limits.largest == (2, 0)
    again = {**document, "spec": ours.to_json()["spec"]}  # as `coach --context NAME submit` writes it
    assert refusal(admin, again) == ""


def program(**changes: Any) -> Document:
    """A program as its user writes it; None takes a field out."""
    spec = {
        "image": "registry.example.com/me/train:1",
        "program": {
            "command": ["python3", "train.py", "--lr", "0.1"],
            "directory": "/workspace",
            "env": {"SIZE": "3"},
            "secrets": {"HF_TOKEN": {"secret": "hub", "key": "token"}},
            "volumes": {"/data": "imagenet"},
            "metrics": {"eval_loss": "val loss: ([0-9.]+)"},
            "resumes": True,
        },
        "checkpoint": {"uri": "/data/checkpoints"},
        "target": {"metric": "eval_loss", "value": 0.3, "epochsInARow": 1},
        "budget": {"amount": 5, "currency": "USD"},
        "resources": {"worker": {"cpu": 1, "memory": "1Gi"}},
        **changes,
    }
    return {**yaml.safe_load(GOOD), "spec": {key: value for key, value in spec.items() if value is not None}}


@pytest.mark.parametrize("changes", [{}, {"workers": {"min": 2}}, {"target": None}])
def test_a_program_is_taken_as_in_a_file(admin: Client, changes: Document) -> None:
    document = program(**changes)
    answer = admin.http.post(JOBS, json=document, params={"dryRun": "All", "fieldValidation": "Strict"})
    assert answer.status_code == 201, answer.text
    [ours] = read_jobs(json.dumps(document))
    assert TrainingJob.from_json({**document, "spec": answer.json()["spec"]}) == ours


def test_a_program_without_an_image_is_for_one_machine(admin: Client) -> None:
    document = program(image=None, program={"command": ["x"]}, checkpoint=None)
    assert read_jobs(json.dumps(document))
    assert "spec.image: Invalid value: required - the image that the program runs in" in refusal(admin, document)


def test_options_of_a_model_file_are_taken_as_in_a_file(admin: Client) -> None:
    document = good(
        framework="pytorch",
        model={"file": "model.py", "args": {"width": 64, "names": ["a b", "c"], "deep": True}},
        data={"format": "custom", "readers": 4},
        target={"metric": "f1", "value": 0.9},
        microBatch=8,
        evaluationBatch=32,
        clip={"norm": 1.0, "value": 0.5},
        epoch={"time": "5m"},
        optimizer={"lr": 0.1, "schedule": {"name": "StepLR", "step_size": 1, "interval": "epoch"}},
    )
    answer = admin.http.post(JOBS, json=document, params={"dryRun": "All", "fieldValidation": "Strict"})
    assert answer.status_code == 201, answer.text
    [ours] = read_jobs(json.dumps(document))
    assert TrainingJob.from_json({**document, "spec": answer.json()["spec"]}) == ours
    assert ours.spec.model.args == {"width": 64, "names": ("a b", "c"), "deep": True}


@pytest.mark.parametrize(
    ("changes", "field", "right"),
    [
        ({"workers": {"min": 3, "max": 2}}, "workers.min", "at most max"),
        ({"target": {}}, "target", "one of loss, accuracy and metric"),
        ({"target": {"loss": 1, "accuracy": 0.5}}, "target", "one of loss, accuracy and metric"),
        ({"target": None, "budget": {"unlimited": True}}, "target", "a target, an amount as budget, timeLimit"),
        ({"model": None}, "model", "a model file; or a program"),
        ({"budget": {}}, "budget", "amount and currency, an account, or unlimited: true alone"),
        ({"budget": {"amount": 1}}, "budget", "amount and currency, an account, or unlimited: true alone"),
        ({"budget": {"unlimited": True, "amount": 1}}, "budget", "amount and currency, an account, or unlimited"),
    ],
    ids=str,
)
def test_what_people_get_wrong_most_is_refused_at_its_field(
    admin: Client, changes: Document, field: str, right: str
) -> None:
    document = good(**changes)
    document["spec"] = {key: value for key, value in document["spec"].items() if value is not None}
    with pytest.raises(UserError):
        read_jobs(json.dumps(document))
    said = refusal(admin, document)
    assert f"spec.{field}: Invalid value: " in said and right in said


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"seed": -1}, "spec.seed"),
        ({"seed": 0.5}, "spec.seed"),
        ({"batchSize": "64"}, "spec.batchSize"),
        ({"mode": "fast"}, "spec.mode"),
        ({"timeLimit": "soon"}, "spec.timeLimit"),
        ({"resources": {"worker": {"cpu": "x", "memory": "1Gi"}}}, "spec.resources.worker.cpu"),
        ({"program": {"command": []}}, "spec.program.command"),
        ({"program": {"command": ["x"], "volumes": {"/data": "A"}}}, "spec.program.volumes"),
        ({"program": {"command": ["x"], "secrets": {"A": {"secret": "s"}}}}, "spec.program.secrets.A.key"),
        ({"batch_size": 9}, 'unknown field "spec.batch_size"'),
    ],
    ids=str,
)
def test_types_bounds_and_unknown_fields_are_refused(admin: Client, changes: Document, field: str) -> None:
    assert field in refusal(admin, good(**changes))


def test_what_else_does_not_go_together_the_controller_refuses(admin: Client) -> None:
    """Its words are those of `coach validate`: tests/controller."""
    prices = {"name": "ours", "currency": "EUR", "vcpuSecond": 0, "gibSecond": 0, "invocation": 0}
    for changes in (
        {"prices": prices, "budget": {"amount": 1, "currency": "USD"}},
        {"spot": {"deadline": "52h"}},
        {"optimizer": {"learningRate": 0.1, "lr": 0.1}},
        {"prices": "aws/no-such-machine"},
        {"timeLimit": "400d"},
        {"model": {"file": "ftp://host/x"}},
    ):
        assert refusal(admin, good(**changes)) == ""
        with pytest.raises(UserError):
            read_jobs(json.dumps(good(**changes)))
    own: list[Any] = [{**prices, "name": "flat"}, {"name": "ours"}, 5, []]
    for wrong in ("aws/m8g.large:weekly", "aws/", "free", *own):
        assert "spec.prices" in refusal(admin, good(prices=wrong))


def test_the_old_word_for_unlimited_is_for_files_only(admin: Client) -> None:
    assert "spec.budget" in refusal(admin, good(budget="none"))


@pytest.fixture
def job(admin: Client) -> Iterator[Document]:
    document = good(budget={"amount": 5, "currency": "USD"}, optimizer={"learningRate": 0.1, "momentum": 0.9})
    document["metadata"]["namespace"] = "default"
    assert admin.apply(document).status_code == 201
    yield document
    admin.http.delete(f"{JOBS}/a")


MAY = "cannot change - only budget, suspend and priority may; delete the job and create it again"
CHANGES: list[tuple[Document, str]] = [
    ({"budget": {"amount": 6, "currency": "USD"}}, ""),
    ({"suspend": True}, ""),
    ({"priority": 7}, ""),
    ({"budget": {"amount": 4, "currency": "USD"}}, "spec.budget.amount: Invalid value: less than before"),
    ({"budget": {"amount": 6, "currency": "EUR"}}, "spec.budget.currency: Invalid value: cannot change"),
    ({"budget": {"unlimited": True}}, "spec.budget.unlimited: Invalid value: cannot change"),
    ({"budget": {"amount": 5, "currency": "USD", "chanceOfRunningOut": 0.1}}, "cannot change - the one of before"),
    ({"seed": 1}, f"spec.seed: Invalid value: 1: {MAY}"),
    ({"model": {"file": "other.py"}}, f"spec.model: Invalid value: {MAY}"),
    ({"optimizer": {"learningRate": 0.1, "momentum": 0.8}}, f"spec.optimizer: Invalid value: {MAY}"),
    ({"optimizer": None}, f"spec.optimizer: Invalid value: {MAY}"),
    ({"timeLimit": "1h"}, f"spec.timeLimit: Invalid value: {MAY}"),
    ({"workers": {"max": 3}}, f"spec.workers: Invalid value: {MAY}"),
    ({"prices": "flat"}, f"prices: {MAY}"),
]


@pytest.mark.parametrize(("changes", "message"), CHANGES, ids=[str(changes) for changes, _ in CHANGES])
def test_only_budget_suspend_and_priority_may_change(
    admin: Client, job: Document, changes: Document, message: str
) -> None:
    spec = {key: value for key, value in {**job["spec"], **changes}.items() if value is not None}
    answer = admin.apply({**job, "spec": spec}, dry_run=True)
    assert (answer.status_code == 200) == (message == ""), answer.text
    assert message in answer.json().get("message", "")


def test_every_field_that_may_not_change_says_so(admin: Client, job: Document) -> None:
    stored = admin.get(f"{JOBS}/a")["spec"]
    words = admin.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/trainingjobs.coach.dev")
    spec = words["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    told = {key for key, node in spec["properties"].items() if MAY in str(node.get("x-kubernetes-validations"))}
    whole = str(spec["x-kubernetes-validations"])
    assert spec["properties"].keys() - told - {"budget", "suspend", "priority"} == {"prices"}
    assert f"prices: {MAY}" in whole and "prices" not in stored


def test_the_status_is_shown_in_columns_and_does_not_count_as_a_change(admin: Client, job: Document) -> None:
    now = "2026-11-24T12:00:00Z"
    trainer = TrainerStatus(progress_percentage=37, metrics=[Metric(name="loss", value="0.5")])
    condition = Condition(type="PodsReady", status="True", last_transition_time=now, reason="Ready", message="x")
    status = TrainingJobStatus(
        observed_generation=1, state="Training", progress="37%", loss=0.5, target="loss 0.35", workers=2, servers=1,
        spent="0.0012 USD", budget="5 USD", eta=now, trainer_status=trainer, conditions=[condition],
    )  # fmt: skip
    body = {"status": status.model_dump(mode="json", by_alias=True, exclude_none=True)}
    merge = {"content-type": "application/merge-patch+json"}
    answer = admin.http.patch(f"{JOBS}/a/status", json=body, headers=merge, params={"fieldValidation": "Strict"})
    assert answer.status_code == 200, answer.text
    assert answer.json()["status"] == body["status"] and answer.json()["metadata"]["generation"] == 1
    table = admin.http.get(f"{JOBS}/a", headers={"accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}).json()
    names = [column["name"] for column in table["columnDefinitions"]]
    shown = dict(zip(names, table["rows"][0]["cells"], strict=True))
    assert shown.pop("Age")
    assert shown == {
        "Name": "a", "State": "Training", "Progress": "37%", "Loss": 0.5, "Target": "loss 0.35", "Workers": 2,
        "Servers": 1, "Spent": "0.0012 USD", "Budget": "5 USD", "ETA": now,
    }  # fmt: skip
    wrong = admin.http.patch(f"{JOBS}/a/status", json={"status": {"state": "Happy"}}, headers=merge)
    assert wrong.status_code == 422 and "status.state" in wrong.text
    assert admin.apply({**job, "spec": {**job["spec"], "suspend": True}}).json()["metadata"]["generation"] == 2


def test_kubectl_explains_every_field(admin: Client) -> None:
    schemas = admin.get("/openapi/v3/apis/coach.dev/v1alpha1")["components"]["schemas"]
    spec = schemas["dev.coach.v1alpha1.TrainingJob"]["properties"]["spec"]["properties"]
    assert spec["budget"]["properties"]["amount"]["description"] == "The most that may be spent, in `currency`."
    assert all(field["description"] for field in spec.values())


def test_a_name_is_bounded_as_in_a_file(admin: Client) -> None:
    for name, right in (("a" * 40, True), ("a" * 41, False), ("a.b", False)):
        document = good()
        document["metadata"]["name"] = name
        assert (refusal(admin, document) == "") is right


#: What would name a node, its files, rights or another account, were it a field of a job.
HOST = {
    "hostPath": "/",
    "volumes": [{"name": "root", "hostPath": {"path": "/"}}],
    "hostNetwork": True,
    "nodeName": "n1",
    "serviceAccountName": "coach-handler",
    "securityContext": {"privileged": True},
    "podTemplate": {"spec": {"hostPID": True}},
    "schedulerName": "default-scheduler",
}


def test_no_field_of_a_job_reaches_its_node_or_another_account(admin: Client) -> None:
    for field, value in HOST.items():
        for changes in ({field: value}, {"image": "x", "program": {"command": ["x"], field: value}}):
            assert re.search(rf"\.{field}\b", refusal(admin, good(**changes)))
    # Without kubectl's own checks an unknown field is taken, and dropped.
    made = good(**HOST)
    answer = admin.http.post(JOBS, json=made, params={"dryRun": "All"})
    assert answer.status_code == 201 and not answer.json()["spec"].keys() & HOST.keys()
