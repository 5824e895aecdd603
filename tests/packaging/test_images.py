"""What an image is made of."""

from pathlib import Path

from scripts import images
from tests.docs.pages import ROOT


def layer(*inputs: str) -> images.Layer:
    return images.Layer("x", list(inputs), lambda: [])


def test_an_image_has_a_list_of_its_packages_and_their_versions() -> None:
    lock = "numpy==1.23.5 \\\n    --hash=sha256:00\npyzmq==27.0 ; python_version > '3'\n# via x==1\n"
    made = images.bill_of_materials("coach-x", "1", [layer("zlib1g_1%3a1.2.13.dfsg-1_amd64.deb"), layer(lock, "opt/x")])
    assert [one["purl"] for one in made["components"]] == [
        "pkg:deb/debian/zlib1g@1:1.2.13.dfsg-1",
        "pkg:pypi/numpy@1.23.5",
        "pkg:pypi/pyzmq@27.0",
    ]
    assert made["bomFormat"] == "CycloneDX" and made["metadata"]["component"]["name"] == "coach-x"


def test_every_package_of_the_functions_lock_is_in_their_list() -> None:
    lock = Path(ROOT, "requirements/functions.txt").read_text()
    names = {one["name"] for one in images.bill_of_materials("f", "1", [layer(lock)])["components"]}
    assert {"mxnet", "obstore", "numpy", "pyzmq"} <= names
