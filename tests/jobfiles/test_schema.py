"""The CRD is one that Kubernetes takes: its rules for structural schemas, checked over the whole tree.

Rules: Kubernetes documentation, "Extend the Kubernetes API with CustomResourceDefinitions", section "Specifying a
structural schema", with the lists of what is forbidden there; and `validation.go` of apiextensions-apiserver.
"""

import copy
import re

import jsonschema
import pytest
import yaml

from coach.core.jobs.reasons import State
from coach.jobfiles.resource_status import Condition, Metric, TrainerStatus, TrainingJobStatus
from coach.jobfiles.schema import lookup
from scripts.generate.crd import crd, crd_files, job_schema, status_schema, to_yaml
from tests.docs.pages import ROOT

#: The keywords of JSONSchemaProps (apiextensions.k8s.io/v1) that are not forbidden in a structural schema.
KEYWORDS = set(
    [
        "type",
        "description",
        "default",
        "enum",
        "pattern",
        "format",
        "minLength",
        "maxLength",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minItems",
        "maxItems",
        "minProperties",
        "maxProperties",
        "required",
        "properties",
        "items",
        "additionalProperties",
        "anyOf",
        "oneOf",
        "allOf",
        "not",
        "nullable",
        "example",
        "externalDocs",
        "title",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-int-or-string",
        "x-kubernetes-embedded-resource",
        "x-kubernetes-list-type",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-map-type",
        "x-kubernetes-validations",
    ]
)
#: What must not be set inside of anyOf, oneOf, allOf and not.
NOT_IN_JUNCTORS = {
    *("type", "description", "default", "additionalProperties", "nullable", "title"),
    *(word for word in KEYWORDS if word.startswith("x-")),
}
INT_OR_STRING = [{"type": "integer"}, {"type": "string"}]
FLAGS = ("exclusiveMinimum", "exclusiveMaximum", "nullable")


def violations(node, at="", root=True):
    """Everything in a schema that Kubernetes refuses."""
    found = [f"{at}: keyword {word}" for word in node.keys() - KEYWORDS]
    if found:
        return found
    untyped = node.get("x-kubernetes-int-or-string") or node.get("x-kubernetes-preserve-unknown-fields")
    if "type" not in node and not untyped:
        found.append(f"{at}: no type")
    if root and node.get("type") != "object":
        found.append(f"{at}: the root is no object")
    if root and "additionalProperties" in node:
        found.append(f"{at}: additionalProperties at the root")
    if "additionalProperties" in node and "properties" in node:
        found.append(f"{at}: additionalProperties beside properties")
    if node.get("additionalProperties") is False:
        found.append(f"{at}: additionalProperties false")
    if node.get("type") == "array" and "items" not in node:
        found.append(f"{at}: a list without items")
    found += [f"{at}: {word} is no flag" for word in FLAGS if not isinstance(node.get(word, True), bool)]
    if node.get("x-kubernetes-int-or-string"):
        if "type" in node or node.get("x-kubernetes-preserve-unknown-fields"):
            found.append(f"{at}: int-or-string with a type")
    elif "anyOf" in node:
        found += [v for branch in node["anyOf"] for v in in_junctor(branch, node, f"{at}.anyOf")]
    for word in ("oneOf", "allOf"):
        found += [v for branch in node.get(word, []) for v in in_junctor(branch, node, f"{at}.{word}")]
    if "not" in node:
        found += in_junctor(node["not"], node, f"{at}.not")
    if "pattern" in node:
        found += bad_pattern(node["pattern"], at)
    if "default" in node:
        if node["default"] is None and not node.get("nullable"):
            found.append(f"{at}: default null")
        errors = jsonschema.Draft4Validator(node).iter_errors(node["default"])
        found += [f"{at}: default: {error.message}" for error in errors]
        found += [f"{at}: default has unknown {key}" for key in unknown(node, node["default"])]
    if root and "metadata" in node.get("properties", {}):
        metadata = node["properties"]["metadata"]
        if metadata.keys() - {"type", "properties"} or metadata["properties"].keys() - {
            "name",
            "generateName",
        }:
            found.append(f"{at}: metadata says more than its name")
    for key, inner in node.get("properties", {}).items():
        found += violations(inner, f"{at}.{key}", False)
    for word in ("items", "additionalProperties"):
        if isinstance(node.get(word), dict):
            found += violations(node[word], f"{at}.{word}", False)
    return found


def in_junctor(branch, outside, at):
    found = [f"{at}: {word} inside of a junctor" for word in branch.keys() & NOT_IN_JUNCTORS]
    for key in [*branch.get("properties", {}), *branch.get("required", [])]:
        if key not in outside.get("properties", {}):
            found.append(f"{at}: {key} stands only inside of a junctor")
    return found


def bad_pattern(pattern, at):
    """Go's RE2 has no look-around and no back references."""
    re.compile(pattern)
    return [f"{at}: pattern {pattern}"] if re.search(r"\(\?[=!<P]|\\[1-9zZ]", pattern) else []


def unknown(node, value):
    """Keys that pruning would take away from a default."""
    if not isinstance(value, dict) or node.get("x-kubernetes-preserve-unknown-fields"):
        return []
    if "additionalProperties" in node:
        return []
    properties = node.get("properties", {})
    found = [key for key in value if key not in properties]
    return found + [key for known in value if known in properties for key in unknown(properties[known], value[known])]


def test_the_schema_is_structural():
    assert violations(job_schema()) == []


BROKEN = [
    (("spec", "seed"), {"type": None}, "no type"),
    (("spec", "seed"), {"$ref": "#/x"}, "keyword $ref"),
    (("spec", "seed"), {"default": "x"}, "default"),
    (("spec", "seed"), {"default": None}, "default null"),
    (("spec", "target", "loss"), {"exclusiveMinimum": 0}, "no flag"),
    (("spec", "workers"), {"additionalProperties": {"type": "string"}}, "beside properties"),
    (("spec", "workers"), {"default": {"min": 1, "most": 2}}, "unknown most"),
    (("spec", "target"), {"oneOf": [{"required": ["speed"]}]}, "only inside"),
    (("spec", "target"), {"anyOf": [{"type": "object"}]}, "type inside"),
    (("spec", "image"), {"pattern": "^(?!x)"}, "pattern"),
    (("spec", "timeLimit"), {"type": "string"}, "int-or-string with a type"),
    (("metadata",), {"required": ["name"]}, "metadata"),
    ((), {"additionalProperties": {"type": "string"}}, "at the root"),
]


@pytest.mark.parametrize(("path", "change", "message"), BROKEN, ids=[message for *_, message in BROKEN])
def test_the_rules_find_what_breaks_them(path, change, message):
    schema = copy.deepcopy(job_schema())
    node = schema
    for key in path:
        node = node["properties"][key]
    node.update(change)
    if change.get("type", "") is None:
        del node["type"]
    assert any(message in violation for violation in violations(schema))


def test_the_crd_is_complete():
    definition = crd()
    names = definition["spec"]["names"]
    assert (
        definition["metadata"]["name"] == f"{names['plural']}.{definition['spec']['group']}" == "trainingjobs.coach.dev"
    )
    [version] = definition["spec"]["versions"]
    assert (version["name"], version["served"], version["storage"]) == ("v1alpha1", True, True)
    assert version["subresources"] == {"status": {}}
    columns = {column["name"]: column for column in version["additionalPrinterColumns"]}
    assert " ".join(columns) == "State Progress Loss Target Workers Servers Spent Budget ETA Age"
    assert names["shortNames"] == ["tj"]
    schema = version["schema"]["openAPIV3Schema"]
    for column in columns.values():
        node = schema
        for key in column["jsonPath"].strip(".").split("."):
            node = node["properties"].get(key, {"type": "string", "properties": {}})
        assert column["type"] in (node["type"], "date")


def test_the_crd_is_yaml_without_anchors():
    text = to_yaml(crd())
    assert yaml.safe_load(text) == crd()
    assert "&id" not in text


def test_the_chart_has_the_crds_that_the_types_make():
    for file, made in crd_files().items():
        text = (ROOT / file).read_text(encoding="utf-8")
        assert text == made, "run: python -m scripts.generate"
        assert "{{" not in text, "Helm would take it for a template"


def without_description(node, at):
    """Fields of which `kubectl explain` would say nothing."""
    found = [] if node.get("description") else [at]
    inner = [*node.get("properties", {}).items(), *(("[]", node[key]) for key in ("items",) if key in node)]
    return found + [missing for key, sub in inner for missing in without_description(sub, f"{at}.{key}")]


def test_every_field_is_explained():
    fields = job_schema()["properties"]
    assert without_description(fields["spec"], "spec") + without_description(fields["status"], "status") == []


def test_a_status_of_all_fields_is_written_as_the_schema_has_it():
    now = "2026-11-24T12:00:00Z"
    condition = Condition(type="Complete", status="True", last_transition_time=now, reason="TargetReached", message="x")
    metrics = [Metric(name="loss", value="0.12")]
    trainer = TrainerStatus(progress_percentage=100, metrics=metrics, last_updated_time=now)
    status = TrainingJobStatus(
        observed_generation=1,
        state=State.SUCCEEDED,
        loss=0.12,
        conditions=[condition],
        trainer_status=trainer,
    )
    written = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    jsonschema.Draft4Validator(status_schema()).validate(written)
    assert unknown(status_schema(), written) == []
    assert written["trainerStatus"]["progressPercentage"] == 100


SPEC = {
    "model": {"file": "m.py"},
    "data": {"format": "digits8x8"},
    "target": {"loss": 1},
    "budget": {"unlimited": True},
}


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        ({}, True),
        ({"budget": {"amount": 1, "currency": "USD"}}, True),
        ({"budget": {"unlimited": True}}, True),
        ({"budget": {"unlimited": False}}, False),
        ({"budget": "none"}, False),
        ({"budget": "some"}, False),
        ({"budget": 5}, False),
        ({"budget": []}, False),
        ({"budget": [1]}, False),
        ({"prices": "flat"}, True),
        ({"prices": "free"}, False),
        ({"target": {"loss": 0}}, False),
        ({"timeLimit": 90}, True),
        ({"timeLimit": "1h30m"}, True),
        ({"timeLimit": "soon"}, False),
        ({"timeLimit": 1.5}, False),
        ({"mode": "fast"}, False),
        ({"seed": -1}, False),
        ({"optimizer": {"learningRate": 0.1, "momentum": 0.9}}, True),
        ({"optimizer": {"lr": 0.1, "betas": [0.9, 0.999]}}, True),
        ({"optimizer": {"lr": 0}}, False),
        ({"optimizer": {"lr": 0.1, "schedule": {"name": "StepLR", "step_size": 9}}}, True),
        ({"optimizer": {"lr": 0.1, "schedule": {"step_size": 9}}}, False),
        ({"framework": "pytorch"}, True),
        ({"framework": "torch"}, False),
    ],
)
def test_the_schema_takes_and_refuses(change, fits):
    validator = jsonschema.Draft4Validator(job_schema())
    assert validator.is_valid({"spec": {**SPEC, **change}}) is fits


def test_fields_are_found_by_their_path():
    assert lookup(("spec", "budget", "amount"))["type"] == "number"
    assert lookup(("spec", "budget", "unlimited"))["type"] == "boolean"
    assert lookup(("spec", "optimizer", "momentum")) == {}
    assert lookup(("metadata", "labels", "x"))["type"] == "string"
    assert lookup(("spec", "nothing")) is None
    assert lookup(("spec", "seed", "x")) is None
