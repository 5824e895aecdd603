"""The process that functions of one machine are forked from: `python -m training.serving.template SOCKET`.

It imports the framework once, then forks for those that connect to its socket and send

    {"op": "zygote", "asking"}  the function's process id, with three descriptors: the zygote's end of a socket pair,
                                the reading end of its lifeline, and its standard error; `env`: variables for it
    {"op": "function", ...}     with the fields of an Order (training/serving/serve.py) and one descriptor, the reading
                                end of its lifeline

A lifeline is a pipe: the kernel kills the process when its writing end is closed. The answer is the new process's id;
over the same connection a function then says that it is ready, or why it cannot start, and closes it by its end.

The template has one thread and loads no model. It may end without effect on the processes that it has forked.
"""

import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import NoReturn

from training import ipc, keeper, linux, zygote_client
from training.serving import serve, zygote

_DESCRIPTORS = {"zygote": 3, "function": 1}


class Template:
    """See the module's description."""

    def __init__(self, path: str) -> None:
        self._seconds = zygote.import_framework()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries them
        self._kept = int(os.environ.pop(keeper.KEPT_VARIABLE, -1))
        if self._kept >= 0:
            os.set_inheritable(self._kept, False)
        os.environ[zygote_client.TEMPLATE_VARIABLE] = path
        not_yet = Path(f"{path}.{os.getpid()}")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(not_yet))
        not_yet.chmod(0o600)
        self._listener.listen(1024)
        not_yet.rename(path)  # a process that sees it can connect

    def run(self) -> NoReturn:
        """Fork for all who ask."""
        while True:
            connection, _ = self._listener.accept()
            with connection:
                connection.settimeout(5)
                message, descriptors = ipc.receive(connection, descriptors=3)
                connection.settimeout(None)
                if message is not None and len(descriptors) == _DESCRIPTORS.get(message["op"]):
                    self._fork(connection, message, descriptors)
                for descriptor in descriptors:
                    os.close(descriptor)

    def _fork(self, connection: socket.socket, message: dict, descriptors: list[int]) -> None:
        pid = os.fork()
        if pid == 0:
            try:
                self._become(connection, message, descriptors)
            finally:
                traceback.print_exc()
                os._exit(1)
        if self._kept >= 0:
            os.write(self._kept, f"{pid}\n".encode())  # it may outlast this template
        ipc.send(connection, {"pid": pid})

    def _become(self, connection: socket.socket, message: dict, descriptors: list[int]) -> NoReturn:
        self._listener.close()
        if self._kept >= 0:
            os.close(self._kept)
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.environ.update(message.get("env", {}))
        if message.pop("op") == "zygote":
            function, lifeline, stderr = descriptors
            connection.close()
            linux.die_with_pipe(lifeline)
            os.dup2(stderr, 1)
            os.dup2(stderr, 2)
            os.close(stderr)
            linux.join_network(f"/proc/{message['asking']}/ns/net")
            os.sched_setaffinity(0, os.sched_getaffinity(message["asking"]))
            zygote.serve(function, self._seconds)
        linux.die_with_pipe(descriptors[0])
        try:
            serve.run(serve.Order(**message), lambda: ipc.send(connection, {"ready": True}))
        except serve.CannotStart as error:
            ipc.send(connection, {"error": str(error)})
            os._exit(1)


def main() -> None:
    """Be a template."""
    (path,) = sys.argv[1:]
    Template(path).run()


if __name__ == "__main__":
    main()
