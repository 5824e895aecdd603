"""A training from its beginning to its file: progress, checkpoints, the learning curve."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from coach.core.cluster import Node
from coach.core.errors import UserError
from coach.studies.simulation_inputs import recorded
from coach_research.dl2 import published
from coach_research.dl2.learner import Learner, Recipe
from coach_research.dl2.slots import Case
from coach_research.policies.dl2.network import Network
from coach_research.scenario import load
from coach_research.trace_simulation import as_work
from coach_research.workload import Work

#: Batches between two checkpoints.
CHECKPOINT = 5
#: Of the published recipe: slots of a batch, slots between two validations, traces of validation.
PUBLISHED_BATCH, PUBLISHED_EVERY, PUBLISHED_TRACES = 200, 600, 5


def case_of(workload: str) -> Case:
    """The cluster and the jobs of a scenario of `dl2_baselines`, by its name or file. Raises UserError."""
    scenario = load(workload)
    if scenario.experiment != "dl2_baselines":
        raise UserError(
            f"{workload} is a scenario of the experiment {scenario.experiment!r}, wanted one of 'dl2_baselines', "
            "such as dl2-baselines"
        )
    return Case.of(scenario.parameters)


def case_of_journal(path: Path, nodes: Sequence[Node]) -> Case:
    """The jobs of a journal, or of all journals in a COACH_HOME, on these nodes. Raises UserError.

    Jobs that train the same are one kind, with the speeds of the last of them.
    """
    past = recorded(path)
    kinds: dict[str, Work] = {}
    for job, dynamics in zip(past.jobs, past.dynamics, strict=True):
        spec = job.spec
        data = spec.framework, spec.model, spec.data, spec.batch_size, spec.optimizer
        if spec.limits.largest[1]:
            kinds[repr((data, spec.resources, spec.target, spec.limits))] = as_work(job, dynamics, 0.0, 0.0)
    if not kinds:
        raise UserError(f"--journal {path}: no job there has servers, which dl2 hands out")
    gap = past.arrivals[-1] / (len(past.arrivals) - 1) if past.arrivals[-1] else 60.0
    capacity = np.sum([(n.capacity.cpu, n.capacity.memory, n.capacity.gpu) for n in nodes], axis=0)
    return Case.of_works(list(kinds.values()), capacity, gap)


def train(
    case: Case,
    recipe: Recipe,
    seed: int,
    path: Path,
    about: Mapping[str, Any],
    *,
    resume: bool = False,
    progress: Callable[[float], object] = lambda done: None,
) -> Network:
    """Train, and write `path` (.npz), and a figure of the same name. Raises UserError, OSError.

    A checkpoint of the same name is kept until the end; with `resume` the training goes on from there.
    """
    learner = Learner(case, recipe, seed)
    checkpoint = path.with_suffix(".checkpoint")
    settings = json.dumps({"recipe": asdict(recipe), "seed": seed, **about}, sort_keys=True)
    if resume and checkpoint.is_file():
        with np.load(checkpoint, allow_pickle=False) as file:
            state = {name: file[name] for name in file.files}
        if str(state.pop("settings")) != settings:
            raise UserError(f"{checkpoint} is of a training with other settings; without --resume it begins anew")
        learner.restore(state)
    elif recipe.teacher:
        learner.imitate()
    while not learner.ended:
        progress(learner.batches)
        learner.step()
        if learner.batches % CHECKPOINT == 0 and not learner.ended:
            _write(checkpoint, {"settings": np.array(settings), **learner.state()})
    network = learner.network(
        {
            **about,
            "seed": seed,
            "batches": recipe.batches,
            "slots": learner.slots,
            "validation": round(learner.best, 4),
        }
    )
    _write_network(path, network, [(slots, found) for _, slots, _, found in learner.curve])
    checkpoint.unlink(missing_ok=True)
    return network


def train_as_published(
    case: Case,
    batches: int,
    seed: int,
    path: Path,
    about: Mapping[str, Any],
    *,
    teacher: str = "drf",
    progress: Callable[[float], object] = lambda done: None,
) -> Network:
    """As `train`, by the published recipe, so many times `PUBLISHED_BATCH` slots; without checkpoints."""
    slots = PUBLISHED_BATCH * batches
    made = published.learn(
        case, seed, slots, min(slots, PUBLISHED_EVERY), PUBLISHED_TRACES,
        teacher=teacher, progress=lambda done: progress(done / PUBLISHED_BATCH),
    )  # fmt: skip
    best, weights = min(made, key=lambda one: one[0])
    details = {**about, "seed": seed, "batches": batches, "slots": slots, "validation": round(best, 4)}
    network = published.network(case, weights, details)
    _write_network(path, network, [(at * PUBLISHED_EVERY, found) for at, (found, _) in enumerate(made)])
    return network


def _write_network(path: Path, network: Network, validations: Sequence[tuple[int, float]]) -> None:
    """The file, and the figure of the mean completion times by slots trained."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(".part")
    half.write_bytes(network.to_bytes())
    half.replace(path)
    with mpl.rc_context({"svg.hashsalt": "coach"}):
        curve(validations).savefig(path.with_suffix(".svg"), metadata={"Date": None})


def _write(path: Path, arrays: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    np.savez(content, **arrays)
    half = path.with_suffix(".part")
    half.write_bytes(content.getvalue())
    half.replace(path)


def curve(validations: Sequence[tuple[int, float]]) -> Figure:
    """The mean completion time on the traces of validation, by the slots trained."""
    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.subplots()
    slots, means = zip(*validations, strict=True)
    axes.plot(slots, means, "o-", color="black", markersize=3)
    axes.set_xlabel("slots trained")
    axes.set_ylabel("mean completion, slots")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)
    return figure
