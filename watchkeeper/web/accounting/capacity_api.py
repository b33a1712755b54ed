"""GET /api/capacity/forecast, /now and /advice: when the fleet is full, what is true about it now, what would help.

Answers come from the hub's own samples and from what its schedulers said last; `capacity` works them out in a thread,
one forecast at a time, and the newest few are kept for some minutes because demand is by the hour. Everything here is
advice: nothing is changed. `watchkeeper capacity` and other programs ask.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from watchkeeper.capacity import advice, demand, demand_queries, fleet_capacity, report, rightsizing
from watchkeeper.capacity.fleet_capacity import QueueWait
from watchkeeper.capacity.rightsizing import Repartition, RightsizingAdvice
from watchkeeper.clusters import inventory
from watchkeeper.clusters.clusters import Clusters
from watchkeeper.errors import CollectError, QueryError
from watchkeeper.hub import services
from watchkeeper.hub.runtime import Runtime
from watchkeeper.hub.samples import Queries
from watchkeeper.hub.services import GpuView
from watchkeeper.kit import clock, durations, wire
from watchkeeper.model import cluster, workloads
from watchkeeper.model.fleet_capacity import FleetCapacity
from watchkeeper.query.engine import QueryRange
from watchkeeper.web import report_shapes, shapes
from watchkeeper.web.accounting import workload_use
from watchkeeper.web.auth.auth import Role
from watchkeeper.web.endpoint import Endpoint, QueryParam, ok_response
from watchkeeper.web.fleet import holders
from watchkeeper.workloads import pending_pods

# Twelve weeks hold every season that is modelled; an hour is the step of planning, five minutes stand in while a hub
# is younger than two days.
LONG_SPAN, SHORT_SPAN = (84 * 86_400, 3600, "5m"), (2 * 86_400, 300, "1m")
LEAST_HOURS = 48
LONGEST_HORIZON = 26 * 7 * 86_400
KEPT_SECONDS, MOST_KEPT = 300.0, 16
LONGEST_WINDOW = 7 * 86_400
TOO_YOUNG = "a forecast needs at least 10 minutes of samples of GPUs that someone holds"
MOST_ADVICE = 1000
# As long as samples are looked back for: a node that answers once in a while is there.
MAX_SILENCE_MS, SILENT = 300_000, "they do not report"
FORECAST_ASKS = (
    QueryParam("about", f"{', '.join(demand_queries.ABOUT)}; demand unless given"),
    QueryParam("horizon", "how far to look, such as 4w; 7d unless given"),
    QueryParam("target", "the share of the fleet that may be in use, from 0.05 to 1; 0.8 unless given", float),
    shapes.CLUSTER,
)
WINDOW_ASK = QueryParam("window", "the time that use is measured over; 1d unless given, at most 7d")


@dataclass(frozen=True, slots=True)
class CurrentUse:
    window: str
    held_gpus: int
    used_gpus: float | None


@dataclass(frozen=True, slots=True)
class CapacityNow:
    now: datetime
    standing: FleetCapacity
    waits: list[QueueWait]
    use: CurrentUse
    rightsizing: list[RightsizingAdvice]
    repartition: list[Repartition]
    unmapped: dict[str, int]
    problem: str | None


@dataclass(frozen=True, slots=True)
class CapacityAdvice:
    now: datetime
    sentence: str | None
    advice: list[advice.ScalingAdvice]


class CapacityApi:
    def __init__(
        self,
        runtime: Runtime,
        queries: Queries,
        *,
        fleet: services.FleetProtocol,
        clusters: Clusters | None,
    ) -> None:
        self._runtime, self._queries, self._fleet = runtime, queries, fleet
        self._clusters = clusters
        self._busy = asyncio.Lock()
        self._kept: OrderedDict[tuple[Any, ...], tuple[float, dict[str, Any]]] = OrderedDict()

    async def forecast(self, request: Request) -> Response:
        return ok_response(**await self._forecast(request.query_params))

    async def _forecast(self, form: Mapping[str, str]) -> dict[str, Any]:
        about = form.get("about", "demand")
        if about not in demand_queries.ABOUT:
            raise HTTPException(400, f"about `{about[:40]}`: there are {', '.join(demand_queries.ABOUT)}")
        horizon = _seconds(form.get("horizon", "7d"), "horizon", LONGEST_HORIZON)
        target = _share(form.get("target", "0.8"))
        asked = (about, horizon, target, form.get("cluster"))
        now = self._runtime.clock.now().timestamp()
        async with self._busy:
            kept = self._kept.get(asked)
            if kept is not None and 0 <= now - kept[0] < KEPT_SECONDS:
                return kept[1]
            made = await self._make_forecast(*asked)
            if made["reason"] is not None:
                return made
            self._kept[asked] = (now, made)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
            return made

    async def _make_forecast(self, about: str, horizon: float, target: float, named: str | None) -> dict[str, Any]:
        try:
            points, step = await self._points(demand_queries.demand_expression(about, cluster=named))
            capacity = await self._queries.instant(demand_queries.capacity_expression(cluster=named), self._now_ms())
        except QueryError as error:
            raise HTTPException(400, str(error)) from error
        gpus = next(iter(capacity.latest().values()), None)
        try:
            series = demand.regular_series(points, step_seconds=step, where="this hub")
            made = await asyncio.to_thread(
                report.forecast_report,
                series,
                horizon,
                capacity_gpus=gpus if about == "demand" else None,
                target=target,
            )
        except CollectError as error:
            reason = str(error) if len(points) > 1 else TOO_YOUNG
            return {"about": about, "capacity_gpus": gpus, "forecast": [], "reason": reason}
        return {"about": about, "capacity_gpus": gpus, **made, "reason": None}

    async def _points(self, expr: str) -> tuple[list[tuple[float, float]], float]:
        """The mean of each hour as (start, value), or of five minutes where there are hardly any hours."""
        points: list[tuple[float, float]] = []
        for span_seconds, step, inner in (LONG_SPAN, SHORT_SPAN):
            # Whole steps only: the hour that is not over yet would look like a fall.
            end = self._now_ms() // (step * 1000) * step
            span = QueryRange((end - span_seconds) * 1000, end * 1000, step * 1000)
            each = demand_queries.step_mean(expr, step=durations.format_seconds(step), inner=inner)
            answer = await self._queries.range(each, span)
            points = [
                (at / 1000 - step, value)
                for _, times, values in answer.frame.rows()
                for at, value in zip(times.tolist(), values.tolist(), strict=True)
            ]
            if len(points) >= LEAST_HOURS:
                break
        return points, float(step)

    async def now(self, request: Request) -> CapacityNow:
        window, named = _window(request.query_params), request.query_params.get("cluster")
        found, held = await self._standing(named)
        advised, used_gpus = await self._rightsizing(held, window, named)
        now = self._runtime.clock.now()
        return CapacityNow(
            now=now,
            standing=found,
            waits=fleet_capacity.queue_waits(await self._asks(named), now=now.timestamp()),
            use=CurrentUse(durations.format_seconds(window), found.held_gpus, used_gpus),
            rightsizing=sorted(advised, key=lambda one: -one.saves_gpus)[:MOST_ADVICE],
            repartition=rightsizing.repartition(advised),
            unmapped=inventory.count_missing_facts(self._fleet.nodes()),
            problem=held.problem,
        )

    async def advice(self, request: Request) -> Response:
        return ok_response(**await self.advise(request.query_params))

    async def advise(self, form: Mapping[str, str]) -> dict[str, Any]:
        """Scaling advice alone, for programs."""
        made, named = await self._forecast(form), form.get("cluster")
        found, held = await self._standing(named)
        advised, _ = await self._rightsizing(held, _window(form), named)
        pieces = advice.advise_on_capacity(found, rightsizing.repartition(advised))
        grow = list(made.get("advice", ()))
        return {
            "now": self._runtime.clock.now(),
            "sentence": made.get("sentence"),
            "advice": [*grow, *wire.to_plain(pieces)],
        }

    async def _standing(self, named: str | None) -> tuple[FleetCapacity, holders.GpuHolders]:
        held = await holders.load_holders(self._queries)
        return fleet_capacity.summarise_capacity(self._nodes(held, named)), held

    def _nodes(self, held: holders.GpuHolders, named: str | None) -> list[fleet_capacity.NodeCapacity]:
        """Every node that has GPUs: a scheduler's word first, what reports else."""
        known: dict[tuple[str, str], fleet_capacity.NodeCapacity] = {}
        seen: dict[tuple[str, str], list[GpuView]] = {}
        for gpu in self._fleet.gpus():
            seen.setdefault((gpu.cluster, gpu.node), []).append(gpu)
        for (where, name), gpus in seen.items():
            # Who holds a GPU that does not report is unknown, so it is not free.
            reporting = [gpu for gpu in gpus if self._reports(gpu)]
            taken, lost = sum(bool(held.by_gpu.get(gpu.gpu.uuid)) for gpu in reporting), len(gpus) - len(reporting)
            known[where, name] = fleet_capacity.NodeCapacity(
                name, len(gpus), taken, why_not=SILENT * bool(lost), lost=lost
            )
        for view in self._views():
            taken_by: dict[str, int] = {}
            for work in view.workloads:
                for node_name, count in work.nodes.items():
                    taken_by[node_name] = taken_by.get(node_name, 0) + count
            for node in view.nodes:
                if node.gpus:
                    place = (node.cluster, node.name)
                    known[place] = _scheduled(node, taken_by.get(node.name, 0), seen=known.get(place))
        return [node for (where, _), node in sorted(known.items()) if named is None or where == named]

    def _reports(self, gpu: GpuView) -> bool:
        return gpu.gone_since_ms is None and self._now_ms() - gpu.last_seen_ms <= MAX_SILENCE_MS

    async def _asks(self, named: str | None) -> list[fleet_capacity.WaitingRequest]:
        """Who asked for GPUs, by a scheduler's word; pods that wait also by that of kube-state-metrics."""
        try:
            told = (await self._queries.instant(pending_pods.QUESTION, self._now_ms())).latest()
        except QueryError as error:
            raise HTTPException(400, str(error)) from error
        scheduled = [work for view in self._views() for work in view.workloads]
        return [
            fleet_capacity.WaitingRequest(work.gpus, work.requested_at, work.started_at)
            for work in [*scheduled, *pending_pods.read_pending_pods(told, scheduled)]
            if work.gpus
            and (named is None or work.cluster == named)
            and (
                work.state is workloads.WorkloadState.PENDING
                or (work.started_at is not None and work.requested_at is not None)
            )
        ]

    async def _rightsizing(
        self, held: holders.GpuHolders, window_seconds: float, named: str | None
    ) -> tuple[list[rightsizing.RightsizingAdvice], float | None]:
        """What would do for every workload, and what all did in GPUs' worth; None where nothing is measured."""
        try:
            found, used_gpus = await workload_use.load_workload_use(self._queries, held, window_seconds, named)
        except QueryError as error:
            raise HTTPException(400, str(error)) from error
        return [rightsizing.advise(use) for use in found], used_gpus

    def _views(self) -> list[cluster.ClusterView]:
        return [] if self._clusters is None else self._clusters.views()

    def _now_ms(self) -> int:
        return clock.to_ms(self._runtime.clock.now())


def _scheduled(
    node: cluster.ScheduledNode, held: int, *, seen: fleet_capacity.NodeCapacity | None
) -> fleet_capacity.NodeCapacity:
    is_in_service = node.is_schedulable and node.is_ready is not False
    why_not = "" if is_in_service else node.reason or node.state
    # A scheduler that counts slices or shares does not say which GPUs they lie on; those that report do.
    if node.gpu_part != 1 and seen is not None:
        return replace(seen, is_in_service=is_in_service, why_not=why_not or seen.why_not)
    counted = node.gpus if node.gpus is not None else node.allocatable_gpus or 0
    gpus = round(counted * node.gpu_part)
    lost = 0 if node.allocatable_gpus is None else max(0, gpus - round(node.allocatable_gpus * node.gpu_part))
    return fleet_capacity.NodeCapacity(
        node.name, gpus, math.ceil(held * node.gpu_part), is_in_service, why_not, lost=lost
    )


def _seconds(text: str, name: str, most: float) -> float:
    try:
        seconds = durations.parse_seconds(text)
    except ValueError as error:
        raise HTTPException(400, f"{name}: {error}") from error
    if not 0 < seconds <= most:
        raise HTTPException(400, f"{name} of {text[:40]}: above 0 and at most {durations.format_seconds(most)}")
    return seconds


def _window(form: Mapping[str, str]) -> float:
    return _seconds(form.get("window", "1d"), "window", LONGEST_WINDOW)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0.05 <= share <= 1:
        raise HTTPException(400, f"target `{text[:40]}`: a share from 0.05 to 1")
    return share


def endpoints(api: CapacityApi) -> list[Endpoint]:
    return [
        Endpoint(
            ("GET",),
            "/api/capacity/forecast",
            Role.VIEWER,
            api.forecast,
            summary="When the fleet is full: a forecast with its interval, its backtest and what would help; "
            "`reason` says why there is none yet",
            params=FORECAST_ASKS,
            response=report_shapes.CapacityForecast,
        ),
        Endpoint(
            ("GET",),
            "/api/capacity/now",
            Role.VIEWER,
            api.now,
            summary="What is free, stranded and waited for now, and which workloads would do with less",
            params=(WINDOW_ASK, shapes.CLUSTER),
        ),
        Endpoint(
            ("GET",),
            "/api/capacity/advice",
            Role.VIEWER,
            api.advice,
            summary="Scaling advice alone, for programs",
            params=(*FORECAST_ASKS, WINDOW_ASK),
            response=CapacityAdvice,
        ),
    ]
