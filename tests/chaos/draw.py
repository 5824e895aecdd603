"""What a chaos run is: one job on real functions, and one signal to one process at a random instant."""

from __future__ import annotations

import random
import signal
from dataclasses import dataclass
from enum import StrEnum


class Victim(StrEnum):
    """Whom the signal hits. All but the last two are found by the function they belong to."""

    WORKER = "worker"  #: the training process of a worker
    SERVER = "server"
    SCHEDULER = "scheduler"
    ZYGOTE = "zygote"  #: the warm process that training processes are forked from
    FUNCTION = "function"  #: the function's own process, which answers
    TEMPLATE = "template"  #: the process that functions and zygotes of the machine are forked from
    HANDLER = "handler"  #: Coach itself


class Instant(StrEnum):
    """In which part of a job's run the signal comes."""

    STARTING = "starting"  #: functions are being started
    PROBING = "probing"  #: a mini-epoch runs
    FORMING = "forming"  #: a group's members find each other
    TRAINING = "training"
    EVALUATING = "evaluating"  #: evaluating, or writing the checkpoint
    SETTLING = "settling"  #: an epoch has ended: it is being paid, and the models fitted


#: In which epochs a fault may come: of the first the length is not known, and so short a job has one mini-epoch.
EPOCHS = {
    Instant.STARTING: (1, 1),
    Instant.PROBING: (1, 1),
    Instant.FORMING: (1, 1),
    Instant.TRAINING: (2, 5),
    Instant.EVALUATING: (2, 5),
    Instant.SETTLING: (1, 5),
}
SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP}


@dataclass(frozen=True)
class Fault:
    """`signal` to `victim`, of a function of `role`, at `share` (0..1) of `instant` in the `epoch`-th epoch."""

    victim: Victim
    signal: str
    instant: Instant
    role: str
    epoch: int
    share: float

    @property
    def probing(self) -> bool:
        """Whether the job must be one that probes."""
        return self.instant is Instant.PROBING


def draw(seed: int, number: int, *, servers: bool = True) -> Fault:
    """The fault of run `number` of `seed`; `servers`: whether the job has some."""
    dice = random.Random(f"{seed} {number}")
    victim = dice.choice([victim for victim in Victim if servers or victim is not Victim.SERVER])
    instant = dice.choice(tuple(Instant))
    role = victim.value if victim.value in ("worker", "server", "scheduler") else ""
    return Fault(
        victim=victim,
        signal=dice.choice(tuple(SIGNALS)),
        instant=instant,
        role=role or dice.choice(("worker", "server", "scheduler") if servers else ("worker", "scheduler")),
        epoch=dice.randint(*EPOCHS[instant]),
        share=dice.random(),
    )
