"""What a search is: the job of its trials, what varies in it, and how; its file in the state folder."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from coach.core.errors import UserError
from coach.core.search.freeze_thaw import FreezeThaw
from coach.core.search.trials import AllToTheEnd, Halving, Hyperband, Median, SearchPolicy
from coach.core.spec.job import API_VERSION, TrainingJob
from coach.core.spec.quantities import duration
from coach.handler.private_files import make_folder, opener
from coach.handler.search import samplers
from coach.handler.state.state_directory import StateDirectory
from coach.jobfiles.search_space import SEED, Space, Value, trial_job
from coach.jobfiles.training_search import KIND, LONGEST_NAME, TrainingSearchSpec

PRUNERS: dict[str, type[SearchPolicy]] = {
    one.name: one for one in (FreezeThaw, Halving, Hyperband, Median, AllToTheEnd)
}


@dataclass(frozen=True)
class Definition:
    """What is searched: the `job` of a trial without its parameters, and how. `parameters`: of the trials so far."""

    name: str
    job: dict[str, Any]
    sets: tuple[str, ...]
    seeds: int = 0
    sampler: str = samplers.GRID
    pruner: str = FreezeThaw.name
    trials: int = 0  #: at most so many; 0: no limit but the grid's
    parallel: int = 1
    seed: int = 0
    parent: str = ""  #: the account that the search's own is in
    final_seeds: int = 0  #: at the end the best parameters are trained again, with so many other seeds
    time_limit: float = 0.0  #: seconds from its start to its deadline; 0: none
    deadline: float = 0.0  #: seconds since 1970
    parameters: tuple[dict[str, Value], ...] = ()
    outcome: str = ""  #: why no trial gets another epoch
    stopped: bool = False  #: nothing of it goes on, no final seeds either

    @classmethod
    def of(cls, spec: TrainingSearchSpec, base: TrainingJob) -> Definition:
        """The search of a file. Raises UserError for what cannot be searched so."""
        sets = tuple(f"{key}={values}" for key, values in spec.parameters.items())
        usual = samplers.GRID if Space.read(sets, spec.seeds).grid is not None else "tpe"
        made = cls(
            base.name, base.to_json(), sets, spec.seeds, spec.sampler or usual, spec.pruner, spec.trials, spec.parallel,
            spec.seed, spec.budget.account or base.spec.budget.account or "", spec.final_seeds, spec.deadline,
        )  # fmt: skip
        made.check()
        return made

    def document(self, amount: float, currency: str) -> dict[str, Any]:
        """The search as a file."""
        pairs = (one.partition("=") for one in self.sets)
        budget = {"amount": amount, "currency": currency} | ({"account": self.parent} if self.parent else {})
        spec = {
            "template": self.job["spec"], "parameters": {key: values for key, _, values in pairs}, "budget": budget,
            "seeds": self.seeds, "finalSeeds": self.final_seeds, "sampler": self.sampler, "pruner": self.pruner,
            "trials": self.trials, "parallel": self.parallel, "seed": self.seed,
        }  # fmt: skip
        if self.time_limit:
            spec["deadline"] = duration(self.time_limit)
        metadata = {**self.job["metadata"], "name": self.name}
        return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}

    @cached_property
    def base(self) -> TrainingJob:
        """The job of a trial without its parameters."""
        return TrainingJob.from_json(self.job)

    @cached_property
    def space(self) -> Space:
        """Its parameters."""
        return Space.read(self.sets, self.seeds)

    @property
    def seeds_at_end(self) -> range:
        """The final seeds: none of them was tried before."""
        first = 1 + max(self.seeds, self.base.spec.seed)
        return range(first, first + self.final_seeds)

    def trial(self, number: int, parameters: dict[str, Value], final_epochs: int = 0) -> TrainingJob:
        """The job of a trial, or with `final_epochs` of a final seed. Raises UserError."""
        base = self.base
        if self.final_seeds and base.spec.program is not None:
            parameters = {SEED: 0, **parameters}
        return trial_job(base, self.name, number, parameters, self.space, final_epochs)

    @property
    def most(self) -> float:
        """How many trials there are at most."""
        grid = self.space.grid if self.sampler == samplers.GRID else None
        limits = [len(grid)] if grid is not None else []
        return min([*limits, *([self.trials] if self.trials else [])], default=float("inf"))

    def check(self) -> None:
        """Raises UserError for what cannot be searched so."""
        space, base = self.space, self.base
        samplers.check(self.sampler, space)
        if self.pruner not in PRUNERS:
            raise UserError(f"--pruner {self.pruner}: there are {', '.join(PRUNERS)}")
        if PRUNERS[self.pruner].needs_max_epochs and base.spec.max_epochs is None:
            raise UserError(
                f"--pruner {self.pruner}: needs the epochs of a whole trial: --max-epochs 50, or spec.maxEpochs"
            )
        for parameters in (space.grid if self.sampler == samplers.GRID else None) or space.corners():
            self.trial(1, parameters)

    def same(self, other: Definition) -> bool:
        """Whether both search the same, whatever was tried so far."""
        mine, others = (
            replace(one, name="", parameters=(), deadline=0.0, outcome="", stopped=False) for one in (self, other)
        )
        return mine == others


def path_of(home: StateDirectory, name: str, ending: str = ".json") -> Path:
    """The file of a search: its definition, or Optuna's study of it."""
    return home.path / "searches" / f"{name}{ending}"


def load(home: StateDirectory, name: str) -> Definition:
    """A search by its name. Raises UserError."""
    try:
        data = json.loads(path_of(home, name).read_text(encoding="utf-8"))
    except OSError:
        known = sorted(one.stem for one in (home.path / "searches").glob("*.json"))
        there = f"there are {', '.join(known)}" if known else "none was started; start one: coach search FILE --set ..."
        raise UserError(f"there is no search {name!r}; {there}") from None
    return Definition(**{**data, "sets": tuple(data["sets"]), "parameters": tuple(data["parameters"])})


def save(home: StateDirectory, definition: Definition) -> None:
    """Write it, whole or not at all."""
    path = path_of(home, definition.name)
    make_folder(path.parent)
    new = path.with_suffix(".new")
    with open(new, "w", opener=opener, encoding="utf-8") as out:
        json.dump(asdict(definition), out)
    new.replace(path)


def known(home: StateDirectory) -> list[Definition]:
    """All searches of a state folder, by name."""
    return [load(home, one.stem) for one in sorted((home.path / "searches").glob("*.json"))]


def named(home: StateDirectory, wanted: Definition, accounts: Collection[str], jobs: Collection[str]) -> Definition:
    """The search of the same description that there is, to go on with; else a new one with a free name.

    `accounts`, `jobs`: names that are taken.
    """
    for number in range(1, 1000):
        ending = "" if number == 1 else f"-{number}"
        name = wanted.name[: LONGEST_NAME - len(ending)].rstrip("-") + ending
        if path_of(home, name).exists():
            found = load(home, name)
            if found.same(wanted):
                return replace(found, outcome="", stopped=False)
        elif name not in accounts and not any(one.rpartition("-")[0] == name for one in jobs):
            return replace(wanted, name=name)
    raise UserError(f"{wanted.name}: there are 1000 searches of this name; give it another: --name NAME")
