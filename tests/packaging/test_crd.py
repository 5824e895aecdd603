"""The TrainingJob's CRD in a real API server: it takes and refuses what `coach validate` does, in the same words."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from coach.core.errors import UserError
from coach.core.spec.job import TrainingJob
from coach.jobfiles.resource_status import Condition, Metric, TrainerStatus, TrainingJobStatus
from coach.jobfiles.schema import branches, tree
from scripts.generate.crd import CHART_FILE
from tests.core.spec.test_job import REFUSED
from tests.docs.pages import ROOT
from tests.jobfiles.reading import read_jobs
from tests.jobfiles.test_load import GOOD, ONE_MISTAKE
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
        other = {"servers", "objective"} - said.keys()
        other |= {"framework", "workers", "resources", "stopEarly"}
        other |= {"model"} if ":" in said["model"]["file"] else set()
        other |= {"optimizer"} if "lr" in said.get("optimizer", {}) else set()
        if "net" not in said["model"]:
            del filled["model"]["net"]
        for key in other:
            filled.pop(key, None)
            stored["spec"].pop(key, None)
        assert stored["spec"] == filled, "the server fills in the same defaults"


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


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model": {"file": "net.py"}}, "spec.model"),
        ({"data": {"format": "custom"}}, "spec.data"),
        ({"optimizer": {"learningRate": 0.1}}, "spec.optimizer"),
        ({"program": None, "target": {"loss": 1}, "checkpoint": None}, "spec.model"),
        ({"target": {"metric": "eval_loss"}}, "spec.target.value"),
        ({"target": {"loss": 1, "metric": "eval_loss", "value": 1}}, "spec.target.metric"),
        ({"target": {"loss": 1, "goal": "minimize"}}, "spec.target.goal"),
        ({"program": {"command": []}, "checkpoint": None}, "spec.program.command"),
        ({"program": {"command": ["x"], "volumes": {"/data": "A"}}}, "spec.program.volumes"),
        ({"program": {"command": ["x"], "secrets": {"A": {"secret": "s"}}}}, "spec.program.secrets.A.key"),
    ],
    ids=str,
)
def test_a_wrong_program_is_refused_as_in_a_file(admin: Client, changes: Document, field: str) -> None:
    document = program(**changes)
    with pytest.raises(UserError) as ours:
        read_jobs(json.dumps(document))
    assert any(problem.field.startswith(field) for problem in ours.value.problems)  # type: ignore[attr-defined]
    assert field in refusal(admin, document)


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


#: What the rules of a CRD cannot see: an optimizer's further arguments, what they are for MXNet, and whether an own
#: price book has the budget's currency. The controller refuses them, in the words of `coach validate`.
UNSEEN = re.compile(
    r"optimizer\.(?!learningRate|lr\b|schedule: has|name: does not run)|optimizer said twice|currency of the price book"
)
#: What YAML 1.1, as kubectl reads it, takes for something else, or what no YAML reader gives out.
OTHER_YAML = (
    "seed: yes",
    "suspend: yes",
    "seed: 0777",
    "seed: 2",
    "<<",
    "!!",
    "*",
    "? ",
    "\\u",
    "\\e",
    ".inf",
    "1e-1",
    "maxEpochs:",
)


@pytest.mark.parametrize(
    ("lines", "message"),
    [case for case in ONE_MISTAKE if not any(other in case[0] for other in OTHER_YAML)],
    ids=lambda text: text.strip()[:60],
)
def test_a_mistake_of_a_job_file_is_refused_at_its_field(admin: Client, lines: str, message: str) -> None:
    said = refusal(admin, yaml.safe_load(GOOD + lines))
    field = message.partition(" ")[2].partition(":")[0]
    if UNSEEN.search(message):
        assert said == ""
    elif "no such field" in message:
        assert f'unknown field "{field}"' in said
    else:
        assert field in said


@pytest.mark.parametrize(("spec", "where", "why"), REFUSED, ids=[f"{where}-{why}" for _, where, why in REFUSED])
def test_what_the_type_refuses_the_api_server_refuses(admin: Client, spec: Document, where: str, why: str) -> None:
    document = good(**spec)
    document["spec"] = {key: value for key, value in document["spec"].items() if value is not None}
    try:
        said = refusal(admin, document)
    except ValueError:  # not a number of JSON: no request can hold it
        return
    assert (said == "") == bool(UNSEEN.search(f"{where} {why}")), said


BETWEEN_FIELDS: list[tuple[Document, str]] = [
    ({"workers": {"min": 3, "max": 2}}, "spec.workers.min"),
    ({"servers": {"min": 5}}, "spec.servers.min"),
    ({"batchSize": 2}, "spec.workers.max"),
    ({"target": {}}, "spec.target"),
    ({"objective": "best-loss"}, "spec.objective"),
    ({"target": None, "objective": "soonest", "maxEpochs": 9}, "spec.objective"),
    ({"target": None, "budget": {"unlimited": True}}, "spec.target"),
    ({"target": {"loss": 1, "accuracy": 0.5}}, "spec.target.accuracy"),
    ({"target": {"metric": "f1"}}, "spec.target.value"),
    ({"target": {"metric": "elo", "value": 3}}, "spec.target.goal"),
    ({"target": {"loss": 1, "value": 3}}, "spec.target.value"),
    ({"target": {"accuracy": 1, "goal": "maximize"}}, "spec.target.goal"),
    ({"data": {"format": "digits8x8", "readers": 2}}, "spec.data.readers"),
    ({"mode": "async", "clip": {"norm": 1}}, "spec.clip"),
    ({"mode": "async", "parameterServer": "elastic"}, "spec.mode"),
    (
        {"optimizer": {"name": "ftrl", "learningRate": 0.1}, "parameterServer": "elastic"},
        "spec.optimizer.name",
    ),
    ({"clip": {}}, "spec.clip"),
    ({"epoch": {}}, "spec.epoch"),
    ({"epoch": {"samples": 9, "fraction": 0.5}}, "spec.epoch.fraction"),
    ({"epoch": {"fraction": 0.5, "time": "5m"}}, "spec.epoch.time"),
    ({"data": {"format": "idx"}}, "spec.data.uri"),
    ({"data": {"format": "digits8x8", "uri": "x"}}, "spec.data.uri"),
    ({"policy": {"name": "static", "workers": 2}}, "spec.policy.servers"),
    ({"policy": {"servers": 2}}, "spec.policy.servers"),
    ({"policy": {"name": "static", "workers": 5, "servers": 1}}, "spec.policy.workers"),
    ({"policy": {"name": "static", "workers": 1, "servers": 5}}, "spec.policy.servers"),
    ({"miniEpoch": {"minSeconds": 50}}, "spec.miniEpoch.minSeconds"),
    ({"budget": {}}, "spec.budget"),
    ({"budget": {"amount": 1}}, "spec.budget.currency"),
    ({"budget": {"currency": "USD"}}, "spec.budget.amount"),
    ({"budget": {"unlimited": True, "amount": 1}}, "spec.budget"),
    ({"budget": {"unlimited": True, "currency": "USD"}}, "spec.budget"),
    ({"budget": {"unlimited": True, "chanceOfRunningOut": 0.1}}, "spec.budget.chanceOfRunningOut"),
    ({"model": {"file": "ftp://host/x"}}, "spec.model.file"),
    ({"checkpoint": {"uri": "gs://"}}, "spec.checkpoint.uri"),
    ({"resources": {"worker": {"cpu": "0m", "memory": "1Gi"}}}, "spec.resources.worker.cpu"),
    ({"resources": {"server": {"cpu": 1, "memory": "15Mi"}}}, "spec.resources.server.memory"),
    (
        {"resources": {"worker": {"cpu": 1, "memory": "1Gi", "gpuResource": "amd.com/gpu"}}},
        "spec.resources.worker.gpuResource",
    ),
]


@pytest.mark.parametrize(("changes", "field"), BETWEEN_FIELDS, ids=[str(changes) for changes, _ in BETWEEN_FIELDS])
def test_rules_between_fields_are_told_in_the_words_of_coach_validate(
    admin: Client, changes: Document, field: str
) -> None:
    document = good(**changes)
    document["spec"] = {key: value for key, value in document["spec"].items() if value is not None}
    with pytest.raises(UserError) as ours:
        read_jobs(json.dumps(document))
    problem, *_ = ours.value.problems  # type: ignore[attr-defined]
    said = refusal(admin, document)
    assert problem.field == field
    assert f"{field}: Invalid value: " in said
    assert said.endswith(f"{problem.problem} - {problem.right}")


def leaves(node: Document, at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Document]]:
    """Every field of a job that is not a mapping."""
    part, _ = branches(node)
    if part is None:
        yield at, node
    else:
        for key, inner in part.get("properties", {}).items():
            yield from leaves(inner, (*at, key))


DAY, MI, TI = 86400, 1 << 20, 1 << 40
BOUNDARIES: dict[str, list[Any]] = {
    "duration": [
        -1,
        0,
        1,
        365 * DAY,
        365 * DAY + 1,
        "0s",
        "1ms",
        "365d",
        "8760h1ms",
        "1.5h",
        "",
        "1 h",
        "1w",
    ],
    "cpu": [-1, 0, 1, 1024, 1025, "0m", "1m", "1024", "1024.001", "1025000m", "0.5", "1.0001", "x", ""],
    "memory": [
        -1,
        0,
        16 * MI,
        16 * MI - 1,
        64 * TI,
        64 * TI + 1,
        "16Mi",
        "15Mi",
        "64Ti",
        "65Ti",
        "1e9",
        "1.5Gi",
        "",
    ],
}


def values(node: Document) -> Iterator[Any]:
    """Values on both sides of every bound of a field, and of wrong types."""
    yield from BOUNDARIES.get(node.get("format", ""), [])
    step = 1 if node.get("type") == "integer" else 1e-9
    for bound in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
        if bound in node:
            whole = int(node[bound]) if step == 1 else node[bound]
            yield from (whole - step, whole, whole + step)
    if "enum" in node or "const" in node:
        yield from [*node.get("enum", []), node.get("const", "")]
    yield from (
        "x" * node.get("maxLength", 40),
        "x" * (node.get("maxLength", 40) + 1),
        "Usd",
        "USD",
        "a b",
        "f" * 64,
    )
    yield from (True, "true", [], {}, 0.5)


LEAVES = [(at, node) for at, node in leaves(tree()["properties"]["spec"]) if at[0] != "prices"]


@pytest.mark.parametrize(("at", "node"), LEAVES, ids=[".".join(at) for at, _ in LEAVES])
def test_at_every_bound_of_every_field_both_decide_alike(admin: Client, at: tuple[str, ...], node: Document) -> None:
    for value in values(node):
        document = good(**copy.deepcopy(AROUND.get(at[0], {})))
        place = document["spec"]
        for key in at[:-1]:
            place = place.setdefault(key, {})
        place[at[-1]] = value
        try:
            read_jobs(json.dumps(document))
            ours = ""
        except UserError as error:
            ours = str(error)
        if "MXNet has no such optimizer" in ours:  # a name that only MXNet knows to be wrong
            ours = ""
        theirs = refusal(admin, document)
        assert bool(ours) == bool(theirs), f"{value!r}: {ours!r} against {theirs!r}"


#: What else a field needs to be right.
RESOURCES = {role: {"cpu": 1, "memory": "1Gi"} for role in ("scheduler", "server", "worker")}
AROUND: dict[str, Document] = {
    "optimizer": {"optimizer": {"learningRate": 0.1}},
    "resources": {"resources": RESOURCES},
    "data": {"data": {"format": "custom"}},
    "target": {"target": {}},
    "policy": {
        "policy": {"name": "static", "workers": 1, "servers": 1},
        **{"workers": {"max": 1024}, "servers": {"max": 1024}, "batchSize": 1024},
    },
    "workers": {"batchSize": 10**6},
    "spot": {"prices": "nodes"},
}


def test_what_the_rules_cannot_see_is_known(admin: Client) -> None:
    prices = {"name": "ours", "currency": "EUR", "vcpuSecond": 0, "gibSecond": 0, "invocation": 0}
    usd = {"amount": 1, "currency": "USD"}
    changes = {"prices": prices, "budget": usd}
    assert refusal(admin, good(**changes)) == ""
    with pytest.raises(UserError):
        read_jobs(yaml.safe_dump(good(**changes)))
    # Whose prices a job pays.
    assert refusal(admin, good(spot={"deadline": "52h"})) == ""
    with pytest.raises(UserError, match="prices: nodes"):
        read_jobs(yaml.safe_dump(good(spot={"deadline": "52h"})))
    # What optimizers there are, and their arguments, the functions' Python knows alone.
    assert refusal(admin, good(optimizer={"learningRate": 0.1, "no_such": 1})) == ""
    offers = (
        "nodes",
        "nebius/gpu-h100-sxm_1gpu-16vcpu-200gb",
        "aws/m8g.large@us-east-1:spot:hour",
        "aws/lambda",
    )
    assert [refusal(admin, good(prices=offer)) for offer in offers] == [""] * len(offers)
    assert refusal(admin, good(prices="aws/no-such-machine")) == "", "which the controller refuses"
    for wrong in (
        "aws/m8g.large:weekly",
        "aws/",
        "free",
        {**prices, "name": "flat"},
        {"name": "ours"},
        5,
        [],
    ):
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
    (
        {"budget": {"amount": 4, "currency": "USD"}},
        "spec.budget.amount: Invalid value: less than before, which was 5",
    ),
    ({"budget": {"amount": 6, "currency": "EUR"}}, "another currency than before, which was USD"),
    ({"budget": {"unlimited": True}}, "cannot become unlimited, or limited"),
    (
        {"budget": {"amount": 5, "currency": "USD", "chanceOfRunningOut": 0.1}},
        "cannot change - the one of before; or another job",
    ),
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
    assert f"prices: {MAY}" in whole and stored["prices"] == "cloud-functions"


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


@pytest.mark.parametrize("field", ["amount", "chanceOfRunningOut"])
def test_zero_is_refused_where_the_least_is_a_fraction(admin: Client, field: str) -> None:
    """The API server compares whole numbers with a minimum whose fraction it has dropped."""
    budget = {"amount": 1, "currency": "USD", field: 0}
    assert f"spec.budget.{field}" in refusal(admin, good(budget=budget))


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
