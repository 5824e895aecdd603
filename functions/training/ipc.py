"""JSON messages between processes of one function, over AF_UNIX SOCK_SEQPACKET: one packet, one message.

Packets keep message borders, an empty read means that the other process is gone, and descriptors can ride along.
"""

import json
import socket
from collections.abc import Sequence

#: The kernel's default send buffer is 208 KiB; a message never comes near it.
LARGEST_PACKET = 128 * 1024


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends, neither inherited by a program that is started."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(end: socket.socket, message: dict, descriptors: Sequence[int] = (), *, block: bool = True) -> bool:
    """Send one message. False when the other end is gone, or when `block` is false and its buffer is full."""
    packet = json.dumps(message).encode()
    if len(packet) > LARGEST_PACKET:
        raise ValueError(f"message of {len(packet)} bytes; at most {LARGEST_PACKET}")
    flags = socket.MSG_NOSIGNAL | (0 if block else socket.MSG_DONTWAIT)
    try:
        socket.send_fds(end, [packet], list(descriptors), flags)
    except OSError:  # EAGAIN, EPIPE, ECONNRESET, EBADF: in each case the message did not go
        return False
    return True


def receive(end: socket.socket, descriptors: int = 0) -> tuple[dict | None, list[int]]:
    """Wait for one message; (None, []) when the other end is gone."""
    for _ in range(2):
        try:
            packet, received, _, _ = socket.recv_fds(end, LARGEST_PACKET, descriptors, socket.MSG_CMSG_CLOEXEC)
            return (json.loads(packet) if packet else None), list(received)
        except ConnectionResetError:
            continue  # it closed its end with a message of ours unread: what it had sent comes after this error
        except OSError:
            break
    return None, []
