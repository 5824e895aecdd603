"""A wrapper process that has no function yet."""

import os
import socket
import subprocess
from pathlib import Path

#: The environment variable with folders of packages, the wrapper's own among them, that its Python does not have.
PACKAGES_VARIABLE = "COACH_PYTHON_PACKAGES"
WRAPPER = Path(__file__).resolve().parent.parent / "wrapper.py"


class BareWrapper:
    """Starts a wrapper, which imports what every function needs and waits for its first message on `socket`.

    `lifeline` is the writing end of the pipe whose end kills it, `output` the reading end of what it prints.
    Raises OSError when `python` cannot be run.
    """

    def __init__(self, python: str) -> None:
        self.socket, theirs = socket.socketpair()
        lifeline, self.lifeline = os.pipe()
        self.output, output = os.pipe()
        command = [
            python,
            "-u",
            str(WRAPPER),
            "--channel-fd",
            str(theirs.fileno()),
            "--lifeline-fd",
            str(lifeline),
        ]
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno(), lifeline],
                # Its path comes with the function: no module of a function's hides one that the wrapper needs.
                env={**os.environ, "PYTHONPATH": os.environ.get(PACKAGES_VARIABLE, "")},
                process_group=0,
            )
        finally:
            theirs.close()
            os.close(lifeline)
            os.close(output)
