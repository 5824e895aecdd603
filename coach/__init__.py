"""Coach trains a network to a target within a budget, and finds the workers and servers on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coach.service.client import AsyncClient, Client

__all__ = ["AsyncClient", "Client", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """The clients, imported when they are first used: commands that need none stay fast."""
    if name in ("AsyncClient", "Client"):
        from coach.service import client

        return getattr(client, name)
    raise AttributeError(f"module 'coach' has no attribute {name!r}")
