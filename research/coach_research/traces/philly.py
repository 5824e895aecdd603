"""`cluster_job_log` of the Philly traces: a JSON list of jobs, with their attempts and the devices of each machine."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from coach_research.traces.clock import time_of
from coach_research.traces.draft import Draft, shown, task, vector
from coach_research.traces.text import whole

#: Cores that a task is assumed to request for each device: the trace has neither cores nor memory.
CORES_PER_GPU = 4.0

#: Its times are of this zone: those of the same trace's utilisation say PDT and PST.
ZONE = ZoneInfo("America/Los_Angeles")

SPACE = re.compile(r"\s*")


def read_philly(draft: Draft) -> None:
    """Read the file into `draft`: a job runs as long as all its attempts, on the devices of its last one."""
    for line, job in _objects(draft):
        _read_job(draft, line, job)
    if draft.works:
        draft.assume(f"{CORES_PER_GPU:g} cores and no memory for each device, as the trace says nothing of them")


def _objects(draft: Draft) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of the list, each with its line. Raises UserError."""
    text = whole(draft)
    decoder, at, line, seen = json.JSONDecoder(), _skip(text, 0), 1, 0

    def mistake(why: str) -> Exception:
        number = 1 + text.count("\n", 0, at)
        return draft.mistake(number, why, at - text.rfind("\n", 0, at))

    if not text.strip():
        raise draft.mistake(0, "the file is empty; a JSON list of jobs is expected")
    if text[at] != "[":
        raise mistake(f"{shown(text[at])!r} begins the file; a JSON list of jobs is expected")
    at = _skip(text, at + 1)
    while text[at : at + 1] != "]":
        line, seen = line + text.count("\n", seen, at), at
        try:
            found, end = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            at = min(error.pos, len(text))
            raise mistake(f"the JSON is broken ({error.msg})") from error
        except (RecursionError, ValueError) as error:
            raise mistake("the JSON is nested too deeply, or has a number too long") from error
        if not isinstance(found, dict):
            raise mistake(f"a job is expected, as an object; {shown(str(found))} is given")
        yield line, found
        at = _skip(text, end)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
        elif text[at : at + 1] != "]":
            raise mistake('the JSON is broken: "," or "]" is expected')


def _skip(text: str, at: int) -> int:
    found = SPACE.match(text, at)
    return found.end() if found else at


def _read_job(draft: Draft, line: int, job: dict[str, Any]) -> None:
    name, attempts = job.get("jobid"), job.get("attempts")
    if not isinstance(name, str) or not name:
        raise draft.mistake(line, "the job has no jobid")
    if not isinstance(attempts, list) or not all(isinstance(attempt, dict) for attempt in attempts):
        raise draft.mistake(line, f"attempts of job {shown(name)}: a list of objects is expected")
    arrival = time_of(draft, line, "submitted_time", job.get("submitted_time"), ZONE)
    seconds, odd = 0.0, 0
    gpus: list[int] = []
    whys: list[str] = []
    for attempt in attempts:
        start, end = (time_of(draft, line, of, attempt.get(of), ZONE) for of in ("start_time", "end_time"))
        took, why = _took(start, end)
        if took > 0:
            seconds += took
            gpus = _gpus(draft, line, name, attempt) or gpus
            whys += [why] if why else []
        else:
            odd += 1
    reasons = []
    if name in draft.lines:
        reasons.append("a job before it has its number")
    if not attempts:
        reasons.append("it has no attempt")
    elif seconds <= 0:
        reasons.append("none of its attempts has a start, and an end after it")
    elif not sum(gpus):
        reasons.append("none of its attempts names a device")
    if arrival is None:
        reasons.append("its time of submission is not known")
    if reasons or arrival is None:
        draft.leave_out(name, line, reasons)
        return
    if odd:
        whys.append("without the attempts that have no start, or no end after it")
    each = math.gcd(*gpus)  # devices of one task
    worker = vector(each * CORES_PER_GPU, 0, each)
    kind = str(job.get("status", ""))
    draft.keep(task(name, kind, arrival.timestamp(), seconds, sum(gpus) // each, worker), line, dict.fromkeys(whys))


def _took(start: datetime | None, end: datetime | None) -> tuple[float, str]:
    """Seconds of an attempt, and what is assumed for that; 0 or less: none are known."""
    if start is None or end is None:
        return 0.0, ""
    took = end.timestamp() - start.timestamp()
    later = end.replace(fold=1).timestamp() - start.timestamp()
    if took <= 0 < later:
        return later, "an end within the hour that daylight saving repeats is the later one"
    return took, ""


def _gpus(draft: Draft, line: int, name: str, attempt: dict[str, Any]) -> list[int]:
    """The devices of each machine that has any."""
    try:
        return [count for machine in attempt.get("detail") or [] if (count := len(machine["gpus"]))]
    except (KeyError, TypeError) as error:
        raise draft.mistake(
            line, f'detail of job {shown(name)}: a list of machines is expected, each with its "gpus"'
        ) from error
