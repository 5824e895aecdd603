"""FitGpp's experiment, DL²'s baselines, and all policies on one workload: small runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coach.core.cluster import Node, Resources
from coach.core.spec.job import TrainingJob
from coach.jobfiles.load import load_jobs
from coach.simulation.dynamics.measured_speeds import find_speed
from coach.simulation.dynamics.synthetic import assumed
from coach.studies.study import Question, answer
from coach_research.dl2.workload import SLOT, epochs_per_second, workload
from coach_research.engine.event_engine import Engine
from coach_research.experiments import common, dl2_baselines, fitgpp
from coach_research.scenario import load

pytestmark = pytest.mark.standard


def parameters(name: str, **changes: Any) -> dict[str, Any]:
    return {**load(name).settings(quick=True)[0], **changes}


def test_fitgpp_s_jobs_are_as_the_paper_says() -> None:
    jobs = fitgpp.Jobs.drawn(parameters("fitgpp", jobs=20000), 1)
    trial = jobs.trial.astype(bool)
    assert trial.mean() == pytest.approx(0.3, abs=0.02)
    assert jobs.execution[trial].max() <= 30 * 60
    assert jobs.execution[~trial].mean() / 60 == pytest.approx(30, rel=0.02)
    assert jobs.grace.mean() / 60 == pytest.approx(3, rel=0.02)
    assert jobs.grace.max() <= 20 * 60
    assert (jobs.demand <= fitgpp.NODE).all()
    cores, devices = jobs.demand[:, 0], jobs.demand[:, 2]
    assert cores.min() == 1
    assert (cores == cores.round()).all()
    assert devices.min() == 0
    assert (devices == devices.round()).all()


def test_fitgpp_spares_trials_and_costs_others_little() -> None:
    found = fitgpp.replicate(parameters("fitgpp", jobs=3000), 1)
    assert found == fitgpp.replicate(parameters("fitgpp", jobs=3000), 1)
    for policy in ("FitGpp", "LRTP", "RAND"):
        assert found[f"{policy}: TE p95 slowdown, %"] < -85
        assert 0 < found[f"{policy}: BE median slowdown, %"] < 60
    assert found["FitGpp against LRTP: interval median"] < 0
    assert found["FitGpp against RAND: BE jobs preempted"] < -25
    shown = fitgpp.table({key: np.array([value]) for key, value in found.items()}, parameters("fitgpp"))
    assert [line.split(" |")[0] for line in shown.splitlines()[2:]] == [
        "| FitGpp", "| LRTP", "| RAND", "| LRTP alone", "| RAND alone",
    ]  # fmt: skip
    for other in ("LRTP", "RAND"):
        ratio = "FitGpp against {}: BE jobs preempted"
        assert found[ratio.format(f"{other} alone")] < found[ratio.format(other)] - 10


def test_submission_times_are_replayed_or_kept_to_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[float | None] = []
    arrivals = []
    original = Engine.__init__

    def spy(self: Engine, cluster: Any, works: Any, policy: Any, **more: Any) -> None:
        loads.append(more["closed_load"])
        works = list(works)
        arrivals.append([work.arrival for work in works])
        original(self, cluster, works, policy, **more)

    monkeypatch.setattr(Engine, "__init__", spy)
    policies = {"FitGpp": "fitgpp"}
    fitgpp.replicate(parameters("fitgpp", jobs=800, policies=policies), 1)
    assert loads == [2.0, 2.0]
    loads.clear()
    fitgpp.replicate(parameters("fitgpp-a", jobs=800, policies=policies), 1)
    assert loads == [2.0, None]
    assert arrivals[-1] == sorted(arrivals[-1])
    assert arrivals[-1][-1] > 0 == arrivals[-1][0]


def test_four_runs_of_rand_are_one_number() -> None:
    one = fitgpp.replicate(parameters("fitgpp", jobs=1500, policies={"RAND": "rand:trim=no"}), 1)
    four = fitgpp.replicate(parameters("fitgpp", jobs=1500, policies={"RAND*4": "rand:trim=no"}), 1)
    assert one.keys() == four.keys()
    assert one["RAND: BE jobs preempted, %"] != four["RAND: BE jobs preempted, %"]


def test_optimus_beats_those_that_give_all_they_have() -> None:
    found = dl2_baselines.replicate(parameters("dl2-baselines", jobs=30), 1)
    assert found["Optimus / DRF"] < 0.8
    assert found["Optimus fitted / DRF"] < 0.9
    assert found["Tetris / DRF"] == pytest.approx(1, abs=0.2)


def test_dl2_s_jobs_come_in_slots_and_train_at_measured_speeds() -> None:
    works = list(workload(parameters("dl2-baselines", jobs=40), np.random.default_rng(1)))
    slots = np.array([work.arrival for work in works]) / SLOT
    assert len(works) == 40
    assert (slots == slots.round()).all()
    assert np.bincount(slots.astype(int)).max() <= 10
    resnet = epochs_per_second("resnet-50")
    assert resnet(1, 1) == pytest.approx(15.783 / 115)


def test_fitted_speeds_are_near_the_measured_ones_and_not_equal() -> None:
    fitted = dl2_baselines.Profiled(np.random.default_rng(0), points=8, error=0.05, max_count=16)

    class Job:
        kind = "resnet-50"

    true = epochs_per_second("resnet-50")
    ratios = [fitted.speed(Job, w, s, 0) / true(w, s) for w in (1, 4, 8) for s in (1, 4, 8)]  # type: ignore[arg-type]
    assert 0.4 < min(ratios) < max(ratios) < 2.5
    assert not np.allclose(ratios, 1.0)


def test_all_policies_run_on_the_common_workload() -> None:
    given = parameters("common", jobs=12)
    found = common.replicate(given, 3)
    for spec in given["policies"]:
        assert found[f"{spec}: mean"] > 0
        if spec != "tf-operator":
            assert found[f"{spec}: finished"] == 100
    assert found["coach: against"] == 0
    shown = common.table({key: np.array([value]) for key, value in found.items()}, given).splitlines()
    means = [float(line.split("|")[2]) for line in shown[2:] if "tf-operator" not in line]
    assert means == sorted(means)


def test_job_files_run_to_their_ends_under_fifo_and_fitgpp_too() -> None:
    """They could react to events; on job files they probe, fit and pay as under every allocation policy."""
    (spec,) = (one.spec for one in load_jobs([Path("jobs/a.yaml")]))
    document = spec.to_json()
    document["metadata"]["name"] = "trial"
    document["spec"]["class"] = "trial-and-error"
    specs = (spec, TrainingJob.from_json(document))
    dynamics = tuple(assumed(one, find_speed("resnet-50"), 5.0, 40.0) for one in specs)
    nodes = (Node("n", Resources(0.5, 128)),)  # one job's 1x1, not two
    question = Question(specs, dynamics, (0.0, 60.0), nodes)
    ended = {}
    for name in ("fifo", "fitgpp"):
        result = answer(question, name, 1)
        assert result.reasons == {0: "TargetReached", 1: "TargetReached"}
        ended[name] = result.columns["finished"]
    assert ended["fifo"][0] < ended["fifo"][1]
    assert ended["fitgpp"][1] < ended["fitgpp"][0], "the trial came later and ended first"
