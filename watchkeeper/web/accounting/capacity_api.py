"""GET /api/capacity/forecast, /now and /advice: forecast demand, show current capacity, and give scaling advice.

Answers come from the hub's samples and the newest state of its schedulers. `capacity` computes them in a thread, one
forecast at a time; forecasts are cached for some minutes, because demand is hourly.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, TypedDict

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from watchkeeper.capacity import advice, demand, demand_queries, fleet_capacity, report, rightsizing
from watchkeeper.capacity.fleet_capacity import QueueWait
from watchkeeper.capacity.rightsizing import Repartition, RightsizingAdvice
from watchkeeper.clusters import inventory
from watchkeeper.errors import CollectError, QueryError
from watchkeeper.hub import holders, services
from watchkeeper.hub.fleet_gpus import FleetGpus, FleetGpuStates
from watchkeeper.kit import clock, durations, wire
from watchkeeper.model import workloads
from watchkeeper.model.fleet_capacity import FleetCapacity
from watchkeeper.model.gpu_states import GpuCounts, GpuState
from watchkeeper.query.engine import QueryRange
from watchkeeper.web import report_shapes, shapes
from watchkeeper.web.accounting import workload_use
from watchkeeper.web.endpoint import QueryParam, check_choice, get, ok_response
from watchkeeper.workloads import identity

# Window, step and inner step. Twelve weeks contain every seasonality that is modelled. While there are too few hours
# for a forecast, steps of five minutes measure the history.
HOURLY, FIVE_MINUTES = (84 * 86_400, 3600, "5m"), (2 * 86_400, 300, "1m")
MAX_HORIZON_SECONDS = 26 * 7 * 86_400
CACHE_SECONDS, MAX_CACHED = 300.0, 16
MAX_WINDOW_SECONDS = 7 * 86_400
NO_SAMPLES = "no sample of allocated GPUs"
MAX_ADVICE = 1000
OUT_OF_SERVICE = tuple(state for state in GpuState if state not in (GpuState.ALLOCATED, GpuState.FREE))
FORECAST_PARAMS = (
    QueryParam("about", f"What to forecast: {', '.join(demand_queries.DEMAND_KINDS)}. Default: demand."),
    QueryParam("horizon", "Length of the forecast, such as 4w, at most 26w. Default: 7d."),
    QueryParam("target", "Share of the fleet that may be allocated, 0.05 to 1. Default: 0.8.", float),
    shapes.CLUSTER,
)
WINDOW_PARAM = QueryParam("window", "Measure use over this window, such as 6h, at most 7d. Default: 1d.")


class CurrentUse(TypedDict):
    window: str
    held_gpus: int
    used_gpus: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityNow:
    now: datetime
    capacity: FleetCapacity = wire.json_key("standing")
    gpus: GpuCounts
    waits: list[QueueWait]
    use: CurrentUse
    rightsizing: list[RightsizingAdvice]
    repartition: list[Repartition]
    unmapped: dict[str, int]
    problem: str | None


class CapacityAdvice(TypedDict):
    """`reason` says why there is no advice from a forecast."""

    now: datetime
    sentence: str | None
    reason: str | None
    advice: list[advice.ScalingAdvice]


class CapacityApi:
    def __init__(self, hub: services.Services, gpus: FleetGpus) -> None:
        self._gpus = gpus
        self._runtime, self._queries, self._fleet, self._views = hub.runtime, hub.queries, hub.fleet, hub.cluster_views
        self._forecast_lock = asyncio.Lock()
        self._cached_forecasts: OrderedDict[tuple[Any, ...], tuple[float, dict[str, Any]]] = OrderedDict()

    @get("/api/capacity/forecast", *FORECAST_PARAMS, response=report_shapes.CapacityForecast)
    async def get_forecast(self, request: Request) -> Response:
        """Forecast of demand with prediction interval, backtest and advice, and when the fleet is full; `reason`
        explains a missing forecast.
        """
        return ok_response(**await self._forecast(request.query_params))

    async def _forecast(self, params: Mapping[str, str]) -> dict[str, Any]:
        about = check_choice("about", params.get("about", "demand"), demand_queries.DEMAND_KINDS)
        horizon = _read_seconds(params.get("horizon", "7d"), "horizon", MAX_HORIZON_SECONDS)
        target = _read_target(params.get("target", "0.8"))
        cache_key = (about, horizon, target, params.get("cluster"))
        now = self._runtime.clock.now().timestamp()
        async with self._forecast_lock:
            cached = self._cached_forecasts.get(cache_key)
            if cached is not None and 0 <= now - cached[0] < CACHE_SECONDS:
                return cached[1]
            forecast = await self._make_forecast(*cache_key)
            if forecast["reason"] is not None:
                return forecast
            self._cached_forecasts[cache_key] = (now, forecast)
            while len(self._cached_forecasts) > MAX_CACHED:
                self._cached_forecasts.popitem(last=False)
            return forecast

    async def _make_forecast(
        self, about: str, horizon: float, target: float, cluster_name: str | None
    ) -> dict[str, Any]:
        try:
            expr = demand_queries.demand_expression(about, cluster=cluster_name)
            points = await self._load_points(expr, HOURLY)
            progress = await self._measure_learning(expr, points)
            capacity_expr = demand_queries.capacity_expression(cluster=cluster_name)
            capacity = await self._queries.instant(capacity_expr, self._now_ms())
        except QueryError as error:
            raise HTTPException(400, str(error)) from error
        gpus = next(iter(capacity.latest().values()), None)
        subject = {"about": about, "capacity_gpus": gpus}
        if report.is_learning(progress):
            answer = report.report_learning(progress)
            # In its first minutes a hub has samples, and no complete step of them.
            has_samples = (
                progress["history_seconds"] > 0 or (await self._queries.instant(expr, self._now_ms())).latest()
            )
            return {**subject, **answer, "reason": answer["reason"] + ("" if has_samples else f"; {NO_SAMPLES}")}
        series = demand.regular_series(points, step_seconds=float(HOURLY[1]), where="this hub")
        make = partial(report.forecast_report, capacity_gpus=gpus if about == "demand" else None, target=target)
        try:
            return {**subject, **await asyncio.to_thread(make, series, horizon)}
        except CollectError as error:
            return {**subject, "forecast": [], "reason": str(error), "learning": None}

    async def _measure_learning(self, expr: str, hours: Sequence[tuple[float, float]]) -> report.LearningProgress:
        """The history: complete hours, or in a young hub steps of five minutes."""
        measured = float(HOURLY[1] * len(hours))
        if measured < report.MIN_HISTORY_SECONDS:
            recent = await self._load_points(expr, FIVE_MINUTES)
            # The first hour may have started before the samples.
            measured = max(FIVE_MINUTES[1] * len(recent), measured - HOURLY[1])
        return {"history_seconds": measured, "needed_seconds": report.MIN_HISTORY_SECONDS}

    async def _load_points(self, expr: str, window: tuple[int, int, str]) -> list[tuple[float, float]]:
        """The mean of each complete step as (start, value); the current one would look like a drop."""
        span_seconds, step, inner = window
        end = self._now_ms() // (step * 1000) * step
        query_range = QueryRange((end - span_seconds) * 1000, end * 1000, step * 1000)
        step_expr = demand_queries.step_mean(expr, step=durations.format_seconds(step), inner=inner)
        answer = await self._queries.range(step_expr, query_range)
        return [
            (at / 1000 - step, value)
            for _, times, values in answer.frame.rows()
            for at, value in zip(times.tolist(), values.tolist(), strict=True)
        ]

    @get("/api/capacity/now", WINDOW_PARAM, shapes.CLUSTER)
    async def get_capacity(self, request: Request) -> CapacityNow:
        """Current capacity: free and fragmented GPUs, queue waits, and rightsizing advice."""
        window, cluster_name = _read_window(request.query_params), request.query_params.get("cluster")
        capacity, states = await self._load_capacity(cluster_name)
        sizing_advice, used_gpus = await self._load_rightsizing(states.gpu_holders, window, cluster_name)
        now = self._runtime.clock.now()
        return CapacityNow(
            now=now,
            capacity=capacity,
            gpus=states.count(cluster_name),
            waits=fleet_capacity.queue_waits(await self._load_requests(cluster_name), now=now.timestamp()),
            use=CurrentUse(
                window=durations.format_seconds(window), held_gpus=capacity.allocated_gpus, used_gpus=used_gpus
            ),
            rightsizing=sorted(sizing_advice, key=lambda sizing: -sizing.saves_gpus)[:MAX_ADVICE],
            repartition=rightsizing.plan_repartitions(sizing_advice),
            unmapped=inventory.count_missing_facts(self._fleet.nodes()),
            problem=states.gpu_holders.problem,
        )

    @get("/api/capacity/advice", *FORECAST_PARAMS, WINDOW_PARAM, response=CapacityAdvice)
    async def get_advice(self, request: Request) -> Response:
        """Scaling advice, for programs."""
        return ok_response(**await self.advise(request.query_params))

    async def advise(self, params: Mapping[str, str]) -> dict[str, Any]:
        """The scaling advice without the forecast."""
        forecast, cluster_name = await self._forecast(params), params.get("cluster")
        capacity, states = await self._load_capacity(cluster_name)
        sizing_advice, _ = await self._load_rightsizing(states.gpu_holders, _read_window(params), cluster_name)
        capacity_advice = advice.advise_on_capacity(capacity, rightsizing.plan_repartitions(sizing_advice))
        all_advice = [*(forecast.get("advice") or ()), *wire.to_plain(capacity_advice)]
        about = {"sentence": forecast.get("sentence"), "reason": forecast["reason"]}
        return {"now": self._runtime.clock.now(), **about, "advice": all_advice}

    async def _load_capacity(self, cluster_name: str | None) -> tuple[FleetCapacity, FleetGpuStates]:
        states = await self._gpus.load()
        return fleet_capacity.summarise_capacity(_node_capacities(states, cluster_name)), states

    async def _load_requests(self, cluster_name: str | None) -> list[fleet_capacity.WaitingRequest]:
        """The requests for GPUs of schedulers, and the pending pods of kube-state-metrics."""
        try:
            pending = (await self._queries.instant(identity.PENDING_PODS_QUERY, self._now_ms())).latest()
        except QueryError as error:
            raise HTTPException(400, str(error)) from error
        scheduled = [work for view in self._views() for work in view.workloads]
        return [
            fleet_capacity.WaitingRequest(work.gpus, work.requested_at, work.started_at)
            for work in [*scheduled, *identity.read_pending_pods(pending, scheduled)]
            if work.gpus
            and (cluster_name is None or work.cluster == cluster_name)
            and (
                work.state is workloads.WorkloadState.PENDING
                or (work.started_at is not None and work.requested_at is not None)
            )
        ]

    async def _load_rightsizing(
        self, gpu_holders: holders.GpuHolders, window_seconds: float, cluster_name: str | None
    ) -> tuple[list[rightsizing.RightsizingAdvice], float | None]:
        """Rightsizing advice for every workload, and the GPUs that all workloads used, None if not measured."""
        queries = self._queries
        try:
            uses, used_gpus = await workload_use.load_workload_use(queries, gpu_holders, window_seconds, cluster_name)
        except QueryError as error:
            raise HTTPException(400, str(error)) from error
        return [rightsizing.advise(use) for use in uses], used_gpus

    def _now_ms(self) -> int:
        return clock.to_ms(self._runtime.clock.now())


def _node_capacities(states: FleetGpuStates, cluster_name: str | None) -> list[fleet_capacity.NodeCapacity]:
    """Every node that has GPUs; GPUs that are neither allocated nor free are lost to new jobs."""
    capacities = []
    for key in sorted(states.layout.slots_by_node):
        counts, schedule = states.count_node(key), states.schedules.get(key)
        if not counts.gpus or cluster_name not in (None, key[0]):
            continue
        lost = counts.gpus - counts.allocated - counts.free
        out_of_service = {state: getattr(counts, state.value) for state in OUT_OF_SERVICE}
        why = ", ".join(state.replace("_", " ") for state, count in out_of_service.items() if count)
        if schedule is not None and not schedule.is_in_service:
            why = schedule.node.reason or schedule.node.state
        node = fleet_capacity.NodeCapacity(key[1], counts.gpus, counts.allocated, unavailable_reason=why, lost=lost)
        capacities.append(node)
    return capacities


def _read_seconds(text: str, name: str, max_seconds: float) -> float:
    try:
        seconds = durations.parse_seconds(text)
    except ValueError as error:
        raise HTTPException(400, f"`{name}`: {error}") from error
    if not 0 < seconds <= max_seconds:
        problem = f"`{name}` is {text[:40]}; it must be above 0 and at most {durations.format_seconds(max_seconds)}"
        raise HTTPException(400, problem)
    return seconds


def _read_window(params: Mapping[str, str]) -> float:
    return _read_seconds(params.get("window", "1d"), "window", MAX_WINDOW_SECONDS)


def _read_target(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0.05 <= share <= 1:
        raise HTTPException(400, f"`target` is `{text[:40]}`; expected a share from 0.05 to 1")
    return share
