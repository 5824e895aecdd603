"""What all figures share: colours, styles, files.

Colours are those of Okabe and Ito, which colour-blind people can distinguish, and every series also has a marker or a
line style of its own.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import matplotlib as mpl
from matplotlib.figure import Figure

from coach.core.errors import UserError
from coach.report.export import write

BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#666666"
#: Of several series of one kind, in this order.
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, RED, "#56B4E9", "#F0E442", "#000000")
MARKERS = "osD^vPX*"
#: Of the first series of each colour, the second, ...
LINES = ("-", "--", "-.", ":")
FORMATS = ("png", "svg")
STYLE: dict[str, Any] = {
    "figure.dpi": 150,
    "savefig.dpi": 150,
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "svg.hashsalt": "coach",
    "svg.fonttype": "none",
}
#: From these seconds on, the time axis is in minutes; then hours.
MINUTES, HOURS = 180.0, 3 * 3600.0


def look(index: int) -> dict[str, Any]:
    """Colour, marker and line of the `index`-th series: those of 32 differ."""
    at = index % len(COLOURS)
    return {
        "color": COLOURS[at],
        "marker": MARKERS[at],
        "linestyle": LINES[index // len(COLOURS) % len(LINES)],
    }


def rendered(figure: Figure, kind: str) -> bytes:
    """The figure as a file's content; the same figure gives the same bytes."""
    content = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    figure.savefig(content, format=kind, metadata=metadata)
    return content.getvalue()


def kind_of(path: Path) -> str:
    """The kind of a figure by its file's ending. Raises UserError."""
    kind = path.suffix.removeprefix(".").lower()
    if kind not in (*FORMATS, "pdf"):
        raise UserError(f"{path}: a figure's name must end in .png, .svg or .pdf")
    return kind


def save(path: Path, draw: Callable[[], Figure]) -> Path:
    """Write a figure; its kind is that of the path's ending. Raises UserError."""
    kind = kind_of(path)
    with mpl.rc_context(cast(Any, STYLE)):
        content = rendered(draw(), kind)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return write(path, content)
    except OSError as error:
        raise UserError(f"{path}: cannot write there: {error.strerror or error}") from error


def time_unit(seconds: float) -> tuple[str, float]:
    """The unit of an axis that is `seconds` long, and its length in seconds."""
    if seconds < MINUTES:
        return "seconds", 1.0
    return ("minutes", 60.0) if seconds < HOURS else ("hours", 3600.0)
