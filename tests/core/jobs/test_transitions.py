"""The life cycle: every record is in the table, and one that could not come is refused with the job's story."""

from __future__ import annotations

import pytest

from coach.core.cluster import Allocation
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs import fold, transitions
from coach.core.jobs.epoch import EpochKind
from coach.core.jobs.job import Job, Phase
from coach.core.jobs.reasons import Reason
from tests.core.lifecycle.faulty_cluster import spec


def job(phase: Phase) -> Job:
    made = fold.submitted(ev.JobSubmitted(0.0, "a", spec("a"), "checkpoints"))
    made.phase = phase
    return made


def test_every_record_is_in_the_table() -> None:
    kinds = [kind for module in (ev, act) for kind in vars(module).values() if isinstance(kind, type)]
    records = {kind for kind in kinds if issubclass(kind, ev.Event | act.Action)}
    assert records - {ev.JobSubmitted, ev.JobEvent, act.Action} == set(transitions.TRANSITIONS)


def test_every_phase_can_be_left_until_the_job_has_ended_which_only_a_resume_undoes() -> None:
    leaves = {
        phase: {kind for kind, table in transitions.TRANSITIONS.items() if set(table.get(phase, ())) - {phase}}
        for phase in Phase
    }
    assert leaves.pop(Phase.ENDED) == {ev.ResumeRequested}
    assert all(leaves.values())


@pytest.mark.parametrize("phase", [Phase.RUNNING, Phase.FITTING, Phase.PAUSED, Phase.ENDING, Phase.ENDED])
def test_an_action_that_cannot_come_is_an_error_with_the_job_s_story(phase: Phase) -> None:
    with pytest.raises(transitions.IllegalTransitionError) as caught:
        fold.apply(job(phase), act.SetAllocation(1.0, "a", Allocation(1, 1), EpochKind.FULL, ()))
    said = str(caught.value)
    assert f"job a: SetAllocation came in phase {phase} " in said
    assert "it is legal when idle, deploying" in said
    assert "it is Queued, Submitted" in said and "epochs 0" in said and "coach events a" in said


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.ENDING])
def test_a_job_ends_only_when_its_pods_are_gone(phase: Phase) -> None:
    with pytest.raises(transitions.IllegalTransitionError):
        fold.apply(job(phase), act.SetStatus(1.0, "a", Reason.TARGET_REACHED, ""))


@pytest.mark.parametrize("phase", list(Phase))
def test_an_event_that_comes_late_leaves_the_phase_as_it_is(phase: Phase) -> None:
    late = job(phase)
    fold.apply(late, ev.TimerFired(1.0, "a", "a.timer7"))
    fold.apply(late, ev.ModelsFitted(1.0, "a", "a.fit7", None, None))
    assert late.phase is phase
