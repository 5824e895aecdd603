"""A TrainingSearch: a search as a file and as a resource of a cluster, and its status."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from coach.core.errors import UserError
from coach.core.spec.job import API_VERSION, TrainingJob
from coach.core.spec.training import Metadata
from coach.core.spec.types import Currency, Duration, Identifier, SpecModel, StrictInt
from coach.jobfiles.diagnostics import JobFileError, Problem, dotted, show
from coach.jobfiles.load import load_contents
from coach.jobfiles.resource_status import Condition, Time, conditions_shown, shown
from coach.jobfiles.schema import KIND as JOB_KIND
from coach.jobfiles.search_space import Space
from coach.jobfiles.validate import place, read_as
from coach.jobfiles.yaml_nodes import Key, YamlNode, read

KIND = "TrainingSearch"
#: Its jobs add a number, or `-NUMBER-seed-NUMBER`.
LONGEST_NAME = 28

Parameter = Annotated[str, StringConstraints(max_length=200)]
Values = Annotated[str, StringConstraints(max_length=4000)]
Count = Annotated[StrictInt, Field(ge=0, le=100_000)]


class SearchBudget(SpecModel):
    """The most that all jobs of the search may spend together."""

    amount: float = Field(gt=0, le=1e9, description="In `currency`.")
    currency: Currency = Field(description="ISO 4217 code; the trials' price book must have the same.")
    account: Identifier | None = Field(default=None, description="The budget over jobs that it is in, which pays too.")


class TrainingSearchSpec(SpecModel):
    """What is searched, and how."""

    template: dict[str, Any] = Field(
        description="The `spec` of a TrainingJob: the job of each trial, without its parameters.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )
    parameters: dict[Parameter, Values] = Field(
        default={},
        max_length=100,
        description="Fields of the template, or `{name}` of its command, and what is tried: `0.01,0.1`, or a range: "
        "`loguniform(1e-4,0.1)`, `uniform(0,1)`, `randint(1,8)`, `lograndint(16,512)`; behind it ` if OTHER=VALUES`.",
    )
    budget: SearchBudget = Field(description="The most that the whole search may spend.")
    deadline: Duration = Field(default=0.0, description="From its start; nothing of it runs later. Without it, none.")
    seeds: Count = Field(default=0, description="Each set of values is tried with so many seeds.")
    final_seeds: Annotated[StrictInt, Field(ge=0, le=100)] = Field(
        default=0, description="At the end the best values are trained again with so many other seeds."
    )
    sampler: Literal["grid", "tpe", "random"] | None = Field(
        default=None, description="How the next values are chosen; without it grid for lists, tpe for ranges."
    )
    pruner: Literal["freeze-thaw", "halving", "hyperband", "median", "none"] = Field(
        default="freeze-thaw", description="Which trial gets the next epoch; none: each trains to its end."
    )
    trials: Count = Field(default=0, description="At most so many trials; 0: as many as are worth their money.")
    parallel: Annotated[StrictInt, Field(ge=1, le=1000)] = Field(
        default=1, description="Trials that train at the same time."
    )
    seed: Count = Field(default=0, description="Seed of the sampler.")


class TrainingSearchStatus(SpecModel):
    """How far it is; written by Coach alone."""

    observed_generation: int | None = shown("The generation of the search that Coach has acted on.", ge=0)
    trials: int | None = shown("Trials that have begun.", ge=0)
    best: str | None = shown("The job of the best trial.")
    value: str | None = shown("Its best value, with the metric's name.")
    parameters: str | None = shown("Its parameters.", max_length=4096)
    checkpoint: str | None = shown("Its model.")
    spent: str | None = shown("Money spent, with its currency.")
    left: str | None = shown("What is left of the budget.")
    deadline: Time | None = shown("When nothing of it runs any more.")
    conditions: list[Condition] | None = conditions_shown(
        "Ready: it can be searched so. Complete: no trial gets another epoch, and why."
    )


class _Document(SpecModel):
    api_version: Literal["coach.dev/v1alpha1"]
    kind: Literal["TrainingSearch"]
    metadata: Metadata
    spec: TrainingSearchSpec


def is_search(data: bytes) -> bool:
    """Whether a file holds a TrainingSearch."""
    documents, _ = read(data, "")
    return any((found := one.find("kind")) is not None and found[1].value == KIND for one in documents)


def load_search(path: Path, data: bytes, **options: Any) -> tuple[TrainingSearchSpec, TrainingJob]:
    """A search, and the job of a trial without its parameters; its name is the search's.

    `options` as for `load_contents`. Raises JobFileError with every mistake.
    """
    documents, problems = read(data, str(path))
    if len(documents) != 1 and not problems:
        problems = [Problem(str(path), 1, 1, "", "not one document", str(len(documents)), f"one {KIND}")]
    if problems:
        raise JobFileError(problems)
    document = documents[0]

    def problem(at: tuple[str, ...], what: str, seen: Any, right: str) -> Problem:
        return Problem(str(path), *place(document, at), dotted(at), what, show(seen), right)

    found, problems = read_as(_Document, document, str(path), document.plain())
    if found is None:
        raise JobFileError(problems)
    name, space = found.metadata.name, ("spec", "parameters")
    if len(name) > LONGEST_NAME:
        problems.append(problem(("metadata", "name"), "too long", name, f"at most {LONGEST_NAME} characters"))
    sets: list[str] = []
    for key, values in found.spec.parameters.items():
        sets.append(f"{key}={values}")
        try:
            Space.read(sets, found.spec.seeds)
        except UserError as error:
            problems.append(problem((*space, key), "cannot be searched", values, str(error).partition(": ")[2]))
            break
    if not sets and not found.spec.seeds:
        problems.append(problem(space, "nothing to search", None, "a parameter and its values, or seeds"))
    if problems:
        raise JobFileError(problems)
    (loaded,) = load_contents([(path, _template(document))], **options)
    return found.spec, loaded.spec


def _template(document: YamlNode) -> YamlNode:
    """The document of a trial's job, its nodes where they are in the search's."""
    spec = document.find("spec")
    assert spec is not None
    template, budget = spec[1].find("template"), spec[1].find("budget")
    assert template is not None and budget is not None
    job = template[1]
    if job.find("budget") is None:
        job = replace(job, items=[*job.items, budget])
    kinds = {"apiVersion": API_VERSION, "kind": JOB_KIND}
    heads = [(Key(key, 1, 1), YamlNode(1, 1, value, str)) for key, value in kinds.items()]
    metadata = document.find("metadata")
    assert metadata is not None
    return replace(document, items=[*heads, metadata, (Key("spec", job.line, job.column), job)])
