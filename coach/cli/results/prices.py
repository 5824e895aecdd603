"""`coach prices`."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coach.cli.display.output import Format, Output, console, print_csv, print_json, table

if TYPE_CHECKING:
    from coach.jobfiles.prices import Offer

#: Rows of a table without --all.
MAX_ROWS = 40


def command(  # noqa: PLR0917 - they are options
    search: Annotated[
        list[str] | None,
        typer.Argument(metavar="WORD", help="Words in the name of an offer, its GPU or region."),
    ] = None,
    gpu: Annotated[str, typer.Option(metavar="NAME", help="Only machines with this GPU, such as H100.")] = "",
    below: Annotated[
        float, typer.Option(metavar="PRICE", min=0.0, help="At most this an hour: of one GPU, or of a core.")
    ] = float("inf"),
    spot: Annotated[bool, typer.Option("--spot", help="Spot prices.")] = False,
    cloud: Annotated[str, typer.Option(metavar="NAME", help="Only this cloud.")] = "",
    region: Annotated[
        str, typer.Option(metavar="NAME", help="Only regions that begin so, such as us-east.")
    ] = "",
    everything: Annotated[bool, typer.Option("--all", help="All rows, and every region.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """List, search and compare prices of machines.

    The cheapest GPU or core comes first. They are from SkyPilot's catalogues in ~/.sky/catalogs, or in the folder
    COACH_CATALOGS, where there are some, else from the small one that Coach ships. A job is billed by an offer that
    its file names: prices: nebius/gpu-h100-sxm_1gpu-16vcpu-200gb, with @REGION, :spot or :whole after it.

    \b
    Examples:
      coach prices --gpu H100 --below 3
      coach prices --cloud aws --spot -o csv
    """
    from coach.jobfiles.prices import cheapest, offers

    words = [word.lower() for word in search or ()]
    found = [
        offer
        for offer in offers([cloud] if cloud else ())
        if (not gpu or offer.gpu.lower() == gpu.lower())
        and offer.region.startswith(region)
        and all(word in f"{offer.name} {offer.gpu} {offer.region}".lower() for word in words)
        and offer.price(spot=spot) is not None
    ]
    chosen = found if everything else list(cheapest(found, spot=spot).values())
    rows = [row for row in sorted((_row(one, spot) for one in chosen), key=_order) if row["each"] <= below]
    if output is Format.JSON:
        print_json(rows)
    elif output is Format.CSV:
        print_csv(list(rows[0]) if rows else (), rows)
    else:
        _show(rows, everything)


def _row(offer: Offer, spot: bool) -> dict[str, Any]:
    """The offer with `price`, that of an hour as asked for, and `each`, of one GPU or one core."""
    price = offer.price(spot=spot)
    assert price is not None
    each = price / (offer.gpus or offer.cpu)
    return {"offer": offer.name, **asdict(offer), "price": price, "each": round(each, 6)}


def _order(row: dict[str, Any]) -> tuple[bool, float, str, str]:
    return not row["gpus"], row["each"], row["offer"], row["region"]


def _show(rows: list[dict[str, Any]], everything: bool) -> None:
    from coach.jobfiles.prices import OLD_DAYS, SHIPPED, sources

    screen = console()
    right = ("GPUS", "CORES", "GIB", "USD/H", "A GPU OR CORE", "SPOT")
    made = table("OFFER", "GPU", *((name, "right") for name in right), "REGION")
    for row in rows if everything else rows[:MAX_ROWS]:
        spot = "" if row["spot"] is None else f"{row['spot']:.4g}"
        made.add_row(
            row["offer"], row["gpu"], f"{row['gpus']:g}" if row["gpus"] else "", f"{row['cpu']:g}",
            f"{row['memory']:g}", f"{row['hour']:.4g}", f"{row['each']:.4g}", spot, row["region"],
        )  # fmt: skip
    screen.print(made if rows else "no offer is like that; all of them: coach prices --all")
    if len(rows) > MAX_ROWS and not everything:
        screen.print(f"{len(rows) - MAX_ROWS} more: coach prices --all")
    today = time.strftime("%Y-%m-%d", time.gmtime())
    for source in sources():
        days = source.days(today)
        where = "shipped with Coach" if source.folder == SHIPPED else str(source.folder)
        old = f"; older than {OLD_DAYS} days, so look them up again" if days > OLD_DAYS else ""
        screen.print(f"{', '.join(source.clouds)}: {where}, read {source.read}{old}", soft_wrap=True)
