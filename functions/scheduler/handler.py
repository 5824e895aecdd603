"""The Nuclio handler of a scheduler function. docs/reference/functions.md describes what it answers."""

import sys
from pathlib import Path

# The package that all three functions share is next to this file's folder.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from training.function import Function


def init_context(context):
    """Start warming up. Nuclio calls this once for each worker process."""
    context.user_data.function = Function("scheduler")


def handler(context, event):
    """Answer one request."""
    status, body = context.user_data.function.handle(event.body)
    return context.Response(body=body, content_type="application/json", status_code=status)
