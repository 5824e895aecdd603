"""The Helm chart: what it installs in a real API server, what its service accounts may do, and that nothing stays."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import httpx
import jsonschema
import pytest
import yaml

from coach.core.cluster import Pod, PodId, Resources, Role
from coach.core.errors import UserError
from coach.core.leadership import Candidate
from coach.core.spec.job import TrainingJob
from coach.jobfiles.resource_status import ConditionType, TrainingJobStatus
from coach.platforms.kubernetes import manifests, program_manifests
from coach.platforms.kubernetes.settings import Settings
from coach.platforms.kubernetes_api.election import LIVE_PORT, Lead, _well
from scripts.generate.crd import crd
from tests.core.lifecycle.faulty_cluster import spec
from tests.docs.pages import ROOT
from tests.packaging.api_server import HELM, ApiServer, Client, until
from tests.required import missing

CHART = ROOT / "deploy/chart"
KINDS = ("trainingjobs", "trainingbudgets", "trainingsearches", "gangs")
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
Object = dict[str, Any]

with_helm = pytest.mark.processes


def helm(*args: Any, check: bool = True) -> subprocess.CompletedProcess[str]:
    if not HELM.exists():
        missing("no .cache/bin/helm: run make helm, which needs Go")
    done = subprocess.run([HELM, *map(str, args)], capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, done.stderr
    return done


def rendered(*args: str) -> dict[tuple[str, str], Object]:
    """The chart's objects by kind and name."""
    text = helm("template", "coach", CHART, "--namespace", "here", *args).stdout
    text = text.replace(" 1e-06\n", " 1.0e-06\n")  # so that YAML 1.1 reads a number, as Go's reader does
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text)}


def keys(values: Any, at: str = "") -> set[str]:
    """All keys of values, but for what Kubernetes and others define."""
    if not isinstance(values, dict) or at.endswith((".resources", ".args", ".affinity", ".nodeSelector")):
        return {at}
    return {at, *(key for name, inner in values.items() for key in keys(inner, f"{at}.{name}"))}


def schema_keys(node: Object, at: str = "") -> set[str]:
    """All keys that the values' schema knows."""
    inner = node.get("properties", {}).items()
    return {at, *(key for name, sub in inner for key in schema_keys(sub, f"{at}.{name}"))}


def test_the_schema_knows_the_values_that_there_are_and_no_others() -> None:
    assert schema_keys(SCHEMA) - {".global"} == keys(VALUES)
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.Draft7Validator(SCHEMA).validate(VALUES)


@pytest.mark.parametrize(
    "wrong",
    [
        {"handlr": {}},
        {"handler": {"image": {"name": "x"}}},
        {"imagePullPolicy": "Sometimes"},
        {"imagePullSecrets": ["registry"]},
        {"persistence": {"size": "much"}},
        {"persistence": {"accessModes": []}},
        {"scheduler": {"replicas": 0}},
        {"service": {"port": 0}},
        {"crds": {"keep": "yes"}},
    ],
    ids=str,
)
def test_wrong_values_are_refused(wrong: Object) -> None:
    assert not jsonschema.Draft7Validator(SCHEMA).is_valid(wrong)


def test_the_chart_is_of_the_version_of_coach() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = (ROOT / "pyproject.toml").read_text()
    assert f'\nversion = "{about["appVersion"]}"\n' in project


PAGE = (ROOT / "docs/reference/kubernetes.md").read_text()


def leaves(values: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(values, dict) and values and not at.endswith(".resources"):
        for name, inner in values.items():
            yield from leaves(inner, f"{at}.{name}")
    else:
        yield at.removeprefix("."), values


def test_the_page_has_every_value_with_its_default() -> None:
    rows = [row.split(" | ") for row in PAGE.splitlines() if row.startswith("| `")]
    shown = {row[0].strip("| `"): row[1].strip("`") for row in rows}
    for key, default in leaves(VALUES):
        assert yaml.safe_load(shown[key]) == default, key


def test_the_page_has_every_condition_status_field_and_variable() -> None:
    fields = [field.alias or name for name, field in TrainingJobStatus.model_fields.items()]
    variables = re.findall(r"name: (COACH_\w+)|^  (COACH_\w+):", (CHART / "templates/handler.yaml").read_text(), re.M)
    variables = [one or other for one, other in variables]
    assert len(variables) == 20
    for name in [*fields, *ConditionType, *variables]:
        assert f"`{name}`" in PAGE


@with_helm
def test_the_chart_passes_lint_and_refuses_wrong_values_by_itself() -> None:
    helm("lint", "--strict", CHART)
    refused = helm("template", CHART, "--set", "handler.polcy=drf", check=False)
    assert refused.returncode != 0 and "polcy" in refused.stderr


@with_helm
def test_an_object_store_takes_the_place_of_the_volume() -> None:
    sets = {
        "objectStore.uri": "s3://bucket/coach",
        "objectStore.secret": "store",
        "functions.serviceAccountAnnotations.role": "coach",
    }
    objects = rendered(*(arg for key, value in sets.items() for arg in ("--set", f"{key}={value}")))
    settings = Settings.read("", objects["ConfigMap", "coach-functions"]["data"])
    assert (settings.checkpoints, settings.store_secret, settings.volume_claim) == ("s3://bucket/coach", "store", "")
    job = TrainingJob.from_json(spec("a"))
    pod = manifests.pod(Pod(PodId("a", Role.WORKER, 0), "", Resources(1.0, 1.0)), job, settings, [], "key")
    assert pod["spec"]["containers"][0]["envFrom"] == [{"secretRef": {"name": "store"}}]
    assert [one["name"] for one in pod["spec"]["volumes"]] == ["tmp"]
    assert objects["ServiceAccount", "coach-functions"]["metadata"]["annotations"] == {"role": "coach"}


@with_helm
@pytest.mark.parametrize(
    ("kind", "profile", "group"),
    [
        ("coach", "coach", ""),
        ("native", "default-scheduler", "scheduling.k8s.io"),
        ("coscheduling", "scheduler-plugins-scheduler", "scheduling.x-k8s.io"),
        ("default", "default-scheduler", ""),
    ],
)
def test_who_places_the_pods_is_one_value(kind: str, profile: str, group: str) -> None:
    objects = rendered("--set", f"scheduler.kind={kind}")
    settings = Settings.read("", objects["ConfigMap", "coach-functions"]["data"])
    assert settings.scheduler == profile and bool(settings.deadlock) == (kind == "default")
    assert settings.pod_groups.partition("/")[0] == group
    rules = [one for one in objects["Role", "coach-handler"]["rules"] if one["resources"] == ["podgroups"]]
    assert [(one["apiGroups"], one["verbs"]) for one in rules] == [([group], ["create", "list", "patch"])] * bool(group)
    assert (("Deployment", "coach-scheduler") in objects) == (kind == "coach")
    function, program = (TrainingJob.from_json(one) for one in (spec("job"), PROGRAM))
    made = Pod(PodId("job", Role.WORKER, 0), "", Resources(1.0, 1.0))
    for pod in (
        manifests.pod(made, function, settings, [], "key"),
        program_manifests.pod(made, program, 1, settings, []),
    ):
        assert pod["spec"]["schedulerName"] == profile
        assert (pod["spec"].get("schedulingGroup") == {"podGroupName": "job"}) == (kind == "native")
        assert ("scheduling.x-k8s.io/pod-group" in pod["metadata"]["labels"]) == (kind == "coscheduling")


def test_a_kind_of_scheduler_that_is_none_is_said_with_those_that_are() -> None:
    with pytest.raises(UserError, match="COACH_SCHEDULER_KIND: one of coach, native, coscheduling, default, not 'x'"):
        Settings.read("", {"COACH_SCHEDULER_KIND": "x"})


@with_helm
def test_policy_and_scheduler_do_not_both_preempt() -> None:
    on = ("--set", "scheduler.args.preemption=lrtp")
    refused = helm("template", CHART, *on, "--set", "handler.policy=fitgpp:p=2", check=False)
    assert "handler.policy=fitgpp:p=2 and scheduler.args.preemption=lrtp both preempt" in refused.stderr
    assert rendered(*on) and rendered("--set", "handler.policy=fitgpp")


@with_helm
def test_crds_and_the_schedulers_configuration_are_the_files_that_the_other_tests_use() -> None:
    objects = rendered()
    for name in KINDS:
        file = name.removesuffix("es" if name.endswith("ches") else "s")
        written = yaml.safe_load((CHART / "files" / f"{file}-crd.yaml").read_text())
        shipped = objects["CustomResourceDefinition", f"{name}.coach.dev"]
        assert shipped["spec"] == written["spec"]
    assert objects["CustomResourceDefinition", "trainingjobs.coach.dev"]["spec"] == crd()["spec"]
    written = yaml.safe_load((CHART / "files/second-scheduler.yaml").read_text())
    written["leaderElection"]["resourceNamespace"] = "here"
    assert yaml.safe_load(objects["ConfigMap", "coach-scheduler"]["data"]["config.yaml"]) == written


@with_helm
@pytest.mark.parametrize("file", ["scheduler/only-scheduler.yaml", "chart/files/second-scheduler.yaml"])
def test_the_scheduler_may_bind_a_large_gang_at_once(file: str) -> None:
    """With the client's default of 50 requests a second the members of 50 gangs are bound up to 0.7 s apart."""
    client = yaml.safe_load((ROOT / "deploy" / file).read_text())["clientConnection"]
    assert (client["qps"], client["burst"]) == (200, 400)


def test_values_reach_what_they_are_for() -> None:
    sets = {
        "imagePullPolicy": "Never", "imagePullSecrets[0].name": "one", "imagePullSecrets[1].name": "two",
        "handler.policy": "drf", "handler.nodeSelector.disk": "ssd", "handler.extraArgs[0]": "--allow=/data",
        "functions.image.repository": "registry.example.com/coach-functions", "functions.image.tag": "v7",
        "functions.programUser": "1000",
        "functions.pytorchImage.repository": "torch", "functions.pytorchImage.tag": "v8",
        "scheduler.args.backfill": "easy", "scheduler.name": "coach-thesis", "persistence.existingClaim": "mine",
        "token.existingSecret": "ours", "crds.keep": "true",
    }  # fmt: skip
    objects = rendered(*(arg for key, value in sets.items() for arg in ("--set", f"{key}={value}")))
    pod = objects["Deployment", "coach-handler"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    environment = {one["name"]: one.get("value") for one in container["env"]}
    environment |= objects["ConfigMap", "coach-functions"]["data"]
    assert environment == {
        "COACH_HOME": "/var/lib/coach/home",
        "HOME": "/tmp",
        "COACH_NAMESPACE": None,
        "COACH_HANDLER": "coach-handler",
        "COACH_LEASE": "coach-handler",
        "COACH_POD": None,
        "COACH_NETWORK_POLICY": "true",
        "COACH_PROGRAM_USER": "1000",
        "COACH_FUNCTIONS_IMAGE": "registry.example.com/coach-functions:v7",
        "COACH_PYTORCH_IMAGE": "torch:v8",
        "COACH_FUNCTIONS_SERVICE_ACCOUNT": "coach-functions",
        "COACH_SCHEDULER_NAME": "coach-thesis",
        "COACH_SCHEDULER_KIND": "coach",
        "COACH_IMAGE_PULL_POLICY": "Never",
        "COACH_TOKEN_SECRET": "ours",
        "COACH_STATE_CLAIM": "mine",
        "COACH_VOLUME_CLAIM": "mine",
        "COACH_IMAGE_PULL_SECRETS": "one,two",
    }
    assert container["imagePullPolicy"] == "Never" and pod["nodeSelector"] == {"disk": "ssd"}
    assert {"--policy=drf", "--allow=/data", "--platform=kubernetes"} <= set(container["args"])
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["state"]["persistentVolumeClaim"] == {"claimName": "mine"}
    assert volumes["token"]["secret"]["secretName"] == "ours"
    config = yaml.safe_load(objects["ConfigMap", "coach-scheduler"]["data"]["config.yaml"])
    assert config["profiles"][0]["pluginConfig"][0]["args"]["backfill"] == "easy"
    assert not {kind for kind, _ in objects} & {"PersistentVolumeClaim", "Secret"}
    kept = objects["CustomResourceDefinition", "trainingjobs.coach.dev"]["metadata"]["annotations"]
    assert kept == {"helm.sh/resource-policy": "keep"}
    off = rendered("--set", "crds.enabled=false", "--set", "scheduler.enabled=false")
    assert not [name for kind, name in off if kind == "CustomResourceDefinition" or "scheduler" in name]


NUCLIO_TOO = {
    *((verb, "nuclio.io", "nucliofunctions") for verb in ("create", "get", "list", "watch", "patch", "delete")),
    ("create", "nuclio.io", "nuclioprojects"),
    *((verb, "apps", "deployments") for verb in ("get", "list", "patch", "delete")),
    ("list", "", "services"),
    ("delete", "", "configmaps"),
}


@with_helm
def test_the_handler_reads_the_pods_of_all_namespaces_only_where_it_may() -> None:
    def rights(*args: str) -> list[Object]:
        return list(rendered(*args)["ClusterRole", "here-coach-handler"]["rules"])

    more = [rule for rule in rights("--set", "handler.readAllPods=true") if rule not in rights()]
    assert more == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]


@with_helm
def test_with_nuclio_the_handler_has_rights_on_its_functions_too_and_no_others() -> None:
    def rights(*settings: str) -> set[tuple[str, str, str]]:
        rules = rendered(*settings)["Role", "coach-handler"]["rules"]
        return {
            (verb, group, resource)
            for rule in rules
            for verb in rule["verbs"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
        }

    [container] = rendered("--set", "platform=nuclio")["Deployment", "coach-handler"]["spec"]["template"]["spec"][
        "containers"
    ]
    assert "--platform=nuclio" in container["args"]
    assert rights("--set", "platform=nuclio") - rights() == NUCLIO_TOO


def inventory(admin: Client) -> set[str]:
    """Every object of the cluster, of every kind."""
    found = set()
    groups = admin.get("/apis")["groups"]
    for path in ["/api/v1", *(f"/apis/{group['preferredVersion']['groupVersion']}" for group in groups)]:
        answer = admin.http.get(path)
        for resource in answer.json()["resources"] if answer.status_code == 200 else []:  # 404: just gone
            if "list" in resource["verbs"] and resource["name"] not in ("events", "componentstatuses"):
                for one in admin.http.get(f"{path}/{resource['name']}").json().get("items", []):
                    metadata = one["metadata"]
                    where = metadata.get("namespace", "")
                    found.add(f"{path}/{resource['name']}/{where}/{metadata['name']}")
    return found


@dataclass(frozen=True)
class Release:
    """The chart, installed under the name coach in the namespace train."""

    cluster: ApiServer
    before: set[str]
    notes: str
    namespace: str = "train"

    def helm(self, command: str, *args: Any) -> str:
        kube = ("--kubeconfig", self.cluster.admin.kubeconfig, "--namespace", self.namespace)
        return helm(command, "coach", *args, *kube).stdout

    def get(self, path: str) -> Any:
        return self.cluster.admin.get(path.replace("NS", f"namespaces/{self.namespace}"))


SMALL = ("--set", "scheduler.args.backfill=easy")


@pytest.fixture(scope="module")
def release(cluster: ApiServer) -> Iterator[Release]:
    """Installed once; the last test of this file uninstalls it. Its namespace admits restricted pods only."""
    admin = cluster.admin
    for name in KINDS:  # of other tests
        admin.http.delete(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}.coach.dev")
    gone = "/apis/coach.dev/v1alpha1"
    until("the other tests' CRDs are gone", lambda: not any(admin.exists(f"{gone}/{name}") for name in KINDS))
    restricted = {"pod-security.kubernetes.io/enforce": "restricted"}
    for name, labels in (("train", restricted), ("elsewhere", {})):
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        admin.create("/api/v1/namespaces", namespace)
    before = inventory(admin)
    bare = Release(cluster, before, "")
    yield Release(cluster, before, bare.helm("install", CHART))
    if admin.exists("/api/v1/namespaces/train/services/coach"):
        bare.helm("uninstall", "--no-hooks")


@with_helm
def test_installing_tells_the_next_command(release: Release) -> None:
    assert "kubectl -n train apply -f deploy/lenet-digits.yaml" in release.notes
    assert "WARNING" not in release.notes
    document = next(yaml.safe_load_all((ROOT / "jobs/lenet-digits.yaml").read_text()))
    document["metadata"]["namespace"] = "train"
    served = "/apis/coach.dev/v1alpha1/trainingjobs"
    until("TrainingJobs are served", lambda: release.cluster.admin.exists(served))
    assert release.cluster.admin.apply(document, dry_run=True).status_code == 201


@with_helm
@pytest.mark.parametrize("part", ["handler", "scheduler"])
def test_its_pods_pass_the_restricted_pod_security_standard(release: Release, part: str) -> None:
    template = release.get(f"/apis/apps/v1/NS/deployments/coach-{part}")["spec"]["template"]
    template["spec"].pop("priorityClassName", None)  # the controllers' room has no objects of these here
    pod = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {"name": "one", **template["metadata"]}}
    made = release.cluster.admin.create("/api/v1/namespaces/train/pods", pod, dryRun="All")
    [container] = made["spec"]["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["resources"]["requests"].keys() == {"cpu", "memory"} and container["resources"]["limits"]["memory"]
    assert container["imagePullPolicy"] == "IfNotPresent"
    del pod["spec"]["securityContext"]
    refused = release.cluster.admin.http.post("/api/v1/namespaces/train/pods", json=pod, params={"dryRun": "All"})
    assert refused.status_code == 403 and "restricted" in refused.text


def admitted(release: Release, spec: Object) -> httpx.Response:
    """What the API server says to a pod in a namespace that enforces the restricted standard."""
    spec.pop("priorityClassName", None)
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": spec}
    return release.cluster.admin.http.post("/api/v1/namespaces/train/pods", json=pod, params={"dryRun": "All"})


PROGRAM = {
    "apiVersion": "coach.dev/v1alpha1",
    "kind": "TrainingJob",
    "metadata": {"name": "job"},
    "spec": {
        "image": "me/train:1",
        "program": {"command": ["true"], "code": "files"},
        "workers": {"min": 2, "max": 2},
        "resources": {"worker": {"cpu": "1", "memory": "1Gi"}},
        "target": {"metric": "eval_loss", "value": 0.3},
        "budget": {"unlimited": True},
    },
}


@with_helm
@pytest.mark.parametrize("user", [65532, 1000, 0])
def test_pods_of_jobs_pass_it_too_unless_programs_are_their_images_user(release: Release, user: int) -> None:
    settings = Settings("image", service_account="coach-functions", volume_claim="claim", program_user=user)
    settings = replace(settings, status_url="http://handler:8422/status")
    function, program = (TrainingJob.from_json(one) for one in (spec("job"), PROGRAM))
    worker = Pod(PodId("job", Role.WORKER, 0), "", function.spec.resources.worker.resources)
    made = {
        "function": manifests.pod(worker, function, settings, [], "key"),
        "program": program_manifests.pod(worker, program, 2, settings, [], {"train.py": "train.py"}),
    }
    made["lease"] = program_manifests.lease(program, 60, 0.0, settings, [])["spec"]["template"]
    for name, one in made.items():
        answer = admitted(release, one["spec"])
        if user or name == "function":
            assert answer.status_code == 201, answer.text
        else:
            assert answer.status_code == 403 and 'violates PodSecurity "restricted' in answer.json()["message"]
        mounted = [source for volume in one["spec"].get("volumes", ()) for source in _tokens(volume)]
        assert one["spec"].get("automountServiceAccountToken", False) is False
        assert {source["audience"] for source in mounted} <= {"coach.dev"}, "for reports alone"


def _tokens(volume: Object) -> list[Object]:
    sources = volume.get("projected", {}).get("sources", [])
    return [one["serviceAccountToken"] for one in sources if "serviceAccountToken" in one]


@with_helm
def test_the_pod_of_helm_uninstall_passes_it_too(release: Release) -> None:
    job = rendered()["Job", "coach-uninstall"]
    assert admitted(release, job["spec"]["template"]["spec"]).status_code == 201


@with_helm
def test_the_api_has_a_token_that_an_upgrade_keeps(release: Release) -> None:
    token = release.get("/api/v1/NS/secrets/coach-token")["data"]["token"]
    assert len(base64.b64decode(token)) == 43
    before = release.get("/apis/apps/v1/NS/deployments/coach-scheduler")["spec"]["template"]["metadata"]
    handler = release.get("/apis/apps/v1/NS/deployments/coach-handler")
    release.helm("upgrade", CHART, *SMALL)
    assert release.get("/api/v1/NS/secrets/coach-token")["data"]["token"] == token
    after = release.get("/apis/apps/v1/NS/deployments/coach-scheduler")["spec"]["template"]["metadata"]
    assert before["annotations"] != after["annotations"], "another configuration: other pods"
    same = release.get("/apis/apps/v1/NS/deployments/coach-handler")
    assert same["metadata"]["generation"] == handler["metadata"]["generation"], "the handler goes on"


#: What a service account may do in a namespace (train, elsewhere) or, without one, in the cluster.
HANDLER_MAY = """
train: create get list watch patch delete pods
train: create leases.coordination.k8s.io
train: get patch leases.coordination.k8s.io coach-handler
train: get pods/log
train: get list watch patch trainingjobs.coach.dev trainingbudgets.coach.dev trainingsearches.coach.dev
train: patch update trainingjobs.coach.dev/status trainingbudgets.coach.dev/status trainingsearches.coach.dev/status
train: update trainingjobs.coach.dev/finalizers
train: create get list watch patch update delete gangs.coach.dev
train: get list watch create patch configmaps
train: create events
train: create secrets
train: get namespaces
train: create get list patch delete jobs.batch
train: create patch delete services
train: list watch delete workloads.kueue.x-k8s.io
train: create patch networkpolicies.networking.k8s.io
: get list watch nodes
: create tokenreviews.authentication.k8s.io
"""
HANDLER_MAY_NOT = """
train: get list watch update patch delete secrets
train: get secrets coach-token
train: create pods/exec pods/attach pods/portforward pods/eviction
train: update deletecollection pods
train: create delete update trainingjobs.coach.dev trainingbudgets.coach.dev trainingsearches.coach.dev
train: update delete configmaps
train: create update delete serviceaccounts persistentvolumeclaims
train: get list update services
train: watch update jobs.batch
train: create jobs.batch/status cronjobs.batch
train: create update patch deployments.apps
train: create update patch roles.rbac.authorization.k8s.io rolebindings.rbac.authorization.k8s.io
train: create serviceaccounts/token
train: impersonate serviceaccounts
train: list get patch update delete leases.coordination.k8s.io
train: get patch leases.coordination.k8s.io coach-scheduler
train: update gangs.coach.dev/status
train: get list update delete networkpolicies.networking.k8s.io
elsewhere: get list watch create delete pods
elsewhere: get list watch patch trainingjobs.coach.dev
elsewhere: get list configmaps secrets
elsewhere: get namespaces
kube-system: get list pods configmaps secrets
: create update patch delete nodes
: update patch nodes/status
: get nodes/proxy
: list pods secrets trainingjobs.coach.dev
: create clusterroles.rbac.authorization.k8s.io namespaces persistentvolumes
: update customresourcedefinitions.apiextensions.k8s.io
"""
SCHEDULER_MAY = """
train: create pods/binding
train: get list watch gangs.coach.dev
train: patch gangs.coach.dev/status
train: create leases.coordination.k8s.io
train: get update leases.coordination.k8s.io coach-scheduler
elsewhere: list watch pods
: get list watch nodes
kube-system: get configmaps extension-apiserver-authentication
"""
SCHEDULER_MAY_NOT = """
train: get list secrets
train: patch update create delete gangs.coach.dev
train: get list trainingjobs.coach.dev
train: update leases.coordination.k8s.io coach-handler
train: create pods pods/exec
: update patch delete nodes
"""
FUNCTIONS_MAY_NOT = """
train: get list watch create delete pods configmaps secrets services
train: get list trainingjobs.coach.dev gangs.coach.dev
train: get leases.coordination.k8s.io coach-handler
: get list nodes namespaces
"""


def questions(table: str) -> Iterator[tuple[str, Object]]:
    for line in table.strip().splitlines():
        namespace, _, rest = line.partition(":")
        words = rest.split()
        resources = [word for word in words if word.partition(".")[0].partition("/")[0].endswith("s")]
        verbs = words[: words.index(resources[0])]
        last = words[-1]
        name = "" if last in resources else last
        for resource in resources:
            kind, _, group = resource.partition(".")
            group, _, sub = group.partition("/") if group else ("", "", "")
            if not group:
                kind, _, sub = kind.partition("/")
            for verb in verbs:
                attributes = {
                    "namespace": namespace,
                    "verb": verb,
                    "group": group,
                    "resource": kind,
                    "name": name,
                }
                yield f"{namespace}: {verb} {resource} {name}", {**attributes, "subresource": sub}


@with_helm
@pytest.mark.parametrize(
    ("account", "may", "may_not"),
    [
        ("coach-handler", HANDLER_MAY, HANDLER_MAY_NOT),
        ("coach-scheduler", SCHEDULER_MAY, SCHEDULER_MAY_NOT),
        ("coach-functions", "", FUNCTIONS_MAY_NOT),
    ],
)
def test_a_service_account_may_do_what_it_needs_and_no_more(
    release: Release, account: str, may: str, may_not: str
) -> None:
    client = release.cluster.service_account("train", account)
    for table, right in ((may, True), (may_not, False)):
        for said, attributes in questions(table):
            review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
            spec = {"spec": {"resourceAttributes": attributes}}
            answer = client.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {**review, **spec})
            assert answer["status"]["allowed"] is right, f"{account}, {said}"
    client.http.close()


@with_helm
def test_what_it_may_not_do_it_cannot_do(release: Release) -> None:
    admin, handler = release.cluster.admin, release.cluster.service_account("train", "coach-handler")
    functions = release.cluster.service_account("train", "coach-functions")
    assert handler.http.get("/api/v1/namespaces/train/pods").status_code == 200
    assert handler.http.get("/api/v1/nodes").status_code == 200
    for path in ("/api/v1/namespaces/train/secrets", "/api/v1/namespaces/elsewhere/pods", "/api/v1/pods"):
        assert admin.http.get(path).status_code == 200
        assert handler.http.get(path).status_code == 403
    assert functions.http.get("/api/v1/namespaces/train/pods").status_code == 403
    account = release.get("/api/v1/NS/serviceaccounts/coach-functions")
    assert account["automountServiceAccountToken"] is False
    for client in (handler, functions):
        client.http.close()


@with_helm
def test_every_right_of_the_handler_is_one_that_this_test_knows(release: Release) -> None:
    known = {
        (q["verb"], q["group"], "/".join(filter(None, (q["resource"], q["subresource"]))))
        for _, q in questions(HANDLER_MAY)
    }
    rules = [
        *release.get("/apis/rbac.authorization.k8s.io/v1/NS/roles/coach-handler")["rules"],
        *release.get("/apis/rbac.authorization.k8s.io/v1/clusterroles/train-coach-handler")["rules"],
    ]
    given = {(v, g, r) for rule in rules for v in rule["verbs"] for g in rule["apiGroups"] for r in rule["resources"]}
    assert given == known


@with_helm
def test_without_a_volume_the_notes_say_what_is_lost(release: Release) -> None:
    notes = release.helm("upgrade", CHART, "--set", "persistence.enabled=false", "--set", "crds.keep=true")
    assert "WARNING: persistence.enabled is false" in notes and "spec.checkpoint.uri" in notes
    pod = release.get("/apis/apps/v1/NS/deployments/coach-handler")["spec"]["template"]["spec"]
    assert {"name": "state", "emptyDir": {}} in pod["volumes"]
    assert "COACH_VOLUME_CLAIM" not in {one["name"] for one in pod["containers"][0]["env"]}
    release.helm("uninstall")
    left = {path.rpartition("/")[2] for path in inventory(release.cluster.admin) - release.before}
    assert left == {*(f"{name}.coach.dev" for name in KINDS), "v1alpha1.coach.dev"}, "crds.keep"


@with_helm
def test_uninstalling_leaves_nothing(release: Release) -> None:
    admin = release.cluster.admin
    release.helm("install", CHART, "--take-ownership")
    assert inventory(admin) - release.before
    document = next(yaml.safe_load_all((ROOT / "jobs/lenet-digits.yaml").read_text()))
    document["metadata"]["namespace"] = "train"
    assert admin.apply(document).status_code == 201
    release.helm("uninstall", "--no-hooks")  # no kubelet runs the hook here
    until(
        "the CRDs are gone",
        lambda: not admin.exists("/apis/apiregistration.k8s.io/v1/apiservices/v1alpha1.coach.dev"),
    )
    assert inventory(admin) - release.before == set()


@with_helm
@pytest.mark.timeout(60)
def test_a_paused_handler_answers_no_probe_and_one_that_waits_for_it_does() -> None:
    """So the kubelet ends the one that has the journal's write lock, and not its successor."""
    pod = rendered()["Deployment", "coach-handler"]["spec"]["template"]["spec"]["containers"][0]
    probe = pod["livenessProbe"]
    ports = {port["name"]: port["containerPort"] for port in pod["ports"]}
    assert probe["httpGet"] == {"path": "/health", "port": "live"} and ports["live"] == ports["http"] + LIVE_PORT
    assert probe["periodSeconds"] * probe["failureThreshold"] <= 120

    said, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        lead = Lead(Candidate("me"))
        lead.set_waiting(True)  # for a journal whose writer is paused
        with _well("127.0.0.1", 0, lambda: lead.waits) as port:
            os.write(into, f"{port}\n".encode())
            time.sleep(60)
        os._exit(0)
    try:
        port = os.read(said, 20).decode().strip()
        assert httpx.get(f"http://127.0.0.1:{port}/health", timeout=10, trust_env=False).status_code == 200
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)
        with pytest.raises(httpx.TimeoutException):
            httpx.get(f"http://127.0.0.1:{port}/health", timeout=1, trust_env=False)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(said)
        os.close(into)
