"""A search: trials under one account, on a platform in memory and with real programs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coach.core.errors import UserError
from coach.core.jobs.epoch import EpochReport
from coach.core.jobs.reasons import Reason
from coach.core.money import to_amount
from coach.core.search.trials import TrialState
from coach.core.spec.job import TrainingJob
from coach.handler import accounts
from coach.handler.search.definition import Definition, load, named, path_of, save
from coach.handler.search.session import SearchSession
from coach.handler.search.standing import Standing, interval
from coach.handler.search.standing import standing as standing_of
from coach.handler.state.state_directory import StateDirectory
from coach.platforms.base import EpochError, EpochOrder
from coach.plugins import policy
from tests.chaos.search_runs import Fault, run_with
from tests.core.lifecycle.faulty_cluster import spec, usd
from tests.handler.fake_platform import CLUSTER, FakePlatform

pytestmark = pytest.mark.standard

RATES = "0.001,0.01,0.1,1.0"


class Quiet:
    """An observer that shows nothing; `heard` are the lines of the session's own."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.on_line: Callable[[str], None] = lambda text: None

    def said(self, text: str) -> None:
        self.heard.append(text)
        self.on_line(text)

    def happened(self, event: Any, actions: Any) -> None: ...

    async def watch(self, run: Any) -> None: ...

    def close(self) -> None: ...


class Rates(FakePlatform):
    """The loss falls fastest at a rate of 0.1; `broken` rates fail, for a reason."""

    def __init__(self, broken: dict[float, Reason] | None = None) -> None:
        super().__init__()
        self.rate: dict[str, float] = {}
        self.broken = broken or {}
        self.on_epoch = self._on_epoch
        self.on_report = self._on_report

    def _on_epoch(self, order: EpochOrder) -> None:
        assert order.spec.spec.optimizer is not None
        rate = order.spec.spec.optimizer.learning_rate
        self.rate[order.action.weights_out] = rate
        if rate in self.broken and self.broken[rate] is not Reason.LOSS_NOT_FINITE:
            raise EpochError(self.broken[rate], f"not with a rate of {rate:g}", 1)

    def _on_report(self, report: EpochReport) -> EpochReport:
        rate = self.rate[report.weights]
        nan = self.broken.get(rate) is Reason.LOSS_NOT_FINITE
        return replace(report, loss=math.nan if nan else (report.loss or 0.0) + 0.2 * abs(math.log10(rate) + 1.0))


def definition(**changes: Any) -> Definition:
    document = spec(
        "digits", target=None, maxEpochs=4, budget=usd(1.0), workers={"max": 1}, servers={"max": 1},
        optimizer={"name": "sgd", "learningRate": 1.0}, objective="best-loss",
    )  # fmt: skip
    document["spec"] = {key: value for key, value in document["spec"].items() if value is not None}
    job = TrainingJob.from_json(document).to_json()
    given = {"name": "digits", "job": job, "sets": (f"optimizer.learningRate={RATES}",)}
    return Definition(**(given | changes))


def session(
    home: StateDirectory, wanted: Definition, platform: FakePlatform, budget: str = "5USD", watcher: Quiet | None = None
) -> SearchSession:
    save(home, wanted)
    return SearchSession(
        wanted, accounts.setting(wanted.name, budget), home, (), nodes=CLUSTER, policy=policy("coach"),
        make_platform=lambda *_: platform, watcher=watcher or Quiet(),
    )  # fmt: skip


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateDirectory:
    monkeypatch.setenv("COACH_HOME", str(tmp_path / "home"))
    return StateDirectory(tmp_path / "home")


def standing(home: StateDirectory, name: str = "digits") -> Standing:
    found = load(home, name)
    return standing_of(found, {one: past.job for one, past in home.past().items()})


def known_as(home: StateDirectory, wanted: Definition) -> Definition:
    return named(home, wanted, accounts.read(home)[0].known, home.past())


def paid(home: StateDirectory, name: str = "digits") -> tuple[float, float]:
    """What the search's account has spent, and what its trials have."""
    known, jobs = accounts.read(home)
    account = known.known[name]
    assert account.held == 0 and account.payments.since(-math.inf) <= account.amount
    return to_amount(account.payments.since(-math.inf)), standing_of(load(home, name), dict(jobs)).spent


@pytest.mark.parametrize("pruner", ["freeze-thaw", "halving", "none"])
def test_a_search_finds_the_best_rate_and_one_account_pays_all_of_it(home: StateDirectory, pruner: str) -> None:
    run = session(home, definition(pruner=pruner), Rates())
    assert run.run() == 0, run.outcome
    found = standing(home)
    assert found.best is not None and found.definition.parameters[found.best - 1] == {"optimizer.learningRate": 0.1}
    assert len(found.jobs) == 4 and run.outcome
    spent, of_trials = paid(home)
    assert spent == pytest.approx(of_trials) and spent > 0.0
    assert found.jobs[found.best].progress.weights, "the best model is there"
    assert path_of(home, "digits", ".optuna.log").exists()


def test_bad_trials_are_paused_with_the_reason_and_keep_their_checkpoints(home: StateDirectory) -> None:
    run = session(home, definition(pruner="halving"), Rates())
    run.run()
    paused = [job for job in standing(home).jobs.values() if not job.ended]
    assert paused
    for job in paused:
        assert job.reason is Reason.SUSPENDED and job.message.startswith("paused by search digits: ")
        assert job.progress.weights and not job.gang.pods


def test_two_trials_train_at_the_same_time(home: StateDirectory) -> None:
    platform = Rates()
    run = session(home, definition(parallel=2, pruner="none"), platform)
    most = 0

    def count(order: EpochOrder, before: Callable[[EpochOrder], None] = platform.on_epoch) -> None:
        nonlocal most
        most = max(most, len({token.rpartition(".")[0] for token in platform.epochs}))
        before(order)

    platform.on_epoch = count
    assert run.run() == 0
    assert most == 2


@pytest.mark.parametrize("reason", [Reason.MODEL_INVALID, Reason.LOSS_NOT_FINITE])
def test_a_trial_that_fails_costs_only_its_own_money(home: StateDirectory, reason: Reason) -> None:
    run = session(home, definition(), Rates({0.01: reason}))
    assert run.run() == 0, run.outcome
    rows = {row.parameters["optimizer.learningRate"]: row for row in standing(home).rows()}
    assert rows[0.01].state == "failed" and rows[0.1].state == "best"
    paid(home)


def test_a_search_whose_trials_all_fail_says_so(home: StateDirectory) -> None:
    rates = map(float, RATES.split(","))
    run = session(home, definition(), Rates(dict.fromkeys(rates, Reason.MODEL_INVALID)))
    assert run.run() == 1
    assert re.match(r"all 4 trials failed; the last one: ModelInvalid: not with a rate of 1", run.outcome)


def test_a_budget_that_covers_no_first_epoch_is_refused(home: StateDirectory) -> None:
    with pytest.raises(UserError, match="digits-1: the next epoch at 1x1 needs"):
        session(home, definition(), Rates(), "0.000001USD").run()


def test_a_search_whose_money_ends_says_so_and_goes_on_with_more(home: StateDirectory) -> None:
    platform = Rates()
    platform.epoch_seconds = 0.3
    with pytest.raises(UserError) as refused:
        session(home, definition(), Rates(), "0.000001USD").run()
    needs = re.search(r"needs ([0-9.]+) USD", str(refused.value))
    assert needs
    # Enough to begin. A slow machine may not get to the end of the first epoch.
    run = session(home, definition(pruner="none"), platform, f"{1.02 * float(needs[1]):.9f}USD")
    assert run.run() in (0, 1)
    assert "the budget covers no" in run.outcome or "needs" in run.outcome, run.outcome
    paid(home)
    before = {number: job.full_epoch_count for number, job in standing(home).jobs.items()}
    again = session(home, load(home, "digits"), Rates(), "5USD")
    assert again.run() == 0
    after = {number: job.full_epoch_count for number, job in standing(home).jobs.items()}
    assert len(after) == 4 and all(after[number] >= epochs for number, epochs in before.items())
    paid(home)


def test_ctrl_c_stops_at_the_epochs_end_and_the_same_command_goes_on(home: StateDirectory) -> None:
    watcher = Quiet()
    run = session(home, definition(), Rates(), watcher=watcher)
    watcher.on_line = lambda text: run.stop(1) if text.startswith("digits-3") else None
    assert run.run() == 130 and run.outcome == ""
    tried = load(home, "digits").parameters
    assert len(tried) == 3
    found = known_as(home, definition())
    assert found.name == "digits" and found.parameters == tried, "the same command means the same search"
    assert known_as(home, definition(seed=1)).name == "digits-2", "another one gets a name of its own"
    assert session(home, found, Rates()).run() == 0
    assert load(home, "digits").parameters[:3] == tried
    paid(home)


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_the_same_search_tries_the_same_parameters(home: StateDirectory, tmp_path: Path, sampler: str) -> None:
    sets, found = ("optimizer.learningRate=loguniform(1e-3,10)",), []
    for folder in (home, StateDirectory(tmp_path / "other")):
        wanted = definition(sets=sets, sampler=sampler, trials=3, pruner="none")
        wanted.check()
        assert session(folder, wanted, Rates()).run() == 0
        found.append(load(folder, "digits").parameters)
    assert found[0] == found[1] and len({str(one) for one in found[0]}) == 3


def test_final_seeds_say_what_the_best_parameters_are_worth(home: StateDirectory) -> None:
    run = session(home, definition(final_seeds=3, pruner="halving"), Rates())
    assert run.run() == 0, run.outcome
    found = standing(home)
    assert found.best is not None
    best = found.jobs[found.best]
    finals = [job for job in found.finals.values() if job is not None]
    assert [job.spec.seed for job in finals] == [1, 2, 3], "none of them is the trial's own, 0"
    for job in finals:
        assert job.spec.optimizer == best.spec.optimizer and job.full_epoch_count == best.full_epoch_count
    assert len(found.final_values) == 3 and found.kept == (0.0, 0.0)
    del finals[0].epochs[1]  # two reports of a program that came close together are one epoch
    finals[0].epochs_changed()
    assert len(found.final_values) == 3
    del finals[0].epochs[-1]
    finals[0].epochs_changed()
    assert len(found.final_values) == 2, "it ended before its last epoch"
    middle, half = interval([1.0, 2.0, 3.0])
    assert (middle, half) == (2.0, pytest.approx(2.4841, abs=1e-4)), "Student's t with 2 degrees of freedom, 4.303"
    spent, of_jobs = paid(home)
    assert spent == pytest.approx(of_jobs)
    assert session(home, load(home, "digits"), Rates()).run() == 0, "asked again, nothing is trained twice"
    assert paid(home)[0] == spent


def test_money_is_kept_for_the_final_seeds(home: StateDirectory) -> None:
    assert session(home, definition(pruner="none"), Rates()).run() == 0
    found = standing(home)
    assert found.best is not None
    one = to_amount(found.jobs[found.best].money.ledger.spent)
    wanted = replace(found, definition=replace(found.definition, final_seeds=3), money=4.0 * one)
    assert wanted.kept[0] == pytest.approx(3.0 * one) and found.kept[0] == 0.0
    assert wanted.view().money == pytest.approx(one) and replace(wanted, money=one).view().money == 0.0


def test_nothing_runs_after_the_deadline(home: StateDirectory) -> None:
    platform = Rates()
    platform.epoch_seconds = 60.0
    run = session(home, definition(time_limit=0.5, final_seeds=2), platform)
    assert run.run() == 1, "no trial came to the end of an epoch"
    assert run.outcome == "the deadline has passed"
    assert all(job.stop.suspend for job in standing(home).jobs.values())
    later = replace(load(home, "digits"), time_limit=600.0, deadline=0.0)
    assert session(home, later, Rates()).run() == 0, "a later one goes on"
    paid(home)


def test_optuna_reads_the_search(home: StateDirectory) -> None:
    import optuna
    from optuna.storages.journal import JournalFileBackend

    assert session(home, definition(), Rates({0.01: Reason.MODEL_INVALID})).run() == 0
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(path_of(home, "digits", ".optuna.log"))))
    study = optuna.load_study(study_name="digits", storage=storage)
    assert study.best_params == {"optimizer.learningRate": 0.1}
    assert [one.state.name for one in study.trials].count("FAIL") == 1


def test_a_program_that_cannot_resume_is_not_taken_up_again() -> None:
    document = spec("train", program={"command": ["x", "{lr}"]}, target={"loss": 0.1}, budget=usd(1.0))
    kept = {key: document["spec"][key] for key in ("program", "target", "budget")}
    base = TrainingJob.from_json({**document, "spec": kept})
    assert base.spec.program is not None and not base.spec.program.resumes
    from coach.core.jobs import events as ev
    from coach.core.jobs import fold

    job = fold.submitted(ev.JobSubmitted(1.0, "train-1", base.to_json(), "file:///c"))
    found = Standing(Definition("train", base.to_json(), ("lr=1,2",), parameters=({"lr": 1},)), {1: job}, {}, 1.0)
    assert found.view().trials[0].state is TrialState.READY, "it has not begun"


@pytest.mark.processes
@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("service", [False, True])
@pytest.mark.parametrize("lines", [1, 12, 22])
def test_a_search_of_a_real_program_survives_the_death_of_its_handler(service: bool, lines: int) -> None:
    lost, struck = run_with(Fault(service, lines, 0.4))
    assert struck and not lost, lost
