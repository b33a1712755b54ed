"""What requests about an incident share: the incident that the path names, and the words of the body.

The endpoints of `fleet_api`, `incident_api`, `act_api` and `causes_api` begin with these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from watchkeeper.hub import services
from watchkeeper.model.incidents import Incident

BODY_BYTES = 64 * 1024
TEXT_LIMIT = 4000


async def load_incident(journal: services.JournalProtocol, request: Request) -> Incident:
    """404 where there is none of that name."""
    id: str = request.path_params["id"]
    incident = await journal.read(lambda: journal.incident(id))
    if incident is None:
        raise HTTPException(404, f"there is no incident {id[:40]}; `watchkeeper incidents --all` lists every one")
    return incident


def read_text(body: Mapping[str, Any], name: str) -> str:
    """What the body says under a name, line breaks and all; 400 where that is nothing, or too much."""
    said = body.get(name)
    if not isinstance(said, str) or not said.strip():
        raise HTTPException(400, f'the body needs a text: {{"{name}": "…"}}')
    if len(said) > TEXT_LIMIT:
        raise HTTPException(400, f"{name} has {len(said):,} characters, the limit is {TEXT_LIMIT:,}")
    return said.strip()


def read_line(body: Mapping[str, Any], name: str) -> str:
    return " ".join(read_text(body, name).split())
