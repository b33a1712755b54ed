"""Read requests about an incident: the incident in the path and the texts in the body.

Used by the endpoints of `fleet_api`, `incident_api`, `repairs_api` and `causes_api`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from watchkeeper.hub import services
from watchkeeper.model.incidents import Incident
from watchkeeper.web.endpoint import read_json_object

MAX_BODY_BYTES = 64 * 1024
MAX_TEXT_LENGTH = 4000


async def load_incident(journal: services.JournalProtocol, request: Request) -> Incident:
    """The incident that the path names, or 404."""
    id: str = request.path_params["id"]
    incident = await journal.read(lambda: journal.incident(id))
    if incident is None:
        raise HTTPException(404, f"incident {id[:40]} not found; `watchkeeper incidents --all` lists all incidents")
    return incident


async def load_with_body(journal: services.JournalProtocol, request: Request) -> tuple[Incident, dict[str, Any]]:
    return await load_incident(journal, request), await read_json_object(request, MAX_BODY_BYTES)


def read_text(body: Mapping[str, Any], name: str) -> str:
    """A text of the body with its line breaks; 400 if it is missing, empty or too long."""
    text = body.get(name)
    if not isinstance(text, str) or not text.strip():
        raise HTTPException(400, f'`{name}` is missing or empty; send a body such as {{"{name}": "…"}}')
    if len(text) > MAX_TEXT_LENGTH:
        raise HTTPException(400, f"`{name}` has {len(text):,} characters, the limit is {MAX_TEXT_LENGTH:,}")
    return text.strip()


def read_line(body: Mapping[str, Any], name: str) -> str:
    return " ".join(read_text(body, name).split())
