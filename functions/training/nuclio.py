"""The Nuclio handler of all functions, COACH_ROLE says of which. docs/reference/functions.md has what it answers."""

import os

from training.function import Function


def init_context(context):
    """Start warming up. Nuclio calls this once for each worker process."""
    context.user_data.function = Function(os.environ["COACH_ROLE"])


def handler(context, event):
    """Answer one request."""
    status, body = context.user_data.function.handle(event.body)
    return context.Response(body=body, content_type="application/json", status_code=status)
