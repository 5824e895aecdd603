"""The Nuclio handler of all functions, of COACH_ROLE. docs/project/worker-protocol.md has what it answers."""

import os

from training import keys
from training.function import Function


def init_context(context):
    """Start warming up. Nuclio calls this once for each worker process."""
    context.user_data.key = keys.own()
    context.user_data.function = Function(os.environ["COACH_ROLE"])


def handler(context, event):
    """Answer one request, of who shows the key."""
    shown = {_text(name).lower(): value for name, value in (event.headers or {}).items()}
    if keys.fits(shown.get(keys.HEADER.lower()), context.user_data.key):
        status, body = context.user_data.function.handle(event.body)
    else:
        status, body = 403, keys.refusal()
    return context.Response(body=body, content_type="application/json", status_code=status)


def _text(name):
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)
