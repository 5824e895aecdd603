"""Whether a budget is enough for the target: the money in place of ElasticFlow's minimum satisfactory share.

ElasticFlow (ASPLOS 2023, section 4.1) admits a job if the least GPUs that meet its deadline are there. Here it is the
least money that reaches the target: the epochs that remain, which are known with a probability, at the cost of the
cheapest allocation. Nothing is said before an earlier run, or enough of the job's own curve, shows how many remain.
"""

from __future__ import annotations

from dataclasses import dataclass

from coach.core.estimation.forms import FloatArray
from coach.core.jobs.job import KEPT_CURVES, Job
from coach.core.lifecycle import forecast, spending
from coach.core.money import to_amount

#: A budget is too small that reaches the target with less than this chance, and suffices with more than one minus it.
TOO_SMALL = 0.05
#: A job's own curve says so after this many full epochs, and in as many fits in a row as are kept.
SHOWN_EPOCHS = 8


@dataclass(frozen=True, slots=True)
class Enough:
    """The chance, at most, that the whole `budget` reaches the target; the least money that may, and what suffices.

    Amounts in currency units, what is spent included. `least` is for the fewest epochs and the cheapest at its lower
    bound; `suffices` for 95 % of the cases, at the expected cost.
    """

    budget: float
    currency: str
    chance: float
    least: float
    suffices: float

    @property
    def too_small(self) -> bool:
        """Whether the target is out of reach with 95 %."""
        return self.chance < TOO_SMALL

    @property
    def words(self) -> str:
        """What a person reads about it, with the numbers."""
        given, sure = f"{_plain(self.budget)} {self.currency}", f"{100 * (1 - TOO_SMALL):.0f} % of the cases"
        if self.budget >= self.suffices:
            return f"{given} are enough for the target: {_plain(self.suffices)} {self.currency} suffice in {sure}"
        return (
            f"{given} reach the target with a chance of at most {100 * self.chance:.0f} %: "
            f"{_plain(self.least)} {self.currency} are needed at least, {_plain(self.suffices)} suffice in {sure}"
        )


def _plain(amount: float) -> str:
    """Cents from 1 on, else two significant digits."""
    return f"{amount:.2f}" if amount >= 1 else f"{amount:.2g}"


def enough(job: Job, cheapest: float | None = None) -> Enough | None:
    """None without a target, a budget and a speed, and while nothing shows how many epochs remain.

    `cheapest`: expected currency units of the cheapest epoch, where earlier runs show more of it than the job itself.
    Before its first epoch a job does not know what an epoch takes beyond its steps, so `least` is of the steps alone.
    """
    chances = _chances(job)
    if not chances or job.speed is None or job.money.ledger.budget is None:
        return None
    budget, spent = to_amount(job.money.ledger.budget), to_amount(job.money.ledger.spent)
    bound = forecast.lowest_cost if job.epochs else forecast.cost_of_steps
    lowest = min(bound(job, at) for at in forecast.allocations(job))
    expected = forecast.cheapest_epoch(job) if cheapest is None else cheapest
    paid = int(max(0.0, budget - spent) / lowest) if lowest > 0.0 else spending.HORIZON
    return Enough(
        budget,
        job.spec.price_book.currency,
        max(1.0 - float(remain[paid]) if paid < len(remain) else 1.0 for remain in chances),
        spent + lowest * min(int((remain > 1.0 - TOO_SMALL).sum()) for remain in chances),
        spent + expected * max(int((remain > TOO_SMALL).sum()) for remain in chances),
    )


def _chances(job: Job) -> list[FloatArray]:
    """The probabilities that 1, 2, ... epochs or more remain, by each of the last fits; before, by earlier runs."""
    if job.spec.target is None:
        return []
    if not job.full_epoch_count:
        return [forecast.chances_to_remain(job, None)] if job.models.known_epochs is not None else []
    if job.full_epoch_count < SHOWN_EPOCHS or len(job.models.full_epoch_curves) < KEPT_CURVES:
        return []
    curves = job.models.full_epoch_curves
    if any(curve.endings(job.spec.target) is None for curve in curves):
        return []  # the target is out of reach for any money
    return [forecast.chances_to_remain(job, curve) for curve in curves]
