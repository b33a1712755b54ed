"""One target: its page becomes samples of stored series, together with the series that Prometheus adds to a scrape.

The names are Prometheus': `up`, `scrape_duration_seconds`, sample counts, and the stale marker for series that
disappeared. `scrape` runs a loop for each target.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import compress
from typing import Protocol

from watchkeeper.errors import CollectError, StoreFull, WatchkeeperError
from watchkeeper.model import exemplars, fleet, labels, samples
from watchkeeper.net import http
from watchkeeper.readers import exposition
from watchkeeper.scrape import dcgm_names, relabel
from watchkeeper.scrape.fleet import ScrapedInventory, gpu_of
from watchkeeper.scrape.jobs import Target
from watchkeeper.scrape.native_scrape import NativeHistogramSeries
from watchkeeper.scrape.page_formats import PageParser, accept_header
from watchkeeper.scrape.status_series import WORKLOAD_INFO
from watchkeeper.store import interfaces

log = logging.getLogger(__name__)

# Prometheus' names for the series about a scrape, in the order they are appended.
SYNTHESISED = (
    "up",
    "scrape_duration_seconds",
    "scrape_samples_scraped",
    "scrape_samples_post_metric_relabeling",
    "scrape_series_added",
)
# More than any clock difference between two healthy nodes; a later sample would hide all samples after it.
MAX_AHEAD_MS = 600_000
DROPPED = -1
# How long to wait before retrying series that the full store refused.
FULL_RETRY_MS = 60_000
# Series of programs and of attribution name a GPU even when it is gone, so they do not show that it exists.
PROGRAM_PREFIXES = ("training_", "inference_", WORKLOAD_INFO)
# A page of a node has some 500 series and 100 kB. Larger pages are parsed in a thread, and their new series resolved in
# slices of some 10 ms, so that other requests do not wait for the whole page.
LARGE_PAGE_BYTES = 512 * 1024
SLICE_SERIES = 500


class TargetConnection(Protocol):
    """The connection to a target: HTTP, or the simulated fleet itself in a drill."""

    async def send(self, request: http.HttpRequest) -> http.HttpResponse: ...

    async def aclose(self) -> None: ...


class TargetHealth(StrEnum):
    """The health of a target, with Prometheus' values of /api/v1/targets."""

    UNKNOWN = "unknown"
    UP = "up"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class TargetState:
    target: Target
    health: TargetHealth = TargetHealth.UNKNOWN
    last_scrape_ms: int | None = None
    duration_seconds: float | None = None
    error: str | None = None
    samples: int = 0
    bad_lines: int = 0
    families: Mapping[str, exposition.FamilyMetadata] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ScrapeSettings:
    interval_seconds: float = 15.0
    timeout_seconds: float = 10.0
    concurrency: int = 64
    max_series: int = exposition.MAX_SERIES
    max_body_bytes: int = http.MAX_BODY_BYTES
    # If an exporter sets a label that the target also has, the target's wins and the other becomes exported_<name>.
    honor_labels: bool = False
    # Whether samples with a timestamp keep it; otherwise they get the time of the scrape.
    honor_timestamps: bool = True

    def for_target(self, target: Target) -> ScrapeSettings:
        job = target.job
        return replace(
            self,
            interval_seconds=target.interval_seconds or self.interval_seconds,
            timeout_seconds=target.timeout_seconds or self.timeout_seconds,
            max_series=job.max_series or self.max_series,
            max_body_bytes=job.max_body_bytes or self.max_body_bytes,
            honor_labels=job.honor_labels or self.honor_labels,
            honor_timestamps=job.honor_timestamps and self.honor_timestamps,
        )


class TargetLoop:
    """One target: its connection, its parser, and its stored series."""

    def __init__(
        self,
        target: Target,
        settings: ScrapeSettings,
        *,
        sink: interfaces.Appender,
        inventory: ScrapedInventory,
        connection: TargetConnection | None = None,
        parse_lock: asyncio.Lock | None = None,
    ) -> None:
        self.state = TargetState(target)
        settings = settings.for_target(target)
        self.interval_ms = round(settings.interval_seconds * 1000)
        self.dropped_samples: Counter[str] = Counter()
        self._target, self._settings, self._sink, self._fleet = target, settings, sink, inventory
        self._key = target.key
        job, timeout_seconds = target.job, settings.timeout_seconds
        self._connection = connection or http.Connection(
            timeout_seconds=timeout_seconds, max_body_bytes=settings.max_body_bytes, access=job.access
        )
        self._parser = PageParser(
            max_series=settings.max_series,
            accept=accept_header(job.protocols, wants_native=job.native_histograms, escaping=job.escaping),
            keeps_classic=job.classic_histograms,
        )
        self._request = self._build_request()
        self._native = NativeHistogramSeries(sink, target.key)
        self._parse_lock = parse_lock or asyncio.Lock()
        self._epoch = 0
        self._id_of: dict[int, int] = {}
        self._handles: list[int] = []
        self._ids = array("q")
        self._mask: list[bool] | None = None
        self._recorded_version = (0, 0)
        self._timed_ids: frozenset[int] = frozenset()
        self._group_ids = array("q")
        self._gpus: dict[tuple[str, str], tuple[fleet.Node, dict[str, fleet.Gpu]]] = {}
        # Within one page: label sets that differ only in the metric name are joined the same way.
        self._joined_pairs: dict[tuple[bool, tuple[tuple[str, str], ...]], tuple[tuple[str, str], ...]] = {}
        self._synthesised_ids = self._resolve_synthesised_ids()
        # Series that the full store refused, when they were last tried, whether the page ever fitted completely, and
        # whether all its GPU series fit now.
        self._refused_handles: set[int] = set()
        self._resolved_at_ms = 0
        self._has_fitted = self._fits = False
        # Series that an earlier process left without a stale marker; set by the first scrape.
        self._unended_ids: array[int] | None = None

    async def scrape(self, at_ms: int) -> TargetState:
        """Scrape the page once and append its samples, or `up` = 0 if that failed."""
        started = asyncio.get_running_loop().time()
        if self._unended_ids is None:
            # Series that ended while the hub was down; without a stale marker they would seem current.
            lasting = self._sink.active_series(self._key, at_ms - interfaces.LOOKBACK_MS)
            self._unended_ids = array("q", lasting.keys() - set(self._synthesised_ids))
        try:
            page = await self._read_page()
            duration_seconds = asyncio.get_running_loop().time() - started
            await self._resolve_new_series(page, at_ms)
            time_problem = self._append_page(page, at_ms, duration_seconds)
            self._append_native(page, at_ms)
            problems = [*page.problems, *([time_problem] if time_problem else [])]
            if self._refused_handles:
                self.dropped_samples["full"] += len(self._refused_handles)
                problems.append(f"the store is full: {len(self._refused_handles)} series of the page were dropped")
            self._record_metadata()
            self._record_exemplars(page, at_ms)
            self.state = TargetState(
                self._target,
                health=TargetHealth.UP if self._fits else TargetHealth.UNKNOWN,
                last_scrape_ms=at_ms,
                duration_seconds=duration_seconds,
                error="; ".join(problems) or None,
                samples=len(page.handles) + len(page.histograms),
                bad_lines=page.bad_lines,
                families=self._parser.families,
            )
        except WatchkeeperError as error:
            duration_seconds = asyncio.get_running_loop().time() - started
            self.state = TargetState(
                self._target,
                health=TargetHealth.DOWN,
                last_scrape_ms=at_ms,
                duration_seconds=duration_seconds,
                error=str(error),
                families=self._parser.families,
            )
            self._append_down(at_ms, duration_seconds)
        return self.state

    async def close(self, at_ms: int) -> None:
        """End every series of a target that is no longer scraped, including `up`."""
        await self._connection.aclose()
        self._fleet.set_workloads(self._key, ())
        ends = self._without_timed(self._ids) + self._synthesised_ids
        self._append(ends, at_ms, array("d", [samples.STALE]) * len(ends))
        self.dropped_samples.update(self._native.end_series(at_ms))

    def _build_request(self) -> http.HttpRequest:
        timeout = f"{self._settings.timeout_seconds:g}"
        headers = {"Accept": self._parser.accept, "X-Prometheus-Scrape-Timeout-Seconds": timeout}
        # On loopback, compression costs CPU time on both sides and saves no network.
        if not self._target.address.startswith(("127.", "localhost", "[::1]")):
            headers["Accept-Encoding"] = "gzip"
        return http.HttpRequest(self._target.url, headers=headers)

    async def _read_page(self) -> exposition.ExpositionPage:
        auth_headers = await self._target.job.access.request_headers()
        request = self._request
        if auth_headers:
            request = replace(request, headers={**request.headers, **auth_headers})
        response = await self._connection.send(request)
        # Parse one page in each iteration of the event loop, so that API requests wait for one page, not for all.
        await self._parse_lock.acquire()
        asyncio.get_running_loop().call_soon(self._parse_lock.release)
        if response.status != 200:
            raise CollectError(f"answered {response.status}", where=self._target.url)
        kind = response.headers.get("content-type", "").lower()
        try:
            if len(response.body) > LARGE_PAGE_BYTES:
                return await asyncio.to_thread(self._parser.parse, response.body, kind)
            return self._parser.parse(response.body, kind)
        except CollectError as error:
            error.where = self._target.url
            raise

    def _append_native(self, page: exposition.ExpositionPage, at_ms: int) -> None:
        if page.histograms and not self._settings.honor_timestamps:
            untimed = tuple((handle, histogram, None) for handle, histogram, _ in page.histograms)
            page = replace(page, histograms=untimed)
        try:
            dropped = self._native.append_page(page, at_ms, latest_ms=at_ms + MAX_AHEAD_MS, attach=self._attach)
            self.dropped_samples.update(dropped)
        except StoreFull:
            self.dropped_samples["full"] += len(page.histograms)

    async def _resolve_new_series(self, page: exposition.ExpositionPage, at_ms: int) -> None:
        """Resolve the ids of new series, a slice at a time: a page about a whole cluster has thousands."""
        if page.epoch != self._epoch:
            self._epoch, self._id_of, self._handles = page.epoch, {}, []
            self._refused_handles.clear()
        if self._refused_handles and at_ms - self._resolved_at_ms >= FULL_RETRY_MS:
            for handle in self._refused_handles:
                self._id_of.pop(handle, None)
            self._refused_handles.clear()
            self._handles = []
        if self._target.job.label_limits.is_set:
            for handle, _, _ in page.histograms:
                self._target.job.label_limits.check(self._attach(handle))
        if page.handles is self._handles:
            return
        new_handles = [handle for handle in page.handles if handle not in self._id_of]
        self._refused_handles.intersection_update(page.handles)
        self._resolved_at_ms = at_ms
        for start in range(0, len(new_handles), SLICE_SERIES):
            for handle in new_handles[start : start + SLICE_SERIES]:
                self._id_of[handle] = self._resolve_id(handle)
            await asyncio.sleep(0)
        self._joined_pairs.clear()
        self._has_fitted = self._has_fitted or not self._refused_handles
        self._fits = self._has_fitted and not any(map(self._describes_gpu, self._refused_handles))

    def _append_page(self, page: exposition.ExpositionPage, at_ms: int, duration_seconds: float) -> str | None:
        """Append the samples of a page; returns a problem if some timestamps were too far ahead."""
        before, added = self._ids, 0
        times = page.timestamps_ms if self._settings.honor_timestamps else {}
        future = frozenset(position for position, time_ms in times.items() if time_ms > at_ms + MAX_AHEAD_MS)
        if page.handles is not self._handles or times or self._timed_ids:
            # A series that disappears is deleted here and resolved again later: the store may have released it.
            self._id_of = {handle: self._id_of[handle] for handle in page.handles}
            self._handles = page.handles
            self._ids, self._mask = self._select_samples(page.handles, times, future=future)
            self._gpus = self._find_gpus(page.handles)
            self._fleet.set_workloads(self._key, self._find_holders(page.handles))
            added = len(set(self._ids).difference(before))
        values = page.values if self._mask is None else array("d", compress(page.values, self._mask))
        page_count, kept_count = len(page.handles), len(values) + len(future)
        # While the store refuses GPU series of a page, the missing series do not mean that the GPUs are gone, so the
        # target is neither up nor down.
        is_up = 1.0 if self._fits else samples.STALE
        counts = [count + len(page.histograms) for count in (page_count, kept_count)]
        synthesised = array("d", [is_up, duration_seconds, *counts, added])
        if self._ids is before:
            # The common case: pass the same object every time, so that the appender recognises it.
            self._append(self._group_ids, at_ms, values + synthesised)
        else:
            vanished = self._without_timed(before + self._take_unended_ids(), present=set(self._ids))
            lasting, values = self._append_timed(values, self._kept_timestamps(times))
            self._group_ids = lasting + self._synthesised_ids
            ends = array("d", [samples.STALE]) * len(vanished)
            ids = self._group_ids + vanished if vanished else self._group_ids
            self._append(ids, at_ms, values + synthesised + ends)
        for node, gpus in self._gpus.values():
            self._fleet.record_page(node, gpus, at_ms=at_ms, source=self._key)
        if not future:
            return None
        self.dropped_samples["future"] += len(future)
        minutes = MAX_AHEAD_MS // 60_000
        return f"{len(future)} samples were dropped: their timestamps are more than {minutes} minutes ahead"

    def _select_samples(
        self, handles: Sequence[int], times: Mapping[int, int], *, future: frozenset[int]
    ) -> tuple[array[int], list[bool] | None]:
        """The series ids of a page, and a mask of the samples that are kept (None: all)."""
        # Rules may drop a series, or give two series the same labels: then the first is kept.
        ids = [self._id_of[handle] for handle in handles]
        keys = list(zip(ids, (times.get(position) for position in range(len(ids))), strict=True)) if times else ids
        if not future and DROPPED not in ids and len(set(keys)) == len(ids):
            return array("q", ids), None
        seen_keys: set[object] = set()
        mask = []
        for position, key in enumerate(keys):
            is_kept = ids[position] != DROPPED and position not in future and key not in seen_keys
            self.dropped_samples["duplicate"] += key in seen_keys and ids[position] != DROPPED
            seen_keys.add(key)
            mask.append(is_kept)
        return array("q", compress(ids, mask)), mask

    def _kept_timestamps(self, times: Mapping[int, int]) -> Mapping[int, int]:
        """Explicit timestamps by the position of their sample among those that are kept."""
        if self._mask is None or not times:
            return times
        positions = (position for position, is_kept in enumerate(self._mask) if is_kept)
        return {new: times[old] for new, old in enumerate(positions) if old in times}

    def _record_metadata(self) -> None:
        """Pass on the exporter's metadata if it changed."""
        metadata = self._sink.metadata
        if metadata is None or self._recorded_version == self._parser.families_version:
            return
        self._recorded_version = self._parser.families_version
        for name, family in self._parser.families.items():
            metadata.record(name, family.type, help=family.help, unit=family.unit)

    def _record_exemplars(self, page: exposition.ExpositionPage, at_ms: int) -> None:
        """Pass on the new exemplars of the page, under the labels of the stored series."""
        store = self._sink.exemplars
        if store is None:
            return
        for handle, label_set, value, explicit_ms in page.exemplars:
            series = self._native.labels_of(handle)
            if series is None and self._id_of.get(handle, DROPPED) != DROPPED:
                series = self._attach(handle)
            time_ms = at_ms if explicit_ms is None else explicit_ms
            if series is not None and time_ms <= at_ms + MAX_AHEAD_MS:
                store.add(series, exemplars.Exemplar(label_set, value, time_ms))

    def _append(self, ids: array[int], at_ms: int, values: array[float]) -> None:
        outcome = self._sink.append_scrape(self._key, ids, at_ms, values)
        if not outcome.dropped:
            return
        self.dropped_samples.update(outcome.dropped)
        if outcome.dropped.get("forgotten"):
            self._id_of, self._handles, self._synthesised_ids = {}, [], self._resolve_synthesised_ids()

    def _append_timed(self, values: array[float], times: Mapping[int, int]) -> tuple[array[int], array[float]]:
        """Append the samples that have explicit timestamps; returns the others."""
        # As in Prometheus, a series with explicit timestamps gets no stale marker: its exporter sets its times.
        self._timed_ids = frozenset(self._ids[at] for at in times)
        if not times:
            return self._ids, values
        by_time: dict[int, tuple[array[int], array[float]]] = {}
        for at, at_ms in times.items():
            ids, own_values = by_time.setdefault(at_ms, (array("q"), array("d")))
            ids.append(self._ids[at])
            own_values.append(values[at])
        for at_ms in sorted(by_time):
            outcome = self._sink.append_scrape(f"{self._key} timed", by_time[at_ms][0], at_ms, by_time[at_ms][1])
            self.dropped_samples.update(outcome.dropped)
        plain = [at not in times for at in range(len(self._ids))]
        return array("q", compress(self._ids, plain)), array("d", compress(values, plain))

    def _without_timed(self, ids: Iterable[int], *, present: Set[int] = frozenset()) -> array[int]:
        return array("q", [id for id in ids if id not in present and id not in self._timed_ids])

    def _append_down(self, at_ms: int, duration_seconds: float) -> None:
        """The target did not answer: end its series, and write `up` = 0."""
        self._fleet.set_workloads(self._key, ())
        ends = self._without_timed(self._ids) + self._take_unended_ids()
        if not self._ids:
            # Ids are kept for one failure, because resolving them takes as long as parsing five pages.
            self._id_of = {}
        self._ids, self._handles = array("q"), []
        self.dropped_samples.update(self._native.end_series(at_ms))
        synthesised = array("d", [0.0, duration_seconds, 0.0, 0.0, 0.0])
        # In the order of a readable page, which the appender recognises.
        self._append(ends + self._synthesised_ids, at_ms, array("d", [samples.STALE]) * len(ends) + synthesised)

    def _take_unended_ids(self) -> array[int]:
        unended, self._unended_ids = self._unended_ids or array("q"), array("q")
        return unended

    def _resolve_synthesised_ids(self) -> array[int]:
        series = (self._target.labels.with_labels(__name__=name) for name in SYNTHESISED)
        return array("q", map(self._sink.series_id, series))

    def _resolve_id(self, handle: int) -> int:
        if self._parser.labels[handle].get(labels.METRIC_NAME) == WORKLOAD_INFO:
            # The hub writes this series itself, for all GPUs and with their teams; see `agent_workload_series`.
            return DROPPED
        label_set = self._attach(handle)
        self._target.job.label_limits.check(label_set)
        if label_set is None:
            return DROPPED
        try:
            return self._sink.series_id(label_set)
        except StoreFull:
            self._refused_handles.add(handle)
            return DROPPED

    def _attach(self, handle: int) -> labels.Labels | None:
        """The exporter's labels joined with the target's, after the job's rules; None if they drop the series."""
        label_set = self._parser.labels[handle]
        if self._target.job.metric_rules:
            relabelled = relabel.relabel(self._target.job.metric_rules, self._join(label_set))
            if relabelled is None or not relabelled.get(labels.METRIC_NAME):
                return None
            return labels.Labels(dcgm_names.canonical_labels(relabelled, node=self._target.node))
        name = dcgm_names.canonical_name(label_set.name)
        key = (dcgm_names.is_dcgm(name), label_set.pairs_without_name)
        pairs = self._joined_pairs.get(key)
        if pairs is None:
            canonical = labels.Labels(dcgm_names.canonical_labels(self._join(label_set), node=self._target.node))
            pairs = self._joined_pairs[key] = canonical.pairs_without_name
        return labels.Labels.with_metric_name(name, pairs)

    def _join(self, label_set: labels.Labels) -> dict[str, str]:
        """Resolve conflicts between labels as Prometheus does."""
        target_labels, exporter_labels = dict(self._target.labels.pairs), dict(label_set.pairs)
        if self._settings.honor_labels:
            return {**target_labels, **exporter_labels}
        for name in target_labels.keys() & exporter_labels.keys():
            renamed = f"exported_{name}"
            while renamed in exporter_labels or renamed in target_labels:
                renamed = f"exported_{renamed}"
            exporter_labels[renamed] = exporter_labels.pop(name)
        return {**exporter_labels, **target_labels}

    def _find_gpus(self, handles: Sequence[int]) -> dict[tuple[str, str], tuple[fleet.Node, dict[str, fleet.Gpu]]]:
        """The GPUs of a page by node; a node whose GPUs all disappeared has an empty dict."""
        gpus_by_node = {key: (node, dict[str, fleet.Gpu]()) for key, (node, _) in self._gpus.items()}
        seen_keys: set[tuple[str | None, str | None]] = set()
        for handle in filter(self._describes_gpu, handles):
            label_set = self._parser.labels[handle]
            # Some fifty series name the same GPU: the first is enough.
            gpu_key = (label_set.get("UUID"), label_set.get("Hostname") or label_set.get("hostname"))
            gpu = None if gpu_key in seen_keys else gpu_of(label_set)
            seen_keys.add(gpu_key)
            if gpu is not None:
                node = self._node_of(label_set)
                _, gpus = gpus_by_node.setdefault((node.cluster, node.name), (node, {}))
                gpus.setdefault(gpu.uuid, gpu)
        return gpus_by_node

    def _describes_gpu(self, handle: int) -> bool:
        label_set = self._parser.labels[handle]
        return bool(label_set.get("UUID")) and not label_set.name.startswith(PROGRAM_PREFIXES)

    def _find_holders(self, handles: Sequence[int]) -> list[labels.Labels]:
        all_labels = self._parser.labels
        infos = (handle for handle in handles if all_labels[handle].get(labels.METRIC_NAME) == WORKLOAD_INFO)
        return [holder for holder in map(self._attach, infos) if holder is not None]

    def _node_of(self, label_set: labels.Labels) -> fleet.Node:
        """The node of a series: by its Hostname label if the inventory has it, else the target's."""
        cluster, hostname = self._target.cluster, label_set.get("Hostname") or label_set.get("hostname", "")
        node = self._fleet.node(hostname, cluster) if hostname else None
        if node is None and self._target.node is not None:
            node = self._fleet.node(self._target.node, cluster)
        return node or fleet.Node(cluster, hostname or self._target.address, source=self._target.url)
