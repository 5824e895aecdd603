"""How flat weights are cut into slices, and which server owns which of them. Pure."""

import heapq
from collections.abc import Sequence

#: Elements of a slice: it stays in a core's cache while an optimizer works on it. Small models are cut into SLICES.
LARGEST = 128 * 1024
SLICES = 24
#: Slices of one message, at most: 4 MB.
MESSAGE = 8


#: Slices of one owner, by their numbers: what one message has.
Piece = tuple[int, ...]


def bounds(size: int) -> list[int]:
    """Where the slices of so many elements begin; the last number is `size`."""
    length = min(LARGEST, max(1, -(-size // SLICES)))
    return [*range(0, size, length), size]


def assign(sizes: Sequence[int], owner: Sequence[int | None], servers: int) -> tuple[int, ...]:
    """An owner for each slice, so that servers have nearly equal bytes and few slices move.

    `owner`: who has a slice now, by number of the server; None for one whose server goes. A server above its share
    gives slices away until the next one would leave it below. Each goes to the emptiest server, the largest first.
    """
    share = sum(sizes) / servers
    loads = [0] * servers
    found: list[int | None] = list(owner)
    for number, of in enumerate(found):
        if of is not None:
            loads[of] += sizes[number]
    for number in reversed(range(len(found))):
        of = found[number]
        if of is not None and loads[of] - sizes[number] >= share:
            loads[of] -= sizes[number]
            found[number] = None
    emptiest = [(load, server) for server, load in enumerate(loads)]
    heapq.heapify(emptiest)
    for number in sorted((n for n, of in enumerate(found) if of is None), key=lambda n: (-sizes[n], n)):
        load, server = heapq.heappop(emptiest)
        found[number] = server
        heapq.heappush(emptiest, (load + sizes[number], server))
    while True:  # no server is left with nothing where others have two slices
        load, server = heapq.heappop(emptiest)
        fullest, of = max(emptiest, default=(load, server))
        spare = [n for n, each in enumerate(found) if each == of and sizes[n] < fullest - load]
        if not spare:
            return tuple(found)  # type: ignore[arg-type]
        found[spare[-1]] = server
        emptiest.remove((fullest, of))
        emptiest += [(fullest - sizes[spare[-1]], of), (load + sizes[spare[-1]], server)]
        heapq.heapify(emptiest)


def pieces(owner: Sequence[int], server: int) -> list[Piece]:
    """A server's slices in messages."""
    mine = [number for number, of in enumerate(owner) if of == server]
    return [tuple(mine[start : start + MESSAGE]) for start in range(0, len(mine), MESSAGE)]
