"""A parameter server reads the messages of its own group alone: whoever is on the machine can reach its port."""

import subprocess

import pytest

from tests.functions.hosting import FUNCTIONS, PYTHON

pytestmark = pytest.mark.mxnet

SCRIPT = """
import socket, threading
from types import SimpleNamespace
import zmq
from training import keys
from training.connections import lines
from training.request import StartRequest
from training.servers.process import ServerProcess

KEY = "the-key-of-the-group"
with socket.create_server(("127.0.41.1", 0)) as free:
    port = free.getsockname()[1] - 1
common = {"epoch": "e", "group": "g", "key": KEY, "rank": 0, "workers": 1, "servers": 1, "deadline": 20}
common |= {"root": f"127.0.41.1:{port}", "elastic": True}
lines.Listener(StartRequest(role="scheduler", host="127.0.41.1", **common))  # says nothing
function, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server = ServerProcess(StartRequest(role="server", host="127.0.41.2", **common), SimpleNamespace(), function)
address = server.server.name.partition("@")[2]
serving = threading.Thread(target=server.serve, daemon=True)
serving.start()

tries = iter(range(1, 100))

def let_in(name, password, message):
    with zmq.Context() as context, context.socket(zmq.DEALER) as end:
        end.setsockopt(zmq.LINGER, 1000)
        end.setsockopt_string(zmq.IDENTITY, f"0.a/{next(tries)}")  # the one before may not have gone yet
        if name:
            end.plain_username, end.plain_password = name, password
        events = end.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | 0x7000)
        end.connect(f"tcp://{address}")
        try:
            end.send_multipart([message], zmq.NOBLOCK)
        except zmq.Again:  # it was shut out before it could speak
            pass
        assert events.poll(20_000)
        event = int.from_bytes(events.recv_multipart()[0][:2], "little")
        end.disable_monitor()
        events.close()
    return event == zmq.EVENT_HANDSHAKE_SUCCEEDED

password = keys.proof(KEY, "servers").encode()
tried = (b"", b""), (b"member", b"x"), (b"member", KEY.encode()), (b"member", password[:-1]), (b"x", b"y" * 255)
for name, shown in tried:
    assert not let_in(name, shown, b"no JSON"), (name, shown)
serving.join(1)
assert serving.is_alive()
assert let_in(b"member", password, b'{"op": "nothing"}')
assert let_in(b"member", password, b"no JSON")
serving.join(20)
assert not serving.is_alive()  # such a message would have ended it
print("so it is", flush=True)
import os
os._exit(0)
"""


def test_a_stranger_is_not_read_and_the_group_goes_on() -> None:
    done = subprocess.run(
        [PYTHON, "-c", SCRIPT], cwd=FUNCTIONS, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout == "so it is\n", done.stderr
