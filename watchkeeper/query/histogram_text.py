"""Native histograms in Prometheus' test notation: `{{schema:1 count:4 sum:5 buckets:[1 2 1]}}`, also in series.

`watchkeeper rules test` and the conformance tests read series with `expand`; `show` writes a histogram in the same
words, for messages. The notation is explained in promql/promqltest/README.md of prometheus/prometheus.
"""

from __future__ import annotations

import math
import re

from watchkeeper.errors import quote
from watchkeeper.model.histograms import CUSTOM, Buckets, Histogram, ResetHint, subtract_histograms, sum_histograms

ITEM = re.compile(r"\s*(?P<key>[a-z_]+):(?:\[(?P<list>[^\]]*)\]|(?P<word>[^\s\[\]]+))")
SERIES = re.compile(r"\{\{(?P<start>.*?)\}\}(?:(?P<sign>[+-])\{\{(?P<step>.*?)\}\})?(?:x(?P<times>\d+))?")
# Values of a series one after another: what stands in braces may have spaces.
WORDS = re.compile(r"\{\{.*?\}\}(?:[+-]\{\{.*?\}\})?(?:x\d+)?|\S+")
NUMBERS = {
    "count": "count",
    "sum": "sum",
    "z_bucket": "zero_count",
    "z_bucket_w": "zero_threshold",
}
SIDES = {"buckets": ("positive", "offset"), "n_buckets": ("negative", "n_offset")}
KEYS = frozenset({*NUMBERS, *SIDES, "schema", "offset", "n_offset", "counter_reset_hint", "custom_values"})


def expand(text: str) -> list[Histogram]:
    """`{{…}}+{{…}}x3` is four histograms, each the step more than the one before; ValueError says what is wrong."""
    match = SERIES.fullmatch(text)
    if match is None:
        raise ValueError(f"`{quote(text)}` is no histogram")
    found = [read(match["start"])]
    step = None if match["step"] is None else read(match["step"])
    for _ in range(int(match["times"] or 0)):
        if step is None:
            found.append(found[-1])
        else:
            combined = (
                sum_histograms([found[-1], step]) if match["sign"] == "+" else subtract_histograms(found[-1], step)
            )
            found.append(combined.histogram)
    return found


def read(text: str) -> Histogram:
    """What stands between the braces."""
    items: dict[str, str] = {}
    place = 0
    while text[place:].strip():
        match = ITEM.match(text, place)
        if match is None or match["key"] not in KEYS:
            raise ValueError(f"`{quote(text[place:].strip())}` is no part of a histogram")
        items[match["key"]] = match["word"] if match["list"] is None else match["list"]
        place = match.end()
    numbers = {name: float(items.get(key, "0")) for key, name in NUMBERS.items()}
    sides = {name: _buckets(items.get(key, ""), int(items.get(offset, "0"))) for key, (name, offset) in SIDES.items()}
    hint = items.get("counter_reset_hint", "unknown").upper()
    if hint not in ResetHint.__members__:
        raise ValueError(f"`{quote(hint.lower())}` is no counter_reset_hint")
    return Histogram(
        schema=int(items.get("schema", "0")),
        bounds=tuple(map(float, items.get("custom_values", "").split())),
        hint=ResetHint[hint],
        count=numbers["count"],
        sum=numbers["sum"],
        zero_count=numbers["zero_count"],
        zero_threshold=numbers["zero_threshold"],
        positive=sides["positive"],
        negative=sides["negative"],
    )


def _buckets(text: str, offset: int) -> Buckets:
    return tuple(enumerate(map(float, text.split()), start=offset))


def show(histogram: Histogram) -> str:
    """The histogram as it would be written in a test; what is as usual is left out."""
    parts = [f"schema:{histogram.schema}"] if histogram.schema else []
    parts += [f"{key}:{_number(getattr(histogram, name))}" for key, name in NUMBERS.items() if getattr(histogram, name)]
    if histogram.schema == CUSTOM:
        parts.append(f"custom_values:[{' '.join(map(_number, histogram.bounds))}]")
    for key, (name, offset) in SIDES.items():
        side: Buckets = getattr(histogram, name)
        if side:
            first, last = side[0][0], side[-1][0]
            there = dict(side)
            parts += [f"{offset}:{first}"] if first else []
            parts.append(f"{key}:[{' '.join(_number(there.get(at, 0.0)) for at in range(first, last + 1))}]")
    if histogram.hint is not ResetHint.UNKNOWN:
        parts.append(f"counter_reset_hint:{histogram.hint.name.lower()}")
    return "{{" + " ".join(parts) + "}}"


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return {math.inf: "+Inf", -math.inf: "-Inf"}.get(value) or f"{value:.15g}"
