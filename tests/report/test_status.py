"""The rows that every table, JSON and CSV is made of."""

from dataclasses import replace

import pytest
from pydantic import TypeAdapter

from coach.core.jobs import events as ev
from coach.core.lifecycle.forecast import time_left
from coach.core.money import to_amount
from coach.report.accounting import pauses
from coach.report.row_types import EpochRow, JobRow, columns
from coach.report.status import epoch_rows, forecast_rows, job_row
from tests.report.recorded_jobs import faulty_job, half_way, one_job

ASKED = "name state reason epoch loss accuracy target workers servers spent budget eta"
ASKED_OF_EPOCHS = "kind workers servers loss accuracy seconds cost"
OF_THE_THESIS = ["job", "epoch", "kind", "loss", "accuracy", "servers", "workers", "cost", "seconds"]


def test_rows_have_the_promised_columns() -> None:
    assert set(ASKED.split()) <= set(columns(JobRow))
    assert set(ASKED_OF_EPOCHS.split()) <= set(columns(EpochRow))
    assert list(columns(EpochRow)[: len(OF_THE_THESIS)]) == OF_THE_THESIS


def test_a_job_that_has_ended() -> None:
    world = one_job()
    job = world.job("digits")
    row = job_row(job, world.now)
    assert (row.state, row.reason, row.metric, row.target) == ("Succeeded", "TargetReached", "loss", 0.3)
    assert row.epoch == len(job.full_epochs) < len(job.epochs)
    assert row.loss == job.epochs[-1].report.loss <= 0.3
    assert (row.consecutive_hits, row.epochs_in_a_row) == (3, 3)
    assert row.eta is None
    assert row.spent == to_amount(job.money.ledger.spent) > 0 == row.reserved
    assert row.budget == 0.05
    assert row.ended_at is not None
    assert row.ended_at.startswith("1970-01-12T")


def test_a_job_before_its_first_epoch_has_nothing_measured() -> None:
    world = half_way()
    job = world.job("digits")
    fresh = replace(job, epochs=[], attempts=replace(job.attempts, running=None))
    row = job_row(fresh, world.now)
    assert (row.epoch, row.loss, row.accuracy, row.workers, row.best_loss) == (0, None, None, None, None)


def test_the_rows_are_plain_json() -> None:
    world = faulty_job()
    job = world.job("faulty")
    TypeAdapter(JobRow).dump_json(job_row(job, world.now))
    rows = TypeAdapter(list[EpochRow])
    assert rows.validate_json(rows.dump_json(epoch_rows(job)), strict=True) == epoch_rows(job)


def test_the_true_end_is_between_the_bounds_of_the_eta() -> None:
    world = half_way(8)
    job = world.job("digits")
    left = time_left(job, world.now)
    asked_at = world.now
    assert left is not None
    world.run(until=lambda: job.ended)
    assert left.low < left.expected < left.high
    assert left.low <= world.now - asked_at <= left.high


def test_the_eta_goes_down_within_an_epoch() -> None:
    world = half_way(8)
    job = world.job("digits")
    before, after = time_left(job, world.now), time_left(job, world.now + 1)
    assert before is not None
    assert after is not None
    assert after.expected == pytest.approx(before.expected - 1)


def test_there_is_no_eta_before_a_real_epoch_has_shown_the_curve() -> None:
    world = half_way(8)
    probing = half_way(1)
    assert time_left(world.job("digits"), world.now) is not None
    assert time_left(probing.job("digits"), probing.now) is None


def test_earlier_jobs_give_an_eta_from_the_first_fit_on() -> None:
    world = half_way(1)
    job = world.job("digits")
    assert time_left(replace(job, models=replace(job.models, known_epochs=12.0)), world.now) is not None


def test_a_job_without_a_handler_says_so() -> None:
    world = half_way(8)
    row = job_row(world.job("digits"), world.now, orphan=True)
    assert (row.state, row.reason, row.eta) == ("Waiting", "HandlerStopped", None)
    assert "its handler ended" in row.message


def test_time_outside_training_is_all_the_rest() -> None:
    world = faulty_job()
    job = world.job("faulty")
    rows = epoch_rows(job)
    spent = sum(r.train_seconds + r.evaluate_seconds + r.outside_seconds for r in rows)
    assert spent == pytest.approx(job.epochs[-1].ended_at - job.epochs[0].started_at)
    assert {r.new_group for r in rows} == {True, False}


def test_a_pause_is_not_time_outside_training() -> None:
    world = half_way(8)
    world.send(ev.SuspendRequested(world.now, "digits", False))
    world.run(until=lambda: world.job("digits").reason.value == "Suspended")
    world.now += 1000
    world.send(ev.ResumeRequested(world.now, "digits"))
    world.run(until=lambda: world.job("digits").ended)
    found = pauses(world.history, "digits")
    assert len(found) == 1
    assert found[0][1] - found[0][0] == pytest.approx(1000, abs=1)
    outside = [row.outside_seconds for row in epoch_rows(world.job("digits"), found)]
    assert max(outside) < 10
    assert max(row.outside_seconds for row in epoch_rows(world.job("digits"))) > 1000


def test_an_ended_job_shows_what_was_predicted_of_all_of_it_on_its_way_beside_what_it_took() -> None:
    world = half_way(8)
    job = world.job("digits")
    assert forecast_rows(job) == [], "it has not ended"
    left, begun = time_left(job, world.now), job.progress.run_seconds
    assert left is not None and job.attempts.running is not None and job.attempts.running.job_forecast is not None
    assert job.attempts.running.job_forecast.seconds == pytest.approx(
        [begun + seconds + world.now - job.attempts.running.at for seconds in (left.low, left.expected, left.high)]
    )
    world.run(until=lambda: job.ended)
    rows = forecast_rows(job)
    assert [row.share for row in rows] == [0.1, 0.5, 0.9]
    times = [epoch.seconds for epoch in job.epochs]
    for row in rows:
        before = sum(times[: row.epoch - 1])
        assert before <= row.share * sum(times) <= before + times[row.epoch - 1]
        assert (row.actual_seconds, row.actual_cost) == (job.progress.run_seconds, to_amount(job.money.ledger.spent))
        found = job.epochs[row.epoch - 1].job_forecast
        expected = (None, None) if found is None else (found.seconds, found.cost)
        assert (row.seconds, row.cost) == tuple(one and one[1] for one in expected)
    late = rows[-1]
    assert late.seconds_low is not None and late.seconds_high is not None
    assert late.seconds_low <= late.actual_seconds <= late.seconds_high
    assert late.cost_low is not None and late.cost_high is not None
    assert late.cost_low <= late.actual_cost <= late.cost_high


def test_where_nothing_was_predicted_nothing_is_shown() -> None:
    world = one_job(maxEpochs=1)
    assert [(row.seconds, row.cost) for row in forecast_rows(world.job("digits"))] == [(None, None)] * 3
