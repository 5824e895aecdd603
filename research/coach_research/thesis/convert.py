"""Turns the thesis's job files (JSON) into ours.

A thesis file is a list of jobs. Each names a file of testing errors: factors on predictions, fixed or maximum numbers
of workers and servers (0: no limit) and whether the budget is ignored. Fields without a counterpart (the image, with
the thesis's own functions) become comments.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import NoneType
from typing import Any

from coach.core.spec.job import API_VERSION, TrainingJob
from coach.jobfiles.diagnostics import JobFileError, Problem, show
from coach.jobfiles.dump import Comments, to_yaml, to_yaml_file
from coach.jobfiles.schema import KIND
from coach.jobfiles.yaml_nodes import MAX_BYTES, YamlNode, read

_ERRORS_FOLDER = "errorFiles"


@dataclass(frozen=True, slots=True)
class Network:
    """The model and data of a thesis script: the part of its path that names them, and their names in Coach."""

    script: str
    model: str
    data: str
    format: str
    samples: int
    note: str


NETWORKS = (
    Network("LeNet", "lenet", "mnist", "idx", 60_000, "MNIST's training images"),
    Network(
        "Cifar10",
        "resnet18",
        "cifar10",
        "cifar10",
        25_000,
        "half of CIFAR-10, as section 5 of the thesis says",
    ),
)


@dataclass(frozen=True, slots=True)
class Converted:
    """A job and its comments."""

    job: TrainingJob
    comments: Comments

    def to_yaml(self) -> str:
        """The job as a commented document."""
        return to_yaml(self.job, self.comments)


@dataclass(frozen=True, slots=True)
class _Options:
    error_files: Path | None
    models: str
    data: str
    name: str | None
    labels: dict[str, str]


def convert(
    path: Path | str,
    *,
    error_files: Path | None = None,
    models: str = "functions/models",
    data: str = ".data",
    name: str | None = None,
    labels: dict[str, str] | None = None,
) -> list[Converted]:
    """The jobs of a thesis file. Raises JobFileError with all of its mistakes.

    `error_files`: the folder of the testing errors; default: `errorFiles` next to the file's folder or in it.
    `models`, `data`: the folders of our model files and data sets, as written into the job file.
    `name`: the jobs' name, followed by their number; default: the network and the file's name.
    """
    return _Conversion(Path(path), _Options(error_files, models, data, name, labels or {})).run()


def convert_to_yaml(path: Path | str, **options: Any) -> str:
    """`convert` as the text of a job file."""
    return to_yaml_file([one.to_yaml() for one in convert(path, **options)])


class _Fields:
    """Reads the fields of one JSON object, and collects their mistakes."""

    def __init__(self, path: Path, node: YamlNode, problems: list[Problem]) -> None:
        self.path, self.node, self.problems = path, node, problems
        self.known: set[str] = set()
        self.usable = node.kind is dict
        if not self.usable:
            self.report(node, "", "not an object", show(node.plain()), "an object")

    def number(self, key: str, low: float, high: float) -> float:
        """A number from `low` to `high`."""
        value = self._value(key)
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if value is not None and not (fits and low <= value <= high):
            self._wrong(key, "not a number within bounds", f"a number from {show(low)} to {show(high)}")
        return float(value) if fits else low

    def whole(self, key: str, high: int) -> int:
        """A whole number from 0 to `high`."""
        value = self._value(key)
        fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= high
        if value is not None and not fits:
            self._wrong(key, "not a whole number within bounds", f"a whole number from 0 to {high}")
        return value if fits else 0

    def text(self, key: str) -> str:
        """A text."""
        value = self._value(key)
        if value is not None and not isinstance(value, str):
            self._wrong(key, "not text", "text")
        return value if isinstance(value, str) else ""

    def _value(self, key: str) -> Any:
        self.known.add(key)
        item = self.node.find(key) if self.usable else None
        if item is None or item[1].kind is NoneType:
            if self.usable:
                self.report(self.node, key, "required", "not there", "a value, as in the thesis's files")
            return None
        return item[1].plain()

    def _wrong(self, key: str, problem: str, right: str) -> None:
        item = self.node.find(key)
        if item:
            self.report(item[1], key, problem, show(item[1].plain()), right)

    def done(self) -> None:
        """Report every field that was not read as unknown."""
        for key, _ in self.node.items if self.usable else ():
            if key.text not in self.known:
                right = f"one of {', '.join(sorted(self.known))}"
                place = YamlNode(key.line, key.column)
                self.report(place, key.text, "no such field", show(key.text), right)

    def report(self, node: YamlNode, field: str, problem: str, seen: str, right: str) -> None:
        """Add a mistake at a node."""
        self.problems.append(Problem(str(self.path), node.line, node.column, field, problem, seen, right))


class _Conversion:
    """One file's conversion; `options` are those of `convert`."""

    def __init__(self, path: Path, options: _Options) -> None:
        self.path, self.options = path, options
        folders = (path.parent.parent / _ERRORS_FOLDER, path.parent / _ERRORS_FOLDER)
        self.error_folders: Sequence[Path] = (options.error_files,) if options.error_files else folders
        self.problems: list[Problem] = []

    def run(self) -> list[Converted]:
        document = self._json(self.path)
        found = []
        if document is not None and (document.kind is not list or not document.items):
            where = (document.line, document.column)
            seen = show(document.plain())
            self.problems.append(Problem(str(self.path), *where, "", "not a list of jobs", seen, "a list of jobs"))
        elif document is not None:
            for number, (_, node) in enumerate(document.items, 1):
                job = self._job(node, number)
                if job is not None:
                    found.append(job)
        if self.problems:
            raise JobFileError(self.problems)
        return found

    def _json(self, path: Path) -> YamlNode | None:
        """The one document of a JSON file. JSON without tabs is YAML, and is read as such."""
        try:
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1).replace(b"\t", b" ")
        except OSError as error:
            seen = error.strerror or str(error)
            self.problems.append(Problem(str(path), 1, 1, "", "cannot be read", seen, "a JSON file of the thesis"))
            return None
        documents, mistakes = read(data, str(path))
        self.problems += mistakes
        if not mistakes and len(documents) != 1:
            right = "one list of jobs"
            self.problems.append(Problem(str(path), 1, 1, "", "not one JSON document", f"{len(documents)}", right))
        return documents[0] if len(documents) == 1 and not mistakes else None

    def _job(self, node: YamlNode, number: int) -> Converted | None:
        before = len(self.problems)
        fields = _Fields(self.path, node, self.problems)
        budget = fields.number("budget", 1e-6, 1e9)
        loss = fields.number("targetLoss", 1e-9, 1e9)
        percent = fields.number("dataSetSize", 1e-3, 100)
        image = fields.text("imageUrl")
        script = fields.text("scriptPath")
        errors_path = fields.text("testingErrorsPath")
        fields.done()
        network = next((one for one in NETWORKS if f"/{one.script}/" in script), None)
        if network is None and script:
            right = f"a path with /{'/ or /'.join(one.script for one in NETWORKS)}/ in it"
            fields.report(node, "scriptPath", "unknown network", show(script), right)
        testing = self._errors(fields, node, errors_path) if errors_path else None
        if len(self.problems) > before or network is None or testing is None:
            return None
        spec: dict[str, Any] = {
            "model": {"file": f"{self.options.models}/{network.model}.py"},
            "data": {
                "uri": f"{self.options.data}/{network.data}",
                "format": network.format,
                "size": max(1, round(network.samples * percent / 100)),
            },
            "target": {"loss": loss},
            "budget": {"amount": budget, "currency": "USD"},
            **testing.spec,
        }
        comments = {
            (): f"From {self.path.name} of the thesis, job {number}.\nIts image held the thesis's functions: {image}",
            ("spec", "data"): f"{percent:g} % of {network.samples:,} samples: {network.note}.",
            **testing.comments,
        }
        document = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": self._name(network, number), "labels": self.options.labels},
            "spec": spec,
        }
        return Converted(TrainingJob.from_json(document), comments)

    def _name(self, network: Network, number: int) -> str:
        stem = re.sub(r"[^a-z0-9]+", "-", self.path.stem.lower()).strip("-") or "job"
        first = self.options.name or f"{network.model}-{stem}"
        return f"{first[: 39 - len(str(number))].rstrip('-')}-{number}"

    def _errors(self, fields: _Fields, node: YamlNode, named: str) -> _Testing | None:
        """The testing errors. Only the last part of their path is used, in the known folders."""
        name = PurePosixPath(named).name
        path = next((folder / name for folder in self.error_folders if (folder / name).is_file()), None)
        if path is None:
            right = f"a file in {' or '.join(str(folder) for folder in self.error_folders)}"
            fields.report(node, "testingErrorsPath", "no such file", show(named), right)
            return None
        document = self._json(path)
        return _testing(_Fields(path, document, self.problems)) if document is not None else None


@dataclass(frozen=True, slots=True)
class _Testing:
    """The parts of a job file that come from a file of testing errors."""

    spec: dict[str, Any]
    comments: dict[tuple[str, ...], str]


def _testing(fields: _Fields) -> _Testing:
    spec: dict[str, Any] = {}
    comments: dict[tuple[str, ...], str] = {}
    factors = {
        "speed": fields.number("marginalUtility", 1e-6, 1000),
        "convergence": fields.number("convergenceEpoch", 1e-6, 1000),
        "cost": fields.number("costEstimation", 1e-6, 1000),
    }
    if any(factor != 1.0 for factor in factors.values()):
        spec["testing"] = {"errorFactors": factors}
    for key, most, fixed in (
        ("workers", fields.whole("maxWorkers", 64), fields.whole("staticWorkers", 64)),
        ("servers", fields.whole("maxServers", 64), fields.whole("staticServers", 64)),
    ):
        if fixed:
            spec[key] = {"min": fixed, "max": fixed}
        elif most:
            spec[key] = {"max": most}
    if all(spec.get(key, {}).get("min") for key in ("workers", "servers")):
        workers, servers = spec.pop("workers")["max"], spec.pop("servers")["max"]
        spec["policy"] = {"name": "static", "workers": workers, "servers": servers}
        for key, count in (("workers", workers), ("servers", servers)):
            if count > 4:
                spec[key] = {"max": count}
    elif "workers" not in spec and "servers" not in spec:
        comments[("spec", "target")] = "No limits of workers and servers in the thesis; Coach's own defaults hold."
    if fields.whole("ignoreBudget", 1):
        spec["budget"] = {"unlimited": True}
        comments[("spec", "budget")] = "The thesis switched its budget off (ignoreBudget 1)."
    fields.done()
    return _Testing(spec, comments)
