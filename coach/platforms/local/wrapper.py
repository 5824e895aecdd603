"""Runs one function inside its own Python: what Nuclio calls the wrapper, for Coach's function host.

Started by the host with three inherited file descriptors; imports only the standard library and nuclio_sdk, because it
runs in the functions' environment. Messages from the host are `>II` (length of the JSON head, length of the body), the
head and the body: the first says which function to load, and in which environment, the others are events. Messages to
it are `>cI` (kind, length) and JSON text. Kinds: s started, l log, r response, t termination callback done, x could not
start.
"""

import sys

# The script's own folder is not the function's: a `platform.py` next to this file would hide the standard library's.
sys.path.pop(0)

import argparse
import asyncio
import datetime
import fcntl
import importlib
import json
import logging
import os
import re
import select
import signal
import socket
import struct
import threading
import time
import traceback
import types

import nuclio_sdk
import nuclio_sdk.json_encoder
import nuclio_sdk.logger

HEAD = struct.Struct(">II")
FRAME = struct.Struct(">cI")
F_SETSIG = 10  # Linux; the fcntl module names it only since Python 3.12
CLONE_NEWNET = 0x40000000  # Linux; os names it, and has setns, only since Python 3.12


def die_with_host(lifeline):
    """Have the kernel kill this process group when the host is gone, whatever the function is doing at that moment.

    `lifeline` is the read end of a pipe whose write end only the host holds. A thread would do too, but the function's
    process must stay single-threaded so that it may fork.
    """
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([lifeline], [], [], 0)[0]:  # the host died before these calls
        os._exit(1)


class Channel:
    """The socket to the host. Anything may write (functions log from threads too); only the loop reads."""

    def __init__(self, fd):
        self.socket = socket.socket(fileno=fd)
        self.socket.setblocking(False)
        self.socket.set_inheritable(False)
        self._lock = threading.Lock()

    def send(self, kind, text):
        """Send one message, whole, from any thread."""
        payload = text.encode("utf-8", "backslashreplace")
        with self._lock:
            rest = memoryview(FRAME.pack(kind, len(payload)) + payload)
            while rest:
                try:
                    rest = rest[self.socket.send(rest) :]
                except BlockingIOError:
                    select.select([], [self.socket], [])

    def receive_first(self):
        """The head of the first message; waits for it, before there is an event loop."""
        self.socket.setblocking(True)
        lengths = self._read_now(HEAD.size)
        head = json.loads(self._read_now(HEAD.unpack(lengths)[0]))
        self.socket.setblocking(False)
        return head

    def _read_now(self, length):
        data = b""
        while len(data) < length:
            more = self.socket.recv(length - len(data))
            if not more:
                raise ConnectionResetError("the function host is gone")
            data += more
        return data

    async def receive(self):
        """The next (head, body) from the host."""
        head_length, body_length = HEAD.unpack(await self._read(HEAD.size))
        head = json.loads(await self._read(head_length))
        return head, bytes(await self._read(body_length))

    async def _read(self, length):
        loop = asyncio.get_running_loop()
        data = bytearray(length)
        view = memoryview(data)
        while view:
            count = await loop.sock_recv_into(self.socket, view)
            if not count:
                raise ConnectionResetError("the function host is gone")
            view = view[count:]
        return data


class LogStream:
    """What the SDK's logger writes to: each record becomes one message to the host."""

    def __init__(self, channel):
        self._channel = channel

    def write(self, text):
        """Send one record."""
        if text.strip():
            self._channel.send(b"l", text)

    def flush(self):
        """Nothing is buffered."""


class Wrapper:
    """The function and its context, until the process ends."""

    def __init__(self, role, channel, logger):
        self._channel = channel
        self._logger = logger
        self._encode = nuclio_sdk.json_encoder.Encoder().encode
        self._platform = nuclio_sdk.Platform("local", namespace=role.namespace)
        self._trigger = nuclio_sdk.TriggerInfo(role.trigger_kind, role.trigger_name)
        self._context = nuclio_sdk.Context(logger, self._platform, role.worker_id, self._trigger)
        self._module, self._handler = load_handler(role.handler)
        self._busy = False
        self._terminating = False

    async def initialize(self):
        """Run init_context, then report for work."""
        init_context = getattr(self._module, "init_context", None)
        if init_context is not None:
            result = init_context(self._context)
            if asyncio.iscoroutine(result):
                await result
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._on_terminate)
        self._channel.send(b"s", "{}")

    def _on_terminate(self):
        # The loop calls this between events only: while a handler blocks, the signal waits.
        if self._busy:
            self._terminating = True
        else:
            self._termination = asyncio.ensure_future(self._terminate())

    async def serve(self):
        """Handle events one after the other, until the process is killed."""
        while True:
            head, body = await self._channel.receive()
            self._busy = True
            try:
                await self._handle(self._event(head, body))
            except (
                BaseException
            ) as error:  # SystemExit and KeyboardInterrupt too: the process outlives its events
                self._answer_error(error)
            finally:
                self._busy = False
            del head, body
            if self._terminating:
                await self._terminate()

    async def _terminate(self):
        self._terminating = False
        try:
            result = self._platform._on_signal(callback_type="termination")
            if asyncio.iscoroutine(result):
                await result
        except Exception as error:
            self._logger.error_with("Exception raised in the termination callback", exc=str(error))
        self._channel.send(b"t", "{}")

    def _event(self, head, body):
        content = body
        if head["content_type"] == "application/json":
            try:
                content = json.loads(body.decode("utf-8"))
            except Exception as error:
                sys.stderr.write(f"Failed deserializing json body, error message: {error}\n")
        seconds = head.pop("timestamp")
        timestamp = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)  # noqa: UP017 - Python 3.9 lacks UTC
        return nuclio_sdk.Event(
            body=content,
            trigger=self._trigger,
            timestamp=timestamp.replace(tzinfo=None),
            size=len(body),
            _id=head.pop("id"),
            _type=head.pop("type"),
            **head,
        )

    async def _handle(self, event):
        output = self._handler(self._context, event)
        if asyncio.iscoroutine(output):
            output = await output
        if isinstance(output, list):  # Nuclio takes it for a batch, and answers an HTTP call with the first
            answer = [nuclio_sdk.Response.from_entrypoint_output(self._encode, item) for item in output]
        else:
            answer = nuclio_sdk.Response.from_entrypoint_output(self._encode, output)
        self._channel.send(b"r", self._encode(answer))

    def _answer_error(self, error):
        trace = traceback.format_exc()
        self._logger.error_with("Exception caught in handler", exc=str(error), traceback=trace)
        body = f'Exception caught in handler - "{error}": {trace}'
        answer = {"body": body, "body_encoding": "text", "content_type": "text/plain", "status_code": 500}
        self._channel.send(b"r", self._encode(answer))


def load_handler(text):
    """The module and the function that `package.module:function` names."""
    match = re.match(r"^([\w-]+(?:\.[\w-]+)*):(\w+)$", text)
    if not match:
        raise ValueError(f"Malformed handler - {text!r}")
    module = importlib.import_module(match.group(1))
    return module, getattr(module, match.group(2))


def parse_args():
    """The host's arguments: two descriptors; the rest comes with the first message."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--channel-fd", type=int, required=True)
    parser.add_argument("--lifeline-fd", type=int, required=True)
    return parser.parse_args()


def follow_host():
    """Enter the host's network namespace, if it has another: a spare enters its own long after this began."""
    theirs = f"/proc/{os.getppid()}/ns/net"
    try:
        same = os.stat(theirs).st_ino == os.stat("/proc/self/ns/net").st_ino  # noqa: PTH116 - no pathlib is imported
    except OSError:
        return  # without root, which networks need, there is no other namespace to enter
    if same:
        return
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    with open(theirs, "rb") as namespace:  # noqa: PTH123
        if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
            error = ctypes.get_errno()
            raise OSError(error, f"cannot enter the network of the host: {os.strerror(error)}")


def settle(role):
    """Take on the function's environment, folder and path, as if this process had been started with them."""
    os.environ.clear()
    os.environ.update(role.env)
    time.tzset()
    os.chdir(role.cwd)
    paths = [path for path in role.env["PYTHONPATH"].split(os.pathsep) if path]
    sys.path[:0] = [os.path.join(role.cwd, path) for path in paths]  # noqa: PTH118 - as Python does, nothing resolved


async def run(role, channel, logger):
    """Load the function and serve it; the event loop runs already, as under Nuclio."""
    try:
        follow_host()
        settle(role)
        wrapper = Wrapper(role, channel, logger)
        await wrapper.initialize()
    except BaseException as error:
        channel.send(
            b"x",
            json.dumps({"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}),
        )
        raise SystemExit(1) from None
    await wrapper.serve()


def main():
    """Run until the host is gone."""
    args = parse_args()
    os.set_inheritable(args.lifeline_fd, False)
    die_with_host(args.lifeline_fd)
    channel = Channel(args.channel_fd)
    try:
        role = types.SimpleNamespace(**channel.receive_first())
        logger = nuclio_sdk.Logger(logging.DEBUG)
        logger.set_handler("default", LogStream(channel), nuclio_sdk.logger.JSONFormatter())
        logger.bind(worker_id=role.worker_id)
        asyncio.run(run(role, channel, logger))
    except (ConnectionResetError, BrokenPipeError, KeyboardInterrupt):
        os._exit(1)


if __name__ == "__main__":
    main()
