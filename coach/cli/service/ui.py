"""`coach ui`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from coach.cli.options import complete_job

if TYPE_CHECKING:
    from coach.handler.state.state_directory import StateDirectory


def command(
    job: Annotated[
        str, typer.Argument(metavar="[JOB]", help="Open the page of this job.", autocompletion=complete_job)
    ] = "",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port where no service runs; 0 takes a free one.")] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open a browser, or only print the address.")
    ] = True,
    serve: Annotated[
        bool, typer.Option("--serve/--no-serve", help="Where no service runs: serve the page, or fail.")
    ] = True,
) -> None:
    """Look at jobs in a browser.

    Opens the page of the running service (`coach serve`). Where none runs, this command serves the page itself until
    Ctrl-C: it shows all jobs of COACH_HOME, finished or running, and changes none. The address that it prints logs a
    browser in once, within a minute.

    With --context the page is the cluster's: a port of this machine is passed on to the handler until Ctrl-C.

    \b
    Examples:
      coach ui
      coach ui lenet-digits
      coach --context kind-dev ui lenet-digits
    """
    from coach.cli.job_lookup import past_jobs
    from coach.handler import endpoint
    from coach.handler.state.state_directory import StateDirectory
    from coach.service.client import service_of

    home = StateDirectory.default()
    if job:
        past_jobs([job])
    if endpoint.find(home) or not serve:
        with service_of(home) as client:
            _open(client.url, client.login_codes().code, job, browser)
        return
    _serve(home, job, port, browser)


def _open(url: str, code: str, job: str, browser: bool) -> None:
    from urllib.parse import quote

    where = f"/jobs/{quote(job)}" if job else ""
    address = f"{url}/ui/#login={code}{where}"
    typer.echo(address)
    if browser:
        import webbrowser

        webbrowser.open(address)


def _serve(home: StateDirectory, job: str, port: int, browser: bool) -> None:
    from coach.service.read_only import serve_page

    def ready(url: str, code: str) -> None:
        typer.echo("the page of the jobs in this folder, without a service: it changes nothing; Ctrl-C ends it")
        _open(url, code, job, browser)

    raise typer.Exit(serve_page(home, port, ready))
