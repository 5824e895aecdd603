"""Make a release of this clone: `make release VERSION=0.2.0 [WITHOUT="journals images chart"]`.

In this order: the version in every file that has one, the changelog's heading, what generators write (CRD, OpenAPI, the
command line's page, public names, size of the house), journals of the version (real jobs, some minutes), both wheels,
the chart, the images' digests; then a commit and a tag, which nobody gets before `git push`. It changes nothing where
the version, the changelog or the clone is not ready.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: The files that have the version: what is before it there.
PLACES = {
    "coach/__init__.py": '__version__ = "',
    "pyproject.toml": '^version = "|coach-research==',
    "research/pyproject.toml": '^version = "|coach-trainer==',
    "deploy/chart/Chart.yaml": "^version: |^appVersion: ",
    "scripts/images.py": '^VERSION = "',
    **{f"deploy/{name}.Dockerfile": "-t coach-[a-z-]+:" for name in ("pod", "pod-pytorch", "handler", "functions")},
}
#: Modules that write files of the tree.
GENERATORS = (
    "scripts.generate",
    "benchmarks.size",
)
PARTS = ("journals", "images", "chart")


def run(*command: str, **environment: str) -> str:
    """The output of a command in the clone. Ends with its message where it fails."""
    print("+", *command, flush=True)
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{done.stdout}release: {' '.join(command)} ended with {done.returncode}; undo with git restore .")
    return done.stdout


def refused(version: str, now: str, changes: str) -> str:
    """Why this cannot be released; "" where it can."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        return f"VERSION={version}: three numbers, such as 0.2.0"
    if tuple(map(int, version.split("."))) <= tuple(map(int, now.split("."))):
        return f"VERSION={version}: more than {now}, the version of this clone"
    if run("git", "status", "--porcelain"):
        return "this clone has changes that are not committed"
    return "" if changes.strip() else "CHANGELOG.md has nothing under `## Unreleased`"


def number(version: str) -> None:
    """Write the version into every file that has one, and the heading into the changelog."""
    for name, before in PLACES.items():
        text, count = re.subn(
            rf"({before})\d+\.\d+\.\d+", rf"\g<1>{version}", (ROOT / name).read_text(), flags=re.MULTILINE
        )
        if not count:
            sys.exit(f"release: {name} has no version after {before}")
        (ROOT / name).write_text(text)
    changelog = ROOT / "CHANGELOG.md"
    heading = f"## Unreleased\n\n## {version}, {datetime.now(UTC):%Y-%m-%d}\n"
    changelog.write_text(changelog.read_text().replace("## Unreleased\n", heading, 1))


def digest(archive: Path) -> str:
    """The digest of an image's configuration, which is its id in docker and containerd."""
    with tarfile.open(archive) as tar:
        manifest = tar.extractfile("manifest.json")
        assert manifest is not None
        config = json.load(manifest)[0]["Config"]
    return "sha256:" + config.rpartition("/")[2].removesuffix(".json")


def main() -> None:
    """Release."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version")
    parser.add_argument("--without", choices=PARTS, nargs="*", default=())
    asked = parser.parse_args()
    version, left_out = asked.version, set(asked.without)
    now = re.search(r'__version__ = "(.*)"', (ROOT / "coach/__init__.py").read_text())
    changes = re.search(r"^## Unreleased\n(.*?)^## ", (ROOT / "CHANGELOG.md").read_text(), re.DOTALL | re.MULTILINE)
    if why := refused(version, now[1] if now else "0.0.0", changes[1] if changes else ""):
        sys.exit(f"release: {why}; nothing was changed")
    number(version)
    run("make", "setup")  # the documents have the version that is installed
    for module in GENERATORS:
        run(sys.executable, "-m", module)
    run(sys.executable, "-m", "pytest", "-q", "tests/test_stability.py", COACH_UPDATE_GOLDEN="1")
    if "journals" not in left_out:
        run(sys.executable, "-m", "tests.journals.record")
    run("make", "wheel")
    made = sorted((ROOT / "dist").glob(f"*-{version}-*.whl"))
    if "chart" not in left_out:
        run(".cache/bin/helm", "package", "deploy/chart", "-d", "dist")
        made.append(ROOT / f"dist/coach-{version}.tgz")
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}" for file in made]
    if "images" not in left_out:
        run("make", "images")
        lines += [f"{digest(file)}  {file.stem}:{version}" for file in sorted((ROOT / ".cache/images").glob("*.tar"))]
    (ROOT / "dist" / f"{version}.txt").write_text("\n".join(lines) + "\n")
    run("git", "add", "--all")
    run("git", "commit", "--quiet", "--message", f"Release {version}")
    run("git", "tag", f"v{version}")
    print("\n".join(lines))
    print(f"dist/{version}.txt has these digests. To publish: git push origin HEAD v{version}, and what is in dist")


if __name__ == "__main__":
    main()
