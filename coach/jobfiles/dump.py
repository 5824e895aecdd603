"""Writes jobs as job files: what differs from the defaults, in the type's order, with comments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import yaml

from coach.core.spec.job import TrainingJob
from coach.core.spec.training import Framework
from coach.jobfiles.diagnostics import plain
from coach.jobfiles.yaml_nodes import resolve

#: Comments by the path of the key that they are written above.
Comments = Mapping[tuple[str, ...], str]

_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./:@+-]*")
_WIDEST_FLOW = 72


def to_yaml(job: TrainingJob, comments: Comments | None = None) -> str:
    """One document, which reads again as an equal job. The comment of the path () is its first line."""
    spec = job.model_dump(mode="json", by_alias=True, exclude_none=True)["spec"]
    document = job.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
    if not job.spec.has_servers:
        document["spec"].pop("servers", None)  # the default of such a job
    elif job.spec.framework is Framework.PYTORCH:
        document["spec"].setdefault("servers", {"max": job.spec.servers.max})
    if job.spec.program is not None:
        document["spec"].pop("framework", None)
        document["spec"]["workers"] = spec["workers"]  # the default of a program is another one than a model's
        document["spec"].pop("stopEarly", None)
        if job.spec.stop_early != (job.spec.target is not None and job.spec.program.resumes):
            document["spec"]["stopEarly"] = job.spec.stop_early
    document["spec"] = {key: document["spec"][key] for key in spec if key in document["spec"]}
    inside = dict(comments or {})
    top = inside.pop((), "")
    lines = [*_comment(top, 0), *_block(document, (), inside)]
    return "\n".join(lines) + "\n"


def as_new(job: TrainingJob) -> str:
    """Its document for another job: without the hashes of files, which may have changed since."""
    spec = job.spec
    work = {
        name: part.model_copy(update={"sha256": None} | ({"files": None} if name == "model" else {}))
        for name, part in (("model", spec.model), ("program", spec.program))
        if part is not None
    }
    return to_yaml(job.model_copy(update={"spec": spec.model_copy(update=work)}))


def to_yaml_file(documents: Sequence[str], head: str = "") -> str:
    """The text of a file with these documents, and a comment on top."""
    top = "".join(f"{line}\n" for line in _comment(head, 0))
    return top + "---\n".join(documents)


def _comment(text: str, depth: int) -> list[str]:
    return [f"{'  ' * depth}# {plain(line, 300)}".rstrip() for line in text.splitlines()]


def _block(value: Mapping[str, Any], at: tuple[str, ...], comments: Comments) -> list[str]:
    lines = []
    depth = len(at)
    for key, inner in value.items():
        path = (*at, key)
        lines += _comment(comments.get(path, ""), depth)
        start = f"{'  ' * depth}{_scalar(key)}:"
        if not isinstance(inner, Mapping):
            lines.append(f"{start} {_scalar(inner)}")
            continue
        flow = _flow(inner)
        comment_inside = any(other[: len(path)] == path and other != path for other in comments)
        if flow and depth > 0 and not comment_inside and len(start) + len(flow) < _WIDEST_FLOW:
            lines.append(f"{start} {flow}")
        else:
            lines += [start, *_block(inner, path, comments)]
    return lines


def _flow(value: Mapping[str, Any]) -> str | None:
    """A mapping of plain values on one line; None for one with mappings inside."""
    if any(isinstance(inner, Mapping) for inner in value.values()):
        return None
    return "{" + ", ".join(f"{_scalar(key)}: {_scalar(inner)}" for key, inner in value.items()) + "}"


def _scalar(value: Any) -> str:
    """A scalar that reads as itself, for us and for readers of YAML 1.1 such as kubectl."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_scalar, value))}]"
    return _text(str(value))


@lru_cache(4096)
def _text(text: str) -> str:
    """See `_scalar`; kept, as the keys are those of every job."""
    bare = _PLAIN.fullmatch(text) and not text.endswith(":") and resolve(text) == text
    if bare and yaml.safe_load(text) == text:
        return text
    quoted: str = yaml.dump(text, Dumper=yaml.SafeDumper, default_style='"', width=10**9)
    return quoted.rstrip("\n")
