"""The next parameters of a search, from its grid or a sampler of Optuna; and the search as a study of Optuna."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coach.core.errors import UserError
from coach.jobfiles.search_space import Choices, Space, Value

#: Samplers of Optuna by their names here.
SAMPLERS = ("tpe", "random")
GRID = "grid"
#: Among so many sets of parameters the next trial's are chosen.
CANDIDATES = 8


@dataclass(frozen=True, slots=True)
class Tried:
    """A trial as Optuna sees it: `values` after each full epoch, the `best` of them; `state` as in its `TrialState`."""

    parameters: Mapping[str, Value]
    values: tuple[float, ...]
    best: float | None
    state: str
    notes: Mapping[str, Any]


def check(sampler: str, space: Space) -> None:
    """Raises UserError for a sampler that there is not, or that cannot have this space."""
    if sampler == GRID and space.grid is None:
        raise UserError(f"--sampler {GRID}: a grid needs lists of values; for ranges: {' or '.join(SAMPLERS)}")
    if sampler not in (GRID, *SAMPLERS):
        raise UserError(f"--sampler {sampler}: there are {', '.join((GRID, *SAMPLERS))}")
    if sampler != GRID:
        _optuna()


def candidates(
    sampler: str, space: Space, seed: int, tried: Sequence[Tried], begun: Sequence[Mapping[str, Value]]
) -> list[dict[str, Value]]:
    """Parameters among which the next trial's are chosen; the first one is the sampler's own choice."""
    if sampler == GRID:
        return [one for one in space.grid or [] if one not in begun][:CANDIDATES]
    first = seed + len(begun) + 1
    others = [propose("random", space, first + 100_000 * number, ()) for number in range(1, CANDIDATES)]
    return [propose(sampler, space, first, tried), *others]


def propose(sampler: str, space: Space, seed: int, tried: Sequence[Tried]) -> dict[str, Value]:
    """The next parameters after those `tried`, values falling; the same of the same history.

    Optuna's sampler is asked about a study that is made of the history anew, so nothing else has to be kept.
    """
    optuna = _optuna()
    kind = optuna.samplers.TPESampler(seed=seed) if sampler == "tpe" else optuna.samplers.RandomSampler(seed=seed)
    study = optuna.create_study(sampler=kind)
    study.add_trials([one for one in _trials(space, tried) if one.state.is_finished()])
    # Each parameter is asked for after those that its condition names.
    trial, found = study.ask(), dict[str, Value]()
    for key, domain in space.parameters.items():
        if key not in space.active({**found, key: 0}):
            continue
        if isinstance(domain, Choices):
            found[key] = trial.suggest_categorical(key, domain.values)
        elif domain.whole:
            found[key] = trial.suggest_int(key, int(domain.low), int(domain.high), log=domain.log)
        else:
            found[key] = trial.suggest_float(key, domain.low, domain.high, log=domain.log)
    return found


def study(name: str, space: Space, tried: Sequence[Tried], *, maximize: bool, path: Path | None = None) -> Any:
    """The search as a study of Optuna, in memory or in a new file."""
    optuna = _optuna()
    storage = None
    if path is not None:
        path.unlink(missing_ok=True)
        storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
    made = optuna.create_study(storage=storage, study_name=name, direction="maximize" if maximize else "minimize")
    made.add_trials(_trials(space, tried))
    return made


def installed() -> bool:
    """Whether Optuna is there."""
    try:
        _optuna()
    except UserError:
        return False
    return True


def _optuna() -> Any:
    try:
        import optuna
        import optuna.storages.journal
    except ImportError as error:
        raise UserError(
            "ranges and samplers need Optuna, which is not installed: pip install 'optuna>=4'; lists of values do not"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _distributions(space: Space) -> dict[str, Any]:
    from optuna import distributions as of

    found: dict[str, Any] = {}
    for key, one in space.parameters.items():
        if isinstance(one, Choices):
            found[key] = of.CategoricalDistribution(one.values)
        elif one.whole:
            found[key] = of.IntDistribution(int(one.low), int(one.high), log=one.log)
        else:
            found[key] = of.FloatDistribution(one.low, one.high, log=one.log)
    return found


def _trials(space: Space, tried: Sequence[Tried]) -> list[Any]:
    from optuna.trial import TrialState, create_trial

    distributions = _distributions(space)
    found = []
    for one in tried:
        state = TrialState[one.state]
        found.append(
            create_trial(
                state=state,
                params=dict(one.parameters),
                distributions={key: distributions[key] for key in one.parameters},
                value=one.best if state in (TrialState.COMPLETE, TrialState.PRUNED) else None,
                intermediate_values=dict(enumerate(one.values, start=1)),
                user_attrs=dict(one.notes),
            )
        )
    return found
