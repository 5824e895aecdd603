"""`coach deploy`."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coach.cli.display.output import Format, console, printed, table
from coach.cli.options import VOLUMES, Context, Namespace, Output
from coach.core.errors import UserError

if TYPE_CHECKING:
    from coach.core.spec.job import TrainingJob
    from coach.platforms.kubernetes.settings import Settings

COLUMNS = ("job", "function", "image", "cpu", "memory")


class Target(StrEnum):
    """The targets of a deployment."""

    NUCLIO = "nuclio"


def command(  # noqa: PLR0917 - they are options
    target: Annotated[Target, typer.Argument(metavar="nuclio", help="Where to: Nuclio, on Kubernetes.")],
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Job files.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the objects for kubectl, deploy nothing.")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Remove the jobs' functions again.")] = False,
    context: Context = "",
    namespace: Namespace = "",
    image: Annotated[str | None, typer.Option(help="Image of the functions, for jobs that name none.")] = None,
    handler: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Whose runs may use them: coach-handler for a service that the chart started; "
            "without it, `coach run` on this machine.",
        ),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Deploy the Nuclio functions of jobs, or remove them.

    One function for each member of a job's largest gang, parked with 0 replicas: coach run --platform nuclio wakes them
    and parks them again. It makes its own where there are none, and removes those when the job ends.

    \b
    Examples:
      coach deploy nuclio job.yaml
      coach deploy nuclio job.yaml --dry-run
      coach deploy nuclio job.yaml --delete
    """
    import asyncio

    from coach.cli.job_files import load
    from coach.handler.state.state_directory import StateDirectory
    from coach.platforms.kubernetes.settings import Settings

    if dry_run and delete:
        raise UserError("--dry-run, --delete: one of them")
    jobs = [one.spec for one in load(files, check_files=not (dry_run or delete), volumes=VOLUMES)]
    settings = Settings.read(handler or StateDirectory.default().handler_id())
    if image:
        settings = replace(settings, image=image)
    if dry_run:
        _print(jobs, settings, namespace)
        return
    if delete:
        names = asyncio.run(_delete(jobs, settings, context, namespace))
        if output is Format.TABLE:
            many = f"{len(names)} function{'' if len(names) == 1 else 's'}"
            typer.echo(f"removed {many}" if names else "there were none to remove")
        else:
            _show([{"function": name} for name in names], output)
        return
    _show(asyncio.run(_deploy(jobs, settings, context, namespace)), output)


def _print(jobs: list[TrainingJob], settings: Settings, namespace: str) -> None:
    import yaml

    from coach.platforms.local.environment import Functions
    from coach.platforms.nuclio import resources

    config = yaml.safe_dump(resources.platform_config(settings.scheduler), sort_keys=False)
    typer.echo("# Nuclio's platform configuration (Helm value `platform`) must have:")
    typer.echo("".join(f"#   {line}\n" for line in config.splitlines()), nl=False)
    folder = Functions.folder_only()
    documents = [resources.project()]
    documents += [one for job in jobs for one in resources.objects(job, folder, settings)]
    for document in documents:
        if namespace:
            document["metadata"]["namespace"] = namespace
    typer.echo(yaml.safe_dump_all(documents, sort_keys=False, explicit_start=True), nl=False)


async def _deploy(jobs: list[TrainingJob], settings: Settings, context: str, namespace: str) -> list[dict[str, Any]]:
    from coach.platforms.kubernetes.settings import chart_settings
    from coach.platforms.kubernetes_api.client import Api
    from coach.platforms.local.environment import Functions
    from coach.platforms.nuclio.deployment import Deployment

    async with await Api.connect(context or None, namespace or None) as api:
        deployment = Deployment(api, await chart_settings(api, settings))
        return [_row(one) async for one in deployment.deploy(jobs, Functions.folder_only())]


async def _delete(jobs: list[TrainingJob], settings: Settings, context: str, namespace: str) -> list[str]:
    from coach.platforms.kubernetes_api.client import Api
    from coach.platforms.nuclio.deployment import Deployment

    async with await Api.connect(context or None, namespace or None) as api:
        return await Deployment(api, settings).delete([job.name for job in jobs])


def _row(function: dict[str, Any]) -> dict[str, Any]:
    requests = function["spec"]["resources"]["requests"]
    job = function["metadata"]["labels"]["coach.dev/job"]
    values = (job, function["metadata"]["name"], function["spec"]["image"], *requests.values())
    return dict(zip(COLUMNS, values, strict=True))


def _show(rows: list[dict[str, Any]], output: Format) -> None:
    if not printed(output, rows, list(rows[0]) if rows else COLUMNS):
        console().print(table({column.upper(): [row[column] for row in rows] for column in COLUMNS}, keys=2))
        typer.echo("deployed, with 0 replicas; a run wakes them: coach run FILE --platform nuclio", err=True)
