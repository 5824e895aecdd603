"""Prices of real machines: the shipped catalogue, a user's own in SkyPilot's format, and jobs that name an offer."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from coach.core.cluster import Resources
from coach.core.errors import UserError
from coach.jobfiles.diagnostics import JobFileError
from coach.jobfiles.load import read_jobs
from coach.jobfiles.prices import SHIPPED, catalogues, cheapest, offers, prices_of, sources

JOB = """\
apiVersion: coach.dev/v1alpha1
kind: TrainingJob
metadata: {{name: job}}
spec:
  model: {{file: model.py}}
  data: {{format: digits8x8}}
  target: {{loss: 0.3}}
  budget: {{amount: 5, currency: USD}}
  framework: pytorch
  prices: {prices}
  resources:
    scheduler: {{cpu: 100m, memory: 512Mi}}
    worker: {{cpu: "4", memory: 32Gi, gpu: {gpu}}}
"""

#: As SkyPilot writes it: columns in another order, more of them, rows of accelerators alone and of several zones.
MINE = """\
InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,AvailabilityZone,Price,SpotPrice,Arch
big,16.0,64.0,H100,2.0,"{'Gpus': [{'Name': 'H100', 'Count': 2}]}",north,north-a,8.0,4.0,x86_64
big,16.0,64.0,H100,2.0,"{'Gpus': [{'Name': 'H100', 'Count': 2}]}",north,north-b,8.0,3.0,x86_64
big,16.0,64.0,H100,2.0,"{'Gpus': [{'Name': 'H100', 'Count': 2}]}",south,south-a,6.0,,x86_64
part,4.0,16.0,L4,0.25,,north,north-a,0.5,,x86_64
,,,H100,1.0,,north,north-a,2.5,1.0,
gone,4.0,16.0,,,,north,north-a,,,x86_64
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A catalogue of the user's own, in the newest of SkyPilot's folders."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("COACH_CATALOGS", raising=False)
    for version, text in (("v7", MINE.replace("8.0", "9.0")), ("v10", MINE)):
        file = tmp_path / ".sky/catalogs" / version / "mine/vms.csv"
        file.parent.mkdir(parents=True)
        file.write_text(text)
    return tmp_path / ".sky/catalogs/v10"


@pytest.fixture(autouse=True)
def nothing_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("COACH_CATALOGS", raising=False)


def job(prices: str, gpu: int = 1):  # type: ignore[no-untyped-def]
    (read,) = read_jobs(JOB.format(prices=prices, gpu=gpu))
    return read


def mistake(prices: str, gpu: int = 1) -> str:
    with pytest.raises(JobFileError) as caught:
        job(prices, gpu)
    return str(caught.value)


def test_the_shipped_catalogue_is_small_and_says_its_source_and_date() -> None:
    files = [file for file in SHIPPED.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 100_000
    (source,) = sources()
    assert source.folder == SHIPPED and source.clouds == ("aws", "lambda", "nebius", "runpod")
    assert source.days(datetime.now(UTC).date().isoformat()) >= 0
    assert all(cloud in (SHIPPED / "SOURCE.md").read_text() for cloud in source.clouds)
    assert all(offer.hour > 0 and (offer.spot or 0) <= offer.hour for offer in offers())


def test_a_h100_hour_for_less_than_3_usd_is_found() -> None:
    found = [o for o in cheapest(offers()).values() if o.gpu == "H100" and o.hour / o.gpus < 3]
    assert "nebius/gpu-h100-sxm_1gpu-16vcpu-200gb" in {offer.name for offer in found}


def test_skypilots_own_folder_is_read_as_it_is(mine: Path) -> None:
    assert catalogues()["mine"] == mine / "mine/vms.csv", "the newest version, by its number"
    assert [(o.type, o.region, o.hour, o.spot) for o in offers(["mine"])] == [
        ("big", "north", 8.0, 4.0),
        ("big", "north", 8.0, 3.0),
        ("big", "south", 6.0, None),
        ("part", "north", 0.5, None),
    ]
    assert {source.folder for source in sources()} == {mine, SHIPPED}


def test_a_folder_that_is_named_is_read_instead(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "other/aws/vms.csv"
    file.parent.mkdir(parents=True)
    file.write_text(MINE)
    monkeypatch.setenv("COACH_CATALOGS", str(tmp_path / "other"))
    assert catalogues()["aws"] == file and "mine" not in catalogues()


def test_a_file_that_is_no_catalogue_names_what_is_missing(mine: Path) -> None:
    (mine / "mine/vms.csv").write_text("InstanceType,Price\na,1\n")
    with pytest.raises(UserError, match="no column AcceleratorName, AcceleratorCount, vCPUs"):
        offers(["mine"])
    (mine / "mine/vms.csv").write_text(MINE.replace("8.0,4.0", "cheap,4.0"))
    with pytest.raises(UserError, match=r"vms\.csv:2: not a number: .*cheap"):
        offers(["mine"])


def test_machines_of_gcp_whose_gpus_are_priced_elsewhere_are_left_out(mine: Path) -> None:
    file = mine / "gcp/vms.csv"
    file.parent.mkdir()
    file.write_text(MINE.replace("big", "a3-highgpu-1g").replace("part", "n2-standard-4"))
    assert {offer.type for offer in offers(["gcp"])} == {"n2-standard-4"}


@pytest.mark.parametrize(
    ("named", "hour"),
    [
        ("mine/big", 6.0),
        ("mine/big@north", 8.0),
        ("mine/big:spot", 3.0),
        ("mine/big@north:spot:whole", 3.0),
    ],
)
def test_a_job_is_billed_by_the_offer_that_it_names(mine: Path, named: str, hour: float) -> None:
    book = job(named).spec.price_book
    assert (book.instance.hour, book.instance.whole) == (hour, named.endswith(":whole"))
    one, three = Resources(4.0, 32.0, 1.0), Resources(12.0, 96.0, 3.0)
    parts = (0.5, 1.5) if not book.instance.whole else (1.0, 2.0)
    assert book.rate(one) * 3600 == pytest.approx(hour * parts[0]), "half of the GPUs, half of the memory"
    assert book.rate(three) * 3600 == pytest.approx(hour * parts[1])


def test_a_job_keeps_its_prices_when_the_catalogue_changes(mine: Path) -> None:
    before = job("mine/big")
    (mine / "mine/vms.csv").write_text(MINE.replace("6.0,,", "99.0,,"))
    assert type(before).from_json(before.to_json()) == before
    assert (
        before.spec.price_book.instance.hour == 6.0 and job("mine/big").spec.price_book.instance.hour == 8.0
    )


def test_a_mistake_says_what_is_right_and_where(mine: Path) -> None:
    assert "job.yaml:10:11 spec.prices: no such offer" in mistake("mine/bigg")
    assert "did you mean mine/big?" in mistake("mine/bigg")
    assert "a region that has it as spot: north" in mistake("mine/big@south:spot")
    assert "a region that has it: north, south" in mistake("mine/big@east")
    assert "a machine with whole GPUs" in mistake("mine/part")
    assert "no prices of a cloud 'moon'; there are" in mistake("moon/big")
    assert "with @REGION, :spot or :whole after it" in mistake("mine/")


def test_a_function_that_is_larger_than_its_machine_is_refused(mine: Path) -> None:
    assert "more than the machine of mine-big has" in mistake("mine/big", gpu=3)
    assert "resources.worker.gpu" in mistake("mine/big", gpu=3)


def test_the_names_of_all_offers_make_prices() -> None:
    for offer in offers():
        assert prices_of(offer.name)["instance"]["hour"] <= offer.hour
