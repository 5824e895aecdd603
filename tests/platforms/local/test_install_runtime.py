"""Making the functions' Python: once, anew where it was given up half way, and one line where it cannot be made."""

from __future__ import annotations

import os
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from coach.core.errors import PermanentError
from coach.platforms.local import environment, install_runtime
from tests.required import REQUIRED, missing

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[3]
LOCKED = (ROOT / "requirements/functions.txt").read_text()
#: Two of the functions' packages that are small, with their hashes.
SMALL = "\n".join(re.findall(r"^(?:certifi|idna)==(?:.*\\\n)+.*$", LOCKED, re.MULTILINE)) + "\n"


@pytest.fixture
def requirements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A short list, checked by importing what it names; installed by uv, which `make setup` has filled the cache of."""
    monkeypatch.setenv("COACH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(install_runtime, "_CHECK", "import certifi, idna")
    own = ROOT / ".cache/uv/bin"
    if not shutil.which("uv") and not (own / "uv").exists():
        missing("no uv: make setup")
    monkeypatch.setenv("PATH", f"{own}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "list.txt").write_text(SMALL)
    return tmp_path / "list.txt"


@pytest.fixture
def without_uv(requirements: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has Python alone."""
    folders = [folder for folder in os.get_exec_path() if not (Path(folder) / "uv").exists()]
    monkeypatch.setenv("PATH", os.pathsep.join(folders))


def installed(python: Path) -> set[str]:
    folders = (python.parents[1] / "lib").glob("python*/site-packages/*.dist-info")
    return {folder.name.partition("-")[0] for folder in folders}


def test_several_at_once_make_it_once_and_it_is_there_from_then_on(requirements: Path) -> None:
    told: list[str] = []
    with ThreadPoolExecutor(3) as pool:
        pythons = set(pool.map(lambda _: install_runtime.prepare(requirements, told.append), range(3)))
    (python,) = pythons
    assert installed(python) == {"certifi", "idna"}
    assert len(told) == 1 and str(python.parents[1]) in told[0]
    assert install_runtime.prepare(requirements, told.append) == python
    assert len(told) == 1


def test_one_that_was_given_up_half_way_is_made_anew(requirements: Path) -> None:
    folder = install_runtime.place(requirements)
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python").write_text("half")
    assert install_runtime.python_of(folder) is None
    assert installed(install_runtime.prepare(requirements, lambda _: None)) == {"certifi", "idna"}


def test_another_list_has_another_environment(requirements: Path, tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text(SMALL + "\n# newer\n")
    assert install_runtime.place(requirements) != install_runtime.place(tmp_path / "other.txt")


def test_a_package_that_is_not_the_one_that_was_locked_is_refused(requirements: Path) -> None:
    requirements.write_text(re.sub(r"sha256:[0-9a-f]{64}", "sha256:" + "0" * 64, SMALL))
    with pytest.raises(PermanentError, match="could not be made"):
        install_runtime.prepare(requirements, lambda _: None)
    assert install_runtime.python_of(install_runtime.place(requirements)) is None


def test_without_a_network_uv_fails_in_one_line(
    requirements: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "nothing"))
    with pytest.raises(PermanentError, match="try again with a network") as caught:
        install_runtime.prepare(requirements, lambda _: None)
    assert "\n" not in str(caught.value)


@pytest.mark.full
@pytest.mark.usefixtures("without_uv")
def test_without_a_network_pip_fails_in_one_line(
    requirements: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/")  # nobody listens there
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("PIP_CACHE_DIR", str(tmp_path / "nothing"))
    with pytest.raises(PermanentError, match="try again with a network") as caught:
        install_runtime.prepare(requirements, lambda _: None)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("without_uv")
def test_without_the_right_python_it_says_which_one_and_how_to_get_it(
    requirements: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install_runtime, "VERSION", "3.4")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(PermanentError, match=r"this is 3.* no python3\.4 is on the PATH: install python3\.4"):
        install_runtime.prepare(requirements, lambda _: None)


def test_a_missing_libgomp_is_named_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libgomp.so.1").write_text("no library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    with pytest.raises(PermanentError, match="apt install libgomp1"):
        install_runtime.run([sys.executable, "-c", install_runtime._CHECK])


def test_a_cache_that_cannot_be_written_is_named(requirements: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COACH_CACHE", str(requirements))
    with pytest.raises(PermanentError, match="set COACH_CACHE"):
        install_runtime.prepare(requirements, lambda _: None)


@pytest.mark.skipif(not REQUIRED, reason="downloads the packages where pip has not yet")
@pytest.mark.usefixtures("without_uv")
def test_without_uv_pythons_own_tools_make_it(requirements: Path) -> None:
    assert installed(install_runtime.prepare(requirements, lambda _: None)) >= {"certifi", "idna"}


def test_a_checkout_does_not_make_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environment, "_CHECKOUT", tmp_path)
    monkeypatch.delenv("COACH_FUNCTIONS_PYTHON", raising=False)
    monkeypatch.setenv("COACH_FUNCTIONS", str(ROOT / "functions"))
    with pytest.raises(PermanentError, match="make setup"):
        environment.Functions.ready(pytest.fail)
    assert list(tmp_path.iterdir()) == []
