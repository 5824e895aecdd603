"""What exceptions of torch mean."""

#: In the text of a RuntimeError of torch's allocators.
_NO_MEMORY = ("can't allocate memory", "out of memory", "not enough memory")


def failure(error: Exception) -> tuple[str, str] | None:
    """See training.backend.Framework."""
    if isinstance(error, RuntimeError) and any(sign in str(error) for sign in _NO_MEMORY):
        return "OutOfMemory", str(error).split("\n")[0]
    return None
