"""A service that is killed at random instants while two jobs of one account train: the ledger is exact each time.

    python -m benchmarks.service.chaos_accounts 100 1        # 100 kills of seed 1, some 8 minutes

A real `coach serve` process with its journal on disk, on a platform in memory, gets SIGKILL up to three seconds after
its first record, and the next one goes on. Both jobs name an account that is in another one, and a third has their
label; their periods are windows of seconds, so money is spent, runs out and comes back all the time.

After each kill the journal is read: at every record so far no account has spent and reserved more than its amount, the
sum of all settlements is what jobs and accounts have spent, and the accounts folded record by record are those that
the next service starts with.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, write_csv, write_table
from coach import Client
from coach.core.jobs import actions as act
from coach.core.jobs import events as ev
from coach.core.jobs.reasons import Reason
from coach.core.lifecycle.reducer import Reducer
from coach.core.money import to_amount
from coach.core.policies.coach import CoachPolicy
from coach.handler.state.journal import Journal
from coach.handler.state.state_directory import StateDirectory
from tests.service.test_messages import DEAR
from tests.web.conftest import Serving

OUT = RESULTS / "accounts" / "kills.csv"
#: Name, USD, period, the account that it is in, labels.
ACCOUNTS = (
    ("research", 0.6, "40s", "", {}),
    ("team-a", 0.4, "20s", "research", {}),
    ("vision", 0.5, "30s", "", {"team": "vision"}),
)
LONGEST = 3.0


def begin(serving: Serving) -> None:
    """Make the accounts, and give the service two jobs that never end."""
    with Client() as coach:
        for name, amount, period, parent, labels in ACCOUNTS:
            coach.set_account(name, amount, "USD", period, parent=parent, labels=labels)
    endless: dict[str, Any] = {
        "prices": DEAR,
        "maxEpochs": 100_000,
        "target": {"loss": 0.01},
        "stopEarly": False,
    }
    serving.submit("one", "two", budget={"account": "team-a"}, labels={"team": "vision"}, **endless)


def until_it_goes_on(records: int) -> None:
    """Return when the service has written its first record: it reads and imports before."""
    while True:
        with contextlib.closing(Journal.read(StateDirectory.default().journal(1))) as journal:
            if journal.last_seq() > records:
                return
        time.sleep(0.05)


def check(journal: Journal) -> dict[str, Any]:
    """The journal's accounts, checked at every record. Raises AssertionError."""
    folded, settled, most, waits = Reducer(CoachPolicy()), 0, 0.0, 0
    records = [record for _, record in journal.records()]
    for record in records:
        folded.apply(record)
        settled += record.amount if isinstance(record, act.Settle) else 0
        waits += isinstance(record, act.SetStatus) and record.reason is Reason.ACCOUNT_SPENT
        for account in folded.accounts.known.values():
            used = folded.accounts.spent(account, record.at) + account.held
            assert used <= account.amount, f"{account.name}: {used} of {account.amount} at {record}"
            most = max(most, used / account.amount if account.amount else 0.0)
    jobs = journal.jobs()
    assert settled == sum(job.money.ledger.spent for job in jobs.values())
    for name, *_ in ACCOUNTS:
        assert settled == folded.accounts.known[name].payments.since(0.0), name
    assert journal.accounts(jobs) == folded.accounts, "the next service starts with other accounts"
    return {
        "records": len(records),
        "epochs": sum(isinstance(one, ev.EpochFinished) for one in records),
        "waits": waits,
        "spent": round(to_amount(settled), 6),
        "reserved": round(sum(to_amount(job.money.ledger.reserved) for job in jobs.values()), 6),
        "most": round(most, 4),
    }


def main(kills: int, seed: int) -> int:
    """Kill it so many times; how often the ledger was wrong."""
    dice, rows, records = random.Random(seed), [], 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ["COACH_HOME"] = str(Path(folder, "home"))
        Path(folder, "model.py").write_text("def net(): ...\n")
        serving = Serving(Path(folder), seconds=0.05)
        for number in range(kills):
            serving.start()
            if number == 0:
                begin(serving)
            else:
                until_it_goes_on(records)
            after = dice.uniform(0.0, LONGEST)
            time.sleep(after)
            serving.kill()
            row: dict[str, Any] = {"kill": number + 1, "after": round(after, 3), "wrong": ""}
            with contextlib.closing(Journal.read(StateDirectory.default().journal(1))) as journal:
                records = journal.last_seq()
                try:
                    row |= check(journal)
                except AssertionError as error:
                    row["wrong"] = str(error)
            rows.append(row)
            print(row, file=sys.stderr, flush=True)
            write(rows, kills, seed)
    return sum(bool(row["wrong"]) for row in rows)


def write(rows: list[dict[str, Any]], kills: int, seed: int) -> None:
    """The table, and a line for each kill."""
    last = rows[-1]
    write_csv(OUT, rows)
    table = [
        {"what": "kills", "count": len(rows)},
        {"what": "kills while money was reserved", "count": sum(row.get("reserved", 0) > 0 for row in rows)},
        {"what": "epochs that were paid", "count": last.get("epochs", 0)},
        {"what": "waits for an account", "count": last.get("waits", 0)},
        {"what": "records of the journal", "count": last.get("records", 0)},
        {
            "what": "the most of an amount that was spent and reserved at once",
            "count": f"{last.get('most', 0):.2%}",
        },
        {"what": "ledgers that were wrong", "count": sum(bool(row["wrong"]) for row in rows)},
    ]
    note = (
        "What is checked after each kill is in the docstring of `benchmarks/service/chaos_accounts.py`, each kill in\n"
        "[kills.csv](kills.csv)."
    )
    command = f"python -m benchmarks.service.chaos_accounts {kills} {seed}"
    write_table(
        OUT.with_name("kills.md"),
        "Two jobs of one account, and a service that is killed",
        command,
        table,
        note,
    )


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1]), int(sys.argv[2])) > 0)
