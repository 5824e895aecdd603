"""What the scheduler of an elastic group says of a change while some have not entered the view yet."""

import socket
from collections.abc import Iterator

from training import ipc
from training.connections import lines
from training.elastic.hub import Hub
from training.membership.messages import Copied, Entered, Formed, Hello, Order, View, decode, encode
from training.reporter import Reporter
from training.request import StartRequest


def request(role: str, port: int) -> StartRequest:
    where = {"root": f"127.0.41.1:{port}", "host": "127.0.41.10", "key": "the-key-of-the-group"}
    kept = {"members": (0,), "server_members": (0,)} if role == "scheduler" else {}
    return StartRequest(epoch="e", group="g", role=role, rank=0, workers=1, servers=1, deadline=5, **where, **kept)


def orders(connection: socket.socket) -> Iterator[View]:
    """The views that it is to form."""
    said = (decode(message) for message in lines.received(connection) if "membership" in message)
    return (message.view for message in said if isinstance(message, Order))


def told(function: socket.socket) -> Iterator[dict]:
    """Each progress that the function gets."""
    while True:
        message, _ = ipc.receive(function)
        assert message is not None
        if message["event"] == "progress":
            yield message["progress"]


def test_a_change_is_told_of_once_the_servers_have_entered_too() -> None:
    with socket.create_server(("127.0.41.1", 0)) as free:
        port = free.getsockname()[1] - 1  # the hub listens at the next one
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(30)
    Hub(request("scheduler", port), Reporter(theirs, "e"))
    worker = lines.connect(request("worker", port), {"member": "0.a"})
    server = lines.connect(request("server", port), {"member": "0.b@127.0.41.10:9"})
    for connection in (worker, server):
        lines.send(connection, encode(Hello(size=10)))
    heard = orders(worker)
    view = next(heard)
    for message in (Formed(view.number), Entered(view, 0), Copied(32)):
        lines.send(worker, encode(message))
    progress = told(ours)
    assert next(each for each in progress if each["copied"] == 32)["changes"] == []
    lines.send(server, {**encode(Entered(view, 0)), "migration": 0.01})
    (change,) = next(each for each in progress if each["changes"])["changes"]
    assert (change["workers"], change["servers"], change["migration_ms"]) == ([0], [0], 10.0)
    assert change["at"] > 0
    for connection in (ours, worker, server):
        connection.detach()  # the hub's thread goes on until this process ends
