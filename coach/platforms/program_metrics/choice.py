"""Which of the numbers with a name is the metric, where it is not said where that is.

A name may have more words than the metric's, before or behind it. What was measured in training is not the metric, one
of an evaluation is preferred, and where two are left nothing is: then it is asked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from coach.platforms.program_metrics.text import PARTS, TRAINING, Reading, a_set, all_parts, tokens_of

#: Words before a name that make it another value than the present one.
_NOT_NOW = a_set(
    "best lowest highest min minimum max maximum target goal threshold previous prev last old initial until "
    "below above than no not without if when improvement patience tolerance delta weight scale coef baseline "
    "expected want wanted required desired top topk human random chance sota"
)
#: Words before a name that make it no other.
_NOTHING = a_set("avg average mean total overall final current new the a an info debug main root and with")
#: Words before a name, at most.
MAX_WORDS = 4
#: What is not in two epochs, because none or but one is named, must be seen so often.
OFTEN = 10

Form = tuple[object, ...]


@dataclass(slots=True)
class _Seen:
    """A form in which the metric was seen: where it was first, and how often."""

    epoch: float | None
    value: float
    times: int = 0
    sure: bool = False
    names: list[str] = field(default_factory=list)

    def add(self, epoch: float | None, value: float) -> None:
        if (epoch is None) != (self.epoch is None):  # what is before the first epoch may be a setting
            self.epoch, self.value, self.times = epoch, value, 0
        self.times += 1
        another = not _same(value, self.value) if epoch is None else epoch != self.epoch
        self.sure = self.sure or another or self.times >= OFTEN


class Choice:
    """Of one program. A form in which the metric was not yet seen in two epochs is a guess."""

    def __init__(self, metric: str) -> None:
        self._words = tuple(word for token in tokens_of(metric) for word in token)
        core = [word for word in self._words if word not in PARTS]
        self._core, self._part = core or list(self._words), ""
        if len(core) < len(self._words):
            self._part = next(word for word in self._words if word not in core)
        self._best = 0
        self._forms: dict[Form, _Seen] = {}

    @property
    def undecided(self) -> list[str]:
        """The names between which the choice is; none where there is no choice."""
        most = max((seen.times for seen in self._forms.values()), default=0)
        rivals = [seen for seen in self._forms.values() if OFTEN * seen.times > most]
        return [name for seen in rivals for name in seen.names[:1]] if len(rivals) > 1 else []

    def take(self, found: Iterable[Reading], epoch: float | None) -> tuple[Reading, bool] | None:
        """The metric among what a line or a record says, and whether it is sure; None where it is not among them."""
        ranked = [(*self._rank(reading), reading) for reading in found]
        best = max((rank for rank, _, _ in ranked), default=0)
        if not best or best < self._best:
            return None
        if best > self._best:
            self._best, self._forms = best, {}
        chosen: dict[Form, Reading] = {}
        twice = False
        for rank, form, reading in ranked:
            if rank == best:
                twice = twice or (form in chosen and not _same(chosen[form].value, reading.value))
                chosen[form] = reading
                seen = self._forms.setdefault(form, _Seen(epoch, reading.value))
                seen.add(epoch, reading.value)
                seen.names = [*seen.names, reading.name][:1]
        if twice or len(chosen) > 1 or self.undecided:
            return None
        form, reading = next(iter(chosen.items()))
        seen = self._forms[form]
        rare = OFTEN * seen.times <= max(one.times for one in self._forms.values())
        return None if rare else (reading, seen.sure)

    def _rank(self, reading: Reading) -> tuple[int, Form]:
        """How well a name fits, from 1 on, and what makes it differ from others that fit as well; 0: it does not."""
        if reading.words == self._words:
            part = "" if self._part else reading.context
            rank = 0 if part in TRAINING else 4 if part else 3
            return rank, ((), part, reading.unit)
        tokens = list(reading.tokens)
        own = ""
        while len(tokens) > 1 and all_parts(tokens[-1]):  # Loss/val
            own = next(word for word in tokens.pop() if not word.isdecimal())
        joined = False
        while tokens and len(tokens[-1]) > 1 and tokens[-1][-1] in PARTS:  # loss_val
            own, joined = tokens[-1][-1], True
            tokens[-1] = tokens[-1][:-1]
        left = len(self._core)
        while left and tokens:
            token = tokens.pop()
            if token == tuple(self._core[max(0, left - len(token)) : left]):
                left -= len(token)
            elif len(token) > left and list(token[-left:]) == self._core[:left] and all_parts(token[:-left]):
                own, joined, left = own or token[0], True, 0  # val_loss
            else:
                return 0, ()
        words = [word for token in tokens for word in token]
        if left or _NOT_NOW.intersection(words):
            return 0, ()
        parts = [word for word in words if word in PARTS]
        part = own or (parts[-1] if parts else reading.context)
        others = tuple(t for t in tokens if not set(t) <= _NOTHING and not all(word.isdecimal() for word in t))
        if part in TRAINING if not self._part else part != self._part:
            return 0, ()
        if len(others) > MAX_WORDS:
            return 0, ()
        rank = 1 if self._part or (joined and part) else 4 if part else 2 if others else 3
        return rank, (others, part, reading.unit)


def _same(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))
