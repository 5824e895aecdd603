"""Loading a user's model file: an ordinary Python file with a network and its loss, without any import of Coach."""

import linecache
import sys
import traceback
from types import ModuleType

from training import backend, linux, storage
from training.errors import TrainingError


def shown(uri: str) -> str:
    """What messages, tracebacks and the file's own __file__ call it: its path where it is on this machine."""
    path = storage.local_path(uri)
    return uri if path is None else str(path)


def read(uri: str, sha256: str | None) -> tuple[bytes, str]:
    """The file's content and its SHA-256. Raises TrainingError ModelInvalid or StorageFailed."""
    source = storage.read(uri, missing="ModelInvalid")
    digest = storage.sha256(source)
    if sha256 is not None and digest != sha256:
        raise TrainingError("ModelInvalid", f"{uri} has sha256 {digest}, the job says {sha256}")
    return source, digest


def run(uri: str, source: bytes, digest: str, net: str = "net") -> ModuleType:
    """The module that running the file makes; `net` is the name of what makes the network.

    Raises TrainingError ModelInvalid when it cannot be run or lacks what the framework needs.
    """
    name = shown(uri)
    module = ModuleType(f"model_{digest[:12]}")
    module.__file__ = name
    text = source.decode(errors="replace")
    linecache.cache[name] = (
        len(text),
        None,
        text.splitlines(keepends=True),
        name,
    )  # tracebacks show its lines
    sys.modules[module.__name__] = module  # dataclasses and pickle look classes up there
    threads = linux.threads()
    try:
        exec(compile(source, name, "exec"), module.__dict__)  # noqa: S102 - running it is what it is for
    except Exception as error:
        raise invalid(uri, error) from error
    except SystemExit as error:
        raise TrainingError(
            "ModelInvalid", f"{name} called exit({error.code!r}) while being loaded"
        ) from error
    if not backend.current().stops_threads and (started := linux.threads() - threads) > 0:
        # In a fork their pools and locks would be there without them: what waits for those hangs.
        raise TrainingError(
            "ModelInvalid",
            f"{name} starts {started} thread{'s' if started > 1 else ''} when it is read. A worker is a fork of the "
            "process that reads it, and threads do not survive a fork: compute, and start threads, in its functions",
        )
    backend.current().require(module, name, net)
    return module


def invalid(uri: str, error: BaseException) -> TrainingError:
    """ModelInvalid for an exception raised by the user's code, naming the line of the user's file.

    One that has a reason already keeps it, and memory that ran out is not the code's fault.
    """
    if isinstance(error, TrainingError):
        return error
    uri = shown(uri)
    if isinstance(error, MemoryError):
        return TrainingError("OutOfMemory", f"{uri}: {error}")
    if isinstance(error, SyntaxError):
        return TrainingError("ModelInvalid", f"{uri} line {error.lineno}: {error.msg}")
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == uri]
    place = f"{uri} line {lines[-1]}" if lines else uri
    # MXNet puts its C++ stack behind the first paragraph of a message.
    text = str(error).strip().split("\nStack trace:")[0].strip()
    hint = ""
    if isinstance(error, ModuleNotFoundError):
        hint = f"; a model is one file: what it imports has to be installed in {sys.executable}"
    return TrainingError("ModelInvalid", f"{place}: {type(error).__name__}: {text}{hint}")
