"""What coordinator and members say to each other, and what they want done."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, get_args


def worker_of(member: str) -> int:
    """The rank of the worker function whose process a member is: `3` of `3.1f2e`."""
    return int(member.partition(".")[0])


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


FromMember = Hello | Formed | NotFormed | Entered | Broken | Left | Waiting | Idle | Alive
Message = FromMember | Order | Drop | Out | Ping
_KINDS = {kind.__name__: kind for kind in get_args(Message)}


def encode(message: Message) -> dict[str, Any]:
    """As JSON has it."""
    return {"membership": type(message).__name__, **asdict(message)}


def decode(encoded: Mapping[str, Any]) -> Message:
    """The inverse of encode, also after a way through JSON."""
    fields = {key: value for key, value in encoded.items() if key != "membership"}
    if fields.get("view") is not None:
        view = fields["view"]
        lists = {key: tuple(view[key]) for key in ("members", "newcomers")}
        fields["view"] = View(**{**view, **lists})
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
