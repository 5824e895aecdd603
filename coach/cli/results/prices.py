"""`coach prices`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coach.cli.display.output import Format, console, printed, table
from coach.cli.options import Output
from coach.core.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from coach.jobfiles.prices import Offer

#: Days after which prices are said to be old.
OLD_DAYS = 180
#: Rows of a table without --all.
MAX_ROWS = 40


class Sort(StrEnum):
    """Orders of the rows."""

    EACH = "each"
    PRICE = "price"
    SIZE = "size"
    NAME = "name"


def command(  # noqa: PLR0917 - they are options
    search: Annotated[
        list[str] | None,
        typer.Argument(metavar="WORD", help="Words in the name of an offer, its GPU or region; or: set PRICE, here."),
    ] = None,
    gpu: Annotated[str, typer.Option(metavar="NAME", help="Only machines with this GPU, such as H100.")] = "",
    below: Annotated[
        float, typer.Option(metavar="PRICE", min=0.0, help="At most this an hour: of one GPU, or of a core.")
    ] = float("inf"),
    spot: Annotated[bool, typer.Option("--spot", help="Spot prices.")] = False,
    cloud: Annotated[str, typer.Option(metavar="NAME", help="Only this cloud.")] = "",
    region: Annotated[str, typer.Option(metavar="NAME", help="Only regions that begin so, such as us-east.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="All rows, and every region.")] = False,
    of_functions: Annotated[
        bool, typer.Option("--functions", help="What clouds take for functions, instead of machines.")
    ] = False,
    currency: Annotated[str, typer.Option(metavar="CODE", help="Show prices in this currency.")] = "",
    rate: Annotated[
        list[str] | None, typer.Option(metavar="RATE", help="Your rate for it, such as EUR=1.08USD.")
    ] = None,
    sort: Annotated[Sort, typer.Option(help="By the price of a GPU or core, of a machine, or its size.")] = Sort.EACH,
    max_age: Annotated[
        int, typer.Option("--max-age", metavar="DAYS", min=0, help="Warn of prices that are older.")
    ] = OLD_DAYS,
    metadata: Annotated[
        str, typer.Option(metavar="URL", help="With here: the metadata service, where it is not the cloud's own.")
    ] = "",
    output: Output = Format.TABLE,
) -> None:
    """List, search and compare prices of machines.

    The cheapest GPU or core comes first. They are from SkyPilot's catalogues in ~/.sky/catalogs, or in the folder
    COACH_CATALOGS, where there are some, else from the small one that Coach ships. A job is billed by an offer that
    its file names: prices: nebius/gpu-h100-sxm_1gpu-16vcpu-200gb, with @REGION, :spot, and :whole or :hour after it.

    Currencies are converted by your rates alone.

    `coach prices set` keeps what this machine costs you, for jobs whose files say no prices: of a GPU, a core, a GiB
    of memory, or the whole machine an hour. `coach prices here` keeps the offer that this machine is: where its DMI
    data name AWS, Google or Azure it asks that cloud's metadata service once, for a second at most.

    \b
    Examples:
      coach prices --gpu H100 --below 3
      coach prices --cloud aws --spot -o csv
      coach prices h200 --currency EUR --rate EUR=1.08USD
      coach prices set 0.40USD/gpuh 0.02USD/coreh 0.002USD/gibh
      coach prices here
    """
    from coach.jobfiles.prices import cheapest, in_currency, offers

    if search and search[0] == "set":
        _keep(search[1:])
        return
    if search == ["here"]:
        _keep_here(metadata)
        return
    if metadata:
        raise UserError("--metadata: only with coach prices here")
    if of_functions:
        _show_functions(output)
        return
    words = [word.lower() for word in search or ()]
    found = [
        offer
        for offer in offers([cloud] if cloud else ())
        if (not gpu or offer.gpu.lower() == gpu.lower())
        and offer.region.startswith(region)
        and all(word in f"{offer.name} {offer.gpu} {offer.region}".lower() for word in words)
        and offer.price(spot=spot) is not None
    ]
    found = in_currency(found, currency, rate or ())
    chosen = found if everything else list(cheapest(found, spot=spot).values())
    rows = [row for row in (_row(one, spot) for one in chosen) if row["each"] <= below]
    rows.sort(key=_ORDERS[sort])
    if not printed(output, rows, list(rows[0]) if rows else ()):
        _show(rows, everything)
    _say_age(max_age, console() if output is Format.TABLE else None)


def _keep(texts: list[str]) -> None:
    from coach.jobfiles.own_prices import keep, prices_of
    from coach.platforms.local.cluster import machine

    file = keep(prices_of(texts, machine()))
    typer.echo(f"{' and '.join(texts)}: the prices of jobs whose files say none, in {file}")


def _keep_here(metadata: str) -> None:
    """Keep the offer that this machine is. Raises UserError where it is none, or its price is not known."""
    from coach.jobfiles.own_prices import keep
    from coach.jobfiles.prices import prices_of
    from coach.platforms.local.cloud_machine import cloud_of, machine_of

    other = "what it costs an hour: coach prices set 0.40USD/gpuh"
    cloud = cloud_of()
    if not cloud:
        raise UserError(f"prices here: this machine is none of AWS, Google or Azure, by its DMI data; {other}")
    machine = machine_of(cloud, metadata)
    try:
        prices = prices_of(machine.offer)
    except UserError as error:
        raise UserError(f"this machine is {machine.offer}, whose price is not known: {error}; {other}") from error
    hour, gpus = prices["instance"]["hour"], prices["instance"]["gpu"]
    each = f", {hour / gpus:.5g} a GPU" if gpus else ""
    spot = ", spot" if machine.spot else ""
    file = keep(machine.offer)
    typer.echo(f"{machine.type} in {machine.region}{spot}: {hour:.5g} {prices['currency']} an hour{each}")
    typer.echo(f"The prices of jobs whose files say none, in {file}")


def _row(offer: Offer, spot: bool) -> dict[str, Any]:
    """The offer with `price`, that of an hour as asked for, and `each`, of one GPU or one core."""
    price = offer.price(spot=spot)
    assert price is not None
    each = price / (offer.gpus or offer.cpu)
    return {"offer": offer.name, **asdict(offer), "price": price, "each": round(each, 6)}


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    return not row["gpus"], row["each"], row["offer"], row["region"]


_ORDERS: dict[Sort, Callable[[dict[str, Any]], tuple[Any, ...]]] = {
    Sort.EACH: _order,
    Sort.PRICE: lambda row: (row["price"], *_order(row)),
    Sort.SIZE: lambda row: (-row["gpus"], -row["cpu"], -row["memory"], *_order(row)),
    Sort.NAME: lambda row: (row["offer"], row["region"]),
}


def _show(rows: list[dict[str, Any]], everything: bool) -> None:
    screen = console()
    unit = f"{rows[0]['currency']}/H" if rows else ""
    shown = rows if everything else rows[:MAX_ROWS]
    made = table(
        {
            "OFFER": [row["offer"] for row in shown],
            "GPU": [row["gpu"] for row in shown],
            ("GPUS", "right"): [f"{row['gpus']:g}" if row["gpus"] else "" for row in shown],
            ("CORES", "right"): [f"{row['cpu']:g}" for row in shown],
            ("GIB", "right"): [f"{row['memory']:g}" for row in shown],
            (unit, "right"): [f"{row['hour']:.4g}" for row in shown],
            ("A GPU OR CORE", "right"): [f"{row['each']:.4g}" for row in shown],
            ("SPOT", "right"): ["" if row["spot"] is None else f"{row['spot']:.4g}" for row in shown],
            "REGION": [row["region"] for row in shown],
        }
    )
    screen.print(made if rows else "no offer is like that; all of them: coach prices --all")
    if len(rows) > MAX_ROWS and not everything:
        screen.print(f"{len(rows) - MAX_ROWS} more: coach prices --all")


def _show_functions(output: Format) -> None:
    from coach.jobfiles.prices import functions

    rows = [
        {"offer": name, **{key: one[key] for key in ("region", "terms", "date", "source")}}
        for name, one in functions().items()
    ]
    if not printed(
        output, rows, list(rows[0]), [row | {"prices": functions()[row["offer"]]["prices"]} for row in rows]
    ):
        for row in rows:
            console().print(f"{row['offer']} ({row['region']}): {row['terms']}", soft_wrap=True)
            console().print(f"  as of {row['date']}: {row['source']}", soft_wrap=True)


def _say_age(max_age: int, screen: Console | None) -> None:
    """Where prices are from and how old they are; with no screen to stderr, and only of those that are too old."""
    from coach.jobfiles.prices import SHIPPED, sources

    today = time.strftime("%Y-%m-%d", time.gmtime())
    for source in sources():
        days = source.days(today)
        where = "shipped with Coach" if source.folder == SHIPPED else str(source.folder)
        old = f"; older than {max_age} days, so look them up again" if days > max_age else ""
        words = f"{', '.join(source.clouds)}: {where}, read {source.read}{old}"
        if screen is not None:
            screen.print(words, soft_wrap=True)
        elif old:
            typer.echo(words, err=True)
