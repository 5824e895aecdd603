"""FitGpp, LRTP and RAND for live jobs: a job is preempted at the end of its epoch, so none of its training is lost.

The grace period is the rest of the epoch; of an elastic group the driver ends it after its present step.
`TrialFirst.schedule` decides on nodes; this decides on counts: trial-and-error jobs before best-effort ones, each
group in queue order; a running job keeps its turn and what it has. Where a trial's smallest allocation does not fit,
best-effort jobs are preempted (`victims.choose`), those between two epochs first; while a trial waits, no best-effort
job starts. With what is left over, jobs grow to their maximum, in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from coach.core.cluster import Allocation
from coach.core.policies.api.allocation import AllocationDecision, ClusterView, JobView, Reason
from coach.core.policies.sharing.capacity import Claim, Room
from coach.core.policies.sharing.progressive_filling import Filling, Share, one_by_one
from coach_research.policies.preemption.victims import Fits, Running

#: The jobs to preempt: of the running best-effort jobs, for a job of this priority.
Choice = Callable[[Sequence[Running], Fits, int], list[Running]]

#: In a job's saved state: how often it was preempted.
PREEMPTED = "preempted"


@dataclass
class BetweenEpochs:
    """The policy, with its state between two decisions: each job's number of preemptions, and its random lot.

    A policy that starts while a job is running restores both from the job's view.
    """

    choice: Choice
    lots: Callable[[int], Sequence[float]]
    _preempted: dict[str, int] = field(default_factory=dict)
    _lot: dict[str, float] = field(default_factory=dict)
    #: Preempted jobs that still held their pods at the last decision.
    _leaving: set[str] = field(default_factory=set)

    def allocate(self, jobs: Sequence[JobView], cluster: ClusterView) -> AllocationDecision:
        """See `Policy`."""
        filling = Filling(jobs, cluster)
        self._remember(filling)
        line = sorted(filling.shares, key=_turn)
        waiting_trials = [share for share in line if share.job.trial and share.job.current is None]
        gone = self._victims(filling, waiting_trials)
        for share in filling.shares:
            if share.job.id in gone and not share.closed:
                filling.close(share, Reason.PREEMPTED)
        self._leaving = {share.job.id for share in filling.shares if share.refusal is Reason.PREEMPTED}

        growing = sorted(line, key=lambda share: not share.job.trial)

        def hand_out(filling: Filling) -> None:
            blocked = False
            for share in line:
                if share.given is None and not share.closed:
                    self._admit(share, filling, blocked)
                blocked = blocked or (share.given is None and share.refusal in _WAITS)
            one_by_one((share for share in growing if share.given is not None and not share.closed), filling)

        filling.fill(hand_out)
        place = {id(share): n for n, share in enumerate(line, 1)}
        return filling.decision(Reason.QUEUE, lambda share: place[id(share)], "in line")

    def _admit(self, share: Share, filling: Filling, blocked: bool) -> None:
        """Running jobs keep what they have, others get their minimum; no job passes one that waits for its turn."""
        job, current = share.job, share.job.current
        if current is None and blocked:
            filling.close(share, Reason.QUEUE)
        elif (
            current is None
            or job.fixed is not None
            or not (current.within(job.minimum, job.maximum) and job.affordable(current))
        ):
            filling.give(share, share.next())
        elif not filling.give(share, current):
            share.closed, share.refusal = False, None
            filling.give(share, share.next())

    def _remember(self, filling: Filling) -> None:
        """Remove ended jobs, count completed preemptions, draw lots for new jobs."""
        alive = {share.job.id: share.job for share in filling.shares}
        for name, job in alive.items():
            if name not in self._lot:
                self._recall(name, getattr(job, "policy_state", {}))
        for name in sorted(self._leaving):
            if name in alive and alive[name].current is None:
                self._preempted[name] = self._preempted.get(name, 0) + 1
        new = [name for name in alive if name not in self._lot]
        drawn = dict(zip(new, self.lots(len(new)), strict=True))
        self._lot = {name: self._lot.get(name, drawn.get(name, 0.0)) for name in alive}
        self._preempted = {name: count for name, count in self._preempted.items() if name in alive}

    def _recall(self, job: str, known: Mapping[str, Any]) -> None:
        if PREEMPTED in known:
            self._preempted[job] = int(known[PREEMPTED])
        if "lot" in known:
            self._lot[job] = float(known["lot"])
        if "leaving" in known:
            self._leaving.add(job)

    def memory(self, job: str) -> dict[str, Any]:
        """See `Policy`."""
        known: dict[str, Any] = {}
        if preempted := self._preempted.get(job, 0):
            known[PREEMPTED] = preempted
        if lot := self._lot.get(job, 0.0):
            known["lot"] = lot
        if job in self._leaving:
            known["leaving"] = True
        return known

    def _victims(self, filling: Filling, trials: Sequence[Share]) -> set[str]:
        """The best-effort jobs to preempt, for one waiting trial after the other."""
        holding = [share for share in filling.shares if share.job.current is not None and share.refusal not in _NEVER]
        gone: set[str] = set()
        placed: list[Claim] = []
        for trial in trials:
            if trial.closed:
                continue
            claim = _claim(trial, trial.job.fixed or trial.job.minimum, filling.room)
            here = [share for share in holding if share.job.id not in gone]
            candidates = [self._candidate(share, filling.room) for share in here if _preemptible(share.job)]

            def fits(out: Sequence[Running], here: list[Share] = here, claim: Claim = claim) -> bool:
                names = {running.job for running in out}
                held = (_claim(share, share.job.current, filling.room) for share in here if share.job.id not in names)
                return not filling.room.misfits(list(chain(held, placed, [claim]))).pods

            gone |= {str(victim.job) for victim in self.choice(candidates, fits, trial.job.priority)}
            # The next trial must fit in addition to this one, or it waits behind it.
            placed.append(claim)
        return gone

    def _candidate(self, share: Share, room: Room) -> Running:
        job = share.job
        assert job.current is not None
        largest = np.array(room.largest)
        need = np.array(share.claim.asks.needs(job.current))
        seconds = share.seconds(job.current) if job.remaining_epochs is not None else math.inf
        return Running(
            job.id,
            np.divide(need, largest, out=np.zeros(3), where=largest > 0),
            job.grace,
            self._preempted.get(job.id, 0),
            job.priority,
            seconds,
            not job.busy,
            self._lot[job.id],
        )


#: Refusals of jobs that cannot run at all at present: no job waits behind them.
_NEVER = frozenset({Reason.NEVER_FITS, Reason.UNAFFORDABLE})
_WAITS = frozenset({Reason.CPU, Reason.MEMORY, Reason.GPU, Reason.FRAGMENTATION, Reason.QUEUE})


def _preemptible(job: JobView) -> bool:
    """Whether it is best-effort and has a worker that is not being released already."""
    return not job.trial and job.current is not None and job.current.workers > 0


def _turn(share: Share) -> tuple[bool, bool, bool, int]:
    return not share.job.busy, share.job.current is None, not share.job.trial, share.place


def _claim(share: Share, at: Allocation | None, room: Room) -> Claim:
    claim = Claim(share.job, None, 1.0, room)
    claim.at = at
    return claim
