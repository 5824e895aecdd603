"""Elastic parameter servers: workers and servers come and go while training goes on (DL2, section 5).

Theory of operation
-------------------
The weights, flat, are cut into slices. A view (training.membership) says which workers train together, which servers
there are and which of them owns each slice. In a step every worker pushes its gradient of each slice to its owner. The
owner adds them in the order of the workers, applies the optimizer, and answers with the new weights.

A change has the four steps of the paper, here by these names:

- *Registration*: a worker or server says hello to the coordinator, which orders the next view.
- *Assignment* (`slices.assign`): the coordinator gives slices to servers, balanced by bytes, with few moves.
- *Migration* (`Server.migrate`): workers offer the next view with their gradients. When all offer it, each server has
  seen so after that very step, and ships the slices that it does not own any more. The new owner answers when it has
  them. So there is no other clock to agree upon.
- *Worker update* (`ServerGroup.connect`): workers have connected to the next view's servers before they offer it.

A worker that dies costs its step: the survivors repeat it in the next view, and a slice that has had that step's update
answers with its weights and does not apply it again. With a server its slices' optimizer state is gone: the workers
found the group anew, without a restart of any process, from the last copy of all slices that the first worker took
between two of its steps (`ServerGroup.copy`), else from the epoch's checkpoint.
"""

import importlib
import sys
from types import ModuleType

from training.errors import TrainingError


def load(name: str) -> ModuleType:
    """A module of this package; it needs pyzmq, which a Python of the user's may lack. Raises TrainingError."""
    try:
        return importlib.import_module(f"training.servers.{name}")
    except ModuleNotFoundError as error:
        remedy = "pip install pyzmq, or apt install python3-zmq; or servers: 0, which is all-reduce"
        raise TrainingError(
            "BadRequest", f"{error} in {sys.executable}; parameter servers need it: {remedy}"
        ) from error
