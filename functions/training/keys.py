"""Who may speak to a function, and to the members of a group.

A function in a pod has its job's key, and answers only who shows it. A group has a key of its own, which comes with the
start message: by it its members and their scheduler prove to each other who they are, and neither shows it.
"""

import hmac
import os

#: The environment variable with a function's key, and the header that shows it.
VARIABLE, HEADER = "COACH_KEY", "X-Coach-Key"


def own() -> str:
    """The key of this function, which no process that it starts sees; empty where it was given none."""
    return os.environ.pop(VARIABLE, "")


def fits(shown: object, key: str) -> bool:
    """Whether that is the key, in constant time; nothing is where there is none."""
    shown = shown if isinstance(shown, bytes) else str(shown or "").encode(errors="replace")
    return bool(key) and hmac.compare_digest(shown, key.encode())


def proof(key: str, *words: str) -> str:
    """What only who has the key can say about these words."""
    return hmac.new(key.encode(), "\n".join(words).encode(), "sha256").hexdigest()


def refusal() -> dict:
    """The answer to others."""
    return {"error": {"reason": "BadRequest", "message": f"the header {HEADER} does not show this function's key"}}
