"""Scenarios: an experiment of a paper as a file, with the paper's numbers and the parameters chosen freely."""

from __future__ import annotations

from importlib import import_module, resources
from importlib.resources.abc import Traversable
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from coach.core.errors import UserError


class Target(BaseModel):
    """One number of the paper, and how close ours should be."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    measure: str
    paper: float
    unit: str = ""
    #: Its place in the paper.
    source: str = ""
    #: Our mean should be this close to the paper's value: a share of that value.
    tolerance: float = Field(0.1, gt=0)
    reason: str = "default: a tenth of the printed value"
    #: Whether free parameters were fitted on this row. The model is judged by the other rows.
    calibrated: bool = False
    #: Whether it is another reading of a number that another row judges: it does not count.
    variant: bool = False
    #: For a comparison of two policies: the value at which both are alike (0 for changes in %, 1 for ratios).
    equal: float | None = None
    #: Targets of one group are also compared by their order.
    group: str = ""

    @model_validator(mode="after")
    def _relative(self) -> Target:
        if self.paper == 0:
            raise ValueError(
                f"{self.measure}: paper is 0; differences are relative to it, so it must be another number"
            )
        return self


class Scenario(BaseModel):
    """One file of `research/coach_research/scenarios`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    #: A description in one sentence.
    title: str
    paper: str
    #: The module in `coach_research.experiments` that runs it.
    experiment: str
    parameters: dict[str, Any] = Field(default_factory=dict)
    #: Names of parameters that no paper gives and that were chosen; `notes` says how, and on which rows.
    free_parameters: tuple[str, ...] = ()
    seeds: int = Field(10, ge=1)
    first_seed: int = 1
    #: Changes under `--quick`: fewer seeds, smaller parameters.
    quick_seeds: int = Field(2, ge=1)
    quick_parameters: dict[str, Any] = Field(default_factory=dict)
    targets: tuple[Target, ...] = ()
    #: The scenario that judges the same numbers; the rows of this one do not count.
    variant_of: str = ""
    #: Whether each run has one of the paper's own inputs: that runs differ says nothing of how sure their mean is.
    same_inputs: bool = False
    #: How much shorter it is than the paper's, so that its rows are no evidence.
    shorter: str = ""
    #: Interpretations chosen where the paper is ambiguous, and the numbers that are not reproduced.
    notes: str = ""
    kind: Literal["reproduced", "calibrated", "own"] = "reproduced"

    def module(self) -> ModuleType:
        """The module that runs it."""
        return import_module(f"coach_research.experiments.{self.experiment}")

    def missing(self) -> str:
        """The command that gets its inputs, where they are no part of Coach and not there; else empty."""
        command: str = getattr(self.module(), "missing", str)()
        return command

    def settings(self, quick: bool) -> tuple[dict[str, Any], range]:
        """Parameters and seeds."""
        count = min(self.quick_seeds, self.seeds) if quick else self.seeds
        parameters = {**self.parameters, **(self.quick_parameters if quick else {})}
        return parameters, range(self.first_seed, self.first_seed + count)


def names() -> list[str]:
    """The scenarios that come with Coach."""
    return sorted(_files())


def _files() -> dict[str, Traversable]:
    """The scenario files that come with Coach, by name; each system has a folder."""
    top = resources.files("coach_research") / "scenarios"
    files = [file for folder in top.iterdir() for file in (folder.iterdir() if folder.is_dir() else [folder])]
    return {file.name.removesuffix(".yaml"): file for file in files if file.name.endswith(".yaml")}


def load(name: str) -> Scenario:
    """Load a scenario by its name, or from a user's file. Raises UserError."""
    path = Path(name)
    if name.endswith((".yaml", ".yml")):
        if not path.is_file():
            raise UserError(f"there is no file {name}; scenarios that come with Coach: {', '.join(names())}")
        text = path.read_text()
    elif file := _files().get(name):
        text = file.read_text()
    else:
        raise UserError(f"there is no experiment {name!r}; name one of {', '.join(names())}, or a file")
    try:
        return Scenario.model_validate(yaml.safe_load(text))
    except (ValidationError, yaml.YAMLError) as error:
        raise UserError(f"scenario {name} cannot be read: {error}") from error
