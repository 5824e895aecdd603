"""A zygote's cache from one group to the next: a function serves one job at a time."""

from types import ModuleType

from training import storage
from training.data import cache, formats
from training.data.dataset import DataSet
from training.model import arguments, model_file
from training.request import OWN_FORMATS


class Cache:
    """The last model file and the last data set."""

    def __init__(self) -> None:
        self._model: tuple[model_file.Source, ModuleType] | None = None
        self._data: tuple[tuple, DataSet] | None = None

    def model(self, model: dict) -> ModuleType:
        """The module of a start message's `model` with its arguments, run again only when its content changed."""
        source = model_file.read(model)
        if self._model is None or self._model[0] != source:
            self._model = None
            self._model = (source, model_file.run(source))
        return arguments.bind(self._model[1], source.uri, source.net, model.get("args") or {})

    def data(self, spec: dict) -> DataSet | None:
        """The data set of a start message; None when the model file's own reader is to be used.

        A local one is read again when its files changed; one elsewhere is assumed not to change.
        """
        if spec["format"] in OWN_FORMATS:
            return None
        uri = spec.get("uri") or formats.BUILT_IN
        key = (uri, spec["format"], spec.get("sha256"), spec.get("size"), storage.signature(uri))
        if self._data is None or self._data[0] != key:
            self._data = None  # free the old one's memory before the new one is loaded
            self._data = (key, cache.load(uri, spec["format"], spec.get("sha256"), spec.get("size")))
        return self._data[1]
