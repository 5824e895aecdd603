"""`coach deploy`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Target(StrEnum):
    """The targets of a deployment."""

    NUCLIO = "nuclio"


def command(
    target: Annotated[Target, typer.Argument(help="Where to: nuclio, on Kubernetes.")],
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Job files.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resources, deploy nothing.")] = False,
    namespace: Annotated[str, typer.Option(help="Kubernetes namespace of the functions.")] = "default",
    image: Annotated[
        str | None, typer.Option(help="Image of the functions, for jobs that name none.")
    ] = None,
) -> None:
    """Render the Nuclio functions of jobs as Kubernetes resources.

    One function for each member of a job's largest gang, with 0 replicas. Only --dry-run so far: the output can be
    read, kept, and given to kubectl. What Nuclio's own configuration must say is in the comment at its head.

    Example: coach deploy nuclio jobs/lenet-digits.yaml --dry-run
    """
    import yaml

    from coach.cli.job_files import load
    from coach.core.errors import UserError
    from coach.platforms.local.environment import Functions
    from coach.platforms.nuclio import resources

    if not dry_run:
        raise UserError(
            "coach deploy nuclio only renders so far: add --dry-run, and give its output to kubectl"
        )
    config = yaml.safe_dump(resources.platform_config(), sort_keys=False)
    typer.echo("# Nuclio's platform configuration (Helm value `platform`) must have:")
    typer.echo("".join(f"#   {line}\n" for line in config.splitlines()), nl=False)
    folder = Functions.folder_only()
    for index, job in enumerate(load(files, check_files=False)):
        documents = list(resources.functions(job.spec, folder, namespace, image))
        if index == 0:
            documents.insert(0, resources.project(namespace))
        typer.echo(yaml.safe_dump_all(documents, sort_keys=False, explicit_start=True), nl=False)
