"""Whether an event comes too late to change its job."""

from __future__ import annotations

from coach.core.jobs import events as ev
from coach.core.jobs.job import Job


def is_late(job: Job | None, event: ev.Event) -> bool:
    """Whether `event` no longer changes `job` (None: there is no such job); the journal keeps it all the same."""
    if isinstance(event, ev.HandlerStarted | ev.NodesChanged | ev.PolicySlow | ev.AccountSet):
        return False
    if isinstance(event, ev.JobSubmitted):
        return job is not None
    if job is None:
        return True
    if isinstance(event, ev.EpochFinished | ev.EpochFailed):
        return job.running is None or job.running.token != event.token
    if isinstance(event, ev.ModelsFitted):
        return job.fit_token != event.token
    if isinstance(event, ev.TimerFired):
        return job.timer != event.token
    if isinstance(event, ev.PodReady | ev.PodPending | ev.PodLost):
        held = job.pods.get(event.pod)
        return held is None or held.releasing or (held.ready and not isinstance(event, ev.PodLost))
    if isinstance(event, ev.PodsReleased):
        return not any(pod in job.pods and job.pods[pod].releasing for pod in event.pods)
    return False
