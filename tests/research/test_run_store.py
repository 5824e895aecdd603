"""Experiments that were stopped go on where they were, and only with runs of the same parameters and code."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from coach_research import experiments, run_store, scenario
from coach_research.experiment import Outcome, look_up, run_scenario, write_summary


class Toy(ModuleType):
    """Counts its runs; stops at `until` as a Ctrl-C would."""

    def __init__(self) -> None:
        super().__init__("toy")
        self.ran: list[int] = []
        self.until = 99

    def replicate(self, parameters: dict[str, float], seed: int) -> dict[str, float]:
        if seed >= self.until:
            raise KeyboardInterrupt
        self.ran.append(seed)
        measures = {"m": parameters["x"] / 3 + seed}
        return measures if seed == 2 else {**measures, "not always": float("nan")}


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Toy:
    module = Toy()
    monkeypatch.setitem(sys.modules, f"{experiments.__name__}.toy", module)
    return module


def toy_scenario(x: int = 10, name: str = "toy") -> scenario.Scenario:
    targets = (
        scenario.Target(measure="m", paper=x / 3 + 2),
        scenario.Target(measure="m", paper=99, calibrated=True),
    )
    return scenario.Scenario(
        name=name,
        title="T",
        paper="P",
        experiment="toy",
        parameters={"x": x},
        seeds=4,
        quick_seeds=2,
        targets=targets,
    )


def run(folder: Path, *, x: int = 10, anew: bool = False) -> Outcome:
    return run_scenario(toy_scenario(x), processes=1, folder=folder, anew=anew)


def test_a_stopped_experiment_goes_on_where_it_was(toy: Toy, tmp_path: Path) -> None:
    toy.until = 3
    stopped = run(tmp_path)
    assert (stopped.interrupted, stopped.seeds) == (True, (1, 2))
    toy.until = 99
    whole = run(tmp_path)
    assert toy.ran == [1, 2, 3, 4]
    assert (whole.interrupted, whole.seeds) == (False, (1, 2, 3, 4))
    fresh = run(tmp_path, anew=True)
    assert toy.ran == [1, 2, 3, 4, 1, 2, 3, 4]
    assert {name: values.tobytes() for name, values in whole.results.items()} == {
        name: values.tobytes() for name, values in fresh.results.items()
    }


def test_runs_of_other_parameters_or_code_are_not_taken(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path)
    assert run(tmp_path, x=13).results["m"][0] == pytest.approx(13 / 3 + 1)
    assert len(toy.ran) == 8
    monkeypatch.setattr(run_store, "code", lambda: "another")
    run(tmp_path, x=13)
    assert len(toy.ran) == 12


def test_a_broken_file_is_run_again(toy: Toy, tmp_path: Path) -> None:
    run(tmp_path)
    (tmp_path / "toy" / "settings.json").write_text("{")
    assert run(tmp_path).seeds == (1, 2, 3, 4)
    assert len(toy.ran) == 8


def test_what_is_there_is_summed_up_and_nothing_is_run(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy.until = 4
    run(tmp_path)
    monkeypatch.setattr(run_store, "code", lambda: "another")
    there, other = look_up(toy_scenario(), tmp_path), look_up(toy_scenario(13), tmp_path)
    never = look_up(toy_scenario(name="never"), tmp_path)
    assert toy.ran == [1, 2, 3]
    assert [one.seeds for one in (there, other, never)] == [(1, 2, 3), (), ()]
    text = write_summary([there, never], tmp_path)[1].read_text()
    assert "| [toy](toy/comparison.md) | P | 3 of 4 |  |  |  | 0 of 1 |  | 1 |" in text, (
        "its interval is wider than the tolerance"
    )
    assert "| **all** | | |  |  |  | 0 of 1 |  | 1 |" in text
    assert "Not run: never." in text
