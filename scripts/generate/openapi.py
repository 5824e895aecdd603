"""The API's OpenAPI document."""

from __future__ import annotations

import json
import tempfile
from contextlib import closing
from pathlib import Path

from coach.handler.handler import Handler
from coach.handler.offline import NullPlatform
from coach.handler.state.state_directory import StateDirectory
from coach.plugins import policy
from coach.service.http_app import make_app
from coach.service.operations import Service

PAGE = Path("docs/reference/openapi.json")


def document() -> str:
    """The document as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        home = StateDirectory(Path(folder))
        with closing(home.open_journal()) as journal:
            allocator = policy("coach")
            handler = Handler(NullPlatform(), journal, allocator)
            service = Service(home, handler, journal=journal.path, past={}, nodes=(), policy=allocator, folders=())
            with closing(service):
                return json.dumps(make_app(service, "").openapi(), indent=1, ensure_ascii=False) + "\n"
