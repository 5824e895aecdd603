"""MXNet as a framework: see training.backend.Framework."""

from types import ModuleType
from typing import Any

import mxnet
import numpy as np

from training import checkpoint
from training import mxnet as framework
from training.data.dataset import DataSet, Split, checked
from training.data.reading import Reader
from training.errors import TrainingError
from training.model import model_file
from training.mxnet import optimizers
from training.mxnet.learner import MxnetLearner
from training.mxnet.pslite import PsLiteGroup
from training.mxnet.served import ServedLearner
from training.request import StartRequest
from training.servers.group import ServerGroup

groups = ("fixed", "elastic")
stops_threads = True
software = f"MXNet {mxnet.__version__}"
catalogue = optimizers.catalogue
failure = framework.failure
limit_threads = framework.limit_threads
read_checkpoint, write_checkpoint = checkpoint.read, checkpoint.write
make_group = PsLiteGroup
make_elastic_group = ServerGroup


def make_learner(request: StartRequest, model: ModuleType, sample: tuple[Any, int]) -> MxnetLearner:
    """See training.backend.Framework."""
    return (ServedLearner if request.elastic else MxnetLearner)(request, model, sample)


def make_reader(dataset: DataSet, processes: int, uri: str) -> Reader:
    """See training.backend.Framework: arrays in memory need no other process."""
    del processes, uri
    return Reader(dataset)


def warm_up() -> None:
    """All is imported with this module."""


def require(model: ModuleType, uri: str, net: str) -> None:
    """See training.backend.Framework."""
    for name in (net, "loss"):
        if not callable(getattr(model, name, None)):
            message = f"{uri} defines no function {name}(); {model_file.as_program(uri)}"
            raise TrainingError("ModelInvalid", message)


def samples(made: Any, model: ModuleType, split: str) -> Split:
    """See training.backend.Framework."""
    del model
    x, y = made
    return checked(Split(np.asarray(x), np.asarray(y)), split)
