"""Virtual nodes behind links of limited bandwidth: real namespaces, real traffic, real groups."""

import asyncio
import ipaddress
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from coach.core.cluster import Allocation, Node, Resources
from coach.core.errors import CoachError, PermanentError, UserError
from coach.core.jobs.reasons import State
from coach.platforms.local.cluster import parse_nodes
from coach_research.platforms import network
from coach_research.platforms.limited import LimitedPlatform
from coach_research.platforms.network import Bandwidth, Network
from tests.platforms.local.functions import ask, launch, quick_runtime
from tests.platforms.local.test_platform import ended, gone, handler_on, job, submit
from tests.required import missing

#: Seconds that the kernel may take to clean up.
SOON = 20.0


@pytest.fixture
def root() -> None:
    """Skips where no namespaces can be made."""
    if os.geteuid() != 0 or any(shutil.which(program) is None for program in network.PROGRAMS):
        missing("needs root, and the programs " + ", ".join(network.PROGRAMS))
    allowed = subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True, text=True)
    if allowed.returncode:
        missing(f"root, but no network namespaces: {allowed.stderr.strip()}")


def links() -> list[str]:
    """Links of ours in this namespace."""
    said = subprocess.run(["ip", "-json", "link", "show"], capture_output=True, text=True, check=True)
    return [one["ifname"] for one in json.loads(said.stdout) if one["ifname"].startswith("coach-")]


def holders(parent: int) -> list[int]:
    """Processes that keep namespaces of ours alive for `parent`."""
    said = subprocess.run(["pgrep", "-P", str(parent), "-x", "cat"], check=False, capture_output=True, text=True)
    return [int(pid) for pid in said.stdout.split()]


@pytest.mark.parametrize(
    "text",
    ["", "fast", "200", "200MB", "-1mbit", "0mbit", "1e9mbit", "2.5gbit", "101gbit", "200mbit; reboot"],
)
def test_what_is_no_rate_is_refused_with_the_value_seen(text):
    with pytest.raises(UserError, match="such as 200mbit") as error:
        Bandwidth.parse(text)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("text", "bits"),
    [("200mbit", 2e8), ("1gbit", 1e9), ("2500mbit", 2.5e9), ("500kbit", 5e5), ("10Mbit", 1e7)],
)
def test_a_rate_is_read_as_tc_writes_it(text, bits):
    assert Bandwidth.parse(text).bits == pytest.approx(bits)


def test_what_is_measured_behind_a_limit_is_not_taken_for_other_nodes():
    nodes = parse_nodes("2x1")
    names = [node.name for node in network.limited(nodes, Bandwidth.parse("200mbit"))]
    assert names == ["node-0-200mbit", "node-1-200mbit"]


def test_without_root_there_is_one_error_that_says_what_to_do(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(PermanentError, match=r"only root may do.*sudo"):
        network.require(parse_nodes("2x1"))


def test_without_ip_and_tc_there_is_one_error_that_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PermanentError, match=r"ip, tc.*apt install iproute2 util-linux"):
        network.require(parse_nodes("2x1"))


def test_more_nodes_than_there_are_addresses_are_refused():
    nodes = [Node(f"node-{i}", Resources(1, 1)) for i in range(63)]
    with pytest.raises(UserError, match="63 nodes; at most 62"):
        network.require(nodes)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8, 61, 62])
def test_every_node_has_addresses_of_its_own_apart_from_the_handlers(count):
    nodes = parse_nodes(f"{count}x1")
    made = Network(nodes, 3, socket.socket())
    parts = [made._part(index) for index in range(count)]
    for part, others in ((part, parts[i + 1 :]) for i, part in enumerate(parts)):
        assert part.num_addresses >= 256
        assert part.subnet_of(network.BLOCKS[3])
        assert network.BLOCKS[3][1] not in part
        assert not any(part.overlaps(other) for other in others)
    assert all(ipaddress.ip_address(next(made.addresses[n.name])) in p for n, p in zip(nodes, parts, strict=True))
    made._claim.close()


RECEIVER = """
import socket, sys, time
server = socket.create_server((sys.argv[1], 7000))
print("listening", flush=True)
connection, _ = server.accept()
total = 0
while data := connection.recv(1 << 20):
    total += len(data)
print(total * 8, time.monotonic())
"""
SENDER = """
import socket, sys, time
print(time.monotonic())
with socket.create_connection((sys.argv[1], 7000), timeout=30) as connection:
    for _ in range(int(sys.argv[2])):
        connection.sendall(bytes(1 << 20))
"""


async def throughput(there: tuple[str, ...], address: str, here: tuple[str, ...], mebibytes: int) -> float:
    """Bits/s from `here` to `address`, which is `there`, from the sender's first call to the last byte received.

    All processes share one monotonic clock; whoever waits for a core makes it slower, never faster.
    """
    receiver = await asyncio.create_subprocess_exec(
        *there, sys.executable, "-c", RECEIVER, address, stdout=asyncio.subprocess.PIPE
    )
    assert receiver.stdout is not None
    assert await receiver.stdout.readline() == b"listening\n"
    sender = await asyncio.create_subprocess_exec(
        *here, sys.executable, "-c", SENDER, address, str(mebibytes), stdout=asyncio.subprocess.PIPE
    )
    began, _ = await sender.communicate()
    bits, ended = (await receiver.communicate())[0].split()
    return float(bits) / (float(ended) - float(began))


@pytest.mark.timeout(120)
@pytest.mark.root
def test_between_nodes_passes_what_the_limit_allows_and_within_a_node_more(root):
    limit = Bandwidth.parse("80mbit")

    async def main():
        nodes = parse_nodes("3x1")
        made = await Network.open(nodes, limit)
        try:
            addresses = {node.name: next(made.addresses[node.name]) for node in nodes}
            assert len(set(addresses.values())) == 3
            inside = [made.inside(node.name) for node in nodes]
            return {
                "to another": await throughput(inside[1], addresses["node-1"], inside[0], 12),
                "from the handler": await throughput(inside[2], addresses["node-2"], (), 12),
                "to itself": await throughput(inside[1], addresses["node-1"], inside[1], 50),
            }
        finally:
            await made.close()

    measured = asyncio.run(main())
    # A busy machine may stay below the limit; nothing gets far above it, but for what the bucket holds at first.
    assert 0.4 * limit.bits < measured["to another"] < 1.3 * limit.bits
    assert measured["from the handler"] < 1.3 * limit.bits
    assert measured["to itself"] > 2 * limit.bits
    assert gone(links, SOON), "the handler's link outlives the network"
    assert not holders(os.getpid())


def namespace_of(pid: int | str) -> int:
    return Path(f"/proc/{pid}/ns/net").stat().st_ino


@pytest.mark.timeout(120)
@pytest.mark.root
def test_a_function_and_its_zygote_are_in_the_network_of_their_node(root, tmp_path):
    async def main():
        made = await Network.open(parse_nodes("2x1"), Bandwidth.parse("100mbit"))
        runtime = quick_runtime(tmp_path)
        try:
            await runtime.open()
            theirs = made.namespace("node-1")
            address = f"{next(made.addresses['node-1'])}:8080"
            function = await launch(runtime, tmp_path, address, network=theirs)
            await function.wait_ready(20)
            zygote = (await asyncio.to_thread(ask, function))["zygote_pid"]
            node = Path(theirs).stat().st_ino
            assert node != namespace_of("self")
            assert namespace_of(function.pid) == node
            assert gone(lambda: namespace_of(zygote) != node)
        finally:
            await runtime.close()
            await made.close()

    asyncio.run(main())


@pytest.mark.mxnet
@pytest.mark.timeout(240)
@pytest.mark.root
def test_a_group_over_two_nodes_trains_through_the_limited_network(root, tmp_path):
    resources = {
        "scheduler": {"cpu": "10m", "memory": "300Mi"},
        "server": {"cpu": "700m", "memory": "300Mi"},
        "worker": {"cpu": "800m", "memory": "500Mi"},
    }

    async def main():
        async with handler_on(tmp_path, "2x1", kind=LimitedPlatform, bandwidth=Bandwidth.parse("100mbit")) as handler:
            nodes = set()

            def watch(event, actions):
                for job in handler.jobs.values():
                    nodes.update((held.pod.id.role.value, held.pod.node) for held in job.gang.pods.values())

            handler.observers.append(watch)
            spec = job("far", tmp_path, resources=resources, workers={"max": 1}, servers={"max": 1})
            submit(handler, spec, tmp_path)
            await handler.wait(ended(handler, "far"))
            return handler.jobs["far"], nodes

    finished, nodes = asyncio.run(main())
    assert finished.state is State.SUCCEEDED, finished.message
    assert {epoch.allocation for epoch in finished.epochs} == {Allocation(1, 1)}
    worker, server = (next(node for role, node in nodes if role == name) for name in ("worker", "server"))
    assert worker != server
    assert gone(links, SOON)


SCRIPT = """
import asyncio, sys
sys.path.insert(0, {root!r})
from coach.platforms.local.cluster import parse_nodes
from coach_research.platforms.network import Bandwidth, Network
async def main():
    made = await Network.open(parse_nodes("2x1"), Bandwidth.parse("100mbit"))
    print(*(holder.pid for holder in made._holders.values()), flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.mark.timeout(120)
@pytest.mark.root
def test_nothing_is_left_of_a_network_whose_handler_was_killed(root):
    async def main():
        script = SCRIPT.format(root=str(Path(__file__).parents[3]))
        handler = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
        assert handler.stdout is not None
        pids = [int(pid) for pid in (await handler.stdout.readline()).split()]
        before = links()
        handler.kill()
        await handler.wait()
        return handler.pid, pids, before

    pid, pids, before = asyncio.run(main())
    assert len(pids) == 3
    assert any(link.startswith(f"coach-{pid}-") for link in before)
    assert gone(lambda: [p for p in pids if Path(f"/proc/{p}").exists()], SOON), "holders outlive the handler"
    assert gone(lambda: [link for link in links() if link.startswith(f"coach-{pid}-")], SOON), "a link is left"


@pytest.mark.timeout(120)
@pytest.mark.root
def test_two_networks_at_once_have_different_addresses(root):
    async def main():
        nodes = parse_nodes("1x1")
        first = await Network.open(nodes, Bandwidth.parse("1gbit"))
        try:
            second = await Network.open(nodes, Bandwidth.parse("1gbit"))
            try:
                return next(first.addresses["node-0"]), next(second.addresses["node-0"]), links()
            finally:
                await second.close()
        finally:
            await first.close()

    one, other, made = asyncio.run(main())
    assert one != other
    assert len([link for link in made if link.startswith(f"coach-{os.getpid()}-")]) == 2
    assert gone(links, SOON)


@pytest.mark.root
def test_a_program_that_fails_is_named_with_what_it_said(root):
    with pytest.raises(CoachError, match="`ip link delete coach-none` failed"):
        asyncio.run(network._run("ip", "link", "delete", "coach-none"))


@pytest.mark.parametrize(
    ("routes", "free"),
    [
        ([], [0, 1, 2, 3, 4, 5, 6, 7]),
        (["default", "10.0.0.0/8", "127.0.0.1"], [0, 1, 2, 3, 4, 5, 6, 7]),
        (["0.0.0.0/1", "128.0.0.0/1"], [0, 1, 2, 3, 4, 5, 6, 7]),  # a VPN's
        (["198.18.0.0/18", "198.19.255.1"], [1, 2, 3, 4, 5, 6]),
        (["198.18.0.0/15"], []),
    ],
)
def test_a_block_is_free_where_no_route_is_meant_for_it(routes: list[str], free: list[int]) -> None:
    assert list(network._unrouted(routes)) == free
