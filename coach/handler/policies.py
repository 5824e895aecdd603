"""The commands' option `--policy`, applied to the jobs."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from coach.core.errors import UserError
from coach.core.policies import Policy, StaticPolicy
from coach.core.spec.job import JobSpec, TrainingJob
from coach.core.spec.resources import PolicyName
from coach.plugins import policy


def chosen_policy(text: str, specs: Sequence[TrainingJob]) -> tuple[Policy, list[TrainingJob]]:
    """The policy that shares the cluster out, and the jobs with what `text` says in place of their own policy.

    Without a text the jobs keep theirs. Raises UserError for an unknown policy, and where a static allocation is
    outside a job's limits.
    """
    if not text:
        return policy("coach"), list(specs)
    chosen = policy(text)
    if isinstance(chosen, StaticPolicy):
        workers, servers = chosen.allocation
        fixed = {"name": PolicyName.STATIC.value, "workers": workers}
        # Jobs without servers take the workers alone.
        return policy("coach"), [
            _with(spec, fixed | {"servers": servers if spec.spec.has_servers else 0}, text) for spec in specs
        ]
    return chosen, [_with(spec, {"name": PolicyName.COACH.value}, text) for spec in specs]


def with_policy(text: str, specs: Sequence[TrainingJob], running: Policy) -> list[TrainingJob]:
    """The jobs as `text` says, for a handler that shares its cluster out by the policy `running`.

    Raises UserError for another policy than that one. A static allocation is allowed: it concerns its job only.
    """
    chosen, changed = chosen_policy(text, specs)
    if text and not text.startswith("static") and chosen.name != running.name:
        raise UserError(
            f"--policy {text}: the service that runs shares the cluster out by {running.name}; "
            "leave --policy out, or start the service with another"
        )
    return changed


def _with(spec: TrainingJob, fixed: dict[str, object], text: str) -> TrainingJob:
    document = spec.to_json()
    document["spec"]["policy"] = fixed
    try:
        return TrainingJob.from_json(document)
    except ValidationError as error:
        raise UserError(
            f"--policy {text} is outside the limits of job {spec.name}, which allow {allowed(spec.spec)}; "
            "nothing was started: give others in --policy, or change the job file"
        ) from error


def allowed(spec: JobSpec) -> str:
    """The counts that a job's limits allow, in words."""
    workers = f"{spec.workers.min} to {spec.workers.max} workers"
    if not spec.has_servers:
        return workers
    return f"{workers} and {spec.servers.min} to {spec.servers.max} servers"
