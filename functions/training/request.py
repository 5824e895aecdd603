"""The start message: every field is checked before anything starts, and all faults are reported at once."""

import math
from collections.abc import Callable, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Annotated, Any, get_args, get_type_hints

from training import storage
from training.errors import TrainingError

ROLES = ("scheduler", "server", "worker")
#: `custom` (or `model`) leaves reading to the model file's data().
OWN_FORMATS = ("custom", "model")
FORMATS = ("digits-json", "idx", "cifar10", "digits8x8", "npz", *OWN_FORMATS)
#: These know where their data is.
NEED_NO_URI = ("digits8x8", *OWN_FORMATS)


def _whole(least: int, most: int = 2**53) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int):
            return "must be a whole number"
        return None if least <= value <= most else f"must be at least {least}" + (f", at most {most}" * (most < 2**53))

    return check


def _positive(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        return "must be a number above 0"
    return None


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) and 0 < len(value) <= 4096 else "must be a text of 1 to 4096 characters"


def _uri(value: Any) -> str | None:
    return _text(value) or storage.wrong_scheme(value)


def _uris(value: Any) -> str | None:
    if not isinstance(value, list):
        return "must be a list of texts"
    return next((fault for each in value if (fault := _uri(each))), None)


def ranks(value: Any) -> str | None:
    """The fault of what should name workers, or servers, by their ranks."""
    good = (
        isinstance(value, list)
        and value
        and all(type(each) is int and each >= 0 for each in value)
        and len(set(value)) == len(value)
    )
    return None if good else "must be one or more ranks, each once"


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


def _one_of(*choices: str) -> Callable[[Any], str | None]:
    return lambda value: None if value in choices else f"must be one of {', '.join(choices)}"


#: What may be left out.
NULL = ", or null"


def _or_null(check: Callable[[Any], str | None]) -> Callable[[Any], str | None]:
    def optional(value: Any) -> str | None:
        fault = None if value is None else check(value)
        return f"{fault.removesuffix(NULL)}{NULL}" if fault else None

    return optional


def _address(value: Any) -> str | None:
    host, _, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    good = host and port.isascii() and port.isdigit() and 1024 <= int(port) <= 65534
    return None if good else "must be host:port, with a port of 1024 to 65534"


def _object(**checks: Callable[[Any], str | None]) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        if not isinstance(value, dict):
            return f"must be an object with {', '.join(checks)}"
        faults = [f"{key} is not known" for key in value if key not in checks]
        faults += [f"{key} {fault}" for key, test in checks.items() if (fault := test(value.get(key)))]
        return "; ".join(faults) or None

    return check


def _hexadecimal(value: Any) -> str | None:
    good = isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")
    return None if good else "must be 64 lower-case hexadecimal digits"


def _files(value: Any) -> str | None:
    good = isinstance(value, dict) and not any(
        name.startswith("/") or ".." in name.split("/") or _hexadecimal(sha256) for name, sha256 in value.items()
    )
    return None if good else "must be SHA-256 by relative path"


def _key(value: Any) -> str | None:
    good = isinstance(value, str) and value.isascii() and 16 <= len(value) <= 255
    return None if good else "must be a text of 16 to 255 ASCII characters"


def _arguments(value: Any) -> str | None:
    good = isinstance(value, dict) and all(name.isidentifier() for name in value)
    return None if good else "must be values by the names of parameters"


def _optimizer(value: Any) -> str | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return "must be an object with a name"
    return None


_MODEL = _object(
    uri=_uri,
    sha256=_or_null(_hexadecimal),
    net=_or_null(_text),
    files=_or_null(_files),
    args=_or_null(_arguments),
)
_DATA = _object(uri=_or_null(_uri), format=_one_of(*FORMATS), sha256=_or_null(_hexadecimal), size=_or_null(_whole(1)))
Text = Annotated[str, _text]
Uri = Annotated[str, _uri]
Whole = Annotated[int, _whole(0)]
Positive = Annotated[float, _positive]
Flag = Annotated[bool, _flag]


@dataclass(frozen=True, kw_only=True)
class _Epoch:
    """What may differ between two epochs of one formed group."""

    epoch: Text
    deadline: Positive
    position: Whole = 0
    samples: Whole | None = None
    fraction: Positive | None = None
    epoch_samples: Annotated[int, _whole(1)] | None = None
    seconds: Positive | None = None
    weights_in: Uri | None = None
    weights_out: Uri | None = None
    obsolete: Annotated[Sequence[str], _uris] = ()
    evaluate: Flag = True
    members: Annotated[Sequence[int], ranks] | None = None
    server_members: Annotated[Sequence[int], ranks] | None = None
    wait_for_all: Flag = False


@dataclass(frozen=True, kw_only=True)
class StartRequest(_Epoch):
    """One epoch of one role. docs/project/worker-protocol.md describes each field; times are seconds, memory GiB.

    A field's type has its check, which gives the fault of a value; without a type None, null is a fault.
    """

    group: Text
    key: Annotated[str, _key]
    role: Annotated[str, _one_of(*ROLES)]
    rank: Whole
    workers: Annotated[int, _whole(1, 4096)]
    servers: Annotated[int, _whole(0, 4096)]
    root: Annotated[str, _address]
    host: Text
    model: Annotated[dict, _MODEL] | None = None
    data: Annotated[dict, _DATA] | None = None
    batch_size: Whole = 0
    micro_batch: Annotated[int, _whole(1)] | None = None
    evaluation_batch: Annotated[int, _whole(1)] = 256
    clip: Annotated[dict, _object(norm=_or_null(_positive), value=_or_null(_positive))] | None = None
    readers: Annotated[int, _whole(0, 64)] = 0
    optimizer: Annotated[dict, _optimizer] | None = None
    seed: Annotated[int, _whole(0, 2**31 - 1)] = 0
    mode: Annotated[str, _one_of("sync", "async")] = "sync"
    memory: Positive | None = None
    threads: Annotated[int, _whole(1, 1024)] = 1
    elastic: Flag = False
    deterministic: Flag = False
    autocast: Annotated[str, _one_of("bfloat16")] | None = None
    gpu: Flag = False
    model_seconds: Positive = 30.0

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


def _check_of(hint: Any) -> Callable[[Any], str | None]:
    if type(None) in get_args(hint):
        return _or_null(_check_of(next(each for each in get_args(hint) if each is not type(None))))
    return hint.__metadata__[0]


CHECKS = {name: _check_of(hint) for name, hint in get_type_hints(StartRequest, include_extras=True).items()}


def parse(body: Any, role: str) -> StartRequest:
    """Check a start message that came to a function of `role`.

    Raises TrainingError BadRequest with every fault, each naming its field.
    """
    given = {key: value for key, value in body.items() if key != "op"}
    faults = [f"{key} is not a known field" for key in given if key not in CHECKS]
    required = [field.name for field in fields(StartRequest) if field.default is MISSING]
    faults += [f"{key} is missing" for key in required if key not in given]
    faults += [f"{key} {fault}" for key, value in given.items() if key in CHECKS and (fault := CHECKS[key](value))]
    if not faults:
        request = StartRequest(**given)
        faults = _agreement(request, role)
    if faults:
        raise TrainingError("BadRequest", "; ".join(faults))
    return request


def _agreement(request: StartRequest, role: str) -> list[str]:
    """Faults between fields that are each well formed."""
    faults = []
    count = {"scheduler": 1, "server": request.servers, "worker": request.workers}[request.role]
    if request.role != role:
        faults.append(f"role is {request.role}, but this function is a {role}")
    if request.elastic and request.mode != "sync":
        faults.append(f"elastic groups are synchronous: mode is {request.mode}, and must be sync")
    if request.rank >= count and not (request.elastic and request.role != "scheduler"):
        faults.append(f"rank is {request.rank}, but the group has {count} of role {request.role}")
    if request.role != "worker":
        return faults
    if request.model is None or request.data is None:
        faults.append("a worker needs model and data")
    elif request.data.get("uri") is None and request.data["format"] not in NEED_NO_URI:
        faults.append(f"data uri is missing; only {', '.join(NEED_NO_URI)} do without")
    if (request.samples is None) == (request.fraction is None):
        faults.append("either samples or fraction must say how much to train")
    if request.fraction is not None and request.fraction > 1:
        faults.append(f"fraction is {request.fraction:g}, more than the whole data set")
    if request.batch_size < request.workers:
        faults.append(f"batch_size is {request.batch_size}, less than one sample for each of {request.workers} workers")
    if request.seconds is not None and request.workers != 1 and not request.elastic:
        faults.append("seconds is for one worker only, or an elastic group: others would stop at different steps")
    if request.position > 0 and request.weights_in is None:
        faults.append(f"position is {request.position}, so weights_in must name the checkpoint to go on from")
    return faults
