"""Loading a user's model file: an ordinary Python file with a network and its loss, without any import of Coach."""

import contextlib
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import ModuleType

from training import backend, linux, storage
from training.errors import TrainingError
from training.model.siblings import Siblings
from training.model.siblings import run as run_source


@dataclass(frozen=True)
class Source:
    """A model file and the files next to it that it imports, as they were when their hashes were taken."""

    uri: str
    content: bytes
    sha256: str
    net: str = "net"  #: the name of what makes the network
    files: dict[str, bytes] = field(default_factory=dict)  #: by their path from the model file's folder


#: Finds what the model that was run last imports from next to it.
_siblings: list[Siblings] = []


def as_program(name: str) -> str:
    """What to do with a file that is no model file, but a whole program."""
    return f"a program with a loop of its own runs as it is: coach run -- python {name.rpartition('/')[2]}"


def took_too_long(uri: str, seconds: str) -> str:
    """The message about a file that is not read to its end."""
    return f"loading the model took over {seconds} s; {as_program(uri)}"


def shown(uri: str) -> str:
    """What messages, tracebacks and the file's own __file__ call it: its path where it is on this machine."""
    path = storage.local_path(uri)
    return uri if path is None else str(path)


def read(model: dict) -> Source:
    """What a start message's `model` names. Raises TrainingError ModelInvalid or StorageFailed."""
    uri = model["uri"]
    content, digest = _verified(uri, model.get("sha256"))
    folder = uri.rpartition("/")[0]
    files = {
        name: _verified(f"{folder}/{name}" if folder else name, sha256)[0]
        for name, sha256 in (model.get("files") or {}).items()
    }
    return Source(uri, content, digest, model.get("net") or "net", files)


def _verified(uri: str, sha256: str | None) -> tuple[bytes, str]:
    content = storage.read(uri, missing="ModelInvalid")
    digest = storage.sha256(content)
    if sha256 is not None and digest != sha256:
        message = (
            f"{uri} has sha256 {digest}, the job says {sha256}: it was changed since the job was submitted; "
            "to go on with the file as it is now: coach resume JOB --accept-model"
        )
        raise TrainingError("ModelInvalid", message)
    return content, digest


def run(source: Source) -> ModuleType:
    """The module that running the file makes. It sees what `python FILE` would: its own sys.argv, and files next to it.

    Raises TrainingError ModelInvalid when it cannot be run or lacks what the framework needs.
    """
    name = shown(source.uri)
    module = ModuleType(f"model_{source.sha256[:12]}")
    module.__file__ = name
    while _siblings:
        _siblings.pop().remove()
    siblings = Siblings(name.rpartition("/")[0], source.files)
    siblings.install()
    _siblings.append(siblings)
    sys.argv = [name]
    sys.modules[module.__name__] = module  # dataclasses and pickle look classes up there
    threads = linux.threads()
    try:
        with users_code(source.uri):
            run_source(source.content, name, module)
    except SystemExit as error:
        message = f"{name} called exit({error.code!r}) while being loaded; {as_program(name)}"
        raise TrainingError("ModelInvalid", message) from error
    if not backend.current().stops_threads and (started := linux.threads() - threads) > 0:
        # In a fork their pools and locks would be there without them: what waits for those hangs.
        raise TrainingError(
            "ModelInvalid",
            f"{name} starts {started} thread{'s' if started > 1 else ''} when it is read. A worker is a fork of the "
            "process that reads it, and threads do not survive a fork: compute, and start threads, in its functions",
        )
    backend.current().require(module, name, source.net)
    return module


@contextlib.contextmanager
def users_code(uri: str) -> Iterator[None]:
    """What is raised in here comes from the model file. Raises TrainingError, as `invalid` has it."""
    try:
        yield
    except TrainingError:
        raise
    except Exception as error:
        raise invalid(uri, error) from error


def invalid(uri: str, error: BaseException) -> TrainingError:
    """ModelInvalid for an exception raised by the user's code, naming the last line in one of the user's files.

    One that has a reason already keeps it, and memory that ran out is not the code's fault.
    """
    if isinstance(error, TrainingError):
        return error
    known = backend.current().failure(error)
    if known is not None and known[0] == "OutOfMemory":
        return TrainingError(*known)
    uri = shown(uri)
    if isinstance(error, MemoryError):
        return TrainingError("OutOfMemory", f"{uri}: {error}")
    if isinstance(error, SyntaxError):
        return TrainingError("ModelInvalid", f"{error.filename or uri} line {error.lineno}: {error.msg}")
    own = {uri, *(place for each in _siblings for place in each.places)}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in own]
    place = f"{frames[-1].filename} line {frames[-1].lineno}" if frames else uri
    # MXNet puts its C++ stack behind the first paragraph of a message.
    text = str(error).strip().split("\nStack trace:")[0].strip()
    hint = ""
    if isinstance(error, ModuleNotFoundError):
        hint = (
            f"; install it in {sys.executable}, or put it next to the model file, where Coach finds what import "
            "statements name; where it could not read the model file, spec.model.files names what is next to it"
        )
    name = type(error).__name__
    text = text.removeprefix(f"{name}: ")  # MXNet's begin with their own name
    return TrainingError("ModelInvalid", f"{place}: {name}: {text}{hint}")


def of_user(error: BaseException, uri: str) -> str:
    """The traceback of what the user's code raised, from the model file on; empty where it has no part in it."""
    cause = error.__cause__ or error
    frames = traceback.extract_tb(cause.__traceback__)
    first = next((number for number, frame in enumerate(frames) if frame.filename == shown(uri)), None)
    if isinstance(cause, SyntaxError) and cause.filename == shown(uri):
        first = len(frames)
    if first is None:
        return ""
    head = "Traceback (most recent call last):\n"
    return "".join([head, *traceback.format_list(frames[first:]), *traceback.format_exception_only(cause)])
