"""What a session decides before and after its handler runs."""

from dataclasses import replace
from pathlib import Path

import pytest

from coach.cli.display.line_output import Lines
from coach.cli.display.whole_table import Screen
from coach.core.errors import UserError
from coach.core.jobs import events as ev
from coach.core.jobs import fold
from coach.core.jobs.job import Job
from coach.core.jobs.reasons import Reason, State
from coach.core.lifecycle.reducer import Reducer
from coach.core.policies.coach import CoachPolicy
from coach.core.spec.job import TrainingJob
from coach.handler.interactive_run import EXIT_CODES_BY_WEIGHT, exit_code
from coach.handler.session import _common_journal, checkpoints_uri, suspend_orphans
from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import Chosen, StateDirectory, StoredJob
from tests.cli.conftest import keep
from tests.core.lifecycle.faulty_cluster import nodes, spec
from tests.report.recorded_jobs import half_way


def job(state: State) -> Job:
    return replace(fold.submitted(ev.JobSubmitted(1.0, "a", spec("a"), "file:///c")), state=state)


@pytest.mark.parametrize(
    ("states", "code"),
    [
        ([], 0),
        ([State.SUCCEEDED], 0),
        ([State.FAILED], 1),
        ([State.CANCELLED], 1),
        ([State.BUDGET_EXHAUSTED], 3),
        ([State.TARGET_UNREACHABLE], 4),
        ([State.WAITING], 130),
        ([State.SUCCEEDED, State.BUDGET_EXHAUSTED], 3),
        ([State.TARGET_UNREACHABLE, State.BUDGET_EXHAUSTED], 4),
        ([State.FAILED, State.TARGET_UNREACHABLE], 1),
        ([State.WAITING, State.FAILED], 130),
    ],
)
def test_several_jobs_end_with_the_code_that_weighs_most(states: list[State], code: int) -> None:
    assert exit_code(map(job, states)) == code
    assert exit_code(map(job, reversed(states))) == code


def test_every_end_has_a_weight() -> None:
    assert {state.exit_code for state in State if state.ended} <= set(EXIT_CODES_BY_WEIGHT)


def test_jobs_whose_handler_died_stay_interrupted_until_they_are_asked_for(home: StateDirectory) -> None:
    keep(home, half_way())
    journal = Journal.write(home.journal(1))
    suspend_orphans(journal)
    length = len(list(journal.records()))
    suspend_orphans(journal)
    assert len(list(journal.records())) == length
    reducer = Reducer(CoachPolicy())
    for _, record in journal.records():
        reducer.apply(record)
    spent = {name: found.money.ledger.spent for name, found in reducer.jobs.items()}
    reducer.react(ev.HandlerStarted(journal.last_at() + 1, nodes(2, 4.0)))
    journal.close()
    for name, found in reducer.jobs.items():
        assert found.reason is Reason.HANDLER_STOPPED
        assert not found.gang.pods
        assert found.money.ledger.reserved == 0
        assert found.money.ledger.spent >= spent[name], "what it held until it died is paid"


def test_jobs_of_different_runs_cannot_go_on_in_one(home: StateDirectory) -> None:
    def left(name: str, number: int) -> Chosen:
        found = fold.submitted(ev.JobSubmitted(1.0, name, spec(name), "file:///c"))
        return Chosen(found.job_file, StoredJob(found, home.journal(number), False))

    assert _common_journal([left("a", 1), left("b", 1), Chosen(job(State.QUEUED).job_file)]) == home.journal(1)
    assert _common_journal([Chosen(job(State.QUEUED).job_file)]) is None
    with pytest.raises(UserError, match="a and b were left by different runs"):
        _common_journal([left("a", 1), left("b", 2)])


def test_each_job_has_a_folder_of_checkpoints_to_itself() -> None:
    home = StateDirectory(Path("/a folder"))
    assert checkpoints_uri(home, TrainingJob.from_json(spec("a")), None) == "file:///a folder/jobs/a/checkpoints"
    given = TrainingJob.from_json(spec("a", checkpoint={"uri": "s3://bucket/all/"}))
    assert checkpoints_uri(home, given, "file:///volume") == "s3://bucket/all/a"
    shared = checkpoints_uri(home, TrainingJob.from_json(spec("a")), "file:///volume")
    assert shared == "file:///volume/a"


def test_without_a_terminal_stopping_says_what_a_second_ctrl_c_does() -> None:
    world = half_way()
    console = Screen(width=120, color_system=None)
    lines = Lines(console, lambda: world.reducer.jobs, now=lambda: 3661.0)
    event = ev.SuspendRequested(world.now, "digits", False)
    with console.capture() as capture:
        lines.said("something of the session's own")
        lines.happened(event, world.send(event))
    assert capture.get().splitlines()[0] == "01:01:01 something of the session's own"
    job = world.job("digits")
    assert job.attempts.running is not None
    running = job.name_of(job.attempts.running)
    assert capture.get().endswith(f"digits: stopping at the end of {running}; Ctrl-C again to stop now\n")
