"""Scenarios: an experiment of a paper as a file, with what the paper reports and what was chosen freely."""

from __future__ import annotations

from importlib import import_module, resources
from importlib.resources.abc import Traversable
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coach.core.errors import UserError


class Target(BaseModel):
    """One number of the paper, and how near ours should be."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    measure: str
    paper: float
    unit: str = ""
    #: Where it stands in the paper.
    source: str = ""
    #: Our mean should be this near to the paper's value, in the measure's unit. None: only the range is looked at.
    tolerance: float | None = None
    #: Whether free parameters were chosen so that this row comes out. The others are what the model is judged by.
    calibrated: bool = False


class Scenario(BaseModel):
    """One file of `coach/simulation/scenarios`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    #: What it is, in a sentence.
    title: str
    paper: str
    #: The module in `coach.research.experiments` that runs it.
    experiment: str
    parameters: dict[str, Any] = Field(default_factory=dict)
    #: Names of the parameters that no paper gives and that were chosen; how and on which rows stands in `notes`.
    free_parameters: tuple[str, ...] = ()
    seeds: int = Field(10, ge=1)
    first_seed: int = 1
    #: What `--quick` changes: fewer seeds, smaller parameters.
    quick_seeds: int = Field(2, ge=1)
    quick_parameters: dict[str, Any] = Field(default_factory=dict)
    targets: tuple[Target, ...] = ()
    #: Readings chosen where the paper is open, and what does not come out.
    notes: str = ""
    kind: Literal["reproduced", "calibrated", "own"] = "reproduced"

    def module(self) -> ModuleType:
        """The module that runs it."""
        return import_module(f"coach.research.experiments.{self.experiment}")

    def settings(self, quick: bool) -> tuple[dict[str, Any], range]:
        """Parameters and seeds."""
        count = min(self.quick_seeds, self.seeds) if quick else self.seeds
        parameters = {**self.parameters, **(self.quick_parameters if quick else {})}
        return parameters, range(self.first_seed, self.first_seed + count)


def names() -> list[str]:
    """The scenarios that come with Coach."""
    return sorted(_files())


def _files() -> dict[str, Traversable]:
    """The files that come with Coach, by their names, from a folder for each system."""
    top = resources.files("coach.research") / "scenarios"
    files = [file for folder in top.iterdir() for file in (folder.iterdir() if folder.is_dir() else [folder])]
    return {file.name.removesuffix(".yaml"): file for file in files if file.name.endswith(".yaml")}


def load(name: str) -> Scenario:
    """A scenario by its name, or from a file of yours. Raises UserError."""
    path = Path(name)
    if name.endswith((".yaml", ".yml")):
        if not path.is_file():
            raise UserError(f"there is no file {name}; scenarios that come with Coach: {', '.join(names())}")
        text = path.read_text()
    elif file := _files().get(name):
        text = file.read_text()
    else:
        raise UserError(
            f"there is no experiment {name!r}; right would be one of {', '.join(names())}, or a file"
        )
    try:
        return Scenario.model_validate(yaml.safe_load(text))
    except (ValidationError, yaml.YAMLError) as error:
        raise UserError(f"scenario {name} cannot be read: {error}") from error
