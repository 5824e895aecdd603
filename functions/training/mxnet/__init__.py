"""MXNet 1.9.1: all that is its own. Importing this imports MXNet, without starting a thread or an operation."""

import ctypes
import os
import sys

# Threads are set in each child (limit_threads). A pool made here would not survive the fork.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_variable] = "1"
# The role is a member's, not the machine's: with one of these MXNet would turn into a server while being imported.
for _variable in [name for name in os.environ if name.startswith(("DMLC_", "PS_"))]:
    del os.environ[_variable]
os.environ.pop("PORT", None)  # ps-lite would bind its members' sockets there

# MXNet tries to import both for parts that are not used here; without them the import takes 1.5 s, not 2.8 s. A model
# file can still import them itself.
_hidden = [name for name in ("sklearn", "scipy") if name not in sys.modules]
for _name in _hidden:
    sys.modules[_name] = None  # type: ignore[assignment]
try:
    import mxnet as mx
finally:
    for _name in _hidden:
        del sys.modules[_name]

#: Environment variables that give a member its role in ps-lite. ps-lite reads them, and sets the rank, in threads of
#: its own while others train. A new name makes the C library move the whole environment, and threads that read it
#: crash. So all names are set before there is a thread, and from then on only their values change.
PS_LITE = ("ROLE", "PS_ROOT_URI", "PS_ROOT_PORT", "NUM_WORKER", "NUM_SERVER", "NODE_HOST", "RANK")
for _name in PS_LITE:
    os.environ[f"DMLC_{_name}"] = ""


class _Cpu(ctypes.Structure):
    """MXNet's C++ Context of the processor."""

    _fields_ = (("kind", ctypes.c_int32), ("number", ctypes.c_int32))


_ON_ENGINE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


def limit_threads(threads: int) -> None:
    """Let convolutions, matrix products and the like use so many threads in this process.

    MXNet's fork handler leaves a child one engine thread with OpenMP set to one, and OpenMP's number belongs to the
    thread that starts a parallel region: so it is set from within the engine's own thread.
    """
    if threads == 1:
        return
    library = mx.base._LIB
    call = _ON_ENGINE(lambda *_: library.omp_set_num_threads(ctypes.c_int(threads)))
    cpu = _Cpu(1, 0)
    mx.base.check_call(
        library.MXEnginePushSync(call, None, None, ctypes.byref(cpu), None, 0, None, 0, None, 0, b"limit_threads")
    )
    mx.nd.waitall()  # and `call` must live until it was called


#: In the text of an MXNetError: a memory pool, mshadow's own buffers, C++'s new.
_NO_MEMORY = ("Failed to allocate", "AlignedMallocPitch", "bad_alloc")


def failure(error: Exception) -> tuple[str, str] | None:
    """The reason and message behind MXNet's own errors; None for others."""
    if not isinstance(error, mx.base.MXNetError):
        return None
    text = str(error).split("\nStack trace:")[0].strip()
    if any(sign in text for sign in _NO_MEMORY):
        return "OutOfMemory", text
    return "Internal", f"MXNet: {text}"
