"""The start message. Coach writes it, and a key shows that; so only that both know the same fields is checked."""

import math
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, get_args, get_origin, get_type_hints

from training.errors import TrainingError

ROLES = ("scheduler", "server", "worker")
#: `custom` (or `model`) leaves reading to the model file's data().
OWN_FORMATS = ("custom", "model")


@dataclass(frozen=True, kw_only=True)
class _Epoch:
    """What may differ between two epochs of one formed group."""

    epoch: str
    deadline: float
    position: int = 0
    samples: int | None = None
    fraction: float | None = None
    epoch_samples: int | None = None
    seconds: float | None = None
    weights_in: str | None = None
    weights_out: str | None = None
    obsolete: Sequence[str] = ()
    evaluate: bool = True
    members: Sequence[int] | None = None
    server_members: Sequence[int] | None = None
    wait_for_all: bool = False


@dataclass(frozen=True, kw_only=True)
class StartRequest(_Epoch):
    """One epoch of one role. docs/project/worker-protocol.md describes each field; times are seconds, memory GiB."""

    group: str
    key: str
    role: str
    rank: int
    workers: int
    servers: int
    root: str
    host: str
    model: dict | None = None
    data: dict | None = None
    batch_size: int = 0
    micro_batch: int | None = None
    evaluation_batch: int = 256
    clip: dict | None = None
    readers: int = 0
    optimizer: dict | None = None
    seed: int = 0
    mode: str = "sync"
    memory: float | None = None
    threads: int = 1
    elastic: bool = False
    deterministic: bool = False
    autocast: str | None = None
    gpu: bool = False
    model_seconds: float = 30.0

    @property
    def root_address(self) -> tuple[str, int]:
        """Where the group's scheduler listens."""
        host, _, port = self.root.rpartition(":")
        return host, int(port)

    @property
    def line_address(self) -> tuple[str, int]:
        """Where it listens for the connections of training.connections.lines."""
        host, port = self.root_address
        return host, port + 1

    @property
    def net(self) -> str:
        """The name of the function or class in the model file that makes the network."""
        return self.model.get("net") or "net"

    @property
    def name(self) -> str:
        """How messages call this member: `worker 1`."""
        return f"{self.role} {self.rank}"

    @classmethod
    def alone(cls, **given: Any) -> "StartRequest":
        """Of a worker in no group, which trains no epoch."""
        member = {"epoch": "alone", "group": "alone", "key": "", "role": "worker", "rank": 0, "workers": 1}
        return cls(**member, servers=0, root="", host="", deadline=math.inf, samples=0, **given)

    def as_dict(self) -> dict:
        """The message again, for another process."""
        return asdict(self)

    def group_part(self) -> dict:
        """The fields that must stay the same while the group stays formed."""
        changing = {field.name for field in fields(_Epoch)} | ({"workers", "servers"} if self.elastic else set())
        return {name: value for name, value in asdict(self).items() if name not in changing}


def _kinds(hint: Any) -> tuple[type, ...]:
    """The types that JSON has for a field's."""
    kinds = get_args(hint) if type(None) in get_args(hint) else (hint,)
    as_json = {float: (float, int)}
    return tuple(kind for each in kinds for kind in as_json.get(each, (list if get_origin(each) else each,)))


_KINDS = {name: _kinds(hint) for name, hint in get_type_hints(StartRequest).items()}


def parse(body: Any, role: str) -> StartRequest:
    """A start message that came to a function of `role`.

    Raises TrainingError BadRequest with every field that is not known, missing, or of another type.
    """
    given = {key: value for key, value in body.items() if key != "op"}
    faults = [f"{key} is not a known field" for key in given if key not in _KINDS]
    faults += [
        f"{one.name} is missing" for one in fields(StartRequest) if one.default is MISSING and one.name not in given
    ]
    faults += [
        f"{key} is {value!r:.60}, and must be {' or '.join(kind.__name__ for kind in _KINDS[key])}"
        for key, value in given.items()
        if key in _KINDS and not isinstance(value, _KINDS[key])
    ]
    if given.get("role", role) != role:
        faults.append(f"role is {given['role']!r:.60}, but this function is a {role}")
    if faults:
        raise TrainingError("BadRequest", "; ".join(faults))
    return StartRequest(**given)


def ranks(value: Any) -> bool:
    """Whether a value names workers, or servers, by their ranks: one or more, each once."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(type(each) is int and each >= 0 for each in value)
        and len(set(value)) == len(value)
    )
