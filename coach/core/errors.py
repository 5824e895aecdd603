"""Errors of Coach.

    CoachError
     +- UserError        the user's mistake: never retried, exit code 2
     +- TemporaryError   may pass by itself: retried a bounded number of times
     +- PermanentError   will not pass by itself: not retried, exit code 5

Every message says what failed, the value seen, what was done about it, and the next command.
"""


class CoachError(Exception):
    """Any error that Coach raises on purpose. `exit_code` is the exit code of the command."""

    exit_code = 1


class UserError(CoachError):
    """The user requested something impossible; nothing was started."""

    exit_code = 2


class TemporaryError(CoachError):
    """Something that may pass by itself; the caller retries within bounds."""

    exit_code = 5


class PermanentError(CoachError):
    """Something that will not pass by itself; the caller gives up."""

    exit_code = 5
