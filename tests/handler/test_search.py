"""A search: trials under one account, on a platform in memory and with real programs."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
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
from coach.handler.search import Definition, SearchSession, Standing, load, named, path_of, save, trials_of
from coach.handler.state.state_directory import StateDirectory
from coach.platforms.base import EpochError, EpochOrder
from coach.plugins import policy
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
    return Standing(found, trials_of(found, {one: past.job for one, past in home.past().items()}))


def paid(home: StateDirectory, name: str = "digits") -> tuple[float, float]:
    """What the search's account has spent, and what its trials have."""
    known, jobs = accounts.read(home)
    account = known.known[name]
    assert account.held == 0 and account.payments.since(-math.inf) <= account.amount
    of_trials = sum(job.ledger.spent for job in trials_of(load(home, name), dict(jobs)).values())
    return to_amount(account.payments.since(-math.inf)), to_amount(of_trials)


@pytest.mark.parametrize("pruner", ["freeze-thaw", "halving", "none"])
def test_a_search_finds_the_best_rate_and_one_account_pays_all_of_it(home: StateDirectory, pruner: str) -> None:
    run = session(home, definition(pruner=pruner), Rates())
    assert run.run() == 0, run.outcome
    found = standing(home)
    assert found.best is not None and found.definition.parameters[found.best - 1] == {"optimizer.learningRate": 0.1}
    assert len(found.jobs) == 4 and run.outcome
    spent, of_trials = paid(home)
    assert spent == pytest.approx(of_trials) and spent > 0.0
    assert found.jobs[found.best].weights, "the best model is there"
    assert path_of(home, "digits", ".optuna.log").exists()


def test_bad_trials_are_paused_with_the_reason_and_keep_their_checkpoints(home: StateDirectory) -> None:
    run = session(home, definition(pruner="halving"), Rates())
    run.run()
    paused = [job for job in standing(home).jobs.values() if not job.ended]
    assert paused
    for job in paused:
        assert job.reason is Reason.SUSPENDED and job.message.startswith("paused by search digits: ")
        assert job.weights and not job.pods


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
    found = named(home, definition())
    assert found.name == "digits" and found.parameters == tried, "the same command means the same search"
    assert named(home, definition(seed=1)).name == "digits-2", "another one gets a name of its own"
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
    found = Standing(Definition("train", base.to_json(), ("lr=1,2",), parameters=({"lr": 1},)), {1: job}, 1.0)
    assert found.view().trials[0].state is TrialState.READY, "it has not begun"


TRAIN = """
import json, math, os, sys, time
rate = float(sys.argv[1])
if rate > 1:
    sys.exit(f"a rate of {rate} is too large")
path = os.path.join(os.environ["COACH_CHECKPOINTS"], "epoch.json")
epoch = json.load(open(path)) if os.path.exists(path) else 0
while epoch < 12:
    time.sleep(0.3)
    epoch += 1
    json.dump(epoch, open(path + ".new", "w"))
    os.replace(path + ".new", path)
    print(f"epoch {epoch} val_loss: {abs(math.log10(rate) + 2) * 0.3 + math.exp(-epoch / 4):.4f}", flush=True)
"""


@pytest.mark.processes
@pytest.mark.full
def test_a_search_of_a_real_program_survives_the_death_of_its_handler(home: StateDirectory, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "coach.cli.main",
        "search",
        "--no-live",
        "--set",
        "rate=0.01,0.1,5.0",
        "-o",
        "json",
    ]
    command += ["--budget", "0.05USD", "--objective", "val_loss", "--resumes", "--cpu", "1", "--memory", "256Mi"]
    command += ["--max-epochs", "12", "--", sys.executable, "train.py", "{rate}"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": tmp_path, "env": environment}
    with subprocess.Popen(command, **pipes) as first:  # type: ignore[call-overload]
        said = ""
        while "train-2: epoch 1" not in said:
            line = first.stderr.readline()
            assert line, said
            said += line
        first.send_signal(signal.SIGKILL)
    begun = load(home, "train").parameters
    done = subprocess.run(command, timeout=200, check=False, **pipes)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["best"]["parameters"] == {"rate": 0.01}
    assert [row["state"] for row in found["trials"]].count("failed") == 1
    assert "too large" in next(row["why"] for row in found["trials"] if row["state"] == "failed")
    assert load(home, "train").parameters[: len(begun)] == begun
    assert found["spent"] <= 0.05
    paid(home, "train")
