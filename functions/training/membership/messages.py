"""What coordinator and members say to each other, and what they want done."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, get_args


def worker_of(member: str) -> int:
    """The rank of the function whose process a member is: `3` of the worker `3.1f2e`, of the server `3.1f2e@host:9`."""
    return int(member.partition(".")[0])


def is_server(member: str) -> bool:
    """Whether it is a parameter server: its name has the address where it serves."""
    return "@" in member


@dataclass(frozen=True)
class View:
    """Members that train together, in the order of their ranks."""

    number: int
    #: Under which its members find each other. Never used twice, by no coordinator.
    prefix: str
    members: tuple[str, ...]
    #: Those whose state is replaced when they enter, whatever they hold. All: the first one founds the group.
    newcomers: tuple[str, ...] = ()
    #: Whether it begins when all agree, after a step; else at once.
    planned: bool = False
    #: Parameter servers, if the group has them, and by the number of a slice of the weights which of them owns it.
    servers: tuple[str, ...] = ()
    owner: tuple[int, ...] = ()
    #: The number of the view that founded the group: what servers got before is void.
    founded: int = 0


@dataclass(frozen=True)
class _Numbered:
    number: int  #: of a view


@dataclass(frozen=True)
class _OfView:
    view: View


# -- a member to the coordinator ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hello:
    """Ready to train. With a view: from a member that goes on after its coordinator was lost."""

    view: View | None = None
    #: Whether its connections in that view are in order.
    intact: bool = False
    #: The highest number of a view that it ever heard of.
    seen: int = 0
    #: See Idle.
    idle: bool = False
    #: Elements of its weights, where servers are to hold them.
    size: int = 0
    #: See Copied.
    copied: int = 0


class Formed(_Numbered):
    """Connected to all members of that view."""


class NotFormed(_Numbered):
    """That view could not be formed."""


@dataclass(frozen=True)
class Entered:
    """Trains in this view, with the state that all have."""

    view: View
    clock: int


class Broken(_Numbered):
    """An exchange in that view failed; this member waits for another view."""


@dataclass(frozen=True)
class Left:
    """Trains no more. With a view: all had agreed on that one, which this member is not in."""

    view: View | None = None


class Waiting(_Numbered):
    """Has been waiting for the others of that view for a while."""


@dataclass(frozen=True)
class Idle:
    """Whether this member waits for its next epoch."""

    idle: bool


@dataclass(frozen=True)
class Copied:
    """Has a copy of what servers hold, of this position: it can found the group anew from that."""

    position: int


@dataclass(frozen=True)
class Alive:
    """The answer to Ping."""


# -- the coordinator to a member ---------------------------------------------------------------------------------------


class Order(_OfView):
    """Form this view."""


class Drop(_Numbered):
    """That planned view will not be."""


@dataclass(frozen=True)
class Out:
    """This member is in no view any more. With a reason it is not what it asked for."""

    because: str | None = None


@dataclass(frozen=True)
class Ping:
    """A member that hangs does not answer."""


FromMember = Hello | Formed | NotFormed | Entered | Broken | Left | Waiting | Idle | Copied | Alive
Message = FromMember | Order | Drop | Out | Ping
_KINDS = {kind.__name__: kind for kind in get_args(Message)}


def encode(message: Message) -> dict[str, Any]:
    """As JSON has it."""
    return {"membership": type(message).__name__, **asdict(message)}


def as_view(encoded: Mapping[str, Any]) -> View:
    """A view from its fields, after a way through JSON."""
    return View(**{key: tuple(each) if isinstance(each, list) else each for key, each in encoded.items()})


def decode(encoded: Mapping[str, Any]) -> Message:
    """The inverse of encode, also after a way through JSON."""
    fields = {key: value for key, value in encoded.items() if key in _KINDS[encoded["membership"]].__dataclass_fields__}
    if fields.get("view") is not None:
        fields["view"] = as_view(fields["view"])
    return _KINDS[encoded["membership"]](**fields)


# -- commands of the coordinator ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Send:
    """Send a message to a member."""

    member: str
    message: Message


@dataclass(frozen=True)
class Timer:
    """Call timed_out(key) after so many seconds."""

    key: tuple
    seconds: float


@dataclass(frozen=True)
class Lose:
    """This member does not count any more; end its process if it still runs."""

    member: str
    because: str


# -- commands of a member ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tell:
    """Send a message to the coordinator."""

    message: Message


class Form(_OfView):
    """Begin to connect to the members of this view, in the background; then formed() or not_formed()."""


class Close(_OfView):
    """Close this view's connections at once: members that wait in it get an error."""


@dataclass(frozen=True)
class Give:
    """Send a member of the view entered what it lacks: the last result, or the whole state."""

    member: str
    whole: bool


@dataclass(frozen=True)
class Take:
    """Receive from that member what this one lacks. A whole state is of `clock`."""

    member: str
    whole: bool
    clock: int


@dataclass(frozen=True)
class Found:
    """Make the initial state: the others get it from here."""


@dataclass(frozen=True)
class End:
    """Stop training. With a reason it is not what was asked for."""

    because: str | None = None
