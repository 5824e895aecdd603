"""A network for virtual nodes: each in a network namespace of its own, behind a link of limited bandwidth.

    handler's namespace          switch                       a node
    coach-<pid>-<block> ──────── handler ┐
                                         bridge ── node0 ──── eth0, limited both ways

Both ends of a node's link have a token bucket (`tc tbf`): `eth0` holds back what leaves the node, `node0` what comes
to it. Functions of one node talk through its loopback, without a limit, as they would on a real machine.

Nothing has to be swept: a namespace exists as long as its *holder*, a process that reads a pipe of the handler's, and
the kernel takes links, bridge and routes away with it. So nothing is left behind however the handler ends. The bridge
is in a namespace of its own, where no firewall of the machine drops what it forwards.

Addresses are from 198.18.0.0/15, which RFC 2544 sets apart for such measurements: a /18 for each handler, of which each
node has a part, all of it local to the node, so that a function's address needs no command.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import itertools
import json
import os
import re
import shutil
import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from coach.core.cluster import Node
from coach.core.errors import PermanentError, UserError

#: The program that does each part, and Debian's package that has it.
PROGRAMS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
#: Addresses kept for benchmarks of networks (RFC 2544), and their blocks: one for each handler at the same time.
SPACE = ipaddress.IPv4Network("198.18.0.0/15")
BLOCKS = tuple(SPACE.subnets(new_prefix=18))
#: So that each node has 256 addresses of a block, and as many are the handler's.
MAX_NODES = 62
#: Bits/s of tc's units.
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
#: A bucket holds what passes in so many seconds, and at least a few of the largest packets (64 KiB).
BUCKET_SECONDS = 0.005
MIN_BUCKET = 128 * 1024
#: Seconds that a packet may wait for tokens; more are dropped, and TCP slows down.
LONGEST_WAIT = "50ms"
#: Seconds for one command, on a very busy machine.
COMMAND_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """The limit of each node's link, in each direction."""

    text: str

    @classmethod
    def parse(cls, text: str) -> Bandwidth:
        """`200mbit`, as tc writes it. Raises UserError."""
        found = re.fullmatch(r"([0-9]{1,9})(kbit|mbit|gbit)", text.strip().lower())
        if not found or not 1e5 <= float(found[1]) * UNITS[found[2]] <= 1e11:
            raise UserError(
                f"--bandwidth {text}: a rate from 100kbit to 100gbit, such as 200mbit or 1gbit; nothing was started"
            )
        return cls(found[0])

    @property
    def bits(self) -> float:
        """Bits/s."""
        number, unit = self.text[:-4], self.text[-4:]
        return float(number) * UNITS[unit]

    @property
    def bucket(self) -> str:
        """The arguments of a queueing discipline that keeps to it."""
        size = max(MIN_BUCKET, int(self.bits / 8 * BUCKET_SECONDS))
        return f"tbf rate {self.text} burst {size} latency {LONGEST_WAIT}"


def limited(nodes: Sequence[Node], bandwidth: Bandwidth) -> tuple[Node, ...]:
    """The nodes with the limit in their names: what was measured on them says nothing of others."""
    return tuple(replace(node, name=f"{node.name}-{bandwidth.text}") for node in nodes)


def require(nodes: Sequence[Node]) -> None:
    """Raise the one error that says what is missing here for a limited network; PermanentError or UserError."""
    if len(nodes) > MAX_NODES:
        raise UserError(
            f"--bandwidth: {len(nodes)} nodes; at most {MAX_NODES} have a network; ask for fewer in --nodes"
        )
    if os.geteuid() != 0:
        raise PermanentError(
            "--bandwidth puts nodes into network namespaces, which only root may do; nothing was started: "
            "run it with sudo, or leave --bandwidth out"
        )
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        packages = " ".join(sorted({PROGRAMS[program] for program in missing}))
        raise PermanentError(
            f"--bandwidth needs the program{'s' * (len(missing) > 1)} {', '.join(missing)}; nothing was started: "
            f"apt install {packages}, or leave --bandwidth out"
        )


class Network:
    """The running network; made by `open`, gone after `close`."""

    def __init__(self, nodes: Sequence[Node], block: int, claim: socket.socket) -> None:
        self.addresses: dict[str, Iterator[str]] = {}
        """For each node, addresses for its functions; they come round again after 254 at least."""
        self._block = BLOCKS[block]
        self._link = f"coach-{os.getpid()}-{block}"
        self._claim = claim
        self._nodes = [node.name for node in nodes]
        self._holders: dict[str, asyncio.subprocess.Process] = {}
        for index, name in enumerate(self._nodes):
            self.addresses[name] = itertools.cycle(str(a) for a in self._part(index).hosts())

    @classmethod
    async def open(cls, nodes: Sequence[Node], bandwidth: Bandwidth) -> Network:
        """Make the namespaces and links. Raises PermanentError, with what the failed program said."""
        require(nodes)
        block, claim = await _free_block()
        network = cls(nodes, block, claim)
        try:
            await network._make(bandwidth)
        except BaseException:
            await network.close()
            raise
        return network

    def namespace(self, node: str) -> str:
        """The path of the network namespace of `node`."""
        return f"/proc/{self._holders[node].pid}/ns/net"

    def inside(self, node: str) -> tuple[str, ...]:
        """What comes before a command to run it in the namespace of `node`."""
        return ("nsenter", f"--net={self.namespace(node)}", "--")

    async def close(self) -> None:
        """Take it down; functions in it must have ended. Again, or half made, it does no harm."""
        with contextlib.suppress(PermanentError):
            await _run("ip", "link", "delete", self._link)
        for holder in self._holders.values():
            if holder.returncode is None:
                holder.kill()
            await holder.wait()
        self._holders.clear()
        self._claim.close()

    def _part(self, index: int) -> ipaddress.IPv4Network:
        """The addresses of the node at `index`; the first part is the handler's."""
        width = self._block.prefixlen + len(self._nodes).bit_length()
        return ipaddress.IPv4Network((int(self._block[(index + 1) << (32 - width)]), width))

    async def _make(self, bandwidth: Bandwidth) -> None:
        for name in ("", *self._nodes):
            self._holders[name] = await _hold()
        switch = self._holders[""].pid
        width = self._block.prefixlen
        await _run("ip", "link", "add", self._link, "type", "veth", "peer", "name", "handler", "netns", str(switch))
        await _run("ip", "address", "add", f"{self._block[1]}/{width}", "dev", self._link)
        await _run("ip", "link", "set", self._link, "up")
        ports = [f"node{index}" for index in range(len(self._nodes))]
        lines = ["link set lo up", "link add name switch type bridge", "link set switch up"]
        for port, name in zip(ports, self._nodes, strict=True):
            lines.append(f"link add name {port} type veth peer name eth0 netns {self._holders[name].pid}")
        lines += [f"link set {port} master switch up" for port in ("handler", *ports)]
        await _run(*self.inside(""), "ip", "-batch", "-", lines=lines)
        await _run(
            *self.inside(""),
            "tc",
            "-batch",
            "-",
            lines=[f"qdisc add dev {p} root {bandwidth.bucket}" for p in ports],
        )
        for index, name in enumerate(self._nodes):
            part = self._part(index)
            lines = ["link set lo up", f"address add {part[1]}/{width} dev eth0", "link set eth0 up"]
            lines.append(f"route add local {part} dev eth0")
            await _run(*self.inside(name), "ip", "-batch", "-", lines=lines)
            await _run(*self.inside(name), "tc", "qdisc", "add", "dev", "eth0", "root", *bandwidth.bucket.split())


async def _free_block() -> tuple[int, socket.socket]:
    """A block that no route of this machine goes to, and the name that keeps other handlers off it."""
    routes: list[dict[str, Any]] = json.loads(await _run("ip", "-json", "-4", "route", "show", "table", "all") or "[]")
    for index in _unrouted([route.get("dst", "") for route in routes]):
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            claim.bind(f"\0coach-network-{index}")  # the kernel forgets the name with the process
        except OSError:
            claim.close()
            continue
        return index, claim
    raise PermanentError(
        f"--bandwidth: all {len(BLOCKS)} parts of 198.18.0.0/15 are in use here (`ip route show table all`); "
        "nothing was started: wait until another run ends, or leave --bandwidth out"
    )


def _unrouted(destinations: Iterable[str]) -> Iterator[int]:
    """Those of `BLOCKS` that none of these routes is meant for.

    A wider one than SPACE is meant for everything: the default route, or the two halves by which a VPN replaces it.
    """
    taken = []
    for destination in destinations:
        with contextlib.suppress(ValueError):  # "default"
            taken.append(ipaddress.IPv4Network(destination, strict=False))
    narrow = [network for network in taken if network.prefixlen >= SPACE.prefixlen]
    for index, block in enumerate(BLOCKS):
        if not any(block.overlaps(other) for other in narrow):
            yield index


async def _hold() -> asyncio.subprocess.Process:
    """A process in a new network namespace that ends with us: its input is a pipe of ours."""
    holder = await asyncio.create_subprocess_exec(
        *("unshare", "--net", "sh", "-c", "echo made; exec cat >/dev/null"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # the terminal's Ctrl-C is ours to handle
    )
    assert holder.stdout is not None and holder.stderr is not None
    try:
        made = await asyncio.wait_for(holder.stdout.readline(), COMMAND_SECONDS)
    except TimeoutError:
        holder.kill()
        made = b""
    if not made:
        said = (await holder.stderr.read()).decode(errors="replace").strip() or "it does not answer"
        await holder.wait()
        raise PermanentError(
            f"--bandwidth: this machine makes no network namespace ({said}); nothing was started: run it where root "
            "may (a container needs CAP_NET_ADMIN and CAP_SYS_ADMIN), or leave --bandwidth out"
        )
    return holder


async def _run(*command: str, lines: Sequence[str] = ()) -> str:
    """What a command says, with `lines` as its input. Raises PermanentError when it fails."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    text = "".join(f"{line}\n" for line in lines).encode()
    try:
        said, complaint = await asyncio.wait_for(process.communicate(text), COMMAND_SECONDS)
    except TimeoutError:
        process.kill()
        await process.wait()
        said, complaint = b"", f"no end after {COMMAND_SECONDS:g} s".encode()
    if process.returncode:
        words = " ".join(complaint.decode(errors="replace").split())
        raise PermanentError(
            f"--bandwidth: `{' '.join(command)}` failed ({words}); nothing was started: "
            "leave --bandwidth out to run without a limited network"
        )
    return said.decode()
