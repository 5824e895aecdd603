"""The chart's CRDs, from the types: their structural schemas and the rules between fields.

A CRD wants a *structural* schema (Kubernetes documentation, "Specifying a structural schema"): no `$ref`, a type for
every field, `exclusiveMinimum` as a flag, no `additionalProperties` next to `properties`, no `null` branch, defaults
only outside of logical junctors, nothing said of `metadata` but its name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from coach.core.spec.job import API_VERSION
from coach.jobfiles.prices import OFFER
from coach.jobfiles.resource_status import TrainingJobStatus
from coach.jobfiles.schema import KIND, Schema, branches, resolve, tree
from coach.jobfiles.training_budget import TrainingBudgetSpec, TrainingBudgetStatus
from coach.jobfiles.training_search import LONGEST_NAME, TrainingSearchSpec, TrainingSearchStatus
from scripts.generate import crd_rules

Columns = tuple[tuple[str, str, str], ...]

GROUP, VERSION = API_VERSION.split("/")

_KEPT = ("type", "description", "default", "enum", "pattern", "minLength", "maxLength")
_INT_OR_STRING = [{"type": "integer"}, {"type": "string"}]
_LONGEST_QUANTITY = 90
#: No number and no list satisfies these: what a field without a type needs to hold words and objects only.
_NO_NUMBER_NO_LIST = {"minimum": 1, "maximum": 0, "minItems": 1, "maxItems": 0}

#: Heading in `kubectl get` (which shows it in capitals), type, path of the field.
_COLUMNS = (
    ("State", "string", ".status.state"),
    ("Progress", "string", ".status.progress"),
    ("Loss", "number", ".status.loss"),
    ("Target", "string", ".status.target"),
    ("Workers", "integer", ".status.workers"),
    ("Servers", "integer", ".status.servers"),
    ("Spent", "string", ".status.spent"),
    ("Budget", "string", ".status.budget"),
    ("ETA", "string", ".status.eta"),
    ("Age", "date", ".metadata.creationTimestamp"),
)
_BUDGET_COLUMNS = (
    ("Budget", "string", ".status.budget"),
    ("Spent", "string", ".status.spent"),
    ("Reserved", "string", ".status.reserved"),
    ("Left", "string", ".status.left"),
    ("Forecast", "string", ".status.forecast.expected"),
    ("Runs-Out", "string", ".status.runsOut"),
    ("Jobs", "integer", ".status.jobs"),
    ("Waiting", "integer", ".status.waiting"),
    ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status'),
    ("Age", "date", ".metadata.creationTimestamp"),
)
_SEARCH_COLUMNS = (
    ("Trials", "integer", ".status.trials"),
    ("Best", "string", ".status.best"),
    ("Value", "string", ".status.value"),
    ("Spent", "string", ".status.spent"),
    ("Left", "string", ".status.left"),
    ("Complete", "string", '.status.conditions[?(@.type=="Complete")].status'),
    ("Age", "date", ".metadata.creationTimestamp"),
)
#: The rules between a budget's fields, by the field that they are at.
_BUDGET_RULES: dict[str, list[dict[str, Any]]] = {
    "": [
        crd_rules.rule(
            "!has(self.spec.parent) || self.spec.parent != self.metadata.name",
            "a budget is not in itself - another one, or leave it out",
            ".spec.parent",
        )
    ],
    "currency": [
        crd_rules.rule(
            "self == oldSelf",
            "cannot change, it has spent this one - another TrainingBudget",
        )
    ],
}


#: Fields of `spec` whose defaults depend on what the job trains: an API server fills in none.
_NO_DEFAULT = {
    ("framework",),
    ("workers",),
    ("workers", "min"),
    ("workers", "max"),
    ("resources",),
    ("resources", "scheduler"),
    ("stopEarly",),
}


def structural(node: Schema, at: tuple[str, ...] = (), rules: bool = False) -> Schema:
    """`node` as part of a Kubernetes structural schema. `rules`: it is the field `at` of `spec`, with its rules."""
    schema = {key: node[key] for key in node if key in _KEPT or key.startswith("x-kubernetes-")}
    if rules and at in _NO_DEFAULT:
        schema.pop("default", None)
    if "const" in node:
        schema["enum"] = [node["const"]]
    if node.get("format") == "date-time":
        schema["format"] = node["format"]
    for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if limit in node:
            schema[limit] = node[limit]
        elif exclusive in node:
            schema[limit] = node[exclusive]
            schema[exclusive] = True
    if rules and (found := crd_rules.RULES.get(at)):
        schema["x-kubernetes-validations"] = list(found)
    if node.get("anyOf") == _INT_OR_STRING:
        # The length bounds what a rule about the text may cost.
        return {
            **schema,
            "anyOf": _INT_OR_STRING,
            "maxLength": _LONGEST_QUANTITY,
            "x-kubernetes-int-or-string": True,
        }
    if "oneOf" in node:
        return {**schema, **_word_or_object(node)}
    if "items" in node:
        schema["items"] = structural(node["items"])
        schema |= {key: node[key] for key in ("minItems", "maxItems") if key in node}
    if "properties" in node:
        schema["properties"] = {key: structural(sub, (*at, key), rules) for key, sub in node["properties"].items()}
        if node.get("required"):
            schema["required"] = list(node["required"])
        if isinstance(node.get("additionalProperties"), dict):
            schema["x-kubernetes-preserve-unknown-fields"] = True
    elif isinstance(node.get("additionalProperties"), dict):
        if schema.get("x-kubernetes-preserve-unknown-fields"):  # any plain value
            return schema
        schema["additionalProperties"] = structural(node["additionalProperties"])
        schema |= {key: node[key] for key in ("minProperties", "maxProperties") if key in node}
    return schema


def _word_or_object(node: Schema) -> Schema:
    """A field that is one of a few words, an offer's name, or an object.

    It has no type, but keywords that bind each kind by itself. Whether there is such an offer the controller looks up.
    """
    part, word = branches(node)
    assert part is not None and word is not None
    words = word.get("enum") or [word["const"]]
    inner = structural(part)
    inner["properties"]["name"]["not"] = {"enum": words}  # one's own prices are not named as a shipped book
    return {
        "x-kubernetes-preserve-unknown-fields": True,
        "pattern": f"^({'|'.join(words)}|{re.sub('[?]P<[a-z]+>', '?:', OFFER.pattern)})$",
        "properties": inner["properties"],
        "required": inner["required"],
        **_NO_NUMBER_NO_LIST,
    }


def _spec() -> Schema:
    """The job's part, in which little may change once it exists."""
    schema = structural(tree()["properties"]["spec"], (), rules=True)
    fields = schema["properties"]
    of_all, of_each = crd_rules.unchanged(fields, schema["required"])
    schema["x-kubernetes-validations"] += of_all
    for key, node in fields.items():
        if key not in crd_rules.MUTABLE and crd_rules.visible(node):
            node.setdefault("x-kubernetes-validations", []).append(of_each)
    return schema


def status_schema() -> Schema:
    """The structural schema of a TrainingJob's status."""
    schema = TrainingJobStatus.model_json_schema(by_alias=True)
    return structural(resolve(schema, schema["$defs"]))


def _metadata() -> Schema:
    """What a CRD may say of metadata: the bounds of the name."""
    name = structural(tree()["properties"]["metadata"]["properties"]["name"])
    for limit in ("description", "default"):
        name.pop(limit, None)
    return {"type": "object", "properties": {"name": name}}


def job_schema() -> Schema:
    """The structural schema of a TrainingJob."""
    return {
        "type": "object",
        "description": "A training job: a model and its data, or a program; a target and a budget.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": _metadata(),
            "spec": _spec(),
            "status": status_schema(),
        },
    }


def budget_schema() -> Schema:
    """The structural schema of a TrainingBudget."""
    models = (
        TrainingBudgetSpec.model_json_schema(by_alias=True),
        TrainingBudgetStatus.model_json_schema(by_alias=True),
    )
    spec, status = (structural(resolve(one, one["$defs"])) for one in models)
    rules = _BUDGET_RULES
    spec["properties"]["currency"]["x-kubernetes-validations"] = rules["currency"]
    return {
        "type": "object",
        "description": "A budget over jobs: what they may spend together in each period.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": _metadata(),
            "spec": spec,
            "status": status,
        },
        "x-kubernetes-validations": rules[""],
    }


def search_schema() -> Schema:
    """The structural schema of a TrainingSearch. Its template is checked by Coach, which says so in its status."""
    models = (
        TrainingSearchSpec.model_json_schema(by_alias=True),
        TrainingSearchStatus.model_json_schema(by_alias=True),
    )
    spec, status = (structural(resolve(one, one["$defs"])) for one in models)
    for key, node in spec["properties"].items():
        if key != "budget":
            node["x-kubernetes-validations"] = [
                crd_rules.rule("self == oldSelf", "cannot change - another TrainingSearch")
            ]
    metadata = _metadata()
    metadata["properties"]["name"]["maxLength"] = LONGEST_NAME
    return {
        "type": "object",
        "description": "A search: the best of many trials under one budget.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": metadata,
            "spec": spec,
            "status": status,
        },
    }


def crd(
    kind: str = KIND,
    short: str = "tj",
    schema: Callable[[], Schema] = job_schema,
    columns: Columns = _COLUMNS,
    plural: str = "",
) -> Schema:
    """The CustomResourceDefinition `trainingjobs.coach.dev`, or of another kind."""
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema()},
        "subresources": {"status": {}},
        "additionalPrinterColumns": [{"name": name, "type": type_, "jsonPath": path} for name, type_, path in columns],
    }
    singular = kind.lower()
    plural = plural or f"{singular}s"
    names = {
        "plural": plural,
        "singular": singular,
        "kind": kind,
        "listKind": f"{kind}List",
        "shortNames": [short],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {"group": GROUP, "names": names, "scope": "Namespaced", "versions": [version]},
    }


def budget_crd() -> Schema:
    """The CustomResourceDefinition `trainingbudgets.coach.dev`."""
    return crd("TrainingBudget", "tb", budget_schema, _BUDGET_COLUMNS)


def search_crd() -> Schema:
    """The CustomResourceDefinition `trainingsearches.coach.dev`."""
    return crd("TrainingSearch", "ts", search_schema, _SEARCH_COLUMNS, "trainingsearches")


class _Dumper(yaml.SafeDumper):
    """A dumper that writes shared parts out in full, since a reader of a CRD does not look for anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def to_yaml(document: Schema) -> str:
    """A schema or CRD as YAML, in the order it was built."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)


CHART_FILE = Path("deploy/chart/files/trainingjob-crd.yaml")
BUDGET_FILE = Path("deploy/chart/files/trainingbudget-crd.yaml")
SEARCH_FILE = Path("deploy/chart/files/trainingsearch-crd.yaml")
_HEAD = "# Written by python -m scripts.generate; the types in {} are what to change.\n"


def crd_files() -> dict[Path, str]:
    """The texts of the chart's files."""
    return {
        CHART_FILE: _HEAD.format("coach/core/spec") + to_yaml(crd()),
        BUDGET_FILE: _HEAD.format("coach/jobfiles/training_budget.py") + to_yaml(budget_crd()),
        SEARCH_FILE: _HEAD.format("coach/jobfiles/training_search.py") + to_yaml(search_crd()),
    }
