"""Calling a service: `Client` and `AsyncClient`, with its own models as answers and Coach's errors.

from coach import Client

with Client() as coach:
    for row in coach.list_jobs().jobs:
        print(row.name, row.state, row.loss, row.spent)
"""

from __future__ import annotations

from coach.service.client.clients import AsyncClient, Client, service_of
from coach.service.client.events import Change, LogLines
from coach.service.client.submission import PartlySubmittedError, submit_all

__all__ = ["AsyncClient", "Change", "Client", "LogLines", "PartlySubmittedError", "service_of", "submit_all"]
