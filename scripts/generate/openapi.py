"""The API's OpenAPI document, and the list of requests in docs/reference/http-api.md."""

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
from scripts.generate.marks import between

PAGE = Path("docs/reference/openapi.json")
TABLE_PAGE = Path("docs/reference/http-api.md")
BEGIN = "<!-- requests: written by python -m scripts.generate -->"
END = "<!-- end of requests -->"


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


def table(text: str) -> str:
    """The requests of a document, each with the first sentence about it."""
    lines = []
    for path, operations in json.loads(text)["paths"].items():
        for method, operation in operations.items():
            sentence = " ".join(operation["description"].split("\n\n")[0].split()).partition(". ")[0].removesuffix(".")
            lines.append(f"- `{method.upper()} {path}`: {sentence}")
    return "\n".join(lines) + "\n"


def page(text: str, described: str) -> str:
    """`text` of the page with the requests of a document. Raises ValueError without marks."""
    return between(text, BEGIN, END, table(described))
