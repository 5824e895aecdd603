"""The HTTP API over a service: FastAPI checks and documents it, `coach.service.operations` does the work."""

from __future__ import annotations

from functools import cache
from importlib import metadata
from typing import Any

from fastapi import Depends, FastAPI, Security
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.security import HTTPBearer
from starlette.routing import BaseRoute

from coach.service.errors import answer_errors
from coach.service.job_history import Stories
from coach.service.metrics import Metrics
from coach.service.middleware import Guard, refuse_unknown_queries, remember_route
from coach.service.operations import Service
from coach.service.page.login import Logins
from coach.service.page.routes import LOGIN, login, page
from coach.service.views.job_routes import Context, jobs, process, service_wide
from coach.service.views.routes import views
from coach.service.views.search_routes import searches
from coach.service.views.stream import Feed

#: The file of a state folder with the logins that were ended.
LOGGED_OUT = "service.logged-out"


def make_app(
    service: Service,
    token: str,
    *,
    port: int = 0,
    hosts: frozenset[str] = frozenset(),
) -> FastAPI:
    """The API of a service, and its page; callers need `token`.

    `port` names the cookie; `hosts`: names of the service in addition to its addresses, for browsers.
    """
    metrics = Metrics(service)
    app = _Documented(
        title="Coach",
        version=metadata.version("coach-trainer"),
        description="Train to a target within a budget. Everything but /health, /openapi.json and /api/v1/login "
        "needs the token.",
        docs_url=None,
        redoc_url=None,
        routes=_routes(),
    )
    app.state.context = Context(service, Stories(service.home), metrics)
    app.state.feed = Feed(service)
    app.state.logins = logins = Logins(token, port, service.home.path / LOGGED_OUT)
    # A stream of events is not compressed: it would be held back.
    app.add_middleware(GZipMiddleware, minimum_size=2000, compresslevel=4)
    app.add_middleware(Guard, token=token, note=metrics.answered, logins=logins, hosts=hosts)
    answer_errors(app)
    return app


@cache
def _routes() -> list[BaseRoute]:
    """The routes of every application of this process: FastAPI reads their types when a request first comes."""
    app = FastAPI(
        openapi_url=None,
        generate_unique_id_function=lambda route: route.name,
        dependencies=[
            Security(HTTPBearer(auto_error=False, description="The token of the service.")),
            Depends(remember_route),
            Depends(refuse_unknown_queries),
        ],
    )
    for router in (process, service_wide, views, jobs, searches, login, page):
        app.include_router(router)
    return app.routes


class _Documented(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """FastAPI's document, made when it is first asked for: it takes half a second.

        Corrected in what FastAPI takes from the application, or from a route's own response type.
        """
        if self.openapi_schema is None:
            paths = super().openapi()["paths"]
            for path, method in (("/health", "get"), (LOGIN, "post")):
                paths[path][method].pop("security")  # they need no token
            unknown = paths["/metrics"]["get"]["responses"]["401"]["content"]
            unknown["application/json"] = unknown.pop("text/plain")  # errors are JSON everywhere
        assert self.openapi_schema is not None
        return self.openapi_schema
