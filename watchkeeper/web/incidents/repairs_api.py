"""List, explain, approve, reject, retry, stop and resume repairs over HTTP, and show their audit log.

This module checks a request, passes it to the hub's repairs and writes the answer. Reading needs the role viewer,
everything that can change a node the role operator.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any, TypedDict, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from watchkeeper.errors import InvalidTransition, SettingsError
from watchkeeper.hub import services
from watchkeeper.hub.repair_loop import RepairLoop
from watchkeeper.kit import wire
from watchkeeper.model.repairs import Repair, RepairSwitch
from watchkeeper.remediate import explanation, policy
from watchkeeper.store.journal import chain
from watchkeeper.web import shapes
from watchkeeper.web.endpoint import QueryParam, get, ok_response, post, read_json_object, read_number
from watchkeeper.web.incidents import incident_request

MAX_POLICY_BYTES = 1024 * 1024
MAX_PAST_REPAIRS, MAX_ENTRIES = 100, 10_000
T = TypeVar("T")
# Takes the repairs, the name of the caller and the time.
Change = Callable[[RepairLoop, str, datetime], T]


class RepairList(TypedDict):
    repairs: list[shapes.RepairView]
    switch: shapes.RepairSwitchView


class RepairLog(TypedDict):
    entries: list[chain.JournalEntry]


class PolicyTest(TypedDict):
    incidents: list[explanation.ReplayedIncident]


class SwitchChanged(TypedDict):
    switch: shapes.RepairSwitchView


class RepairChanged(TypedDict):
    repair: shapes.RepairView


class RepairsApi:
    def __init__(self, hub: services.Services) -> None:
        self._runtime, self._journal, self._loop = hub.runtime, hub.journal, hub.repairs
        self._incidents = hub.incidents

    @property
    def _repairs(self) -> RepairLoop:
        if self._loop is None:
            raise HTTPException(404, "a replayed recording has no repairs")
        return self._loop

    @get(
        "/api/repairs",
        QueryParam("all", f"1: include the newest {MAX_PAST_REPAIRS} ended repairs."),
        response=RepairList,
    )
    async def list_repairs(self, request: Request) -> Response:
        """List repairs that are waiting, are running or keep a node cordoned."""
        loop = self._repairs
        repairs = await self._journal.read(loop.repairs.active_repairs)
        if request.query_params.get("all") == "1":
            active_ids = {repair.id for repair in repairs}
            past = await self._journal.read(lambda: loop.recent_repairs(MAX_PAST_REPAIRS))
            repairs += [repair for repair in past if repair.id not in active_ids]
        views = [_repair_view(repair) for repair in repairs]
        return ok_response(repairs=views, switch=_switch_view(loop.repairs.switch))

    @get(
        "/api/repairs/log",
        QueryParam("limit", f"Number of newest entries, at most {MAX_ENTRIES:,}. Default: 1000.", int),
    )
    async def list_audit_entries(self, request: Request) -> RepairLog:
        """Audit log of repairs, oldest first."""
        limit = read_number(request, "limit", default=1000, limit=MAX_ENTRIES)
        return RepairLog(entries=await self._repairs.run_now(lambda: self._repairs.audit(limit)))

    @post("/api/repairs/test", body={"policy": str})
    async def test_policy(self, request: Request) -> PolicyTest:
        """Test a policy: the plan of every past incident under it."""
        text = (await read_json_object(request, MAX_POLICY_BYTES)).get("policy")
        if not isinstance(text, str):
            raise HTTPException(400, '`policy` is missing; send its TOML text in a body such as {"policy": "…"}')
        try:
            tested_policy = policy.parse(text, where="policy", base=policy.load())
        except SettingsError as error:
            raise HTTPException(400, str(error)) from error
        return PolicyTest(incidents=await self._repairs.run_now(lambda: self._repairs.simulate_policy(tested_policy)))

    @post("/api/repairs/stop", body={"why": str}, response=SwitchChanged)
    async def stop(self, request: Request) -> Response:
        """Halt all repairs now."""
        why = incident_request.read_line(await read_json_object(request, incident_request.MAX_BODY_BYTES), "why")
        return await self._change_switch(request, lambda loop, actor, now: loop.control.stop(why, actor=actor, now=now))

    @post("/api/repairs/resume", response=SwitchChanged)
    async def resume(self, request: Request) -> Response:
        """Resume repairs after a halt."""
        return await self._change_switch(request, lambda loop, actor, now: loop.control.resume(actor=actor, now=now))

    @post("/api/repairs/reset", response=SwitchChanged)
    async def reset(self, request: Request) -> Response:
        """Reset the circuit breaker."""
        return await self._change_switch(request, lambda loop, actor, now: loop.control.reset(actor=actor, now=now))

    async def _change_switch(self, request: Request, change: Change[RepairSwitch]) -> Response:
        loop, actor, clock = self._repairs, request.state.caller.name, self._runtime.clock
        # Deliberately not on the repair thread: a stop must not wait for calls that hang.
        return ok_response(switch=_switch_view(await loop.run_now(lambda: change(loop, actor, clock.now()))))

    @get("/api/incidents/{id}/repair", response=shapes.ExplainedRepair)
    async def explain(self, request: Request) -> Response:
        """Explain the repair of an incident: plan, mode, refusals and progress."""
        incident, loop = await incident_request.load_incident(self._journal, request), self._loop
        if loop is None:
            return ok_response(incident=incident.id, repair=None)
        explained = await loop.run_on_repair_thread(lambda: loop.explain(incident))
        repair = None if explained.repair is None else _repair_view(explained.repair)
        return ok_response(**wire.to_plain(explained) | {"repair": repair}, switch=_switch_view(loop.repairs.switch))

    @post("/api/incidents/{id}/approve", body={"digest": str}, response=RepairChanged)
    async def approve(self, request: Request) -> Response:
        """Approve the repair plan with this digest; this assigns its incidents to who approved."""
        incident, body = await incident_request.load_with_body(self._journal, request)
        id, digest = incident.id, incident_request.read_line(body, "digest")
        loop, actor, clock = self._repairs, request.state.caller.name, self._runtime.clock
        approved = await loop.run_on_repair_thread(
            lambda: loop.control.approve(id, digest, actor=actor, now=clock.now())
        )
        # First, so that the page of the incident shows both at once.
        await self._assign(approved, actor)
        loop.advance_soon(approved)
        return ok_response(repair=_repair_view(approved))

    async def _assign(self, approved: Repair, actor: str) -> None:
        for incident_id in approved.openings:
            incident = await self._journal.read(partial(self._journal.incident, incident_id))
            if incident is not None and incident.is_open and incident.assignee != actor:
                # It may be resolved meanwhile.
                with contextlib.suppress(InvalidTransition):
                    await self._incidents.assign(incident.id, actor, actor)

    @post("/api/incidents/{id}/stop", body={"why": str}, response=RepairChanged)
    async def stop_repair(self, request: Request) -> Response:
        """Stop the repair of an incident before its next step, with the reason."""
        incident, body = await incident_request.load_with_body(self._journal, request)
        loop, actor, clock = self._repairs, request.state.caller.name, self._runtime.clock
        why = incident_request.read_line(body, "why")
        # Deliberately not on the repair thread: a stop must not wait for calls that hang.
        stopped = await loop.run_now(lambda: loop.control.stop_repair(incident.id, why, actor=actor, now=clock.now()))
        return ok_response(repair=_repair_view(stopped))

    @post("/api/incidents/{id}/resume", response=RepairChanged)
    async def resume_repair(self, request: Request) -> Response:
        """Continue the repair of an incident after it was stopped."""
        id = (await incident_request.load_incident(self._journal, request)).id
        return await self._change_repair(
            request, lambda loop, actor, now: loop.control.resume_repair(id, actor=actor, now=now)
        )

    @post("/api/incidents/{id}/reject", body={"why": str}, response=RepairChanged)
    async def reject(self, request: Request) -> Response:
        """Reject the repair plan of an incident, with the reason."""
        incident, body = await incident_request.load_with_body(self._journal, request)
        id, why = incident.id, incident_request.read_line(body, "why")
        return await self._change_repair(
            request, lambda loop, actor, now: loop.control.reject(id, why, actor=actor, now=now)
        )

    @post("/api/incidents/{id}/step-done", response=RepairChanged)
    async def confirm_step(self, request: Request) -> Response:
        """Confirm that a manual step is done."""
        id = (await incident_request.load_incident(self._journal, request)).id
        return await self._change_repair(
            request, lambda loop, actor, now: loop.control.step_done(id, actor=actor, now=now)
        )

    @post("/api/incidents/{id}/again", response=RepairChanged)
    async def retry(self, request: Request) -> Response:
        """Retry a failed repair."""
        id = (await incident_request.load_incident(self._journal, request)).id
        return await self._change_repair(request, lambda loop, actor, _: loop.retry(id, actor))

    async def _change_repair(self, request: Request, change: Change[Repair]) -> Response:
        loop, actor, clock = self._repairs, request.state.caller.name, self._runtime.clock
        changed = await loop.run_on_repair_thread(lambda: change(loop, actor, clock.now()))
        loop.advance_soon(changed)
        return ok_response(repair=_repair_view(changed))


def _repair_view(repair: Repair) -> dict[str, Any]:
    plain: dict[str, Any] = wire.to_plain(repair)
    action = repair.action
    return plain | {
        "action": None if action is None else action.kind,
        "incidents": list(repair.openings),
        "is_running": repair.is_running,
        "is_held": repair.keeps_cordon,
        "activity": repair.activity,
    }


def _switch_view(switch: RepairSwitch) -> dict[str, Any]:
    plain: dict[str, Any] = wire.to_plain(switch)
    return plain | {"is_stopped": switch.is_stopped, "is_tripped": switch.is_tripped}
