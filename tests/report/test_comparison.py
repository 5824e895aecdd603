"""Jobs side by side: each value is the best that a job had for that money, in that time."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from coach.core.errors import UserError
from coach.report.accounting import attempts, money
from coach.report.comparison import ROWS, Comparison, Progress, compare, progress
from coach.report.figures.comparison import draw
from tests.core.lifecycle.faulty_cluster import FaultyDynamics, World, nodes, spec
from tests.report.recorded_jobs import BUDGET, faulty_job, two_jobs


def compared(world: World, *names: str) -> tuple[Comparison, Sequence[Progress]]:
    jobs = [world.job(name) for name in names]
    records = world.history
    found = [progress(one, attempts(records, one.name), money(records, one.name), records) for one in jobs]
    return compare(jobs, found), found


def pair(**changes: object) -> World:
    world = World.of(nodes(4, 4.0))
    world.submit(spec("quick", budget=BUDGET))
    slow = FaultyDynamics(speed=lambda w, s: 0.02 * w, loss=lambda x: 1 / (0.2 * x + 0.5))
    world.submit(spec("slow", budget=BUDGET, **changes), slow)
    world.run()
    return world


def test_what_the_job_files_differ_in_is_named_with_each_value() -> None:
    made, _ = compared(pair(batchSize=32), "quick", "slow")
    assert [(one.field, one.values) for one in made.differences] == [("batchSize", ("64", "32"))]


def test_progress_is_the_best_so_far_and_ends_with_all_that_was_spent() -> None:
    world = faulty_job()  # attempts that did not count were paid as well
    _, (one,) = compared(world, "faulty")
    job = world.job("faulty")
    assert list(one.best) == sorted(one.best, reverse=True)
    assert list(one.money) == sorted(one.money) and list(one.seconds) == sorted(one.seconds)
    last = job.full_epochs[-1]
    counted = sum(epoch.cost for epoch in job.epochs)
    assert counted < one.money[-1] * 1e9 <= job.money.ledger.spent  # giving the functions back costs a little after it
    assert one.seconds[-1] == pytest.approx(last.ended_at - attempts(world.history, "faulty")[0].order.at)
    assert one.best[-1] == job.best.report.loss


def test_rows_have_what_each_job_had_with_that_money_and_in_that_time() -> None:
    made, (quick, slow) = compared(pair(), "quick", "slow")
    assert len(made.by_money) == len(made.by_time) == ROWS
    assert made.by_money[-1][0] == max(quick.money[-1], slow.money[-1])
    for rows, used in ((made.by_money, "money"), (made.by_time, "seconds")):
        for limit, values in rows:
            for one, value in zip((quick, slow), values, strict=True):
                known = [best for best, at in zip(one.best, getattr(one, used), strict=True) if at <= limit]
                assert value == (known[-1] if known else None)


def test_levels_are_reached_with_the_first_epoch_that_has_them() -> None:
    made, (quick, slow) = compared(pair(), "quick", "slow")
    assert [level.value for level in made.levels] == sorted((level.value for level in made.levels), reverse=True)
    assert made.levels[-1].value == min(quick.best[-1], slow.best[-1])
    for level in made.levels:
        for number, one in enumerate((quick, slow)):
            there = [index for index, best in enumerate(one.best) if best <= level.value]
            assert level.money[number] == (one.money[there[0]] if there else None)
            assert level.seconds[number] == (one.seconds[there[0]] if there else None)
    assert None in made.levels[-1].money


def test_accuracies_rise() -> None:
    world = World.of(nodes(4, 4.0))
    for name, size in (("one", 1), ("two", 2)):
        policy = {"name": "static", "workers": size, "servers": 1}
        world.submit(spec(name, target={"accuracy": 0.9}, policy=policy))
    world.run()
    made, (one, _) = compared(world, "one", "two")
    assert made.metric == "accuracy" and list(one.best) == sorted(one.best)
    assert [level.value for level in made.levels] == sorted(level.value for level in made.levels)
    assert all(level.money[0] is not None for level in made.levels[:3])


def test_time_without_a_handler_does_not_count() -> None:
    world = pair()
    job = world.job("slow")
    tried, purse = attempts(world.history, "slow"), money(world.history, "slow")
    plain = progress(job, tried, purse, world.history)
    half = job.full_epochs[len(job.full_epochs) // 2]
    late = world.history.copy()
    at = next(i for i, one in enumerate(late) if one.at > half.ended_at)
    before, after = late[at - 1].at, late[at].at
    from coach.core.jobs.events import HandlerStarted

    first = next(one for one in late if isinstance(one, HandlerStarted))
    late.insert(at, replace(first, at=after))
    stopped = progress(job, tried, purse, late)
    assert plain.seconds[-1] - stopped.seconds[-1] == pytest.approx(after - before)


def test_jobs_without_a_common_measure_are_refused() -> None:
    world = two_jobs()
    with pytest.raises(UserError, match="digits loss, pictures accuracy"):
        compared(world, "digits", "pictures")
    with pytest.raises(UserError, match="no whole epoch"):
        progress(replace(world.job("digits"), epochs=[]), [], [], [])


def test_the_figure_has_both_jobs_by_money_and_by_time() -> None:
    made, (quick, slow) = compared(pair(), "quick", "slow")
    left, right = draw(made).axes
    assert [text.get_text() for text in right.get_legend().get_texts()] == ["quick", "slow"]
    assert list(left.lines[1].get_xdata()) == list(slow.money)
    assert list(left.lines[0].get_ydata()) == list(quick.best)
    assert "USD" in left.get_xlabel()
