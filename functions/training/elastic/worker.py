"""A worker of an elastic group: the others come and go while it trains, in the same process."""

import collections
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from training import backend, ipc, linux
from training.data.dataset import share
from training.data.reading import Part
from training.elastic.line import Left, Replaced
from training.errors import TrainingError
from training.request import StartRequest
from training.worker import PROGRESS_SECONDS, Worker, step_seed

#: Between two copies of what servers hold: at least so many seconds, and so many times as long as the last one took.
COPY_SECONDS, COPY_FACTOR = 1.0, 100


@dataclass
class _Place:
    """Where the group is: positions are in samples since the job's start."""

    position: int
    #: The epoch under way, and where it began and ends; None between epochs.
    epoch: str | None = None
    start: int = 0
    end: int = 0
    #: Sum of the sample losses of this epoch.
    losses: float = 0.0
    #: Whether no epoch was trained since the group was founded.
    fresh: bool = True
    #: Samples of this epoch that were trained again because a server had died.
    repeated: int = 0


class ElasticWorker(Worker):
    """See training.worker.Worker. All workers write reports; the one of rank 0 in the view stores the checkpoint."""

    def __init__(self, request: StartRequest, loaded: Any, *, reporter: Any, function: Any, fail: Callable) -> None:
        super().__init__(request, loaded, group=None, liveness=None, reporter=reporter, function=function)
        self._place = _Place(request.position)
        self._group = backend.current().make_elastic_group(request, self, fail)
        self.line = self._liveness = self._group.line
        #: What is being read, and the step that comes next in it: its epoch and position, the worker's rank, and of
        #: how many.
        self._ahead: Iterator[tuple[Part, Any]] = iter(())
        self._next_step: tuple[str | None, int, int, int] | None = None
        #: What gives a learner the state of the last copy, and what else a newcomer needs with it.
        self._copy: tuple[Callable[[Any], None], dict] | None = None
        self._copy_at = 0.0
        self._inbox: collections.deque[dict | None] = collections.deque()
        threading.Thread(target=self._listen_to_function, name="function", daemon=True).start()

    def run(self) -> None:
        """Train epochs until the function is gone, or the worker has left."""
        try:
            while True:
                report = self._epoch()
                if report["left"]:
                    self._reporter.done(report)
                    self._liveness.wait_for_release()
                    return
                self._liveness.tell({"done": self._request.epoch})
                self._reporter.done(report)
                if not self._next():
                    break
        except Left:
            pass  # between two epochs
        self._liveness.leave()

    def _listen_to_function(self) -> None:
        while True:
            message, _ = ipc.receive(self._function)
            with self._liveness.changed:
                self._inbox.append(message)
                self._liveness.changed.notify_all()
            if message is None:
                return

    def _receive(self) -> dict | None:
        self._group.rest(lambda: bool(self._inbox))
        return self._inbox.popleft()

    # -- the state of the group -------------------------------------------------------------------------------------

    def found(self) -> None:
        """Make the initial state, which the others get: the last copy, else the checkpoint, or initial weights."""
        before = self._place
        if self._copy is not None and self._copy[1]["at"] == self._at:  # it is of this epoch
            self.install(*self._copy)
        else:
            if self._at is not None:  # else it was just made
                self._make_learner()
            # Where all had a state and lost it with their servers, this is the last one that was stored.
            self._at = weights, position = self._at or (self._request.weights_in, self._request.position)
            self._load(weights, position)
            self._place = _Place(position)
        again = before.position - self._place.position
        if again > 0:
            self._place.repeated = before.repeated + again
            sys.stderr.write(f"a server died: {again} samples are trained again, of {before.end - before.start}\n")

    def state(self) -> tuple[Any, dict]:
        """The learner, and what else a newcomer needs."""
        return self._learner, {"place": vars(self._place), "at": self._at}

    def install(self, restore: Callable[[Any], None], plain: dict) -> None:
        """The inverse of state(): `restore` gives a learner the state that was received."""
        restore(self._learner)
        self._place = _Place(**plain["place"])
        self._at = plain["at"] and tuple(plain["at"])

    def _copies(self) -> None:
        """Have a copy of what servers hold, so that the death of one costs the steps since then and no more."""
        began = time.perf_counter()
        restore = self._group.copy(self._learner, self._place.position)
        self._copy = restore, {"place": dict(vars(self._place)), "at": self._at}
        now = time.perf_counter()
        self._copy_at = now + max(COPY_SECONDS, COPY_FACTOR * (now - began))

    # -- an epoch ---------------------------------------------------------------------------------------------------

    def _epoch(self) -> dict:
        request = self._request
        cpu_before = linux.cpu_seconds()
        began = time.perf_counter()
        is_new = self._learner is None
        if is_new:
            self._make_learner()
        report = {"load_seconds": self._loaded.seconds + time.perf_counter() - began, "left": False}
        began = time.perf_counter()
        if is_new:
            self._group.ready(self._learner)
        try:
            self._group.settle(until=lambda: request.epoch in self.line.done)
            report["form_seconds"] = time.perf_counter() - began
            if request.epoch not in self.line.done:  # else it ended before this worker came
                if request.wait_for_all:
                    self._group.rest(until=lambda: self._group.has(request.workers, request.servers))
                    report["form_seconds"] = time.perf_counter() - began
                report |= self._train_epoch(is_new=is_new)
        except Left:
            report["left"] = True
        position = self._place.position if self._place.epoch == request.epoch else request.position
        more = {"workers": 0, "repeated": self._place.repeated, **report}
        return self._report(position, cpu_before, is_new=is_new, **more)

    def _train_epoch(self, *, is_new: bool) -> dict:
        """Train to the epoch's end, also where the group went on without this worker, which joins it again."""
        since, again = (time.time(), time.perf_counter()), False
        while True:
            try:
                self._begin()
                self._reporter.state("training")
                return self._trained(since, is_new=is_new and not again)
            except Replaced:
                again = True

    def _begin(self) -> None:
        """Take up the epoch where the group is in it."""
        request, place = self._request, self._place
        if place.epoch == request.epoch:
            return
        if place.epoch is not None and place.position < place.end:
            message = f"the group is in epoch {place.epoch}; start a worker that joins with that one"
            raise TrainingError("BadRequest", message)
        if self._at != (request.weights_in, request.position):
            self._make_learner()
            self._load(request.weights_in, request.position)
            self._group.loaded(self._learner)
            self._at = (request.weights_in, request.position)
        end = request.position + self._total(first=place.fresh)
        self._place = _Place(request.position, request.epoch, request.position, end, fresh=False)

    def _trained(self, since: tuple[float, float], *, is_new: bool) -> dict:
        """The report's part on training. `since`: when this worker began the epoch, by both clocks."""
        request, place = self._request, self._place
        started_at, began = since
        workers, warm_up, warm_at, threads = self._steps(is_new=is_new, began=began)
        self._group.average_buffers(self._learner)
        ended = time.perf_counter()
        thread_seconds = linux.busiest_thread_seconds(threads)

        stored: Future[None] | None = None
        # A mini-epoch's evaluation is none of those that a user's loop would make.
        follows = self._learner.follows and request.evaluate and request.fraction in (None, 1.0)
        if self._group.rank == 0 and not follows:
            self._group.collect(self._learner)
            stored = self._store(place.position)
        copied = time.perf_counter()
        evaluation = self._evaluate()
        if follows:
            self._learner.follow(evaluation)
        measured = time.perf_counter()

        def store(rank: int, members: int) -> list[float]:
            del members
            nonlocal stored
            if rank == 0:  # the evaluation had to come first, or another worker had it, and died
                if stored is None:
                    self._group.collect(self._learner)
                    stored = self._store(place.position)
                if stored is not None:
                    stored.result()
            return [1.0]

        self._group.total(store)
        self._at = (request.weights_out, place.position)
        trained = place.position - place.start
        return {
            **evaluation._asdict(),
            "train_loss": place.losses / trained if trained else None,
            "train_seconds": ended - began,
            "warm_up_seconds": warm_at - began,
            "warm_up_samples": warm_up,
            "evaluate_seconds": measured - copied,
            "checkpoint_seconds": copied - ended + time.perf_counter() - measured,
            "train_started_at": started_at,
            "train_ended_at": started_at + ended - began,
            "thread_seconds": thread_seconds,
            "weights_uri": request.weights_out,
            "workers": workers,
        }

    def _steps(self, *, is_new: bool, began: float) -> tuple[int, int, float, dict]:
        """Train to the epoch's end.

        How many workers trained the last step, the samples of the warm-up, when it was over, and what the threads had
        computed then. It lasts until the first step with a warm learner and all workers, whose speed says something.
        """
        request, learner, place, batch = self._request, self._learner, self._place, self._request.batch_size
        reported = warm_at = began
        threads = linux.threads_cpu_seconds()
        first, size = is_new, len(self._dataset.train)
        warm_up, warming = 0, is_new or self._group.size < request.workers
        deadline = None if request.seconds is None or first else began + request.seconds
        self._copy_at = began + COPY_SECONDS
        stop, together = False, 0
        self._progress = {"samples": place.position - place.start, "total": place.end - place.start}
        while place.position < place.end and not stop:
            measured = learner.measured

            def compute(
                rank: int,
                members: int,
                measured: list = measured,
                deadline: float | None = deadline,
            ) -> tuple[bool, list[float]]:
                learner.measured = measured  # a step that is repeated measures once
                mine = share(batch, rank, members)
                late = self.line.cut == request.epoch or (deadline is not None and time.perf_counter() >= deadline)
                if mine.start == mine.stop:
                    return False, [0.0, float(late)]
                learner.take_loss()
                learner.step(self._batches(rank, members), step_seed(self._request, place.position, rank))
                return True, [learner.take_loss()[0], float(late)]

            together = self._group.size
            loss, late = self._group.step(learner, compute)
            place.position += batch
            place.losses += loss
            if place.position // size > (place.position - batch) // size:
                learner.end_pass()
            if not math.isfinite(loss):
                where = f"samples {place.position - batch} to {place.position}"
                raise TrainingError("LossNotFinite", f"the training loss became {loss} within {where}")
            now = time.perf_counter()
            if warming:
                learner.wait()
                warm_up, warm_at, threads = warm_up + batch, time.perf_counter(), linux.threads_cpu_seconds()
                warming = together < request.workers
                if first:
                    first = False
                    deadline = None if request.seconds is None else warm_at + request.seconds
            stop = late > 0
            if stop:  # the epoch ends here for all, also for those that come later
                place.end = place.position
            elif now >= self._copy_at and place.position < place.end and self._group.may_copy:
                self._copies()
            if now - reported >= PROGRESS_SECONDS:
                reported = now
                trained = place.position - place.start
                self._progress = {
                    "samples": trained,
                    "total": place.end - place.start,
                    "loss": place.losses / trained,
                }
                self._reporter.progress(**self._progress)
        return together, warm_up, warm_at, threads

    def _batches(self, rank: int, members: int) -> Iterator[tuple[Any, int]]:
        """The parts of this step, read; those of the epoch's next ones may be read meanwhile."""
        place, batch = self._place, self._request.batch_size
        if self._next_step != (place.epoch, place.position, rank, members):
            steps = range(place.position, place.end, batch)
            self._ahead = self._reader.read(part for position in steps for part in self._share(position, rank, members))
        self._next_step = None  # until all of it is read
        for part, read in self._ahead:
            yield read, part.count
            if part.last:
                break
        self._next_step = place.epoch, place.position + batch, rank, members

    def _sums(self, size: int) -> list[float]:
        def measure(rank: int, members: int) -> list[float]:
            self._next_step = None  # the reader goes on with these
            return self._measure(size, rank, members)

        return self._group.total(measure)
