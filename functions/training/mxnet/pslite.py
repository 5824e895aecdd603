"""The parameter-server group over ps-lite, the one MXNet ships.

Synchronous: servers only add the workers' gradients; every worker runs the same optimizer on the same sums, so each of
them holds the whole state and rank 0 can write it down. Asynchronous: servers hold the weights and run the optimizer;
its state (momentum, counts) stays there and is lost when the group ends.
"""

import ctypes
import json
import os
from typing import Any

import mxnet as mx
from mxnet.base import _LIB, check_call

from training.errors import TrainingError
from training.mxnet import optimizers
from training.mxnet.learner import MxnetLearner
from training.request import StartRequest

#: MXNet's number for a command that the server's own controller handles.
_CONTROLLER_COMMAND = 0


class PsLiteGroup:
    """One member's side of a group."""

    def __init__(self, request: StartRequest) -> None:
        if request.servers < 1:
            raise TrainingError("BadRequest", "servers is 0; MXNet's workers train with at least 1")
        self._request = request
        self._store: Any = None
        self._shared = False
        self._sums_key = self._auxiliary_key = -1
        self._sums = 4  #: numbers that can be added at once
        host, port = request.root_address
        os.environ |= {  # names that are there already: see training.mxnet.PS_LITE
            "DMLC_ROLE": request.role,
            "DMLC_PS_ROOT_URI": host,
            "DMLC_PS_ROOT_PORT": str(port),
            "DMLC_NUM_WORKER": str(request.workers),
            "DMLC_NUM_SERVER": str(request.servers),
            "DMLC_NODE_HOST": request.host,  # else ps-lite takes the machine's first network interface
        }

    def form(self) -> None:
        """Join; returns when all members are there."""
        self._store = mx.kv.create(f"dist_{self._request.mode}")

    def serve(self) -> None:
        """Scheduler and servers: do the group's work until the workers have left."""
        self.form()
        prototype = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
        # MXNet's own controller unpickles what it is sent; ours takes a name and numbers.
        controller = prototype(self._command)
        check_call(_LIB.MXKVStoreRunServer(self._store.handle, controller, None))

    def _command(self, number: int, body: bytes, _: object) -> None:
        if number == _CONTROLLER_COMMAND:
            self._store.set_optimizer(optimizers.from_spec(json.loads(body)))

    def share(self, learner: MxnetLearner) -> None:
        """Give all workers the same weights at an epoch's start."""
        if self._shared:
            return  # every worker has just read the same checkpoint; the servers keep gradients only
        self._shared = True
        if self._request.mode == "async":
            if self._store.rank == 0:
                body = json.dumps(self._server_optimizer(learner))
                self._store._send_command_to_servers(_CONTROLLER_COMMAND, body)
            self._store._barrier()
        weights = learner.weights
        self._sums_key, self._auxiliary_key = len(weights), len(weights) + 1
        for key, weight in enumerate(weights):
            self._store.broadcast(key, weight, out=weight)
        if self._request.mode == "sync":
            # Two more keys that workers can add through: evaluation sums, and what layers measure.
            self._sums = max(self._sums, 3 + len(learner.metrics.names))
            self._store.init(self._sums_key, mx.nd.zeros((self._sums,)))
            if learner.auxiliary:
                self._store.init(self._auxiliary_key, self._packed(learner))
        mx.nd.waitall()

    def _server_optimizer(self, learner: MxnetLearner) -> dict:
        if self._request.optimizer is None:
            message = "in asynchronous mode the optimizer runs on the servers: name it in the job, with its numbers"
            raise TrainingError("BadRequest", message)
        return {**self._request.optimizer, "rescale_grad": 1 / self._request.batch_size}

    def step(self, learner: MxnetLearner, batch_size: int) -> None:
        """Gradients in, updated weights out. Does not wait for the result."""
        gradients = learner.gradients
        keys = list(range(len(gradients)))
        if self._request.mode == "async":
            self._store.pushpull(keys, gradients, out=learner.weights)
            return
        self._store.pushpull(keys, gradients, out=gradients)
        learner.update(batch_size)

    def settle(self, learner: MxnetLearner) -> None:
        """At an epoch's end: let the learner hold exactly what the group agreed on. Waits for it."""
        if self._request.mode == "async":
            mx.nd.waitall()
            self._store._barrier()
            self._store.pull(list(range(len(learner.weights))), out=learner.weights)
        elif self._request.workers > 1 and learner.auxiliary:
            packed = self._packed(learner)
            self._store.pushpull(self._auxiliary_key, packed, out=packed)
            packed /= self._request.workers
            offset = 0
            for array in learner.auxiliary:
                array[:] = packed[offset : offset + array.size].reshape(array.shape)
                offset += array.size
        mx.nd.waitall()

    @staticmethod
    def _packed(learner: MxnetLearner) -> mx.nd.NDArray:
        return mx.nd.concat(*(array.reshape((-1,)) for array in learner.auxiliary), dim=0)

    def total(self, values: list[float]) -> list[float]:
        """The sum of these over all workers, in synchronous mode: of at most four, or a split's measures."""
        sums = mx.nd.array([*values, *[0.0] * self._sums][: self._sums])
        self._store.pushpull(self._sums_key, sums, out=sums)
        return [float(value) for value in sums.asnumpy()[: len(values)]]
