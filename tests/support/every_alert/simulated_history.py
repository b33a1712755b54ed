"""Hours of a simulated fleet, run ahead of the clock, as the input of `promtool test rules`.

The samples are those that a hub stores: real pages, read with the labels of their targets. promtool's clock begins at
0, and so does the fleet's.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from watchkeeper.drill.monitored_fleet import FleetIntervals, MonitoredFleet
from watchkeeper.model.labels import METRIC_NAME, Labels
from watchkeeper.query.engine import QueryRange
from watchkeeper.sim import scenario, simulation
from watchkeeper.store.head import head

SCRAPE_SECONDS = 30
# Faults that only this proof needs: what they do is right at one place and by chance.
OWN_SCENARIOS = Path(__file__).with_name("scenarios")


class SimulatedHistory:
    def __init__(self, folder: Path, *, gpus: int, scrape_seconds: int = SCRAPE_SECONDS) -> None:
        settings = simulation.SimSettings(gpus=gpus, epoch_seconds=simulation.WARM_UP_SECONDS)
        self.simulation = simulation.Simulation(settings)
        self.simulation.scenarios |= scenario.load_scenarios(OWN_SCENARIOS)
        self.scrape_seconds = scrape_seconds
        intervals = FleetIntervals(scrape_seconds=scrape_seconds)
        self._loop = asyncio.Runner()
        store = head.Head(retention_ms=24 * 3_600_000)
        self._monitored = MonitoredFleet(self.simulation, folder, intervals=intervals, store=store)

    def close(self) -> None:
        self._loop.close()

    def advance(self, seconds: int) -> None:
        self._loop.run(self._monitored.advance(seconds, with_rules=False))

    def series(self, is_read: Callable[[str], bool]) -> Iterator[tuple[Labels, str]]:
        """Each series with a name that is read, in promtool's notation: one value for each scrape."""
        engine, end_ms, step_ms = self._monitored.engine, self.simulation.second * 1000, self.scrape_seconds * 1000
        for name in engine.label_values(METRIC_NAME, [], start_ms=0, end_ms=end_ms):
            if not is_read(name):
                continue
            query = f'last_over_time({{__name__="{name}"}}[{self.scrape_seconds}s])'
            frame = engine.range(query, QueryRange(0, end_ms, step_ms)).frame
            for labels, values, present in zip(frame.labels, frame.values, frame.present, strict=True):
                yield labels, notation(values.tolist(), present.tolist())


def notation(values: list[float], present: list[bool]) -> str:
    """Equal values in a row as one; a series that ends gets the stale marker that Prometheus writes."""
    texts = [_text(value) if is_there else "_" for value, is_there in zip(values, present, strict=True)]
    texts = ["stale" if at and text == "_" != texts[at - 1] else text for at, text in enumerate(texts)]
    runs = ((text, len(list(run))) for text, run in itertools.groupby(texts))
    # promtool repeats numbers and gaps, not words.
    return " ".join(" ".join([text] * count) if text[-1].isalpha() else f"{text}x{count - 1}" for text, count in runs)


def stretched(values: str, *, before: int, total: int) -> str:
    """So many times the first value before the others, and the last one until there are `total`."""
    texts = [text for run in values.split() for text in _repeated(run)]
    texts = [texts[0]] * before + texts
    texts += [texts[-1] if texts[-1] != "stale" else "_"] * (total - len(texts))
    return " ".join(texts[:total])


def _repeated(run: str) -> list[str]:
    """The values of a run: `5x3` is four of them."""
    text, _, more = run.partition("x")
    return [text] * (int(more or "0") + 1)


def _text(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return f"{value:.15g}" if math.isfinite(value) else ("Inf" if value > 0 else "-Inf")


def selector(labels: Mapping[str, str]) -> str:
    pairs = ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()) if name != METRIC_NAME)
    return f'{{__name__="{labels[METRIC_NAME]}",{pairs}}}'
