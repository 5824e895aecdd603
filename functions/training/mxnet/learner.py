"""The user's gluon model with its optimizer."""

import contextlib
import random
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from types import ModuleType

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon

from training import measures
from training.errors import TrainingError
from training.measures import Measured, Metrics
from training.model import model_file
from training.mxnet import optimizers
from training.request import StartRequest

#: Steps that may be ordered before the first of them is done. Enough to keep the engine busy; more would only fill
#: memory with batches, and let a timed probe end late.
RUN_AHEAD = 2


def _no_loss() -> mx.nd.NDArray:
    """A sum of losses. Single ones add up exactly in double precision, whenever the sum is taken."""
    return mx.nd.zeros((1,), dtype="float64")


class MxnetLearner:
    """See training.backend.Learner."""

    def __init__(
        self, request: StartRequest, model: ModuleType, sample: tuple[tuple[np.ndarray, np.ndarray], int]
    ) -> None:
        self._uri = model_file.shown(request.model["uri"])
        self.notes: list[str] = []  # each sample has a loss of its own: nothing depends on who trains it
        self.metrics = Metrics(model, self._uri)
        self._clip = request.clip or {}
        self._adds_up = request.micro_batch is not None
        mx.random.seed(request.seed)
        np.random.seed(request.seed)
        random.seed(request.seed)
        with model_file.users_code(self._uri):
            self.net = getattr(model, request.net)()
            self._loss = model.loss()
            self._initialize(sample[0][0][:1], restored=request.weights_in is not None)
        #: Structural names ("0.weight"): gluon's own carry a counter that differs from process to process.
        self._parameters = dict(sorted(self.net._collect_params_with_prefix().items()))
        trained = {name: each for name, each in self._parameters.items() if each.grad_req != "null"}
        if not trained:
            raise TrainingError("ModelInvalid", f"{self._uri}: the net has no parameter to train")
        self._trained = list(trained.values())
        for parameter in self._trained if self._adds_up else ():
            parameter.grad_req = "add"
        self._trained_names = list(trained)
        self.optimizer = optimizers.create(request.optimizer, model, self._uri)
        self._trainer = gluon.Trainer(self._trained, self.optimizer, kvstore=None, update_on_kvstore=False)
        self._loss_sum = _no_loss()
        self._counted = 0
        self._running: deque[mx.nd.NDArray] = deque()
        if self.metrics.given:
            self.evaluate([sample])  # to see what they are

    def _initialize(self, sample: np.ndarray, *, restored: bool) -> None:
        """Give every parameter its shape and first values; those that are `restored` need no random ones."""
        if not isinstance(self.net, gluon.Block):
            kind = type(self.net).__name__
            raise TrainingError("ModelInvalid", f"{self._uri}: net() returned {kind}, no gluon Block")
        if not callable(self._loss):
            kind = type(self._loss).__name__
            raise TrainingError("ModelInvalid", f"{self._uri}: loss() returned {kind}, no function")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # parameters that net() initialized itself are left as they are
            self.net.initialize(mx.init.Zero() if restored else mx.init.Xavier())
        if isinstance(self.net, gluon.HybridBlock):
            self.net.hybridize()
        # One sample fixes the shapes, in an order that is the same everywhere.
        if self._infer_shapes(mx.nd.array(sample)):
            return
        # Outside training oneDNN lays out weights anew in place, and then neither ps-lite nor an optimizer can use
        # them: so each gets a new array.
        self.net(mx.nd.array(sample)).wait_to_read()
        for parameter in self.net.collect_params().values():
            values = parameter.data().asnumpy()
            parameter._init_impl(mx.nd.array(values, dtype=values.dtype), parameter.list_ctx())

    def _infer_shapes(self, sample: mx.nd.NDArray) -> bool:
        """Initialize without computing, which for ResNet-18 takes 0.2 s; False where the net has to compute for it.

        It must where its own forward() says what is done: the symbolic graph need not be what that does. A parameter
        that the graph does not have is a KeyError of MXNet's; all other errors come again when it computes.
        """
        if type(self.net).forward is not gluon.HybridBlock.forward:
            return False
        try:
            self.net.infer_shape(sample)
            for parameter in self.net.collect_params().values():
                parameter._finish_deferred_init()
        except Exception:
            return False
        mx.nd.waitall()
        return True

    @contextlib.contextmanager
    def _copied_weights(self) -> Iterator[None]:
        """Let the net use copies of its weights, which oneDNN may lay out as it likes."""
        own = [(parameter, parameter._data) for parameter in self._parameters.values()]
        for parameter, arrays in own:
            parameter._data = [array.copy() for array in arrays]
        try:
            yield
        finally:
            for parameter, arrays in own:
                parameter._data = arrays

    @property
    def weights(self) -> list[mx.nd.NDArray]:
        """What the group keeps equal, in one order on all workers."""
        return [each.data() for each in self._trained]

    @property
    def gradients(self) -> list[mx.nd.NDArray]:
        """In the order of `weights`."""
        return [each.grad() for each in self._trained]

    @property
    def auxiliary(self) -> list[mx.nd.NDArray]:
        """What layers measure rather than learn: batch normalisation's running mean and variance."""
        return [each.data() for each in self._parameters.values() if each.grad_req == "null"]

    def step(self, batches: Iterable[tuple[tuple[np.ndarray, np.ndarray], int]], seed: int) -> None:
        """See training.backend.Learner."""
        for parameter in self._trained if self._adds_up else ():
            parameter.zero_grad()
        for number, ((x, y), count) in enumerate(batches):
            mx.random.seed((seed + number) % 2**31)
            np.random.seed((seed + number) % 2**32)
            samples, labels = mx.nd.array(x), mx.nd.array(y)
            with model_file.users_code(self._uri), autograd.record():
                losses = self._losses(self.net(samples), labels, y)
            losses.backward()
            loss = losses.sum()
            self._loss_sum = self._loss_sum + loss.astype("float64")
            self._counted += count
            self._running.append(loss)
            if len(self._running) > RUN_AHEAD:
                self._running.popleft().wait_to_read()

    def _losses(self, output: mx.nd.NDArray, labels: mx.nd.NDArray, y: np.ndarray) -> mx.nd.NDArray:
        """One loss for each sample; `labels` are `y` as the loss takes them."""
        sparse = type(self._loss) is gluon.loss.SoftmaxCrossEntropyLoss and self._loss._sparse_label
        if sparse and y.ndim == 1 and isinstance(output, mx.nd.NDArray) and output.ndim == 2:
            measures.check_labels(y.min(), y.max(), output.shape[1], self._uri)
        losses, count = self._loss(output, labels), labels.shape[0]
        if not isinstance(losses, mx.nd.NDArray) or losses.ndim == 0 or losses.shape[0] != count:
            shape = getattr(losses, "shape", type(losses).__name__)
            found = f"loss() gave shape {shape} for {count} samples"
            raise TrainingError("ModelInvalid", f"{self._uri}: {found}; it must give one loss per sample")
        return losses.reshape((count, -1)).mean(axis=1) if losses.ndim > 1 else losses

    def update(self, batch_size: int) -> None:
        """See training.backend.Learner: the gradients are sums over the batch, and clipped as its means."""
        if (norm := self._clip.get("norm")) is not None:
            gluon.utils.clip_global_norm(self.gradients, norm * batch_size, check_isfinite=False)
        if (value := self._clip.get("value")) is not None:
            for gradient in self.gradients:
                mx.nd.clip(gradient, -value * batch_size, value * batch_size, out=gradient)
        self._trainer.update(batch_size)

    def wait(self) -> None:
        """See training.backend.Learner."""
        mx.nd.waitall()

    def take_loss(self) -> tuple[float, int]:
        """See training.backend.Learner."""
        loss, count = float(self._loss_sum.asscalar()), self._counted
        self._loss_sum, self._counted = _no_loss(), 0
        return loss, count

    def evaluate(self, batches: Iterable[tuple[tuple[np.ndarray, np.ndarray], int]]) -> Measured:
        """See training.backend.Learner."""
        loss = right = answered = 0.0
        sums = dict.fromkeys(self.metrics.names, 0.0)
        with self._copied_weights(), model_file.users_code(self._uri):
            for (x, y), count in batches:
                samples, labels = mx.nd.array(x), mx.nd.array(y)
                output = self.net(samples)
                loss += float(self._losses(output, labels, y).sum().asscalar())
                accuracy, metrics = self.metrics.measure(output, (samples, labels))
                sums |= {name: sums.get(name, 0.0) + value * count for name, value in metrics.items()}
                answered += len(y)
                if self.metrics.given:
                    right += float("nan") if accuracy is None else accuracy * count
                    continue
                classes = output.shape[1] if isinstance(output, mx.nd.NDArray) and output.ndim == 2 else 1
                if classes > 1 and y.ndim == 1:
                    measures.check_answers(output.shape[0], len(y), count, self._uri)
                    right += float((output.asnumpy().argmax(axis=1) == y).sum())
                else:
                    right = float("nan")
        return Measured(loss, right, answered, sums)

    def arrays(self) -> dict[str, np.ndarray]:
        """See training.backend.Learner."""
        arrays = {f"weights/{name}": each.data().asnumpy() for name, each in self._parameters.items()}
        arrays |= optimizers.state_arrays(self._trainer._updaters[0], self._trained_names)
        return arrays

    def settings(self) -> dict:
        """See training.backend.Learner."""
        return optimizers.settings(self.optimizer)

    def restore(self, arrays: dict[str, np.ndarray], settings: dict | None) -> None:
        """See training.backend.Learner."""
        for name, parameter in self._parameters.items():
            array = arrays.get(f"weights/{name}")
            if array is None:
                raise TrainingError("CheckpointInvalid", f"the checkpoint has no weights {name}, the model does")
            if array.shape != parameter.shape:
                message = f"weights {name} are {array.shape} in the checkpoint, {parameter.shape} in the model"
                raise TrainingError("CheckpointInvalid", message)
            parameter.set_data(mx.nd.array(array, dtype=array.dtype))
        if settings is not None:
            optimizers.restore(self._trainer._updaters[0], self._trained_names, arrays, settings)
