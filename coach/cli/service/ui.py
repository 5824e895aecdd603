"""`coach ui`."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from coach.cli.options import complete_job


def command(
    job: Annotated[
        str, typer.Argument(metavar="[JOB]", help="Open the page of this job.", autocompletion=complete_job)
    ] = "",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port where no service runs; 0 takes a free one.")] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open a browser, or only print the address.")
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
    from coach.cli.operations import operations

    def opened(url: str, code: str, words: str) -> None:
        if words:
            typer.echo(words, err=True)
        where = f"/jobs/{quote(job)}" if job else ""
        address = f"{url}/ui/#login={code}{where}"
        typer.echo(address)
        if browser:
            import webbrowser

            webbrowser.open(address)

    with operations() as coach:
        if job:
            coach.job(job)
        coach.page(port, opened)
