"""Prices of real machines: the shipped catalogue, a user's own in SkyPilot's format, and jobs that name an offer."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from coach.core.cluster import Resources
from coach.jobfiles.diagnostics import JobFileError
from coach.jobfiles.prices import SHIPPED, catalogues, cheapest, instance_of, offers, prices_of, sources
from tests.jobfiles.reading import read_jobs

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
    assert source.folder == SHIPPED and source.clouds == ("aws", "gcp", "lambda", "nebius", "runpod", "verda")
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


def test_a_folder_that_is_named_is_read_instead(mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "other/aws/vms.csv"
    file.parent.mkdir(parents=True)
    file.write_text(MINE)
    monkeypatch.setenv("COACH_CATALOGS", str(tmp_path / "other"))
    assert catalogues()["aws"] == file and "mine" not in catalogues()


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
    assert before.spec.price_book.instance.hour == 6.0 and job("mine/big").spec.price_book.instance.hour == 8.0


def test_a_function_that_is_larger_than_its_machine_is_refused(mine: Path) -> None:
    assert "more than the machine of mine-big has" in mistake("mine/big", gpu=3)
    assert "resources.worker.gpu" in mistake("mine/big", gpu=3)


def test_the_names_of_all_offers_make_prices() -> None:
    for offer in offers():
        assert prices_of(offer.name)["instance"]["hour"] <= offer.hour


def test_a_book_of_ones_own_is_a_header_and_a_line_for_each_machine(mine: Path) -> None:
    (mine / "mine/vms.csv").write_text(
        "InstanceType,vCPUs,MemoryGiB,Price,Currency\nsmall,4,32,0.4,EUR\nlarge,64,512,6,EUR\n"
    )
    with pytest.raises(JobFileError, match="not the currency of the price book mine-small, which is EUR"):
        job("mine/small", gpu=0)
    (mine / "mine/vms.csv").write_text("InstanceType,vCPUs,MemoryGiB,Price\nsmall,4,32,0.4\nlarge,64,512,6\n")
    assert job("mine/large", gpu=0).spec.price_book.rate(Resources(32.0, 1.0)) * 3600 == pytest.approx(3.0)


def test_by_the_hour_whole_machines_are_paid(mine: Path) -> None:
    book = job("mine/big@north:spot:hour").spec.price_book
    assert (book.instance.by_hour, book.instance.whole, book.instance.hour) == (True, True, 3.0)
    part = JOB.format(prices="{name: ours, currency: USD, vcpuSecond: 0, gibSecond: 0, invocation: 0, "
                             "instance: {hour: 1, cpu: 4, memory: 32Gi, gpu: 1, byHour: true}}", gpu=1)  # fmt: skip
    with pytest.raises(JobFileError, match=r"a part of a machine, by the hour .* - together with whole: true"):
        read_jobs(part)


def test_a_job_keeps_the_name_of_its_offer(mine: Path) -> None:
    assert job("mine/big:spot").spec.prices.offer == "mine/big:spot"


def test_a_job_is_billed_as_a_clouds_function_by_the_larger_of_its_memory_and_cores() -> None:
    small = JOB.replace('cpu: "4", memory: 32Gi', 'cpu: "1", memory: 1Gi')
    book = read_jobs(small.format(prices="aws/lambda", gpu=0))[0].spec.price_book
    assert book.rate(Resources(0.1, 1.0)) == pytest.approx(0.00001667), "a GB-second"
    assert book.rate(Resources(1.0, 0.1)) == pytest.approx(0.00001667 * 1769 / 1024), "a core comes with 1,769 MB"
    assert book.invocation == 2e-7


def test_a_node_is_the_machine_that_it_names_at_its_dearest_zone(mine: Path) -> None:
    assert instance_of("mine/big").hour == 8.0 and instance_of("mine/big@north:spot").hour == 4.0
