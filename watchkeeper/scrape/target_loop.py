"""One target: its page becomes samples of stored series, and what Prometheus says about a scrape is said here too.

Fetch, parse, translate handles to stored series, append. The names are Prometheus': `up`,
`scrape_duration_seconds`, sample counts, and the stale marker for series that are no longer reported. `scrape`
runs a loop for each target; the hub passes in the appender of its samples and the `Fleet` that learns GPUs
from labels.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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

# Prometheus' own names for what is known about a scrape, in the order they are appended.
SYNTHESISED = (
    "up",
    "scrape_duration_seconds",
    "scrape_samples_scraped",
    "scrape_samples_post_metric_relabeling",
    "scrape_series_added",
)
# Above any clock difference between two healthy machines; a later sample would hide all that come after it.
MAX_AHEAD_MS = 600_000
DROPPED = -1
# How long series for which the store had no room wait before it is asked again.
FULL_MS = 60_000
# Programs, and who says what holds which GPU, name it also when it is gone: that is no sign of it.
OF_PROGRAMS = ("training_", "inference_", WORKLOAD_INFO)
# A page of a node has some 500 series and 100 kB. Larger ones are read beside the event loop, and their new series met
# in slices of some 10 ms, so that nobody waits for the whole.
LARGE_PAGE_BYTES = 512 * 1024
SLICE_SERIES = 500


class TargetConnection(Protocol):
    """The way to a target: an HTTP connection, or in a drill the simulated fleet itself."""

    async def send(self, request: http.Request) -> http.Response: ...

    async def aclose(self) -> None: ...


class TargetHealth(StrEnum):
    """Prometheus' words for a target on /api/v1/targets."""

    UNKNOWN = "unknown"
    UP = "up"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class TargetState:
    """How the last scrape of a target went; before the first one nothing is known."""

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
    # When an exporter sets a label that we set too, ours wins and theirs becomes exported_<name>.
    honor_labels: bool = False
    # Whether samples that carry a time keep it; otherwise the time of the scrape counts.
    honor_timestamps: bool = True

    def for_target(self, target: Target) -> ScrapeSettings:
        """The same settings with what the target's job says differently."""
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
    """One target: its connection, its parser, and the stored series its lines belong to."""

    def __init__(
        self,
        target: Target,
        settings: ScrapeSettings,
        *,
        sink: interfaces.Appender,
        inventory: ScrapedInventory,
        connection: TargetConnection | None = None,
        turn: asyncio.Lock | None = None,
    ) -> None:
        self.state = TargetState(target)
        settings = settings.for_target(target)
        self.interval_ms = round(settings.interval_seconds * 1000)
        self.dropped_samples: Counter[str] = Counter()
        self._target, self._settings, self._sink, self._fleet = target, settings, sink, inventory
        self._key = target.key
        self._connection = connection or http.Connection(
            timeout_seconds=settings.timeout_seconds,
            max_body_bytes=settings.max_body_bytes,
            access=target.job.access,
        )
        job = target.job
        self._parser = PageParser(
            max_series=settings.max_series,
            accept=accept_header(job.protocols, wants_native=job.native_histograms, escaping=job.escaping),
            keeps_classic=job.classic_histograms,
        )
        self._request = self._ask_page()
        self._native = NativeHistogramSeries(sink, target.key)
        self._turn = turn or asyncio.Lock()
        self._epoch = 0
        self._id_of: dict[int, int] = {}
        self._handles: list[int] = []
        self._ids = array("q")
        self._mask: list[bool] | None = None
        self._noted = (0, 0)
        self._timed_ids: frozenset[int] = frozenset()
        self._group_ids = array("q")
        self._gpus: dict[tuple[str, str], tuple[fleet.Node, dict[str, fleet.Gpu]]] = {}
        # Within one page: what became of labels under one name becomes of them under every other.
        self._joined: dict[tuple[bool, tuple[tuple[str, str], ...]], tuple[tuple[str, str], ...]] = {}
        self._own_ids = self._ask_own_ids()
        # Series for which the store had no room, since when they wait, whether the page has ever fitted whole, and
        # whether it fits but for what is no GPU's.
        self._without_room: set[int] = set()
        self._asked_ms = 0
        self._has_fitted = self._fits = False
        # What a hub before this one has read there last; known from the first scrape on.
        self._left_ids: array[int] | None = None

    @property
    def families(self) -> Mapping[str, exposition.FamilyMetadata]:
        """What the exporter says about its metrics."""
        return self._parser.families

    async def scrape(self, at_ms: int) -> TargetState:
        """Read the page once and append what it says, or that it could not be read."""
        started = asyncio.get_running_loop().time()
        if self._left_ids is None:
            self._left_ids = self._ask_left_ids(at_ms)
        try:
            page = await self._read_page()
            taken = asyncio.get_running_loop().time() - started
            await self._meet(page, at_ms)
            far = self._append_page(page, at_ms, taken)
            self._append_native(page, at_ms)
            problems = [*page.problems, *([far] if far else []), *self._find_no_room()]
            self._note_families()
            self._note_exemplars(page, at_ms)
            self.state = TargetState(
                self._target,
                health=TargetHealth.UP if self._fits else TargetHealth.UNKNOWN,
                last_scrape_ms=at_ms,
                duration_seconds=taken,
                error="; ".join(problems) or None,
                samples=len(page.handles) + len(page.histograms),
                bad_lines=page.bad_lines,
                families=self._parser.families,
            )
        except WatchkeeperError as error:
            taken = asyncio.get_running_loop().time() - started
            self.state = TargetState(
                self._target,
                health=TargetHealth.DOWN,
                last_scrape_ms=at_ms,
                duration_seconds=taken,
                error=str(error),
                families=self._parser.families,
            )
            self._append_down(at_ms, taken)
        return self.state

    async def close(self, at_ms: int) -> None:
        """The target is no longer watched: every series of it ends here, `up` too."""
        await self._connection.aclose()
        self._fleet.set_workloads(self._key, ())
        ends = self._lasting_ids() + self._own_ids
        self._append(ends, at_ms, array("d", [samples.STALE]) * len(ends))
        self.dropped_samples.update(self._native.end_series(at_ms))

    def _ask_page(self) -> http.Request:
        patience = f"{self._settings.timeout_seconds:g}"
        headers = {"Accept": self._parser.accept, "X-Prometheus-Scrape-Timeout-Seconds": patience}
        # On loopback compression costs both sides time and saves no network.
        if not self._target.address.startswith(("127.", "localhost", "[::1]")):
            headers["Accept-Encoding"] = "gzip"
        return http.Request(self._target.url, headers=headers)

    async def _read_page(self) -> exposition.ExpositionPage:
        admission = await self._target.job.access.request_headers()
        request = replace(self._request, headers={**self._request.headers, **admission}) if admission else self._request
        response = await self._connection.send(request)
        # One page of all targets in each round of the loop: whoever asks the hub waits for one, not for them all.
        await self._turn.acquire()
        asyncio.get_running_loop().call_soon(self._turn.release)
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
        if not page.histograms and self._native.is_empty:
            return

        def attach(handle: int) -> labels.Labels | None:
            return self._attach(self._parser.labels[handle])

        if not self._settings.honor_timestamps:
            page = replace(page, histograms=tuple((handle, one, None) for handle, one, _ in page.histograms))
        try:
            self.dropped_samples.update(
                self._native.append_page(page, at_ms, latest_ms=at_ms + MAX_AHEAD_MS, attach=attach)
            )
        except StoreFull:
            self.dropped_samples["full"] += len(page.histograms)

    async def _meet(self, page: exposition.ExpositionPage, at_ms: int) -> None:
        """Ask for the ids of series that are new, a slice at a time: a page about a whole cluster has thousands."""
        if page.epoch != self._epoch:
            self._epoch, self._id_of, self._handles = page.epoch, {}, []
            self._without_room.clear()
        if self._without_room and at_ms - self._asked_ms >= FULL_MS:
            for handle in self._without_room:
                self._id_of.pop(handle, None)
            self._without_room.clear()
            self._handles = []
        if self._target.job.label_limits.is_set:
            for handle, _, _ in page.histograms:
                self._target.job.label_limits.check(self._attach(self._parser.labels[handle]))
        if page.handles is self._handles:
            return
        strangers = [handle for handle in page.handles if handle not in self._id_of]
        self._without_room.intersection_update(page.handles)
        self._asked_ms = at_ms
        for start in range(0, len(strangers), SLICE_SERIES):
            for handle in strangers[start : start + SLICE_SERIES]:
                self._id_of[handle] = self._ask_id(handle)
            await asyncio.sleep(0)
        self._joined.clear()
        self._has_fitted = self._has_fitted or not self._without_room
        self._fits = self._has_fitted and not any(map(self._tells_of_gpu, self._without_room))

    def _find_no_room(self) -> Iterator[str]:
        if self._without_room:
            self.dropped_samples["full"] += len(self._without_room)
            yield f"the store is full, and {len(self._without_room)} series of the page found no room in it"

    def _append_page(self, page: exposition.ExpositionPage, at_ms: int, taken: float) -> str | None:
        """Append the samples of a page; says so if some carried a time that cannot be."""
        before, added = self._ids, 0
        times = page.timestamps_ms if self._settings.honor_timestamps else {}
        far = frozenset(place for place, time_ms in times.items() if time_ms > at_ms + MAX_AHEAD_MS)
        if page.handles is not self._handles or times or self._timed_ids:
            # A series that is away is forgotten, and asked for anew when it comes back: the store may have let it go.
            self._id_of = {handle: self._id_of[handle] for handle in page.handles}
            self._handles = page.handles
            self._ids, self._mask = self._choose(page.handles, times, far=far)
            self._gpus = self._find_gpus(page.handles)
            self._fleet.set_workloads(self._key, self._find_holders(page.handles))
            added = len(set(self._ids).difference(before))
        values = page.values if self._mask is None else array("d", compress(page.values, self._mask))
        found, native = len(page.handles), len(page.histograms)
        # Of a page that never fitted, or no longer with all its GPUs, nobody may conclude that the rest of it is gone:
        # it is neither up nor down.
        is_up = 1.0 if self._fits else samples.STALE
        own = array("d", [is_up, taken, float(found + native), float(len(values) + len(far) + native), float(added)])
        if self._ids is before:
            # The common case: the same object every time, so that the sink may recognise it.
            self._append(self._group_ids, at_ms, values + own)
        else:
            vanished = self._vanished(before + self._take_left_ids())
            lasting, values = self._append_timed(values, self._moved(times))
            self._group_ids = lasting + self._own_ids
            ends = array("d", [samples.STALE]) * len(vanished)
            self._append(self._group_ids + vanished if vanished else self._group_ids, at_ms, values + own + ends)
        for node, gpus in self._gpus.values():
            self._fleet.record_page(node, gpus, at_ms=at_ms, source=self._key)
        if not far:
            return None
        self.dropped_samples["future"] += len(far)
        return f"{len(far)} samples carry a time more than {MAX_AHEAD_MS // 60_000} minutes ahead and were dropped"

    def _choose(
        self, handles: Sequence[int], times: Mapping[int, int], *, far: frozenset[int]
    ) -> tuple[array[int], list[bool] | None]:
        """The series ids of a page, and which of its samples they are (None: all).

        A rule may have dropped a series, or made two of them the same: then the first is kept.
        """
        ids = [self._id_of[handle] for handle in handles]
        keys = list(zip(ids, (times.get(place) for place in range(len(ids))), strict=True)) if times else ids
        if not far and DROPPED not in ids and len(set(keys)) == len(ids):
            return array("q", ids), None
        seen: set[object] = set()
        mask = []
        for place, key in enumerate(keys):
            is_kept = ids[place] != DROPPED and place not in far and key not in seen
            self.dropped_samples["duplicate"] += key in seen and ids[place] != DROPPED
            seen.add(key)
            mask.append(is_kept)
        return array("q", compress(ids, mask)), mask

    def _moved(self, times: Mapping[int, int]) -> Mapping[int, int]:
        """Explicit times by the place of their sample among those that are kept."""
        if self._mask is None or not times:
            return times
        places = (place for place, is_kept in enumerate(self._mask) if is_kept)
        return {new: times[old] for new, old in enumerate(places) if old in times}

    def _note_families(self) -> None:
        """Hand on what the exporter says about its metrics, whenever that has changed."""
        metadata = self._sink.metadata
        if metadata is None or self._noted == self._parser.families_version:
            return
        self._noted = self._parser.families_version
        for name, family in self._parser.families.items():
            metadata.record(name, family.type, help=family.help, unit=family.unit)

    def _note_exemplars(self, page: exposition.ExpositionPage, at_ms: int) -> None:
        """Hand on the exemplars that are new on the page, under the labels of the stored series."""
        kept = self._sink.exemplars
        if kept is None:
            return
        for handle, label_set, value, own_ms in page.exemplars:
            series = self._native.labels_of(handle)
            if series is None and self._id_of.get(handle, DROPPED) != DROPPED:
                series = self._attach(self._parser.labels[handle])
            time_ms = at_ms if own_ms is None else own_ms
            if series is not None and time_ms <= at_ms + MAX_AHEAD_MS:
                kept.add(series, exemplars.Exemplar(label_set, value, time_ms))

    def _append(self, ids: array[int], at_ms: int, values: array[float]) -> None:
        taken = self._sink.append_scrape(self._key, ids, at_ms, values)
        if not taken.dropped:
            return
        self.dropped_samples.update(taken.dropped)
        if taken.dropped.get("forgotten"):
            self._id_of, self._handles, self._own_ids = {}, [], self._ask_own_ids()

    def _append_timed(self, values: array[float], times: Mapping[int, int]) -> tuple[array[int], array[float]]:
        """Append the samples that carry their own time; give back the others.

        Like in Prometheus, a series with explicit times gets no stale marker: its exporter decides when it was.
        """
        self._timed_ids = frozenset(self._ids[at] for at in times)
        if not times:
            return self._ids, values
        by_time: dict[int, tuple[array[int], array[float]]] = {}
        for at, at_ms in times.items():
            ids, own = by_time.setdefault(at_ms, (array("q"), array("d")))
            ids.append(self._ids[at])
            own.append(values[at])
        for at_ms in sorted(by_time):
            taken = self._sink.append_scrape(f"{self._key} timed", by_time[at_ms][0], at_ms, by_time[at_ms][1])
            self.dropped_samples.update(taken.dropped)
        plain = [at not in times for at in range(len(self._ids))]
        return array("q", compress(self._ids, plain)), array("d", compress(values, plain))

    def _vanished(self, before: Sequence[int]) -> array[int]:
        present = set(self._ids)
        return array("q", [known for known in before if known not in present and known not in self._timed_ids])

    def _lasting_ids(self) -> array[int]:
        return array("q", [known for known in self._ids if known not in self._timed_ids])

    def _append_down(self, at_ms: int, taken: float) -> None:
        """The target did not answer: its series end, and `up` says so."""
        self._fleet.set_workloads(self._key, ())
        ends = self._lasting_ids() + self._take_left_ids()
        if not self._ids:
            # Ids outlast one failure, because to ask for them takes as long as to read five pages.
            self._id_of = {}
        self._ids, self._handles = array("q"), []
        self.dropped_samples.update(self._native.end_series(at_ms))
        own = array("d", [0.0, taken, 0.0, 0.0, 0.0])
        # In the order of a page that could be read, which the sink recognises.
        self._append(ends + self._own_ids, at_ms, array("d", [samples.STALE]) * len(ends) + own)

    def _ask_left_ids(self, at_ms: int) -> array[int]:
        """Series that nobody has ended, because the hub was away when they did: without it they seem to go on."""
        lasting = self._sink.active_series(self._key, at_ms - interfaces.LOOKBACK_MS)
        return array("q", lasting.keys() - set(self._own_ids))

    def _take_left_ids(self) -> array[int]:
        left, self._left_ids = self._left_ids or array("q"), array("q")
        return left

    def _ask_own_ids(self) -> array[int]:
        return array(
            "q", [self._sink.series_id(self._target.labels.with_labels(__name__=name)) for name in SYNTHESISED]
        )

    def _ask_id(self, handle: int) -> int:
        if self._parser.labels[handle].get(labels.METRIC_NAME) == WORKLOAD_INFO:
            # The hub writes this series itself, for all GPUs and with their teams; see `Fleet.holders`.
            return DROPPED
        label_set = self._attach(self._parser.labels[handle])
        self._target.job.label_limits.check(label_set)
        if label_set is None:
            return DROPPED
        try:
            return self._sink.series_id(label_set)
        except StoreFull:
            self._without_room.add(handle)
            return DROPPED

    def _attach(self, label_set: labels.Labels) -> labels.Labels | None:
        """The exporter's labels with the target's, as the job's rules want them; None if they drop the series."""
        if self._target.job.metric_rules:
            ruled = relabel.relabel(self._target.job.metric_rules, self._join(label_set))
            if ruled is None or not ruled.get(labels.METRIC_NAME):
                return None
            return labels.Labels(dcgm_names.canonical_labels(ruled, node=self._target.node))
        name = dcgm_names.canonical_name(label_set.name)
        alike = (dcgm_names.is_dcgm(name), label_set.pairs_without_name)
        others = self._joined.get(alike)
        if others is None:
            usual = labels.Labels(dcgm_names.canonical_labels(self._join(label_set), node=self._target.node))
            others = self._joined[alike] = usual.pairs_without_name
        return labels.Labels.with_metric_name(name, others)

    def _join(self, label_set: labels.Labels) -> dict[str, str]:
        """A clash of labels is settled as Prometheus does it."""
        own, theirs = dict(self._target.labels.pairs), dict(label_set.pairs)
        if self._settings.honor_labels:
            return {**own, **theirs}
        for name in own.keys() & theirs.keys():
            moved = f"exported_{name}"
            while moved in theirs or moved in own:
                moved = f"exported_{moved}"
            theirs[moved] = theirs.pop(name)
        return {**theirs, **own}

    def _find_gpus(self, handles: Sequence[int]) -> dict[tuple[str, str], tuple[fleet.Node, dict[str, fleet.Gpu]]]:
        """The GPUs of a page by node; a node that reported GPUs before and now none is there with none."""
        found = {key: (node, dict[str, fleet.Gpu]()) for key, (node, _) in self._gpus.items()}
        seen: set[tuple[str | None, str | None]] = set()
        for handle in filter(self._tells_of_gpu, handles):
            label_set = self._parser.labels[handle]
            # Some fifty series name the same GPU: the first of them speaks for all.
            about = (label_set.get("UUID"), label_set.get("Hostname") or label_set.get("hostname"))
            gpu = None if about in seen else gpu_of(label_set)
            seen.add(about)
            if gpu is not None:
                node = self._node_of(label_set)
                _, gpus = found.setdefault((node.cluster, node.name), (node, {}))
                gpus.setdefault(gpu.uuid, gpu)
        return found

    def _tells_of_gpu(self, handle: int) -> bool:
        label_set = self._parser.labels[handle]
        return bool(label_set.get("UUID")) and not label_set.name.startswith(OF_PROGRAMS)

    def _find_holders(self, handles: Sequence[int]) -> list[labels.Labels]:
        """Who holds the GPUs of the page, where it is an agent's."""
        told = (self._parser.labels[handle] for handle in handles)
        mine = (self._attach(one) for one in told if one.get(labels.METRIC_NAME) == WORKLOAD_INFO)
        return [found for found in mine if found is not None]

    def _node_of(self, label_set: labels.Labels) -> fleet.Node:
        """The node a series speaks of: by its Hostname label if that is known, else the target's."""
        cluster, hostname = self._target.cluster, label_set.get("Hostname") or label_set.get("hostname", "")
        node = self._fleet.node(hostname, cluster) if hostname else None
        if node is None and self._target.node is not None:
            node = self._fleet.node(self._target.node, cluster)
        return node or fleet.Node(cluster, hostname or self._target.address, source=self._target.url)
