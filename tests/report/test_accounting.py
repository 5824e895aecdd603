"""What records tell beyond a job's last state."""

import itertools

import pytest

from coach.core.jobs import events as ev
from coach.core.jobs.accounts import Accounts
from coach.core.jobs.reasons import Reason
from coach.core.money import to_amount
from coach.report.accounting import account_rows, attempts, ledger, money, pauses
from coach.report.export import export
from coach.report.history import history
from coach.report.row_types import EpochRow, ForecastRow, as_csv, columns
from coach.report.status import epoch_rows, job_row
from tests.report.golden import assert_golden, unestimated
from tests.report.recorded_jobs import faulty_job, half_way, one_job, steady_job, two_jobs


def test_the_ledger_accounts_for_everything_that_was_spent() -> None:
    for world, name in ((one_job(), "digits"), (faulty_job(), "faulty"), (half_way(), "pictures")):
        job = world.job(name)
        rows = ledger(world.history, name)
        assert sum(row.cost + row.held for row in rows) == pytest.approx(to_amount(job.money.ledger.spent), abs=1e-12)
        assert rows[-1].spent == pytest.approx(to_amount(job.money.ledger.spent), abs=1e-12)
        assert all(row.cost <= row.reserved + 1e-12 for row in rows)


def test_attempts_that_did_not_count_have_their_reason_in_the_ledger() -> None:
    outcomes = [row.outcome for row in ledger(faulty_job().history, "faulty")]
    assert outcomes.count("PeerLost") == 2
    assert set(outcomes) - {"counted"} <= {reason.value for reason in Reason}


def test_the_running_attempt_is_said_to_run() -> None:
    world = half_way()
    assert ledger(world.history, "digits")[-1].outcome == "running"
    assert attempts(world.history, "digits")[-1].end is None


def test_money_over_time_never_exceeds_the_budget_and_ends_with_nothing_reserved() -> None:
    entries = money(faulty_job().history, "faulty")
    assert all(entry.spent + entry.reserved <= 0.01 + 1e-12 for entry in entries)
    assert all(a.spent <= b.spent and a.at <= b.at for a, b in itertools.pairwise(entries))
    assert entries[-1].reserved == 0


@pytest.mark.parametrize("written_down", [False, True])
def test_a_handler_that_died_is_a_pause_until_the_job_goes_on(written_down: bool) -> None:
    world = half_way()
    died = world.history[-1].at
    records = [r for r in world.history if r.job in ("", "digits")]
    again = [
        *([ev.SuspendRequested(died + 499, "digits", True, by_user=False)] if written_down else []),
        ev.HandlerStarted(died + 500, world.reducer.nodes.all),
        ev.ResumeRequested(died + 501, "digits"),
    ]
    last = records[-1].at
    assert pauses([*world.history, *again], "digits") == [(last, died + 501)]
    assert attempts([*records, *again], "digits")[-1].end == last


def test_the_time_from_a_jobs_end_until_it_is_resumed_is_a_pause() -> None:
    world = faulty_job()
    ended = world.history[-1].at
    again = ev.ResumeRequested(ended + 86400, "faulty", 1000)
    assert pauses([*world.history, again], "faulty") == [(ended, ended + 86400)]


def test_history_in_plain_words() -> None:
    lines = history(steady_job().history)
    text = "\n".join(f"{'  ' * (not line.important)}{line.text}" for line in lines)
    assert_golden("history.txt", unestimated(text))


def test_history_of_one_job_alone() -> None:
    world = two_jobs()
    assert {line.job for line in history(world.history)} == {"digits", "pictures"}
    assert {line.job for line in history(world.history, "digits")} == {"digits"}


def test_history_of_stopping_and_going_on() -> None:
    world = half_way()
    world.send(ev.SuspendRequested(world.now, "digits", False))
    world.run(until=lambda: world.job("digits").reason is Reason.SUSPENDED)
    world.send(ev.ResumeRequested(world.now, "digits", 1_000_000))
    lines = [line.text for line in history(world.history, "digits")]
    last = world.job("digits").epochs[-1].name
    stopping = lines.index(f"stopping at the end of {last}")
    assert any("stopped; it can be resumed" in line for line in lines[stopping:])
    assert f"resumed from the checkpoint of {last}, with 0.0010 USD more" in lines


def test_exported_epochs_cost_what_the_job_spent(tmp_path) -> None:
    world = two_jobs()
    jobs = [(job_row(job, world.now), job, world.history) for job in world.reducer.jobs.values()]
    paths = export(jobs, tmp_path / "new" / "folder")
    assert [path.name for path in paths] == ["summary.csv", "epochs.csv", "forecasts.csv", "ledger.csv"]
    header, *rows = (tmp_path / "new/folder/epochs.csv").read_text().splitlines()
    assert header.startswith("job,epoch,kind,loss,accuracy,servers,workers,cost,seconds,")
    forecasts = (tmp_path / "new/folder/forecasts.csv").read_text().splitlines()
    assert forecasts[0].split(",") == list(columns(ForecastRow))
    assert [row.split(",")[:2] for row in forecasts[1:]] == [
        [name, share] for name in ("digits", "pictures") for share in ("0.1", "0.5", "0.9")
    ]
    for job in world.reducer.jobs.values():
        cost = sum(float(row.split(",")[7]) for row in rows if row.startswith(f"{job.name},"))
        assert cost == pytest.approx(to_amount(job.money.ledger.spent), rel=1e-6)
    assert len((tmp_path / "new/folder/summary.csv").read_text().splitlines()) == 3
    assert not [path for path in (tmp_path / "new/folder").iterdir() if path.name.startswith(".")]


def test_what_is_not_known_is_empty_in_csv() -> None:
    world = one_job()
    first = epoch_rows(world.job("digits"))[0]
    assert first.predicted_seconds is None
    line = as_csv(EpochRow, [first]).splitlines()[1]
    assert line.split(",")[columns(EpochRow).index("predicted_seconds")] == ""


def test_an_account_whose_window_no_date_can_hold_keeps_no_other_from_the_list() -> None:
    """Journals may have one: it was not refused before."""
    accounts = Accounts()
    for name, period in (("big", "999999d"), ("team", "month")):
        accounts.apply(ev.AccountSet(1e9, name, 50_000_000_000, "USD", period))
    big, team = account_rows(accounts, {}, 1.8e9)
    assert (big.name, big.since, team.name) == ("big", None, "team") and team.since is not None
