"""Two steps and one evaluation of a job, for `coach try`: no group, no budget, no checkpoint.

    python -m training.trial < fields.json

What is done is what a worker does, in the same order: a process reads the model file, and a fork of it, with the
worker's limits, makes the network and trains it.

Reads the fields of a worker's start message that describe the training. Each line of the output is an object: `phase`
says what begins, `data`, `steps`, `evaluation` and `memory` what was found, `error` what is wrong. Where this process
dies by itself, the last phase says what it was doing.
"""

import itertools
import json
import math
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from training import backend, linux
from training.data.dataset import Stream
from training.data.reading import parts
from training.errors import TrainingError
from training.group_member import as_training_error
from training.model import model_file
from training.model.cache import Cache
from training.reporter import Loaded
from training.request import StartRequest
from training.worker import make_learner, own_data, step_seed

STEPS = 2


def say(**values: Any) -> None:
    """One line of the output, at once: the process may die next."""
    sys.__stdout__.write(json.dumps(values) + "\n")
    sys.__stdout__.flush()


def load(request: StartRequest) -> Loaded:
    """As a zygote does. Raises TrainingError."""
    say(phase="importing the framework")
    backend.current().warm_up()
    cache = Cache()
    say(phase="loading the model file")

    def give_up(*_: object) -> None:
        seconds = f"{request.model_seconds:.3g}"
        failure = TrainingError("ModelTimeout", model_file.took_too_long(request.model["uri"], seconds))
        say(error=failure.as_dict() | {"traceback": ""})
        os._exit(1)

    signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, request.model_seconds)
    model = cache.model(request.model)
    signal.setitimer(signal.ITIMER_REAL, 0)
    say(phase="loading the data")
    return Loaded(model, cache.data(request.data), 0.0)


def train(request: StartRequest, loaded: Loaded) -> None:
    """As a worker does, in the zygote's fork. Raises TrainingError, and what the user's code raises."""
    if request.memory is not None:
        linux.limit_memory(request.memory)
    linux.keep_freed_memory()
    backend.current().limit_threads(request.threads)
    dataset = loaded.dataset or own_data(request, loaded.model)
    reader = backend.current().make_reader(dataset, request.readers, request.model["uri"])
    stream, size = Stream(len(dataset.train), request.seed), min(request.batch_size, len(dataset.train))
    wanted = [
        parts("train", stream.rows(position, size), stream.seeds(position, size), request.micro_batch)
        for position in range(0, STEPS * size, size)
    ]
    batch = reader.one(wanted[0][0])
    say(data={"train": len(dataset.train), "test": len(dataset.test), "batch": shapes(batch)})
    say(phase="making the network and computing its first outputs")
    learner = make_learner(request, loaded.model, dataset)
    say(notes=learner.notes)
    steps: list[dict] = []
    read = reader.read(part for step in wanted for part in step)
    for number, step in enumerate(wanted):
        say(phase=f"step {number + 1}")
        began = time.perf_counter()
        batches = ((batch, part.count) for part, batch in itertools.islice(read, len(step)))
        learner.step(batches, step_seed(request, number * request.batch_size, 0))
        learner.update(size)
        learner.wait()
        loss, counted = learner.take_loss()
        steps.append({"seconds": time.perf_counter() - began, "loss": loss / counted})
        if not math.isfinite(loss):
            raise TrainingError("LossNotFinite", f"the training loss of step {number + 1} is {loss}")
    say(steps=steps, samples=size)
    say(phase="the evaluation")
    size = min(request.evaluation_batch, len(dataset.test))
    began = time.perf_counter()
    rows = np.arange(size)
    (part,) = parts("test", rows, rows, None)
    measured = learner.evaluate([(batch, size) for _, batch in reader.read([part])])
    with model_file.users_code(request.model["uri"]):
        found = learner.metrics.of_split(measured, size)
    seconds = time.perf_counter() - began
    say(evaluation={"samples": size, "seconds": seconds, **found._asdict()})
    say(memory=linux.max_rss_gib())


def shapes(batch: Any) -> list[str]:
    """The dtype and shape of each array of a batch, such as `float32 (64, 1, 28, 28)`."""
    if isinstance(batch, Mapping):
        return [f"{name}: {shape}" for name, each in batch.items() for shape in shapes(each)]
    if isinstance(batch, tuple | list):
        return [shape for each in batch for shape in shapes(each)]
    if hasattr(batch, "shape"):
        return [f"{str(batch.dtype).removeprefix('torch.')} {tuple(batch.shape)}"]
    return [type(batch).__name__]


def attempt(request: StartRequest, what: Any, *arguments: Any) -> Any:
    """Call it; where something is wrong, say so and end this process with 1."""
    try:
        return what(request, *arguments)
    except Exception as error:
        known = as_training_error(error)
        say(error=known.as_dict() | {"traceback": model_file.of_user(error, request.model["uri"])})
        os._exit(1)


def main() -> int:
    """Read the fields and try them; 1 where something is wrong. Ends as the worker ends where that dies by itself."""
    fields = json.load(sys.stdin)
    sys.stdout = sys.stderr  # what the model file prints
    request = StartRequest.alone(**fields)
    loaded = attempt(request, load)
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        linux.die_with_parent(parent)
        attempt(request, train, loaded)
        sys.stderr.flush()
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main())
