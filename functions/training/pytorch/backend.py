"""PyTorch as a framework: see training.backend.Framework."""

import contextlib
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.distributed
import torch.utils.data

from training import servers
from training.data.dataset import Samples, Split, checked
from training.elastic.group import ElasticGroup
from training.errors import TrainingError
from training.model import model_file
from training.pytorch import checkpoint, optimizers
from training.pytorch.dataset import DatasetSamples
from training.pytorch.elastic import GlooGroup
from training.pytorch.learner import TorchLearner
from training.pytorch.reading import AheadReader
from training.pytorch.served import ServedLearner
from training.request import StartRequest

#: In the text of a RuntimeError of torch's allocators.
_NO_MEMORY = ("can't allocate memory", "out of memory", "not enough memory")

groups = ("elastic",)
stops_threads = False
software = f"PyTorch {torch.__version__}"
catalogue = optimizers.catalogue
read_checkpoint, write_checkpoint = checkpoint.read_checkpoint, checkpoint.write_checkpoint
make_reader = AheadReader
limit_threads = torch.set_num_threads


def make_elastic_group(request: StartRequest, owner: Any, fail: Callable[[BaseException], None]) -> ElasticGroup:
    """See training.backend.Framework: by servers where there are any."""
    if not request.servers:
        return GlooGroup(request, owner, fail)
    return servers.load("group").ServerGroup(request, owner, fail)


def make_learner(request: StartRequest, model: ModuleType, sample: tuple[Any, int]) -> TorchLearner:
    """See training.backend.Framework."""
    return (ServedLearner if request.servers else TorchLearner)(request, model, sample)


def failure(error: Exception) -> tuple[str, str] | None:
    """See training.backend.Framework."""
    if isinstance(error, RuntimeError) and any(sign in str(error) for sign in _NO_MEMORY):
        return "OutOfMemory", str(error).split("\n")[0]
    return None


def warm_up() -> None:
    """See training.backend.Framework."""
    if int(torch.__version__.partition(".")[0]) >= 2:
        # The first optimizer imports it: 4 s of computing that each child would pay.
        importlib.import_module("torch._dynamo")
    with contextlib.suppress(TrainingError):  # only jobs with servers need it
        servers.load("group")


def require(model: ModuleType, uri: str, net: str) -> None:
    """See training.backend.Framework."""
    if not callable(getattr(model, net, None)):
        classes = [
            name
            for name, each in vars(model).items()
            if isinstance(each, type) and issubclass(each, torch.nn.Module) and each.__module__ == model.__name__
        ]
        file = uri.rpartition("/")[2]
        found = ", ".join(f"{file}:{name}" for name in classes)
        hint = f"; it has {found}" if found else ""
        message = f"{uri} defines no function or class {net}{hint}; {model_file.as_program(uri)}"
        raise TrainingError("ModelInvalid", message)


def samples(made: Any, model: ModuleType, split: str) -> Samples:
    """See training.backend.Framework: a map-style Dataset, or samples and labels as arrays or tensors."""
    if isinstance(made, torch.utils.data.IterableDataset):
        message = f"data({split!r}) is an IterableDataset; a map-style Dataset (__len__, __getitem__) can be resumed"
        raise TrainingError("DataInvalid", message)
    if isinstance(made, torch.utils.data.DataLoader):
        message = f"data({split!r}) is a DataLoader; return its dataset, and define collate(samples) for its collate_fn"
        raise TrainingError("DataInvalid", message)
    if isinstance(made, tuple) and made and all(isinstance(each, torch.Tensor) for each in made):
        made = torch.utils.data.TensorDataset(*made)
    if (
        isinstance(made, tuple | list)
        and len(made) == 2
        and all(isinstance(each, np.ndarray | torch.Tensor) for each in made)
    ):
        return checked(Split(np.asarray(made[0]), np.asarray(made[1])), split)
    if not (hasattr(made, "__len__") and hasattr(made, "__getitem__")):
        kind = type(made).__name__
        raise TrainingError("DataInvalid", f"data({split!r}) is a {kind}, no Dataset and no (samples, labels)")
    if len(made) == 0:
        raise TrainingError("DataInvalid", f"the {split} split has no samples")
    return DatasetSamples(made, getattr(model, "collate", None) or torch.utils.data.default_collate)
