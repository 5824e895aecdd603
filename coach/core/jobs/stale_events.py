"""Whether an answer comes after its question was given up."""

from __future__ import annotations

from coach.core.jobs import events as ev
from coach.core.jobs.job import Job


def is_late(job: Job | None, event: ev.Event) -> bool:
    """Whether `event` changes nothing any more of `job` (None: there is none): it only stands in the journal."""
    if isinstance(event, ev.HandlerStarted | ev.NodesChanged):
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
    if isinstance(event, ev.PodReady | ev.PodLost):
        held = job.pods.get(event.pod)
        return held is None or held.releasing or (held.ready and isinstance(event, ev.PodReady))
    if isinstance(event, ev.PodsReleased):
        return not any(pod in job.pods and job.pods[pod].releasing for pod in event.pods)
    return False
