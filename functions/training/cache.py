"""A zygote's cache from one group to the next: a function serves one job at a time."""

from types import ModuleType

from training import model_file, storage
from training.data import cache, formats
from training.data.dataset import DataSet
from training.request import OWN_FORMATS


class Cache:
    """The last model file and the last data set."""

    def __init__(self) -> None:
        self._model: tuple[tuple[str, str, str], ModuleType] | None = None
        self._data: tuple[tuple, DataSet] | None = None

    def model(self, uri: str, sha256: str | None, net: str) -> ModuleType:
        """The module of a user's model file, run again only when its content changed."""
        source, digest = model_file.read(uri, sha256)
        if self._model is None or self._model[0] != (uri, digest, net):
            self._model = ((uri, digest, net), model_file.run(uri, source, digest, net))
        return self._model[1]

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
