"""The life cycle of a job as a table: which record may come in which phase, and which phases may follow.

An action that is not here is a mistake of Coach's, or of a journal that was changed by hand. An event may come at any
time: outside of the phases where it counts it is late (`is_late`) and leaves the phase as it is.
"""

from __future__ import annotations

from typing import Any

from coach.core.errors import PermanentError
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.job import Job, Phase

IDLE, DEPLOYING, RUNNING, FITTING = Phase.IDLE, Phase.DEPLOYING, Phase.RUNNING, Phase.FITTING
PAUSED, ENDING, ENDED = Phase.PAUSED, Phase.ENDING, Phase.ENDED

Next = dict[Phase, tuple[Phase, ...]]


def _same(*phases: Phase) -> Next:
    """Legal in these phases, which it does not change."""
    return {phase: (phase,) for phase in phases}


#: By record and phase: the phases that may follow.
TRANSITIONS: dict[type, Next] = {
    # What happens to a job.
    ev.HandlerStarted: {
        **dict.fromkeys((IDLE, DEPLOYING, FITTING, PAUSED), (IDLE,)),
        RUNNING: (IDLE, RUNNING),  # a program may go on
        **_same(ENDING, ENDED),
    },
    ev.NodesChanged: _same(*Phase),
    ev.PolicySlow: _same(*Phase),
    ev.PodReady: _same(DEPLOYING, PAUSED),
    ev.PodPending: _same(DEPLOYING, PAUSED),
    ev.PodLost: _same(IDLE, DEPLOYING, RUNNING, FITTING, PAUSED),
    ev.PodsReleased: _same(IDLE, DEPLOYING, RUNNING, FITTING, PAUSED, ENDING),
    ev.EpochFinished: {RUNNING: (IDLE,)},
    ev.EpochFailed: {RUNNING: (IDLE,)},
    ev.ModelsFitted: {FITTING: (IDLE,)},
    ev.TimerFired: {PAUSED: (IDLE,), **_same(IDLE, DEPLOYING, RUNNING)},
    ev.ProgramSignalled: _same(*Phase),
    ev.MetricNotFound: _same(*Phase),
    ev.WaitExpected: _same(*Phase),
    ev.AheadStarted: _same(*Phase),
    ev.AheadLost: _same(*Phase),
    # What users ask for.
    ev.CancelRequested: _same(*Phase),
    ev.SuspendRequested: _same(*Phase),
    ev.ResumeRequested: {
        **_same(IDLE, DEPLOYING, RUNNING, FITTING),
        PAUSED: (IDLE, PAUSED),
        **dict.fromkeys((ENDING, ENDED), (IDLE,)),
    },
    ev.PriorityChanged: _same(*Phase),
    ev.PricesChanged: _same(*Phase),
    ev.ModelAccepted: _same(*Phase),
    ev.AccountSet: _same(*Phase),
    # What is decided.
    act.SetAllocation: {IDLE: (DEPLOYING,), DEPLOYING: (DEPLOYING,)},
    act.ChooseNodes: _same(IDLE),
    act.DeployPods: _same(DEPLOYING),
    act.ReleasePods: _same(IDLE, DEPLOYING, RUNNING, PAUSED, ENDING),
    act.RunEpoch: {DEPLOYING: (RUNNING,)},
    act.ExtendEpoch: _same(RUNNING),
    act.StopEpoch: _same(RUNNING),
    act.KillProgram: _same(IDLE, DEPLOYING, RUNNING, PAUSED, ENDING),
    act.QueueAhead: _same(*Phase),
    act.Settle: _same(IDLE, DEPLOYING, RUNNING, FITTING, PAUSED, ENDING),
    act.FitModels: {IDLE: (FITTING,)},
    act.RollBack: _same(IDLE, DEPLOYING),
    act.SetTimer: _same(IDLE, DEPLOYING, RUNNING, PAUSED),
    act.SavePolicyState: _same(IDLE, DEPLOYING, RUNNING, FITTING, PAUSED, ENDING),
    act.SetStatus: {
        IDLE: (IDLE, PAUSED),
        DEPLOYING: (DEPLOYING, IDLE, PAUSED),
        PAUSED: (PAUSED,),
        ENDING: (ENDED,),
        **_same(RUNNING),
    },
    act.NoticeAccount: _same(*Phase),
    act.Finish: dict.fromkeys((IDLE, DEPLOYING, PAUSED), (ENDING,)),
}  # fmt: skip

EVENTS = frozenset(kind for kind in TRANSITIONS if kind.__module__ == ev.__name__)


class IllegalTransitionError(PermanentError):
    """A record that the life cycle of a job does not have."""


def following(job: Job, record: Any, chosen: Phase | None) -> Phase:
    """The phase of `job` after `record`, which it has taken in: the table's only one, or the `chosen` one of several.

    Raises IllegalTransitionError where `record` could not come in the phase that the job is in.
    """
    before, kind = job.phase, type(record)
    legal = TRANSITIONS[kind].get(before, ())
    after = chosen or (legal[0] if len(legal) == 1 else before)
    if after in legal or (kind in EVENTS and after is before):
        return after
    phases = ", ".join(TRANSITIONS[kind])
    raise IllegalTransitionError(
        f"job {job.name}: {kind.__name__} came in phase {before} (then {after}), which its life cycle does not "
        f"have (it is legal when {phases}); it is {job.state.value}, {job.reason.value}: {job.message or '-'}; epochs "
        f"{len(job.epochs)}, attempts {job.attempts.count}, pods {len(job.gang.pods)}; its story: coach events "
        f"{job.name}"
    )


def is_late(job: Job | None, event: ev.Event) -> bool:
    """Whether `event` no longer changes `job` (None: there is no such job); the journal keeps it all the same."""
    if isinstance(event, ev.HandlerStarted | ev.NodesChanged | ev.PolicySlow | ev.AccountSet):
        return False
    if isinstance(event, ev.JobSubmitted):
        return job is not None
    if job is None:
        return True
    if isinstance(event, ev.EpochFinished | ev.EpochFailed):
        return job.attempts.running is None or job.attempts.running.token != event.token
    if isinstance(event, ev.AheadStarted | ev.AheadLost):
        return job.gang.ahead is None
    if isinstance(event, ev.ModelsFitted):
        return job.models.fit_token != event.token
    if isinstance(event, ev.TimerFired):
        return job.attempts.timer != event.token
    if isinstance(event, ev.PodReady | ev.PodPending | ev.PodLost):
        held = job.gang.pods.get(event.pod)
        return held is None or held.releasing or (held.ready and not isinstance(event, ev.PodLost))
    if isinstance(event, ev.PodsReleased):
        return not any(pod in job.gang.pods and job.gang.pods[pod].releasing for pod in event.pods)
    return False
