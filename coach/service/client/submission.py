"""Submitting more files than one request may have: several requests, and what was accepted where a later one fails."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from coach.core.errors import CoachError, TemporaryError
from coach.service import schemas
from coach.service.client.clients import Client

#: Bytes of a request that are not its files' text.
SPARE = 4096


class PartlySubmittedError(CoachError):
    """A later request of a submission failed. `taken`: the jobs of the earlier ones; the exit code is the failure's."""

    def __init__(self, taken: Sequence[schemas.TakenJob], files: int, left: Sequence[Path], cause: CoachError) -> None:
        self.taken = list(taken)
        self.exit_code = cause.exit_code
        rest = shlex.join(map(str, left[:1])) + (f" and the {len(left) - 1} files after it" if len(left) > 1 else "")
        known = "may have been submitted too (see: coach ps)" if isinstance(cause, TemporaryError) else "was not"
        super().__init__(
            f"{len(taken)} jobs of the first {files} files were submitted, and go on; {rest} {known}: {cause}"
        )


def submit_all(client: Client, files: Sequence[Path], policy: str = "", *, key: str = "") -> schemas.Submitted:
    """Submit job files in as many requests as they need, each all or none, one after the other.

    `key`: as of `Client.submit`; each further request has its own, made of it. Raises what `Client.submit` raises where
    nothing was submitted, else PartlySubmittedError.
    """
    done: list[schemas.Submitted] = []
    sent = 0
    for number, part in enumerate(parts(files, policy)):
        try:
            done.append(client.submit(part, policy, key=f"{key}-{number + 1}" if key and number else key))
        except CoachError as error:
            if not done:
                raise
            taken = [job for one in done for job in one.jobs]
            raise PartlySubmittedError(taken, sent, files[sent:], error) from error
        sent += len(part)
    return schemas.Submitted(seq=done[0].seq, jobs=[job for one in done for job in one.jobs])


def parts(files: Sequence[Path], policy: str = "") -> Iterator[list[Path]]:
    """The files in the order given, as many at once as a request may have."""
    part: list[Path] = []
    size = 0
    for file in files:
        sent = {"path": str(file.absolute()), "text": file.read_bytes().decode("utf-8", "replace")}
        bytes_of = len(json.dumps(sent, ensure_ascii=False).encode()) + 1
        if part and (len(part) == schemas.MAX_FILES or size + bytes_of + SPARE + len(policy) > schemas.MAX_BODY):
            yield part
            part, size = [], 0
        part.append(file)
        size += bytes_of
    if part:
        yield part
