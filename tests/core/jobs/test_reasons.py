"""Every reason means something, and what people and scripts read follows from it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from coach.core.gang.plan import PendingReason
from coach.core.jobs.reasons import REFUSED, RESUMABLE, Reason, Retry, State

ROOT = Path(__file__).parents[3]

#: What a function, a platform or the handler can say of an attempt, and what is done about it.
ATTEMPTS = {
    Reason.BAD_REQUEST: Retry.NEVER,
    Reason.BUSY: Retry.BOUNDED,
    Reason.MODEL_INVALID: Retry.NEVER,
    Reason.MODEL_TIMEOUT: Retry.NEVER,
    Reason.DATA_MISSING: Retry.NEVER,
    Reason.DATA_INVALID: Retry.NEVER,
    Reason.LOSS_NOT_FINITE: Retry.NEVER,
    Reason.OUT_OF_MEMORY: Retry.NEVER,
    Reason.DEVICE_MEMORY: Retry.NEVER,
    Reason.POD_REFUSED: Retry.NEVER,
    Reason.CHECKPOINT_MISSING: Retry.BOUNDED,
    Reason.CHECKPOINT_INVALID: Retry.BOUNDED,
    Reason.STORAGE_FAILED: Retry.BOUNDED,
    Reason.PEER_LOST: Retry.BOUNDED,
    Reason.FUNCTION_LOST: Retry.BOUNDED,
    Reason.DEVICE_LOST: Retry.BOUNDED,
    Reason.START_TIMED_OUT: Retry.BOUNDED,
    Reason.STALLED: Retry.BOUNDED,
    Reason.DEADLINE_EXCEEDED: Retry.BOUNDED,
    Reason.INTERNAL: Retry.BOUNDED,
    Reason.PROGRAM_FAILED: Retry.NEVER,
    Reason.CANCELLED_OUTSIDE: Retry.NEVER,
    Reason.HANDLER_RESTARTED: Retry.FREE,
    Reason.DISRUPTED: Retry.FREE,
}


def test_every_reason_has_a_meaning_in_words_of_its_own() -> None:
    words = [reason.words for reason in Reason]
    assert all(words) and len(set(words)) == len(words)


def test_every_failed_attempt_has_its_retry_class_and_decides_no_state() -> None:
    assert {reason for reason in Reason if reason.state is None} == set(ATTEMPTS)
    assert {reason: reason.retry for reason in ATTEMPTS} == ATTEMPTS


def test_an_attempt_that_coach_or_the_cluster_ended_is_not_counted() -> None:
    free = {reason for reason in Reason if reason.retry is Retry.FREE}
    assert free == RESUMABLE | {Reason.HANDLER_RESTARTED, Reason.DISRUPTED}


def test_pods_that_the_cluster_does_not_make_now_are_waited_for() -> None:
    assert {Reason.QUOTA_EXCEEDED, Reason.PODS_DELAYED, Reason.DEVICES_TAKEN} == REFUSED
    assert {reason.state for reason in REFUSED} == {State.WAITING}


def test_every_state_has_an_exit_code_and_only_ends_have_one_of_their_own() -> None:
    assert {state.exit_code for state in State if not state.ended} == {130}
    assert [s.exit_code for s in (State.SUCCEEDED, State.FAILED, State.BUDGET_EXHAUSTED)] == [0, 1, 3]
    assert State.TARGET_UNREACHABLE.exit_code == 4


@pytest.mark.parametrize("reason", list(Reason))
def test_a_job_that_ends_or_stops_for_a_reason_has_an_exit_code(reason: Reason) -> None:
    """A job that is given up for the reason of an attempt has failed (`coach.core.jobs.job`)."""
    state = reason.state or State.FAILED
    assert state.exit_code in (0, 1, 3, 4, 130)
    assert (state.exit_code == 130) == (not state.ended)


def test_every_reason_of_a_function_is_a_reason_of_coach_and_is_documented() -> None:
    tree = ast.parse((ROOT / "functions/training/errors.py").read_text())
    (mapping,) = (
        node for node in tree.body if isinstance(node, ast.AnnAssign | ast.Assign) and "REASONS" in ast.dump(node)
    )
    reasons = {node.value for node in ast.walk(mapping) if isinstance(node, ast.Constant)}
    assert len(reasons) > 10
    assert {Reason(reason) for reason in reasons} <= set(ATTEMPTS)
    page = (ROOT / "docs/project/worker-protocol.md").read_text()
    table = page.partition("## Reasons of errors")[2].partition("## ")[0]
    assert reasons == set(re.findall(r"`([A-Z][A-Za-z]+)`", "".join(re.findall(r"^\| `.*?\|", table, re.M))))


@pytest.mark.parametrize("state", list(State))
def test_every_state_is_reached_by_a_reason(state: State) -> None:
    assert any(reason.state is state for reason in Reason)


def test_every_wait_of_a_gang_is_a_reason_for_a_job() -> None:
    for wait in PendingReason:
        state = Reason(wait.value).state
        assert state is (State.FAILED if wait is PendingReason.NEVER_FITS else State.WAITING)
