"""Loading a user's model file: an ordinary Python file that defines net() and loss(), and needs no Coach import."""

import sys
import traceback
from types import ModuleType

from training import storage
from training.errors import TrainingError

REQUIRED = ("net", "loss")


def read(uri: str, sha256: str | None) -> tuple[bytes, str]:
    """The file's content and its SHA-256. Raises TrainingError ModelInvalid or StorageFailed."""
    source = storage.read(uri, missing="ModelInvalid")
    digest = storage.sha256(source)
    if sha256 is not None and digest != sha256:
        raise TrainingError("ModelInvalid", f"{uri} has sha256 {digest}, the job says {sha256}")
    return source, digest


def run(uri: str, source: bytes, digest: str) -> ModuleType:
    """The module that running the file makes.

    Raises TrainingError ModelInvalid when it cannot be run or lacks a function.
    """
    module = ModuleType(f"model_{digest[:12]}")
    module.__file__ = uri
    sys.modules[module.__name__] = module  # dataclasses and pickle look classes up there
    try:
        exec(compile(source, uri, "exec"), module.__dict__)  # noqa: S102 - running it is what it is for
    except Exception as error:
        raise invalid(uri, error) from error
    except SystemExit as error:
        raise TrainingError(
            "ModelInvalid", f"{uri} called exit({error.code!r}) while being loaded"
        ) from error
    for name in REQUIRED:
        if not callable(getattr(module, name, None)):
            raise TrainingError("ModelInvalid", f"{uri} defines no function {name}()")
    return module


def invalid(uri: str, error: BaseException) -> TrainingError:
    """ModelInvalid for an exception raised by the user's code, naming the line of the user's file.

    One that has a reason already keeps it, and memory that ran out is not the code's fault.
    """
    if isinstance(error, TrainingError):
        return error
    if isinstance(error, MemoryError):
        return TrainingError("OutOfMemory", f"{uri}: {error}")
    if isinstance(error, SyntaxError):
        return TrainingError("ModelInvalid", f"{uri} line {error.lineno}: {error.msg}")
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == uri]
    place = f"{uri} line {lines[-1]}" if lines else uri
    # MXNet puts its C++ stack behind the first paragraph of a message.
    text = str(error).strip().split("\nStack trace:")[0].strip()
    return TrainingError("ModelInvalid", f"{place}: {type(error).__name__}: {text}")
