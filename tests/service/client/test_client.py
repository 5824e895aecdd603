"""`from coach import Client`: a program submits, follows, plans and pays for a job; a restarted service is found."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from coach import AsyncClient, Client
from coach.core.errors import UserError
from coach.core.jobs.events import JobSubmitted
from coach.handler import endpoint
from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import StateDirectory
from coach.jobfiles.diagnostics import JobFileError
from tests.service.conftest import job_text
from tests.service.test_api import ENDLESS
from tests.service.test_serve import served

pytestmark = pytest.mark.processes


def written(folder: Path, text: str) -> Path:
    file = folder / "job.yaml"
    file.write_text(text)
    return file


def test_importing_it_imports_nothing_that_computes() -> None:
    code = "import sys; from coach import Client; print({'scipy', 'fastapi', 'matplotlib'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_the_first_figure_may_take_longer_than_other_answers() -> None:
    with httpx.Client(base_url="http://here") as http:
        figure, data = (one.make(None, "a").request(http) for one in (Client.job_picture, Client.job_figures))
    assert figure.extensions["timeout"]["read"] > data.extensions["timeout"]["read"] + 60


def test_a_job_is_checked_planned_submitted_once_and_followed_to_its_end(home: StateDirectory, tmp_path: Path) -> None:
    file = written(tmp_path, job_text("a"))
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(job_text("b", maxEpochs=-1))
    with served(tmp_path), Client() as coach:
        (problem,) = coach.validate([wrong]).problems
        assert (problem.field, problem.line > 1) == ("spec.maxEpochs", True)
        with pytest.raises(JobFileError) as found:
            coach.submit([wrong])
        assert found.value.problems[0].path == str(wrong)
        assert coach.validate([file]).jobs == ["a"]
        assert coach.plan([file]).plans[0].rows
        first, again = (coach.submit([file], key="once") for _ in range(2))
        assert [one.job.name for one in first.jobs] == [one.job.name for one in again.jobs] == ["a"]
        changes = list(coach.follow("a"))
        assert changes[-1].jobs[-1].state == "Failed"
        assert [row.name for row in coach.list_jobs().jobs] == ["a"], "the second request started nothing"
        assert coach.job_figures("a").money[-1].spent == pytest.approx(coach.job("a").job.spent)
        assert coach.job_picture("a", "curve").startswith(b"\x89PNG")
        assert coach.job_table("a").count("\n") == 1 + len(coach.job("a").epochs)
        with pytest.raises(UserError, match="there is no job 'c'"):
            coach.job("c")
        assert coach.write_note("a", "the first").text == coach.job("a").note == "the first"
        assert coach.job_model("a")
        coach.submit([written(tmp_path, job_text("b", init={"job": "a"}))])
        with contextlib.closing(Journal.read(home.journal(1))) as journal:
            (submitted,) = [one for _, one in journal.records_of("b", 0) if isinstance(one, JobSubmitted)]
            best = journal.jobs()["a"].best
        assert best is not None and submitted.weights == best.report.weights
        with pytest.raises(UserError, match=r"spec.init.job: there is no job 'z'"):
            coach.submit([written(tmp_path, job_text("c", init={"job": "z"}))])


def test_a_budget_that_is_sent_twice_is_given_once(home: StateDirectory, tmp_path: Path) -> None:
    budget = {"amount": 1.0, "currency": "USD"}
    file = written(tmp_path, job_text("a", maxEpochs=100_000, budget=budget, **ENDLESS))
    with served(tmp_path), Client() as coach:
        coach.submit([file])
        said = coach.job_consequences("a", "add-budget")
        assert said.allowed and "1.00 USD" in said.text
        for _ in range(2):
            assert coach.resume("a", budget=1.5).budget == 1.5
        with pytest.raises(UserError, match="can only grow"):
            coach.resume("a", budget=1.0)
        said = coach.job_consequences("a", "cancel")
        assert said.allowed and "stay spent" in said.text
        coach.cancel("a")
        assert not coach.job_consequences("a", "cancel").allowed


def test_pages_of_the_list_have_every_job_once(home: StateDirectory, tmp_path: Path) -> None:
    names = [f"job-{number}" for number in range(7)]
    file = written(tmp_path, job_text(*names, **ENDLESS))
    with served(tmp_path), Client() as coach:
        coach.submit([file])
        seen, cursor = [], ""
        while cursor is not None:
            page = coach.list_jobs(limit=3, cursor=cursor)
            seen += [row.name for row in page.jobs]
            cursor = page.next
        assert (seen, page.total) == (names, 7)
        assert [row.name for row in coach.list_jobs(q="-3").jobs] == ["job-3"]
        assert coach.list_jobs(state=["Succeeded"]).jobs == []
        cluster = coach.cluster()
        assert [row.position for row in cluster.queue] == list(range(1, cluster.waiting + 1))
        assert (cluster.waiting > 2, cluster.next) == (True, None)
        first = coach.cluster(limit=2)
        assert first.next is not None
        assert first.queue + coach.cluster(cursor=first.next).queue == cluster.queue
        assert all(coach.why_job(row.job).queue == row.position for row in cluster.queue)


def test_a_stream_goes_on_after_a_crash_and_says_when_the_journal_is_another(
    home: StateDirectory, tmp_path: Path
) -> None:
    file = written(tmp_path, job_text("a", "b", maxEpochs=100_000, **ENDLESS))
    with served(tmp_path, "0", "5"), Client() as coach:
        coach.submit([file])
        place = coach.list_jobs().stream
    assert endpoint.find(home) is None, "it was killed"
    with served(tmp_path, "0", "5"), Client() as coach:
        changed = next(change for change in coach.stream(after=place) if change.jobs)
        assert {row.name for row in changed.jobs} == {"a", "b"}
        identity, _, seq = place.partition("-")
        for wrong in (f"{identity}1-{seq}", f"{identity}-{10**12}", "0-0"):
            assert next(iter(coach.stream(after=wrong))).reset
        coach.cancel("a")
        assert next(change for change in coach.stream("a", after=place) if change.jobs).jobs[0].name == "a"


def test_new_lines_of_a_log_come_by_the_stream_and_once_across_a_crash(home: StateDirectory, tmp_path: Path) -> None:
    file = written(tmp_path, job_text("a", maxEpochs=100_000, **ENDLESS))
    log = home.logs("a") / "a-worker-0.log"

    def write(line: str) -> None:
        with log.open("a") as out:
            out.write(f"{line}\n")

    with served(tmp_path, "0", "5") as first, Client() as coach:
        coach.submit([file])
        lines = (change.log for change in coach.stream(log="a/a-worker-0") if change.log)
        write("one")  # the log begins after the stream, or before it
        found = next(lines)
        assert (found.job, found.function, found.text, found.next) == ("a", "a-worker-0", "one\n", 4)
        write("two")
        assert next(lines).text == "two\n"
        port = coach.url.rpartition(":")[2]
        first.process.kill()
        first.process.join()
        write("three")
        with served(tmp_path, "0", "5", port=port):
            assert next(lines).text == "three\n"
            for wrong in ("b/a-worker-0", "a/../../token", "a"):
                with pytest.raises(UserError):
                    next(coach.stream(log=wrong))


def test_coroutines_ask_the_same(home: StateDirectory, tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncClient() as coach:
            await coach.submit([file])
            async for change in coach.stream(after=(await coach.list_jobs()).stream):
                if any(row.ended_at for row in change.jobs):
                    break
            assert (await coach.job("a")).job.ended_at

    file = written(tmp_path, job_text("a", maxEpochs=20))
    with served(tmp_path):
        asyncio.run(asyncio.wait_for(main(), 60))


def test_without_a_service_it_says_how_to_start_one(home: StateDirectory) -> None:
    with pytest.raises(UserError, match="coach serve"):
        Client()
    with pytest.raises(UserError, match="both url and token"):
        Client(url="http://127.0.0.1:1")
