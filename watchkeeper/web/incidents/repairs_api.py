"""Repairs over HTTP: list, explain, approve, reject, stop and go on, and the audit of it all.

Nothing is decided here: a request is checked, handed to the hub's repairs, and its answer written. Reading needs a
viewer, every word that lets a machine be touched an operator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from watchkeeper.errors import SettingsError
from watchkeeper.hub import services
from watchkeeper.hub.repair_loop import RepairLoop
from watchkeeper.hub.runtime import Runtime
from watchkeeper.kit import wire
from watchkeeper.model.repairs import Repair, RepairSwitch
from watchkeeper.remediate import explanation, policy
from watchkeeper.store.journal import chain
from watchkeeper.web import shapes
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.endpoint import Endpoint, QueryParam, ok_response, parse_whole_number, read_json_object
from watchkeeper.web.incidents import incident_request

POLICY_BYTES = 1024 * 1024
MOST_PAST, MOST_ENTRIES = 100, 10_000


@dataclass(frozen=True, slots=True)
class RepairList:
    repairs: list[shapes.RepairView]
    switch: shapes.RepairSwitchView


@dataclass(frozen=True, slots=True)
class RepairLog:
    entries: list[chain.JournalEntry]


@dataclass(frozen=True, slots=True)
class PolicyTest:
    incidents: list[explanation.Rehearsed]


@dataclass(frozen=True, slots=True)
class SwitchChanged:
    switch: shapes.RepairSwitchView


@dataclass(frozen=True, slots=True)
class RepairChanged:
    repair: shapes.RepairView


class RepairsApi:
    def __init__(self, runtime: Runtime, journal: services.JournalProtocol, *, repairs: RepairLoop | None) -> None:
        self._runtime, self._journal, self._loop = runtime, journal, repairs

    @property
    def _repairs(self) -> RepairLoop:
        if self._loop is None:
            raise HTTPException(404, "nothing is repaired here: this is a recording")
        return self._loop

    async def list(self, request: Request) -> Response:
        loop = self._repairs
        found = await self._journal.read(loop.repairs.active_repairs)
        if request.query_params.get("all") == "1":
            known = {one.id for one in found}
            past = await self._journal.read(lambda: loop.recent_repairs(MOST_PAST))
            found += [one for one in past if one.id not in known]
        return ok_response(repairs=[_shown(one) for one in found], switch=_switch(loop.repairs.switch))

    async def explain(self, request: Request) -> Response:
        incident, loop = await incident_request.load_incident(self._journal, request), self._loop
        if loop is None:
            return ok_response(incident=incident.id, repair=None)
        told = await loop.run_on_repair_thread(lambda: loop.explain(incident))
        plain: dict[str, Any] = wire.to_plain(told)
        return ok_response(
            **plain | {"repair": None if told.repair is None else _shown(told.repair)},
            switch=_switch(loop.repairs.switch),
        )

    async def approve(self, request: Request) -> Response:
        id, body = (
            (await incident_request.load_incident(self._journal, request)).id,
            await read_json_object(request, incident_request.BODY_BYTES),
        )
        digest = incident_request.read_line(body, "digest")
        return await self._say(
            request,
            lambda actor: self._repairs.approvals.approve(id, digest, actor=actor, now=self._runtime.clock.now()),
        )

    async def reject(self, request: Request) -> Response:
        id = (await incident_request.load_incident(self._journal, request)).id
        why = incident_request.read_line(await read_json_object(request, incident_request.BODY_BYTES), "why")
        return await self._say(
            request, lambda actor: self._repairs.approvals.reject(id, why, actor=actor, now=self._runtime.clock.now())
        )

    async def step_done(self, request: Request) -> Response:
        id = (await incident_request.load_incident(self._journal, request)).id
        return await self._say(
            request, lambda actor: self._repairs.approvals.step_done(id, actor=actor, now=self._runtime.clock.now())
        )

    async def again(self, request: Request) -> Response:
        id = (await incident_request.load_incident(self._journal, request)).id
        return await self._say(request, lambda actor: self._repairs.retry(id, actor))

    async def _say(self, request: Request, work: Callable[[str], Repair]) -> Response:
        actor = request.state.caller.name
        changed = await self._repairs.run_on_repair_thread(lambda: work(actor))
        self._repairs.advance_soon(changed)
        return ok_response(repair=_shown(changed))

    async def stop(self, request: Request) -> Response:
        why = incident_request.read_line(await read_json_object(request, incident_request.BODY_BYTES), "why")
        return await self._turn(
            request, lambda actor: self._repairs.approvals.stop(why, actor=actor, now=self._runtime.clock.now())
        )

    async def resume(self, request: Request) -> Response:
        return await self._turn(
            request, lambda actor: self._repairs.approvals.resume(actor=actor, now=self._runtime.clock.now())
        )

    async def reset(self, request: Request) -> Response:
        return await self._turn(
            request, lambda actor: self._repairs.approvals.reset(actor=actor, now=self._runtime.clock.now())
        )

    async def _turn(self, request: Request, work: Callable[[str], RepairSwitch]) -> Response:
        actor = request.state.caller.name
        # In a thread of its own: to stop everything must not wait behind calls that hang.
        return ok_response(switch=_switch(await self._repairs.run_now(lambda: work(actor))))

    async def log(self, request: Request) -> RepairLog:
        limit = parse_whole_number(request.query_params.get("limit", "1000"))
        if limit is None or not 1 <= limit <= MOST_ENTRIES:
            raise HTTPException(400, f"limit must be a number from 1 to {MOST_ENTRIES:,}")
        return RepairLog(entries=await self._repairs.run_now(lambda: self._repairs.audit(limit)))

    async def test(self, request: Request) -> PolicyTest:
        """Which plan every past incident would have got under the policy in the body."""
        text = (await read_json_object(request, POLICY_BYTES)).get("policy")
        if not isinstance(text, str):
            raise HTTPException(400, 'the body needs the policy as TOML text: {"policy": "…"}')
        try:
            chosen = policy.parse(text, where="policy", over=policy.load())
        except SettingsError as error:
            raise HTTPException(400, str(error)) from error
        return PolicyTest(incidents=await self._repairs.run_now(lambda: self._repairs.simulate_policy(chosen)))


def _shown(repair: Repair) -> dict[str, Any]:
    plain: dict[str, Any] = wire.to_plain(repair)
    action = repair.action
    return plain | {
        "action": None if action is None else action.kind,
        "incidents": list(repair.openings),
        "is_running": repair.is_running,
        "is_held": repair.keeps_cordon,
    }


def _switch(switch: RepairSwitch) -> dict[str, Any]:
    plain: dict[str, Any] = wire.to_plain(switch)
    return plain | {"is_stopped": switch.is_stopped, "is_tripped": switch.is_tripped}


# Deliberately one table: a row for each endpoint, with what the API's document says about it.
def endpoints(api: RepairsApi) -> list[Endpoint]:
    get, post = ("GET",), ("POST",)
    return [
        Endpoint(
            get,
            "/api/repairs",
            Role.VIEWER,
            api.list,
            summary="Repairs that wait, run or hold a node",
            params=(QueryParam("all", "1: the newest that ended too"),),
            response=RepairList,
        ),
        Endpoint(
            get,
            "/api/repairs/log",
            Role.VIEWER,
            api.log,
            summary="The audit of repairs, oldest first",
            params=(QueryParam("limit", f"the newest so many, at most {MOST_ENTRIES:,}; 1000 unless given", int),),
        ),
        Endpoint(
            post,
            "/api/repairs/test",
            Role.OPERATOR,
            api.test,
            changes=True,
            summary="Which plan every past incident would have got under another policy",
            body={"policy": str},
        ),
        Endpoint(
            post,
            "/api/repairs/stop",
            Role.OPERATOR,
            api.stop,
            changes=True,
            summary="Stop all repairs at once",
            body={"why": str},
            response=SwitchChanged,
        ),
        Endpoint(
            post,
            "/api/repairs/resume",
            Role.OPERATOR,
            api.resume,
            changes=True,
            summary="Let repairs go on",
            response=SwitchChanged,
        ),
        Endpoint(
            post,
            "/api/repairs/reset",
            Role.OPERATOR,
            api.reset,
            changes=True,
            summary="Close the circuit breaker again",
            response=SwitchChanged,
        ),
        Endpoint(
            get,
            "/api/incidents/{id}/repair",
            Role.VIEWER,
            api.explain,
            summary="Why an incident has this plan and this mode, who would object now, and how far its repair is",
            response=shapes.ExplainedRepair,
        ),
        Endpoint(
            post,
            "/api/incidents/{id}/approve",
            Role.OPERATOR,
            api.approve,
            changes=True,
            summary="Approve the plan that this digest names",
            response=RepairChanged,
            body={"digest": str},
        ),
        Endpoint(
            post,
            "/api/incidents/{id}/reject",
            Role.OPERATOR,
            api.reject,
            changes=True,
            summary="Reject the plan",
            response=RepairChanged,
            body={"why": str},
        ),
        Endpoint(
            post,
            "/api/incidents/{id}/step-done",
            Role.OPERATOR,
            api.step_done,
            changes=True,
            summary="Say that a step which a person does is done",
            response=RepairChanged,
        ),
        Endpoint(
            post,
            "/api/incidents/{id}/again",
            Role.OPERATOR,
            api.again,
            changes=True,
            summary="Try the repair once more",
            response=RepairChanged,
        ),
    ]
