"""Every reason means something, and what people and scripts read follows from it."""

from __future__ import annotations

import pytest

from coach.core.gang import WaitReason
from coach.core.jobs.reasons import ENDED, EXIT_CODE, MEANING, Reason, Retry, State

#: What a function, a platform or the handler can say of an attempt, and what is done about it.
ATTEMPTS = {
    Reason.BAD_REQUEST: Retry.NEVER,
    Reason.MODEL_INVALID: Retry.NEVER,
    Reason.MODEL_TIMEOUT: Retry.NEVER,
    Reason.DATA_MISSING: Retry.NEVER,
    Reason.DATA_INVALID: Retry.NEVER,
    Reason.LOSS_NOT_FINITE: Retry.NEVER,
    Reason.OUT_OF_MEMORY: Retry.NEVER,
    Reason.CHECKPOINT_MISSING: Retry.BOUNDED,
    Reason.CHECKPOINT_INVALID: Retry.BOUNDED,
    Reason.STORAGE_FAILED: Retry.BOUNDED,
    Reason.PEER_LOST: Retry.BOUNDED,
    Reason.FUNCTION_LOST: Retry.BOUNDED,
    Reason.START_TIMED_OUT: Retry.BOUNDED,
    Reason.DEADLINE_EXCEEDED: Retry.BOUNDED,
    Reason.INTERNAL: Retry.BOUNDED,
    Reason.HANDLER_RESTARTED: Retry.FREE,
}


def test_every_reason_has_a_meaning_in_words_of_its_own() -> None:
    assert set(MEANING) == set(Reason)
    words = [meaning.words for meaning in MEANING.values()]
    assert all(words) and len(set(words)) == len(words)


def test_every_failed_attempt_has_its_retry_class_and_decides_no_state() -> None:
    assert {reason for reason, meaning in MEANING.items() if meaning.state is None} == set(ATTEMPTS)
    assert {reason: MEANING[reason].retry for reason in ATTEMPTS} == ATTEMPTS


def test_an_attempt_that_we_ended_ourselves_is_not_counted() -> None:
    free = {reason for reason, meaning in MEANING.items() if meaning.retry is Retry.FREE}
    assert free == {Reason.INTERRUPTED, Reason.HANDLER_RESTARTED}


def test_every_state_has_an_exit_code_and_only_ends_have_one_of_their_own() -> None:
    assert set(EXIT_CODE) == set(State)
    assert {EXIT_CODE[state] for state in State if not state.ended} == {130}
    assert [EXIT_CODE[s] for s in (State.SUCCEEDED, State.FAILED, State.BUDGET_EXHAUSTED)] == [0, 1, 3]
    assert EXIT_CODE[State.TARGET_UNREACHABLE] == 4


@pytest.mark.parametrize("state", list(State))
def test_every_state_is_reached_by_a_reason(state: State) -> None:
    assert state.ended == (state in ENDED)
    assert any(meaning.state is state for meaning in MEANING.values())


def test_every_wait_of_a_gang_is_a_reason_for_a_job() -> None:
    for wait in WaitReason:
        state = MEANING[Reason(wait.value)].state
        assert state is (State.FAILED if wait is WaitReason.NEVER_FITS else State.WAITING)
