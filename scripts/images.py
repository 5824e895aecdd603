"""Build Coach's images: archives that `docker load`, `ctr images import` and `kind load image-archive` read.

    python scripts/images.py [--with docker|debian] [handler functions scheduler functions-pytorch nuclio-functions]

Writes .cache/images/coach-handler.tar, coach-functions.tar and coach-scheduler.tar; where they are named,
coach-functions-pytorch.tar, the functions with PyTorch on CPUs, and coach-nuclio-functions.tar, the functions in
Nuclio's own processor. With docker they come from the Dockerfiles in deploy/. Without it (`--with debian`, on a Debian
12 machine, no root) a base layer is unpacked from Debian's packages, and the Python packages are those of .venv and
.venv-functions; next to each archive NAME.cdx.json lists what is in it. A layer whose inputs did not change is not
written again, an archive whose layers did not change neither.
"""

import argparse
import hashlib
import importlib.metadata
import io
import json
import multiprocessing
import os
import py_compile
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import urllib.parse
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / ".cache/images"
UNPACKED = OUT / "unpacked"
VERSION = "0.1.0"
SCHEDULER_VERSION = "1.35.4"
USER = "65532"
SITE = "lib/python3.11/site-packages"

#: What Python 3.11, MXNet and a person with a shell need; packages that these only recommend are left out.
PACKAGES = [
    *("libc6", "libgcc-s1", "libstdc++6", "libgomp1", "libgfortran5", "libquadmath0", "zlib1g", "libbz2-1.0"),
    *(
        "liblzma5",
        "libssl3",
        "libffi8",
        "libsqlite3-0",
        "libuuid1",
        "libncursesw6",
        "libtinfo6",
        "libreadline8",
    ),
    *("libexpat1", "libcrypt1", "media-types", "ca-certificates", "tzdata", "busybox"),
    *("libpython3.11-minimal", "libpython3.11-stdlib", "python3.11-minimal"),
]
APPLETS = (
    *("sh", "ls", "cat", "ps", "sleep", "env", "mkdir", "rm", "cp", "mv", "ln", "nc", "id", "kill"),
    *("grep", "head", "tail", "df", "du", "hostname", "ip", "tar", "top", "touch"),
)


class Unbuildable(Exception):
    """An image cannot be built here; the message is one line with the next command."""


@dataclass(frozen=True)
class Link:
    """A symbolic link of an image."""

    target: str


#: What a path of a layer holds: a file of this machine, its bytes, a link, or nothing (a folder, with its mode).
Content = Path | bytes | Link | int


@dataclass(frozen=True)
class Layer:
    """`inputs` is everything that `entries` follows from; equal inputs are not written twice."""

    name: str
    inputs: list[str]
    entries: Callable[[], Iterable[tuple[str, Content]]]

    def write(self) -> tuple[Path, str]:
        """The layer's tar and its SHA-256."""
        source = Path(__file__).read_bytes()
        key = hashlib.sha256(json.dumps([self.inputs, source.decode()]).encode()).hexdigest()[:16]
        folder = OUT / "layers"
        for old in folder.glob(f"{self.name}-*"):
            if old.name.split("-")[-1].split(".")[0] != key:
                old.unlink()
        target, digest = folder / f"{self.name}-{key}.tar", folder / f"{self.name}-{key}.sha256"
        if not digest.exists():
            began = time.monotonic()
            folder.mkdir(parents=True, exist_ok=True)
            part = target.with_suffix(".part")
            digest_text = _write_tar(part, dict(self.entries()))
            part.replace(target)
            digest.write_text(digest_text)
            shutil.rmtree(UNPACKED, ignore_errors=True)
            print(f"layer {self.name}: {target.stat().st_size / 1e6:.0f} MB, {time.monotonic() - began:.1f} s")
        return target, digest.read_text()


class _Hashing(io.RawIOBase):
    """A file that is hashed while it is written."""

    def __init__(self, path: Path) -> None:
        self._file, self.sha256 = path.open("wb"), hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.sha256.update(data)
        return self._file.write(data)

    def close(self) -> None:
        self._file.close()
        super().close()


def _write_tar(path: Path, entries: Mapping[str, Content]) -> str:
    """A tar that depends on nothing but the entries: no owners, no times. Python files come compiled."""
    sources = {
        name: content for name, content in entries.items() if name.endswith(".py") and isinstance(content, Path | bytes)
    }
    # Bytecode depends a little on what its process did before: each chunk gets a new one.
    with multiprocessing.get_context("spawn").Pool(maxtasksperchild=1) as pool:
        compiled = dict(pool.imap(_compile, sorted(sources.items()), chunksize=200))
    with _Hashing(path) as out:
        with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
            for name in sorted(entries):
                _add(tar, name, entries[name])
                if compiled.get(name):
                    module = Path(name)
                    _add(tar, f"{module.parent}/__pycache__/{module.stem}.cpython-311.pyc", compiled[name])
        return out.sha256.hexdigest()


def _add(tar: tarfile.TarFile, name: str, content: Content) -> None:
    info = tarfile.TarInfo(name)
    info.mtime = 1_577_836_800  # 2020: zip files know no time before 1980
    info.mode = 0o644
    match content:
        case Link():
            info.type, info.linkname, info.mode = tarfile.SYMTYPE, content.target, 0o777
            tar.addfile(info)
        case int():
            info.type, info.mode = tarfile.DIRTYPE, content
            tar.addfile(info)
        case bytes():
            info.size = len(content)
            if content.startswith(b"#!"):
                info.mode = 0o755
            tar.addfile(info, io.BytesIO(content))
        case Path():
            stat = content.stat()
            info.size, info.mode = stat.st_size, 0o755 if stat.st_mode & 0o100 else 0o644
            with content.open("rb") as file:
                tar.addfile(info, file)


def _compile(source: tuple[str, Path | bytes]) -> tuple[str, bytes]:
    """Bytecode that Python does not compare with the source: a read-only file system could not take another."""
    name, content = source
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file, result = Path(folder, "source.py"), Path(folder, "result.pyc")
        file.write_bytes(content.read_bytes() if isinstance(content, Path) else content)
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        try:
            py_compile.compile(str(file), str(result), f"/{name}", doraise=True, invalidation_mode=mode)
        except (py_compile.PyCompileError, ValueError):
            return name, b""  # written for another Python
        return name, result.read_bytes()


def base() -> Layer:
    """Debian with Python, without a package manager."""
    debs = download(PACKAGES)
    return Layer("base", [deb.name for deb in debs], lambda: _debian(debs))


def download(names: list[str]) -> list[Path]:
    """Debian's packages of these names, from .cache/images/debs where they are there already."""
    folder = OUT / "debs"
    folder.mkdir(parents=True, exist_ok=True)
    absent = [name for name in names if not any(folder.glob(f"{name}_*.deb"))]
    if absent:
        if not shutil.which("apt-get"):
            raise Unbuildable("without docker the base layer needs Debian's apt-get and dpkg-deb: install docker")
        print(f"downloading {len(absent)} Debian packages")
        command = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", *absent]
        if subprocess.run(command, cwd=folder, check=False, capture_output=True).returncode:
            subprocess.run(["apt-get", "-qq", "update"], check=False)
            if subprocess.run(command, cwd=folder, check=False).returncode:
                raise Unbuildable(f"apt-get cannot download {' '.join(absent)}: see above")
    return [sorted(folder.glob(f"{name}_*.deb"))[-1] for name in sorted(names)]


def _debian(debs: list[Path]) -> Iterator[tuple[str, Content]]:
    folder = UNPACKED
    shutil.rmtree(folder, ignore_errors=True)
    for deb in debs:
        subprocess.run(["dpkg-deb", "-x", deb, folder], check=True)
    for name in ("bin", "sbin", "lib", "lib64"):  # of /usr, as on every Debian since 12
        (folder / "usr" / name).mkdir(exist_ok=True)
        if (folder / name).is_dir():
            shutil.copytree(folder / name, folder / "usr" / name, symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(folder / name)
        yield name, Link(f"usr/{name}")
    for unused in ("doc", "man", "lintian", "bug", "locale"):
        shutil.rmtree(folder / "usr/share" / unused, ignore_errors=True)
    authorities = sorted((folder / "usr/share/ca-certificates/mozilla").glob("*.crt"))
    yield "etc/ssl/certs/ca-certificates.crt", b"".join(file.read_bytes() for file in authorities)
    yield "usr/lib/ssl/cert.pem", Link("/etc/ssl/certs/ca-certificates.crt")
    yield "usr/lib/ssl/certs", Link("/etc/ssl/certs")
    for applet in APPLETS:
        yield f"usr/bin/{applet}", Link("busybox")
    yield "usr/bin/python3", Link("python3.11")
    yield "etc/passwd", f"root:x:0:0::/root:/bin/sh\ncoach:x:{USER}:{USER}::/tmp:/bin/sh\n".encode()
    yield "etc/group", f"root:x:0:\ncoach:x:{USER}:\n".encode()
    yield "etc/nsswitch.conf", b"hosts: files dns\n"
    yield "tmp", 0o1777
    yield from _tree(folder, "")


def _tree(folder: Path, inside: str) -> Iterator[tuple[str, Content]]:
    """All files and links below a folder, without bytecode."""
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in files + [name for name in folders if Path(parent, name).is_symlink()]:
            path = Path(parent, name)
            where = str(Path(inside, path.relative_to(folder)))
            yield where, Link(str(path.readlink())) if path.is_symlink() else path


def packages(name: str, requirements: Path, environment: Path, target: str) -> Layer:
    """The locked Python packages of one environment, as a virtual environment of the image's Python at `target`."""
    lock = requirements.read_text()
    names = re.findall(r"^([A-Za-z0-9_.-]+)==", lock, re.MULTILINE)

    def entries() -> Iterator[tuple[str, Content]]:
        yield (
            f"{target}/pyvenv.cfg",
            b"home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11\n",
        )
        for link in ("python", "python3"):
            yield f"{target}/bin/{link}", Link("/usr/bin/python3.11")
        site = environment / SITE
        installed = {_normal(found.name): found for found in importlib.metadata.distributions(path=[str(site)])}
        for package in names:
            distribution = installed.get(_normal(package))
            if distribution is None:
                raise Unbuildable(f"{environment.name} lacks {package} of {requirements.name}: run make setup")
            for file in distribution.files or []:
                path = site / file
                if ".." not in file.parts and path.suffix != ".pyc" and path.is_file():
                    yield f"{target}/{SITE}/{file}", path

    return Layer(name, [lock, target], entries)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def code(name: str, folders: Mapping[str, Path], more: Mapping[str, Content]) -> Layer:
    """Folders of this checkout, and entries beside them."""
    files = {
        where: content
        for inside, folder in folders.items()
        for where, content in sorted(_tree(folder, inside))
        if isinstance(content, Path)
    }
    inputs = [f"{where} {hashlib.sha256(path.read_bytes()).hexdigest()}" for where, path in files.items()]
    return Layer(name, [*inputs, repr(sorted(more.items()))], lambda: [*files.items(), *more.items()])


COACH = {f"opt/coach/{SITE}/coach": ROOT / "coach", "opt/coach/functions": ROOT / "functions"}
RESEARCH = {f"opt/coach/{SITE}/coach_research": ROOT / "research/coach_research"}
DIST_INFO = f"opt/coach/{SITE}/coach_trainer-{VERSION}.dist-info"


def _papers() -> dict[str, Content]:
    """What a package manager writes for the second package: by its entry points its policies are found."""
    project = tomllib.loads((ROOT / "research/pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in project["entry-points"].items()
    ]
    folder = f"opt/coach/{SITE}/coach_research-{VERSION}.dist-info"
    return {
        f"{folder}/METADATA": f"Metadata-Version: 2.1\nName: coach-research\nVersion: {VERSION}\n".encode(),
        f"{folder}/entry_points.txt": "".join(groups).encode(),
    }


def handler() -> None:
    """Coach itself and the papers' policies, without MXNet."""
    more = _papers() | {
        "opt/coach/bin/coach": b"#!/opt/coach/bin/python\n"
        b"import sys\nfrom coach.cli.main import main\n\nsys.exit(main())\n",
        f"{DIST_INFO}/METADATA": f"Metadata-Version: 2.1\nName: coach-trainer\nVersion: {VERSION}\n".encode(),
    }
    layers = [
        base(),
        packages("handler-packages", ROOT / "requirements/coach.txt", ROOT / ".venv", "opt/coach"),
        code("handler-code", COACH | RESEARCH, more),
        Layer("handler-home", ["65532"], lambda: [("var/lib/coach", 0o1777)]),
    ]
    environment = ["COACH_HOME=/var/lib/coach", "COACH_FUNCTIONS=/opt/coach/functions"]
    config = {"Entrypoint": ["coach"], "Volumes": {"/var/lib/coach": {}}, "WorkingDir": "/var/lib/coach"}
    _archive("coach-handler", VERSION, layers, {**_python(environment), **config})


def _mxnet() -> Layer:
    """What the functions import."""
    lock = ROOT / "requirements/functions.txt"
    return packages("functions-packages", lock, ROOT / ".venv-functions", "opt/functions")


def functions() -> None:
    """The functions, with what they import."""
    layers = [
        base(),
        _mxnet(),
        code("functions-code", {"opt/coach/functions": ROOT / "functions"}, {}),
    ]
    environment = [
        "PYTHONPATH=/opt/coach/functions",
        "COACH_DATA_CACHE=/tmp/coach-data",
        "OMP_NUM_THREADS=1",
    ]
    config = {
        "Entrypoint": ["/opt/functions/bin/python", "-m", "training.serving.serve"],
        "ExposedPorts": {"8080/tcp": {}, "8082/tcp": {}},
    }
    _archive("coach-functions", VERSION, layers, {**_python(environment), **config})


#: Debian's Python packages that PyTorch jobs import, below their folder.
TORCH = ("torch", "numpy", "zmq", "astunparse", "six.py", "typing_extensions.py")


def _torch() -> Layer:
    """Debian's PyTorch as this machine has it installed, with the libraries that it is linked to."""
    site, files = Path("/usr/lib/python3/dist-packages"), dict[str, Content]()
    if not (site / "torch").is_dir() or not (site / "zmq").is_dir():
        need = "apt-get install --no-install-recommends python3-torch libopenblas0-pthread python3-zmq"
        raise Unbuildable(f"without docker functions-pytorch is made of Debian's PyTorch: {need}")
    for name in TORCH:
        inside = str(site / name).lstrip("/")
        files |= dict(_tree(site / name, inside)) if (site / name).is_dir() else {inside: site / name}
    files = {name: content for name, content in files.items() if "/torch/include/" not in name and "/test/" not in name}
    # PyTorch opens some of what its folder links to by itself, so no program names it.
    opened = [os.path.normpath(f"/{name}/../{link.target}") for name, link in files.items() if isinstance(link, Link)]
    files |= {path.lstrip("/"): Path(path).resolve() for path in opened if Path(path).is_file()}
    programs = [f"/{name}" for name in files if ".so" in Path(name).name]
    linked = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
    for library in sorted(set(re.findall(r"=> (/\S+)", linked))):
        if re.match(r"lib(c|m|dl|rt|pthread|util|resolv)\.so", Path(library).name):
            continue  # the base's, which belong to its loader
        files[f"usr/{library.removeprefix('/usr').lstrip('/')}"] = Path(library).resolve()
    return Layer(
        "functions-torch", _debian_packages([path for path in files.values() if isinstance(path, Path)]), files.items
    )


def _debian_packages(files: list[Path]) -> list[str]:
    """The packages of which these files are, each as its archive is called."""
    owners = subprocess.run(["dpkg-query", "-S", *files], capture_output=True, text=True, check=False).stdout
    names = sorted({line.partition(": ")[0] for line in owners.splitlines() if ", " not in line.partition(": ")[0]})
    form = "-f=${Package}_${Version}_${Architecture}.deb\\n"
    return subprocess.run(["dpkg-query", "-W", form, *names], capture_output=True, text=True, check=True).stdout.split()


def functions_pytorch() -> None:
    """The functions, with PyTorch on CPUs."""
    names = ("obstore",)
    extra = {f"opt/python/{name}": ROOT / ".venv-functions" / SITE / name for name in names}
    layers = [
        base(),
        _torch(),
        code("functions-pytorch-code", {"opt/coach/functions": ROOT / "functions", **extra}, {}),
    ]
    environment = [
        "PYTHONPATH=/opt/coach/functions:/opt/python",
        "COACH_DATA_CACHE=/tmp/coach-data",
        "OMP_NUM_THREADS=1",
    ]
    config = {
        "Entrypoint": ["/usr/bin/python3", "-m", "training.serving.serve"],
        "ExposedPorts": {"8080/tcp": {}, "8082/tcp": {}},
    }
    _archive("coach-functions-pytorch", VERSION, layers, {**_python(environment), **config})


def nuclio_functions() -> None:
    """The functions in Nuclio's processor, which is no package: three variables say where it and its parts are."""
    given = {name: os.environ.get(f"COACH_NUCLIO_{name}") for name in ("PROCESSOR", "WRAPPER", "PYTHONPATH")}
    if absent := [f"COACH_NUCLIO_{name}" for name, value in given.items() if not value]:
        raise Unbuildable(
            f"without docker nuclio-functions needs {', '.join(absent)}: see docs/project/worker-protocol.md"
        )
    processor, wrapper, packages_ = (Path(value) for value in given.values() if value)
    layers = [
        base(),
        _mxnet(),
        code(
            "nuclio-processor",
            {"opt/nuclio/packages": packages_},
            {
                "opt/nuclio/_nuclio_wrapper.py": wrapper,
                "usr/local/bin/processor": processor,
            },
        ),
        code("nuclio-code", {"opt/coach/functions": ROOT / "functions"}, {}),
    ]
    environment = [
        "NUCLIO_PYTHON_EXE_PATH=/opt/functions/bin/python",
        "NUCLIO_PYTHON_PATH=/opt/coach/functions:/opt/nuclio/packages",
        "COACH_DATA_CACHE=/tmp/coach-data",
        "OMP_NUM_THREADS=1",
    ]
    config = {"Cmd": ["processor"], "ExposedPorts": {"8080/tcp": {}, "8082/tcp": {}}}
    _archive("coach-nuclio-functions", VERSION, layers, {**_python(environment), **config})


def _python(environment: list[str]) -> dict[str, Any]:
    path = "PATH=/opt/coach/bin:/usr/local/bin:/usr/bin:/bin"
    return {
        "User": USER,
        "Env": [path, "LANG=C.UTF-8", "HOME=/tmp", "PYTHONDONTWRITEBYTECODE=1", *environment],
    }


def scheduler() -> None:
    """kube-scheduler with Coach's plugins: one static program."""
    program = OUT / "coach-scheduler"
    subprocess.run(["make", "-s", "-C", ROOT / "scheduler-plugins", "static", f"BIN={OUT}"], check=True)
    layer = Layer(
        "scheduler",
        [hashlib.sha256(program.read_bytes()).hexdigest()],
        lambda: [("coach-scheduler", program)],
    )
    config = {"User": USER, "Entrypoint": ["/coach-scheduler"]}
    _archive("coach-scheduler", SCHEDULER_VERSION, [layer], config, program)


def bill_of_materials(name: str, version: str, layers: list[Layer], program: Path | None = None) -> dict[str, Any]:
    """What an image is made of, as CycloneDX 1.6 has it: packages of Debian and PyPI, and a program's Go modules."""
    found = set[tuple[str, str, str]]()
    for text in (text for layer in layers for text in layer.inputs):
        found |= {("pypi", *one) for one in re.findall(r"^([A-Za-z0-9_.-]+)==([^\s;\\]+)", text, re.MULTILINE)}
        if deb := re.fullmatch(r"([^_]+)_(\S+)_\w+\.deb", text):
            found.add(("deb/debian", deb[1], urllib.parse.unquote(deb[2])))
    if program is not None:
        said = subprocess.run(["go", "version", "-m", program], capture_output=True, text=True, check=True).stdout
        found |= {("golang", *one) for one in re.findall(r"^\tdep\t(\S+)\t(\S+)", said, re.MULTILINE)}
    components = [
        {"type": "library", "name": name, "version": version, "purl": f"pkg:{kind}/{name}@{version}"}
        for kind, name, version in sorted(found)
    ]
    image = {"type": "container", "name": name, "version": version}
    form = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1}
    return {**form, "metadata": {"component": image}, "components": components}


def _archive(name: str, version: str, layers: list[Layer], config: dict[str, Any], program: Path | None = None) -> None:
    written = [layer.write() for layer in layers]
    materials = bill_of_materials(name, version, layers, program)
    (OUT / f"{name}.cdx.json").write_text(json.dumps(materials, indent=1) + "\n")
    archive(OUT / f"{name}.tar", f"docker.io/library/{name}:{version}", written, config)


def archive(target: Path, tag: str, layers: list[tuple[Path, str]], config: dict[str, Any]) -> None:
    """Write a docker-archive of (tar, SHA-256) layers, unless it is there."""
    document = {
        "architecture": "amd64",
        "os": "linux",
        "created": "2020-01-01T00:00:00Z",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for _, digest in layers]},
    }
    text = json.dumps(document, sort_keys=True).encode()
    member = hashlib.sha256(text).hexdigest() + ".json"
    entry = {"Config": member, "RepoTags": [tag], "Layers": [f"{digest}.tar" for _, digest in layers]}
    manifest = [entry]
    if target.exists() and read_manifest(target) == manifest[0]:
        return
    part = target.with_suffix(".part")
    with tarfile.open(part, "w", format=tarfile.PAX_FORMAT) as tar:
        _add(tar, "manifest.json", json.dumps(manifest).encode())  # first, so that it is read at once
        _add(tar, member, text)
        for path, digest in layers:
            _add(tar, f"{digest}.tar", path)
    part.replace(target)
    print(f"{target.relative_to(ROOT)}: {tag}, {target.stat().st_size / 1e6:.0f} MB")


def read_manifest(archive: Path) -> dict[str, Any]:
    """The manifest of an archive; its `Config` names the image by content."""
    with tarfile.open(archive) as tar:
        manifest: list[dict[str, Any]] = json.load(_member(tar, "manifest.json"))
        return manifest[0]


def oci_archive(archive: Path, target: Path, tag: str, without: Collection[str]) -> None:
    """Write an archive's image in the OCI's layout, without the layers of these digests: who imports it has them."""
    with tarfile.open(archive) as source, tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as tar:
        manifest = read_manifest(archive)
        config = _member(source, manifest["Config"]).read()
        blobs = {hashlib.sha256(config).hexdigest(): config}
        layers = []
        for name in manifest["Layers"]:
            digest, info = name.removesuffix(".tar"), source.getmember(name)
            layers.append(_descriptor("layer.v1.tar", digest, info.size))
            if f"sha256:{digest}" not in without:
                content = _member(source, name)
                info.name = f"blobs/sha256/{digest}"
                tar.addfile(info, content)
        document = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _descriptor("config.v1+json", next(iter(blobs)), len(config)),
            "layers": layers,
        }
        text = json.dumps(document, sort_keys=True).encode()
        blobs[hashlib.sha256(text).hexdigest()] = text
        for digest, blob in blobs.items():
            _add(tar, f"blobs/sha256/{digest}", blob)
        entry = _descriptor("manifest.v1+json", digest, len(text))
        entry["annotations"] = {"io.containerd.image.name": tag}
        _add(tar, "index.json", json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode())
        _add(tar, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')


def _descriptor(kind: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": size}


def _member(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    file = tar.extractfile(name)
    assert file is not None
    return file


#: Name, version, Dockerfile and the way without docker.
IMAGES: dict[str, tuple[str, str, Callable[[], None]]] = {
    "handler": (VERSION, "deploy/handler.Dockerfile", handler),
    "functions": (VERSION, "deploy/pod.Dockerfile", functions),
    "scheduler": (SCHEDULER_VERSION, "deploy/scheduler/scheduler.Dockerfile", scheduler),
    "functions-pytorch": (VERSION, "deploy/pod-pytorch.Dockerfile", functions_pytorch),
    "nuclio-functions": (VERSION, "deploy/functions.Dockerfile", nuclio_functions),
}
#: What Coach is installed from with MXNet.
STANDARD = ("handler", "functions", "scheduler")


def _docker(name: str, version: str, dockerfile: str) -> None:
    tag = f"coach-{name}:{version}"
    subprocess.run(["docker", "build", "-f", dockerfile, "-t", tag, "."], cwd=ROOT, check=True)
    subprocess.run(["docker", "save", "-o", OUT / f"coach-{name}.tar", tag], check=True)


def main() -> int:
    """Build the images that the arguments name, or those that Coach is installed from."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--with", dest="way", choices=["docker", "debian"], help="default: docker where it runs")
    parser.add_argument("images", nargs="*", metavar="IMAGE", help=" ".join(IMAGES))
    args = parser.parse_args()
    if unknown := set(args.images) - set(IMAGES):
        parser.error(
            f"no image {' '.join(sorted(unknown))}: write {', '.join(IMAGES)}, or nothing for {', '.join(STANDARD)}"
        )
    way = args.way or ("docker" if _docker_runs() else "debian")
    OUT.mkdir(parents=True, exist_ok=True)
    try:
        for name in args.images or STANDARD:
            version, dockerfile, build = IMAGES[name]
            if way == "docker":
                _docker(name, version, dockerfile)
            else:
                build()
    except Unbuildable as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"images: {error.cmd[0]} failed (exit code {error.returncode}): see above", file=sys.stderr)
        return 1
    return 0


def _docker_runs() -> bool:
    return (
        shutil.which("docker") is not None
        and not subprocess.run(["docker", "info"], capture_output=True, check=False).returncode
    )


if __name__ == "__main__":
    sys.exit(main())
