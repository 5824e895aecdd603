"""Files that programs write, followed while they grow, and whatever else may be in their place."""

from __future__ import annotations

import glob
import json
import os
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from coach.core.spec.metric_source import MetricSource
from coach.platforms.program_metrics.files import CHUNK, MAX_FILES, Followed, _Paths

RECORDED = Path(__file__).parent / "recorded"


def followed(folder: Path, text: str) -> Followed:
    return Followed(MetricSource.read("loss", text), folder)


def new(files: Followed) -> list[dict[Any, Any]]:
    return [dict(record) for record in files.records()]


def add(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)


def test_a_csv_file_is_followed_row_by_row(tmp_path: Path) -> None:
    files = followed(tmp_path, "csv:logs/metrics.csv")
    assert new(files) == []
    add(tmp_path / "logs/metrics.csv", "epoch,step,train_loss,val_loss\n0,9,0.5,\n0,9,,0.4\n1,19,0.")
    assert new(files) == [
        {"epoch": "0", "step": "9", "train_loss": "0.5"},
        {"epoch": "0", "step": "9", "val_loss": "0.4"},
    ]
    assert new(files) == []
    add(tmp_path / "logs/metrics.csv", "3,\n")
    assert new(files) == [{"epoch": "1", "step": "19", "train_loss": "0.3"}]


def test_rows_that_were_there_before_the_program_are_of_an_earlier_run(tmp_path: Path) -> None:
    add(tmp_path / "a.csv", "epoch;loss\n0;0.5\n")
    files = followed(tmp_path, "csv:a.csv")
    add(tmp_path / "a.csv", "1;0.4\n")
    assert new(files) == [{"epoch": "1", "loss": "0.4"}]


def test_a_file_that_is_written_anew_says_nothing_twice(tmp_path: Path) -> None:
    """Lightning does so when a column is added; it may be seen half written."""
    files = followed(tmp_path, "csv:a.csv")
    add(tmp_path / "a.csv", "epoch,loss\n0,0.5\n1,0.4\n")
    assert len(new(files)) == 2
    (tmp_path / "a.csv").write_text("")
    assert new(files) == []
    (tmp_path / "a.csv").write_text("epoch,loss,f1\n0,0.5,\n")
    assert new(files) == []
    add(tmp_path / "a.csv", "1,0.4,\n2,0.3,0.9\n3,0.3,0.9\n")
    assert new(files) == [
        {"epoch": "2", "loss": "0.3", "f1": "0.9"},
        {"epoch": "3", "loss": "0.3", "f1": "0.9"},
    ]
    (tmp_path / "a.csv").write_text("epoch,loss,f1,lr\n0,0.5,,\n1,0.4,,\n2,0.3,0.9,\n3,0.3,0.9,\n4,,,0.1\n")
    assert new(files) == [{"epoch": "4", "lr": "0.1"}], "a longer header begins like the one before"
    other = tmp_path / "other"
    other.write_text("epoch,loss\n1,0.4\n9,0.1\n")
    other.replace(tmp_path / "a.csv")
    assert new(files) == [{"epoch": "9", "loss": "0.1"}]


def test_a_run_that_repeats_an_earlier_one_to_the_bit_reports_all_the_same(tmp_path: Path) -> None:
    rows = "epoch,loss\n0,0.5\n1,0.4\n"
    add(tmp_path / "a.csv", rows)
    state(tmp_path / "out/checkpoint-1/trainer_state.json", 0.9)
    state(tmp_path / "out/checkpoint-2/trainer_state.json", 0.9, 0.8)
    csv, json_ = followed(tmp_path, "csv:a.csv"), followed(tmp_path, "trainer-state:out")
    (tmp_path / "a.csv").write_text("")
    assert new(csv) == []
    add(tmp_path / "a.csv", rows)
    assert [record["epoch"] for record in new(csv)] == ["0", "1"]
    (tmp_path / "a.csv").write_text("epoch,loss\n0,0.6\n1,0.4\n2,0.3\n")
    assert [record["epoch"] for record in new(csv)] == ["0", "1", "2"], "begun anew between two looks"
    state(tmp_path / "out/checkpoint-1/trainer_state.json", 0.9)
    assert [record["epoch"] for record in new(json_)] == [1.0]
    state(tmp_path / "out/checkpoint-2/trainer_state.json", 0.9, 0.8)
    assert [record["epoch"] for record in new(json_)] == [2.0]


def test_a_folder_and_wild_cards_name_the_files_of_each_run(tmp_path: Path) -> None:
    add(tmp_path / "logs/version_0/metrics.csv", "loss\n9\n")
    by_name, by_folder = followed(tmp_path, "csv:logs/version_*/metrics.csv"), followed(tmp_path, "csv:logs")
    absolute = followed(Path("/"), f"csv:{tmp_path}/logs")
    add(tmp_path / "logs/version_1/metrics.csv", "loss\n1\n")
    for files in (by_name, by_folder, absolute):
        assert new(files) == [{"loss": "1"}]


def test_a_line_without_end_and_many_files_cost_little(tmp_path: Path) -> None:
    files = followed(tmp_path, "csv:*.csv")
    add(tmp_path / "a.csv", "loss\n1\n" + "x" * (2 * CHUNK + 5) + "\n2\n")
    found = []
    for _ in range(5):
        found += new(files)
    assert found == [{"loss": "1"}, {"loss": "2"}]
    for number in range(3 * MAX_FILES):
        add(tmp_path / f"{number}.csv", "loss\n1\n")
    assert len(new(files)) <= MAX_FILES


def test_what_is_no_file_is_left_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "zero.csv").symlink_to("/dev/zero")
    (tmp_path / "loop.csv").symlink_to("loop.csv")
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "again").symlink_to(".")
    add(tmp_path / "bytes.csv", "loss\n")
    (tmp_path / "bytes.csv").write_bytes(b"loss\n\xff\x00\n1,2,3\n\n4\n")
    files = followed(tmp_path, "csv:**/*.csv")
    assert new(files) == []
    add(tmp_path / "bytes.csv", "5\n")
    assert {"loss": "5"} in new(files)


def test_on_a_cluster_a_link_out_of_the_jobs_folder_is_left_alone(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    add(tmp_path / "secret.csv", "loss\n3\n")
    add(own / "a.csv", "loss\n2\n")
    (own / "b.csv").symlink_to("../secret.csv")
    (own / "above").symlink_to("..")
    files = Followed(MetricSource.read("loss", "csv:**/*.csv"), own, since=0.0)
    assert new(files) == [{"loss": "2"}]


def test_a_file_with_several_names_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "run-3").mkdir()
    (tmp_path / "latest").symlink_to("run-3")
    files = followed(tmp_path, "csv:**/*.csv")
    add(tmp_path / "run-3/metrics.csv", "loss\n2\n")
    assert new(files) == [{"loss": "2"}]


def test_a_file_that_becomes_a_link_is_read_from_its_beginning(tmp_path: Path) -> None:
    files = followed(tmp_path, "csv:a.csv")
    add(tmp_path / "a.csv", "loss\n3\n")
    assert new(files) == [{"loss": "3"}]
    add(tmp_path / "elsewhere", "loss\n2\n")
    (tmp_path / "a.csv").unlink()
    (tmp_path / "a.csv").symlink_to("elsewhere")
    assert new(files) == [{"loss": "2"}]


def state(path: Path, *losses: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    history = [{"epoch": n + 1.0, "eval_loss": loss, "step": n} for n, loss in enumerate(losses)]
    path.write_text(json.dumps({"best_metric": None, "log_history": history}))


def test_each_checkpoint_repeats_the_history_and_only_what_is_new_comes(tmp_path: Path) -> None:
    state(tmp_path / "out/checkpoint-1/trainer_state.json", 0.9)
    files = followed(tmp_path, "trainer-state:out")
    assert new(files) == []
    state(tmp_path / "out/checkpoint-2/trainer_state.json", 0.9, 0.8)
    assert new(files) == [{"epoch": 2.0, "eval_loss": 0.8, "step": 1}]
    (tmp_path / "out/checkpoint-2/trainer_state.json").write_text('{"log_history": [{"eval_loss": 0.')
    assert new(files) == []
    state(tmp_path / "out/checkpoint-2/trainer_state.json", 0.9, 0.8, 0.7)
    assert new(files) == [{"epoch": 3.0, "eval_loss": 0.7, "step": 2}]
    for text in ("[]", '{"log_history": 3}', '{"log_history": [1, null]}', "[" * 100_000):
        (tmp_path / "out/checkpoint-2/trainer_state.json").write_text(text)
        assert new(files) == []


@pytest.mark.parametrize(
    ("recorded", "name"),
    [("events.out.tfevents.tensorboardX", "Loss/val"), ("events.out.tfevents.keras", "epoch_loss")],
)
def test_event_files_as_tensorboardx_and_keras_write_them(tmp_path: Path, recorded: str, name: str) -> None:
    files = followed(tmp_path, "tensorboard:runs")
    (tmp_path / "runs/a").mkdir(parents=True)
    found: list[dict[Any, Any]] = []
    with (tmp_path / "runs/a" / recorded).open("wb", buffering=0) as file:
        for byte in (RECORDED / recorded).read_bytes():  # however it is cut
            file.write(bytes([byte]))
            found += new(files)
    values = [record[name] for record in found if name in record]
    assert values == pytest.approx([1, 1 / 2, 1 / 3])
    shutil.copy(RECORDED / recorded, tmp_path / "runs/events.out.tfevents.whole")
    assert [record[name] for record in new(files)] == values, "the scalars of a step are one record"


def record(data: bytes) -> bytes:
    return struct.pack("<QI", len(data), 0) + data + b"\0\0\0\0"


def test_hostile_event_files_say_nothing_and_end(tmp_path: Path) -> None:
    files = followed(tmp_path, "tensorboard:.")
    known = (RECORDED / "events.out.tfevents.keras").read_bytes()
    image = record(b"\x2a" + b"x" * (3 << 20))
    (tmp_path / "events.out.tfevents.1").write_bytes(image + record(b"\xff" * 99) + record(b"\x2a\xff") + known)
    found = []
    for _ in range(4):
        found += new(files)
    assert [list(one) for one in found] == [["epoch_loss"]] * 3, "what is too long or no event is passed over"
    (tmp_path / "events.out.tfevents.2").write_bytes(struct.pack("<QI", 2**63, 0) + b"x" * 100)
    (tmp_path / "events.out.tfevents.3").write_bytes(os.urandom(1000))
    assert new(files) == []


def test_a_long_file_of_earlier_runs_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coach.platforms.program_metrics.files.CHUNK", 10)
    monkeypatch.setattr("coach.platforms.program_metrics.files.LOOKS_BEFORE", 2)
    add(tmp_path / "a.csv", "loss\n" + "1\n" * 100)
    files = followed(tmp_path, "csv:a.csv")
    add(tmp_path / "a.csv", "2\n")
    assert new(files) == [{"loss": "2"}]


def test_a_second_line_of_names_has_the_names_from_then_on(tmp_path: Path) -> None:
    """A run that is resumed writes on, with a column more."""
    files = followed(tmp_path, "csv:a.csv")
    add(tmp_path / "a.csv", "epoch,loss,val_loss\n0,0.9,0.95\nepoch,lr,loss,val_loss\n1,0.1,0.4,0.90\n")
    assert [record["val_loss"] for record in new(files)] == ["0.95", "0.90"]


def test_lines_of_json_are_followed(tmp_path: Path) -> None:
    files = followed(tmp_path, "jsonl:logs")
    add(tmp_path / "logs/metrics.jsonl", '{"epoch": 1, "loss": 0.5}\nno JSON\n[1]\n{"epoch": 2, "lo')
    assert new(files) == [{"epoch": 1, "loss": 0.5}]
    add(tmp_path / "logs/metrics.jsonl", 'ss": 0.4}\n')
    assert new(files) == [{"epoch": 2, "loss": 0.4}]


def test_of_two_folders_with_one_name_an_evaluations_counts(tmp_path: Path) -> None:
    """Keras writes its training's values first, and under the same names."""
    files = followed(tmp_path, "csv:*/log.csv")
    add(tmp_path / "train/log.csv", "epoch,loss\n0,0.2\n")
    assert new(files) == []
    add(tmp_path / "validation/log.csv", "epoch,loss\n0,0.9\n")
    assert new(files) == [{"epoch": "0", "loss": "0.9"}]
    add(tmp_path / "train/log.csv", "1,0.1\n")
    add(tmp_path / "validation/log.csv", "1,0.8\n")
    assert new(files) == [{"epoch": "1", "loss": "0.8"}]


def test_a_training_without_an_evaluation_counts_one_record_late(tmp_path: Path) -> None:
    files = followed(tmp_path, "csv:runs/train/exp/log.csv")
    add(tmp_path / "runs/train/exp/log.csv", "epoch,map\n0,0.2\n")
    assert new(files) == []
    add(tmp_path / "runs/train/exp/log.csv", "1,0.3\n2,0.4\n")
    assert [record["map"] for record in new(files)] == ["0.2", "0.3", "0.4"]
    again = followed(tmp_path, "csv:runs/*/exp/*.csv")
    add(tmp_path / "runs/train/exp/b.csv", "epoch,map\n0,0.2\n")
    assert [record["map"] for record in again.records(last=True)] == ["0.2"]


@pytest.mark.parametrize("pattern", ["tensorboard:runs", "csv:**/a.csv", "csv:**", "jsonl:*/*/*/*/*/*/*/*/*/a.jsonl"])
def test_links_that_go_in_a_circle_are_not_followed(tmp_path: Path, pattern: str) -> None:
    """Two of them, passed by each pattern, would be 2 ** 40 ways to one file."""
    (tmp_path / "runs").mkdir()
    for name in ("a", "b"):
        (tmp_path / "runs" / name).symlink_to(".")
        (tmp_path / name).symlink_to(".")
    add(tmp_path / "runs" / "x" / "a.csv", "loss\n")
    files = followed(tmp_path, pattern)
    add(tmp_path / "runs" / "x" / "a.csv", "0.5\n")
    assert new(files) == ([{"loss": "0.5"}] if pattern.startswith("csv") else [])


def test_a_link_that_is_named_is_followed(tmp_path: Path) -> None:
    (tmp_path / "big-disk" / "run").mkdir(parents=True)
    (tmp_path / "runs").symlink_to("big-disk")
    files = followed(tmp_path, "csv:runs/*/a.csv")
    add(tmp_path / "big-disk" / "run" / "a.csv", "loss\n0.5\n")
    assert new(files) == [{"loss": "0.5"}]


def test_so_many_names_are_looked_at_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coach.platforms.program_metrics.files.MAX_LOOKED", 50)
    read = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: read.append(path) or scandir(path))
    deep = tmp_path
    for _ in range(200):
        deep = deep / "d"
        deep.mkdir()
    assert new(followed(tmp_path, "csv:**/a.csv")) == []
    assert len(read) <= 2 * 52  # two looks


@pytest.mark.parametrize(
    "pattern",
    ["a.csv", "*.csv", "**/*.csv", "x/**", "x/*/a.csv", "[ab].csv", "x[[]y]/*.csv", "**/.h/*.csv", ".h/*", "nothing",
     "**", "x/../a.csv", "./a.csv"],
)  # fmt: skip
def test_without_links_a_pattern_means_what_it_means_for_glob(tmp_path: Path, pattern: str) -> None:
    for name in (
        "a.csv",
        "b.csv",
        "c.txt",
        "x/a.csv",
        "x/y/a.csv",
        "x/y/z/b.csv",
        "x[y]/q.csv",
        ".h/a.csv",
        "x/.i/a.csv",
    ):
        add(tmp_path / name, "loss\n")
    root = str(tmp_path)
    files = {path for path in glob.glob(pattern, root_dir=root, recursive=True) if (tmp_path / path).is_file()}  # noqa: PTH207
    found = {path for path in _Paths(tmp_path).of(pattern) if (tmp_path / path).is_file()}
    assert {os.path.normpath(path) for path in found} == {os.path.normpath(path) for path in files}
    absolute = {path for path in _Paths(tmp_path).of(f"{root}/{pattern}") if Path(path).is_file()}
    assert absolute == {f"{root}/{path}" for path in found} or pattern == "./a.csv"
