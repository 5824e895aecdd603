"""Two steps and one evaluation of a job in this process alone, for `coach try`: no group, no budget, no checkpoint.

    python -m training.trial < fields.json

Reads the fields of a worker's start message that describe the training. Each line of the output is an object: `phase`
says what begins, `data`, `steps`, `evaluation` and `memory` what was found, `error` what is wrong. Where this process
dies by itself, the last phase says what it was doing.
"""

import json
import math
import sys
import time
import traceback
from collections.abc import Mapping
from typing import Any

from training import backend, linux, model_file
from training.cache import Cache
from training.errors import TrainingError
from training.group_member import as_training_error
from training.request import StartRequest
from training.worker import EVALUATION_BATCH, own_data, step_seed

STEPS = 2


def say(**values: Any) -> None:
    """One line of the output, at once: the process may die next."""
    sys.__stdout__.write(json.dumps(values) + "\n")
    sys.__stdout__.flush()


def run(fields: dict) -> None:
    """Try what `fields` describe. Raises TrainingError, and what the user's code raises."""
    member = {"epoch": "try", "group": "try", "role": "worker", "rank": 0, "workers": 1, "servers": 0}
    request = StartRequest(**member, root="", host="", deadline=math.inf, samples=0, **fields)
    say(phase="importing the framework")
    framework = backend.current()
    framework.warm_up()
    framework.limit_threads(request.threads)
    cache = Cache()
    say(phase="loading the model file")
    model = cache.model(request.model["uri"], request.model.get("sha256"), request.net)
    say(phase="loading the data")
    dataset = cache.data(request.data) or own_data(request, model)
    size = min(request.batch_size, len(dataset.train))
    batch = dataset.train.rows(slice(0, size))
    say(data={"train": len(dataset.train), "test": len(dataset.test), "batch": shapes(batch)})
    say(phase="making the network and its optimizer")
    learner = framework.make_learner(request, model, dataset.train.rows(slice(0, 1)))
    steps: list[dict] = []
    for number in range(STEPS):
        say(phase=f"step {number + 1}")
        began = time.perf_counter()
        learner.step(batch, size, step_seed(request, number * request.batch_size, 0))
        learner.update(size)
        learner.wait()
        loss, counted = learner.take_loss()
        steps.append({"seconds": time.perf_counter() - began, "loss": loss / counted})
        if not math.isfinite(loss):
            raise TrainingError("LossNotFinite", f"the training loss of step {number + 1} is {loss}")
    say(steps=steps, samples=size)
    say(phase="the evaluation")
    size = min(EVALUATION_BATCH, len(dataset.test))
    began = time.perf_counter()
    loss, right = learner.evaluate([(dataset.test.rows(slice(0, size)), size)])
    accuracy = None if math.isnan(right) else right / size
    seconds = time.perf_counter() - began
    say(evaluation={"samples": size, "seconds": seconds, "loss": loss / size, "accuracy": accuracy})
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


def of_user(error: BaseException, uri: str) -> str:
    """The traceback from the user's file on; nothing where the file has no part in it."""
    cause = error.__cause__ or error
    frames = traceback.extract_tb(cause.__traceback__)
    first = next((number for number, frame in enumerate(frames) if frame.filename == uri), None)
    if first is None:
        return ""
    shown = traceback.format_list(frames[first:]) + traceback.format_exception_only(cause)
    return "".join(shown)


def main() -> int:
    """Read the fields and try them; 1 where something is wrong."""
    fields = json.load(sys.stdin)
    sys.stdout = sys.stderr  # what the model file prints
    try:
        run(fields)
    except Exception as error:
        known = as_training_error(error)
        say(error=known.as_dict() | {"traceback": of_user(error, model_file.shown(fields["model"]["uri"]))})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
