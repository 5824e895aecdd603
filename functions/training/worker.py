"""A worker: it forms the group, then trains one epoch after another until the group ends."""

import inspect
import math
import platform
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np

from training import backend, checkpoint, ipc, linux, measures, storage
from training.backend import Learner
from training.connections.liveness import Hub, Member
from training.data.dataset import DataSet, Stream, share
from training.data.formats import BUILT_IN
from training.data.reading import Part, Reader, parts
from training.errors import TrainingError
from training.measures import Evaluation, Measured
from training.model import model_file
from training.reporter import Loaded, Reporter
from training.request import StartRequest

#: Seconds between two progress messages. Reading the loss waits for the steps so far, so it is not done every step.
PROGRESS_SECONDS = 0.5
#: Processes that a report names.
MAX_PROCESSES = 1000


#: Times of a report, in seconds.
TIMES = (
    "form_seconds",
    "load_seconds",
    "train_seconds",
    "warm_up_seconds",
    "evaluate_seconds",
    "checkpoint_seconds",
    "thread_seconds",
)


def in_background(call: Callable[[], None]) -> Future[None]:
    """Call it in a thread of its own."""
    return ThreadPoolExecutor(1).submit(call)


class Worker:
    """One worker of one group."""

    def __init__(
        self,
        request: StartRequest,
        loaded: Loaded,
        *,
        group: Any,
        liveness: Hub | Member,
        reporter: Reporter,
        function: socket.socket,
    ) -> None:
        self._request = request
        self._loaded = loaded
        self._group = group
        self._liveness = liveness
        self._reporter = reporter
        self._function = function
        self._learner: Learner | None = None
        self._dataset: DataSet | None = None
        self._stream: Stream | None = None
        self._reader: Reader | None = None
        self._forming: Future[None] | None = None
        self._progress: dict = {}
        self._at: tuple[str | None, int] | None = None  # the checkpoint and position that the learner holds now

    def run(self) -> None:
        """Train epochs until the function is gone."""
        # Joining is mostly waiting, loading is mostly work: they run at the same time.
        self._forming = in_background(self._group.form)
        while True:
            report = self._epoch()
            if self._request.rank == 0:
                self._liveness.tell({"done": self._request.epoch})
            self._reporter.done(report)
            if not self._next():
                return

    def _receive(self) -> dict | None:
        """The function's next message; None when it is gone."""
        return ipc.receive(self._function)[0]

    def _next(self) -> bool:
        """Wait for the next epoch's start message; False when the function is gone."""
        message = self._receive()
        if message is None:
            return False
        self._request = StartRequest(**message["request"])
        self._reporter.epoch = self._request.epoch
        self._loaded = replace(self._loaded, seconds=0.0)
        return True

    def _epoch(self) -> dict:
        request = self._request
        cpu_before = linux.cpu_seconds()
        began = time.perf_counter()
        is_new = self._prepare()
        load_seconds = self._loaded.seconds + time.perf_counter() - began
        began = time.perf_counter()
        if self._forming is not None:
            self._forming.result()
            self._forming = None
            self._liveness.tell({"formed": True})
        if is_new:
            self._group.share(self._learner)
        form_seconds = time.perf_counter() - began

        self._reporter.state("training")
        trained = self._train(first=is_new)

        position = request.position + trained["samples"]
        began = time.perf_counter()
        # Storing is mostly waiting, and evaluation does not change the weights: they run at the same time.
        storing = self._store(position) if request.rank == 0 else None
        copied = time.perf_counter()
        evaluation = self._evaluate()
        measured = time.perf_counter()
        if storing is not None:
            storing.result()
        self._at = (request.weights_out, position)
        return self._report(
            position,
            cpu_before,
            is_new=is_new,
            **evaluation._asdict(),
            **trained,
            form_seconds=form_seconds,
            load_seconds=load_seconds,
            warm_up_samples=request.batch_size if is_new else 0,
            evaluate_seconds=measured - copied,
            checkpoint_seconds=copied - began + time.perf_counter() - measured,
            weights_uri=request.weights_out if request.rank == 0 else None,
        )

    def _report(self, position: int, cpu_before: float, *, is_new: bool, **more: object) -> dict:
        """What every report has, and `more`; without that it is as if nothing was trained."""
        origin = {"software": f"{backend.current().software}, Python {platform.python_version()}"}
        origin["data_sha256"] = self._dataset.sha256
        now = time.time()
        return {
            **(origin if is_new else {}),
            **Evaluation()._asdict(),
            **dict.fromkeys(TIMES, 0.0),
            "samples": position - self._request.position,
            "position": position,
            "data_size": len(self._dataset.train),
            "train_loss": None,
            "warm_up_samples": 0,
            "train_started_at": now,
            "train_ended_at": now,
            "cpu_seconds": linux.cpu_seconds() - cpu_before,
            "max_rss_gib": linux.max_rss_gib(),
            "weights_uri": None,
            # That the model file's code has started, and that run still.
            "processes": self._loaded.started(self._reader.processes)[:MAX_PROCESSES],
            **more,
        }

    def _store(self, position: int) -> Future[None] | None:
        """Begin to write the checkpoint, if one is wanted."""
        request = self._request
        if request.weights_out is None:
            return None
        state = checkpoint.Checkpoint(
            arrays=self._learner.arrays(),
            settings=self._learner.settings(),
            position=position,
            epoch=request.epoch,
            seed=request.seed,
        )

        def save() -> None:
            checkpoint.save(request.weights_out, state, backend.current().write_checkpoint)
            for uri in request.obsolete:
                storage.remove(uri)

        return in_background(save)

    def _prepare(self) -> bool:
        """Load the epoch's initial state into the learner; whether a new learner was made for that."""
        request = self._request
        if self._learner is not None and self._at == (request.weights_in, request.position):
            return False
        if self._learner is not None and request.mode == "async":
            message = "an asynchronous group's servers hold its weights: it goes on from its own last checkpoint only"
            raise TrainingError("BadRequest", f"{message}; use another group id")
        self._make_learner()
        self._load(request.weights_in, request.position)
        return True

    def _make_learner(self) -> None:
        if self._dataset is None:
            self._dataset = self._loaded.dataset or own_data(self._request, self._loaded.model)
            self._stream = Stream(len(self._dataset.train), self._request.seed)
            uri = self._request.model["uri"]
            self._reader = backend.current().make_reader(self._dataset, self._request.readers, uri)
        self._learner = make_learner(self._request, self._loaded.model, self._dataset)

    def _load(self, weights: str | None, position: int) -> None:
        """Read the checkpoint that the epoch goes on from, if there is one."""
        if weights is not None:
            state = checkpoint.load(weights, backend.current().read_checkpoint)
            resumed = position > 0
            if resumed and state.position != position:
                message = f"{weights} is of position {state.position}, the epoch of {position}"
                raise TrainingError("CheckpointInvalid", message)
            # Weights for a first epoch are pre-trained ones: their optimizer's state does not belong to this job.
            self._learner.restore(state.arrays, state.settings if resumed else None)

    def _train(self, *, first: bool) -> dict:
        """Train the samples of the request: its part of the report. `first`: with a new learner.

        The warm-up is the first step of a new learner: memory is allocated, kernels are chosen.
        """
        request, learner, batch = self._request, self._learner, self._request.batch_size
        total = self._total(first=first)
        trained, losses, counted = 0, 0.0, 0
        self._progress = {"samples": 0, "total": total}
        started_at, began = time.time(), time.perf_counter()
        reported = warm = began
        threads = linux.threads_cpu_seconds()
        while trained < total:
            wanted = self._share(request.position + trained, request.rank, request.workers)
            batches = ((batch, part.count) for part, batch in self._reader.read(wanted))
            learner.step(batches, step_seed(request, request.position + trained, request.rank))
            self._group.step(learner, batch)
            trained += batch
            is_first = first and trained == batch
            if is_first:
                learner.wait()
                warm, threads = time.perf_counter(), linux.threads_cpu_seconds()
            now = time.perf_counter()
            out_of_time = request.seconds is not None and not is_first and now - warm >= request.seconds
            if is_first or out_of_time or now - reported >= PROGRESS_SECONDS or trained >= total:
                loss, count = learner.take_loss()
                losses, counted = losses + loss, counted + count
                if not math.isfinite(loss):
                    where = f"samples {request.position} to {request.position + trained}"
                    raise TrainingError("LossNotFinite", f"the training loss became {loss} within {where}")
                now = time.perf_counter()
                if now - reported >= PROGRESS_SECONDS:
                    reported = now
                    self._progress = {"samples": trained, "total": total, "loss": losses / counted}
                    self._reporter.progress(**self._progress)
            if out_of_time:
                break
        self._group.settle(learner)
        ended_at = started_at + time.perf_counter() - began
        thread_seconds = linux.busiest_thread_seconds(threads)
        mean = None
        if counted:
            mean = losses / counted if request.mode == "async" else self._group.total([losses / trained])[0]
        return {
            "samples": trained,
            "train_loss": mean,
            "train_seconds": ended_at - started_at,
            "warm_up_seconds": warm - began,
            "train_started_at": started_at,
            "train_ended_at": ended_at,
            "thread_seconds": thread_seconds,  # since the warm-up
        }

    def _share(self, position: int, rank: int, members: int) -> list[Part]:
        """What a worker computes of the batch at `position`, in micro-batches."""
        request = self._request
        mine = share(request.batch_size, rank, members)
        rows = self._stream.rows(position, request.batch_size)[mine]
        seeds = self._stream.seeds(position, request.batch_size)[mine]
        return parts("train", rows, seeds, request.micro_batch)

    def _total(self, *, first: bool) -> int:
        """How many samples to train, in whole batches: a number, or a fraction of an epoch, which is the data set or
        so many samples.

        A fraction is at least two steps of a new learner (`first`), if the data has them: the first step says nothing
        about its speed.
        """
        batch, fraction = self._request.batch_size, self._request.fraction
        if fraction is None:
            return math.ceil(self._request.samples / batch) * batch
        size = self._request.epoch_samples or len(self._dataset.train)
        steps = math.ceil(max(1, round(fraction * size)) / batch)
        return batch * max(steps, min(2 if first else 1, math.ceil(size / batch)))

    def _evaluate(self) -> Evaluation:
        """What the test split gives, if that is wanted."""
        if not self._request.evaluate:
            return Evaluation()
        self._reporter.state("evaluating")
        size = len(self._dataset.test)
        metrics = self._learner.metrics
        measured = Measured.of(self._sums(size), metrics.names)
        with model_file.users_code(self._request.model["uri"]):
            return metrics.of_split(measured, size)

    def _sums(self, size: int) -> list[float]:
        """The sums over the test split. Every worker measures its share, but where servers take all for gradients."""
        if self._request.workers > 1 and self._request.mode != "async":
            return self._group.total(self._measure(size, self._request.rank, self._request.workers))
        return self._measure(size, 0, 1)

    def _measure(self, size: int, rank: int, members: int) -> list[float]:
        """The sums over this worker's share of the test split."""
        return self._learner.evaluate(self._test_batches(share(size, rank, members))).sums()

    def _test_batches(self, mine: slice) -> Iterator[tuple[Any, int]]:
        """The batches to evaluate, and how many samples each has; reports progress in between."""
        rows, reported, evaluated = np.arange(mine.start, mine.stop), time.perf_counter(), 0
        wanted = parts("test", rows, rows, self._request.evaluation_batch)
        for part, batch in self._reader.read(wanted):
            if time.perf_counter() - reported >= PROGRESS_SECONDS:
                reported = time.perf_counter()
                self._reporter.progress(**self._progress, evaluated=evaluated)
            yield batch, part.count
            evaluated += part.count


def own_data(request: StartRequest, model: ModuleType) -> DataSet:
    """The splits that the model file reads itself, by its data(split) or data(split, path)."""
    uri, spec = model_file.shown(request.model["uri"]), request.data
    reader = getattr(model, "data", None)
    if not callable(reader):
        raise TrainingError("ModelInvalid", f"the data's format is {spec['format']}, but {uri} defines no data(split)")
    splits = []
    place = spec.get("uri")
    arguments = []
    if len(inspect.signature(reader).parameters) > 1 and place is not None and place != BUILT_IN:
        path = storage.local_path(place)
        arguments = [place if path is None else str(path)]
    for name in ("train", "test"):
        with model_file.users_code(uri):
            try:
                made = reader(name, *arguments)
                splits.append(backend.current().samples(made, model, name))
            except FileNotFoundError as error:
                raise TrainingError("DataMissing", f"data({name!r}) of {uri}: {error}") from error
    return DataSet(*splits).first(spec.get("size"))


def make_learner(request: StartRequest, model: ModuleType, dataset: DataSet) -> Learner:
    """The user's model with initial weights, which was seen to compute on the first samples of `dataset`."""
    count = min(measures.MEASURED, len(dataset.train))
    return backend.current().make_learner(request, model, (dataset.train.rows(slice(0, count)), count))


def step_seed(request: StartRequest, position: int, rank: int) -> int:
    """One seed for each (job, step, worker), so that a repeated epoch drops the same units."""
    numbers = [request.seed, position // 2**32, position % 2**32, rank]
    return int(np.random.SeedSequence(numbers).generate_state(1)[0] >> 1)
