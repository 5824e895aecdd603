"""What a request about a job would do, computed before it is sent. The numbers are those of this moment."""

from __future__ import annotations

from enum import StrEnum

from coach.core.errors import UserError
from coach.core.jobs.job import Job, Phase
from coach.core.money import Money, to_amount
from coach.handler.interactive_run import over
from coach.handler.resume_rules import refuse_resume
from coach.report import formatting
from coach.service import schemas


class Of(StrEnum):
    """The requests."""

    CANCEL = "cancel"
    SUSPEND = "suspend"
    SUSPEND_NOW = "suspend-now"
    RESUME = "resume"
    ADD_BUDGET = "add-budget"


def consequences(job: Job, of: Of, now: float) -> schemas.Consequences:
    """What `of` would do to `job` at `now` (seconds since 1970)."""
    refusal = _refusal(job, of)
    stops = of in (Of.CANCEL, Of.SUSPEND_NOW) and not refusal
    order = job.attempts.running if stops and job.phase is Phase.RUNNING else None
    lost = None if order is None else job.ordinal(order.number, order.kind)
    so_far = min(_unbilled(job, now), job.money.ledger.reserved) if not job.ended else 0
    reserved = job.money.ledger.reserved if of in (Of.CANCEL, Of.SUSPEND, Of.SUSPEND_NOW) and not refusal else 0
    back = max(0, reserved - so_far)
    spent = job.money.ledger.spent + (so_far if reserved else 0)
    return schemas.Consequences(
        of=of.value,
        allowed=not refusal,
        refusal=refusal,
        text=refusal or _words(job, of, lost, so_far, back, spent),
        epoch_lost=lost,
        checkpoint_epoch=job.epochs[-1].ordinal if job.epochs else None,
        lost=to_amount(so_far if lost is not None else 0),
        comes_back=to_amount(back),
        stays_spent=to_amount(spent),
        currency=job.price_book.currency,
    )


def _refusal(job: Job, of: Of) -> str:
    try:
        if of is Of.RESUME:
            refuse_resume(job, 0)
        elif of is Of.ADD_BUDGET:
            refuse_resume(job, 1)
        elif job.ended:
            return f"{job.name} has ended already: {job.state.value}"
        elif job.stop.cancel:
            return f"{job.name} is being cancelled"
        elif of is not Of.CANCEL and over(job):
            return f"{job.name} is suspended already"
    except UserError as error:
        return str(error)
    return ""


def _unbilled(job: Job, now: float) -> Money:
    """The price of what it holds since it was billed last."""
    until = min(now, job.money.lease_until) if job.money.lease_until else now
    seconds = max(0.0, until - job.money.billed_until) if job.money.billed_until else 0.0
    return job.cost_until(job.money.billed_until + seconds)


def _words(  # noqa: PLR0917
    job: Job, of: Of, lost: int | None, so_far: Money, back: Money, spent: Money
) -> str:
    def money(amount: Money) -> str:
        return formatting.money(amount, job.price_book.currency)

    start = formatting.resumes_from(job)
    kept = (
        "there is no checkpoint, so Resume would begin anew"
        if start == "the start"
        else f"{start} stays, and Resume goes on from it"
    )
    if of is Of.RESUME:
        where = f"from {start}"
        left = job.money.ledger.left
        rest = "" if left is None else f" It may spend at most {money(left)} more."
        return f"It goes on {where}; {money(job.money.ledger.spent)} are spent so far.{rest}"
    if of is Of.ADD_BUDGET:
        budget = job.money.ledger.budget or 0
        running = "It goes on with the new one" if not (job.ended or job.stop.suspend) else f"It is resumed: {kept}"
        return f"Its budget is {money(budget)} now, {money(job.money.ledger.spent)} of it spent. {running}."
    parts = []
    if lost is not None and job.attempts.running is not None:
        parts.append(f"{job.name_of(job.attempts.running)} is lost ({money(so_far)} so far)")
    elif of is Of.SUSPEND and job.attempts.running is not None:
        parts.append(f"{job.name_of(job.attempts.running)} is trained to its end first, and counts")
    if of is Of.SUSPEND and job.attempts.running is not None:
        parts.append(f"what it does not use of {money(back)} reserved comes back")
    else:
        parts += [f"{money(back)} reserved come back"] if back else []
        parts.append(f"{money(spent)} stay spent")
    parts.append(kept)
    text = "; ".join(parts)
    return text[0].upper() + text[1:] + "."
