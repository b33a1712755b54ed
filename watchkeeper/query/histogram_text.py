"""Read and write native histograms in Prometheus' test notation: `{{schema:1 count:4 sum:5 buckets:[1 2 1]}}`.

`watchkeeper rules test` and the conformance tests read series with `expand`; `format_histogram` writes the same
notation for messages. promql/promqltest/README.md of prometheus/prometheus explains the notation.
"""

from __future__ import annotations

import math
import re
from typing import Any

from watchkeeper.errors import quote
from watchkeeper.model.histograms import CUSTOM, Buckets, Histogram, ResetHint, subtract_histograms, sum_histograms

ITEM = re.compile(r"\s*(?P<key>[a-z_]+):(?:\[(?P<list>[^\]]*)\]|(?P<word>[^\s\[\]]+))")
SERIES = re.compile(r"\{\{(?P<start>.*?)\}\}(?:(?P<sign>[+-])\{\{(?P<step>.*?)\}\})?(?:x(?P<times>\d+))?")
# The values of a series; a histogram in braces may contain spaces.
VALUES = re.compile(r"\{\{.*?\}\}(?:[+-]\{\{.*?\}\})?(?:x\d+)?|\S+")
NUMBERS = {"count": "count", "sum": "sum", "z_bucket": "zero_count", "z_bucket_w": "zero_threshold"}
SIDES = {"buckets": ("positive", "offset"), "n_buckets": ("negative", "n_offset")}
KEYS = frozenset({*NUMBERS, *SIDES, "schema", "offset", "n_offset", "counter_reset_hint", "custom_values"})


def expand(text: str) -> list[Histogram]:
    """Expand `{{…}}+{{…}}x3` to four histograms, each larger by the step; ValueError if it cannot be read."""
    match = SERIES.fullmatch(text)
    if match is None:
        raise ValueError(f"`{quote(text)}` is not a histogram")
    histograms = [read(match["start"])]
    step = None if match["step"] is None else read(match["step"])
    for _ in range(int(match["times"] or 0)):
        if step is None:
            histograms.append(histograms[-1])
        else:
            combined = (
                sum_histograms([histograms[-1], step])
                if match["sign"] == "+"
                else subtract_histograms(histograms[-1], step)
            )
            histograms.append(combined.histogram)
    return histograms


def read(text: str) -> Histogram:
    items: dict[str, str] = {}
    position = 0
    while text[position:].strip():
        match = ITEM.match(text, position)
        if match is None or match["key"] not in KEYS:
            raise ValueError(f"`{quote(text[position:].strip())}` is not a field of a histogram")
        items[match["key"]] = match["word"] if match["list"] is None else match["list"]
        position = match.end()
    numbers: dict[str, Any] = {name: float(items.get(key, "0")) for key, name in NUMBERS.items()}
    sides: dict[str, Any] = {
        name: tuple(enumerate(map(float, items.get(key, "").split()), start=int(items.get(offset, "0"))))
        for key, (name, offset) in SIDES.items()
    }
    hint = items.get("counter_reset_hint", "unknown").upper()
    if hint not in ResetHint.__members__:
        raise ValueError(f"`{quote(hint.lower())}` is not a counter_reset_hint")
    return Histogram(
        schema=int(items.get("schema", "0")),
        bounds=tuple(map(float, items.get("custom_values", "").split())),
        hint=ResetHint[hint],
        **numbers,
        **sides,
    )


def format_histogram(histogram: Histogram) -> str:
    """Format a histogram in test notation, without fields that have their default."""
    parts = [f"schema:{histogram.schema}"] if histogram.schema else []
    parts += [
        f"{key}:{_format_number(getattr(histogram, name))}" for key, name in NUMBERS.items() if getattr(histogram, name)
    ]
    if histogram.schema == CUSTOM:
        parts.append(f"custom_values:[{' '.join(map(_format_number, histogram.bounds))}]")
    for key, (name, offset) in SIDES.items():
        side: Buckets = getattr(histogram, name)
        if side:
            first, last = side[0][0], side[-1][0]
            counts = dict(side)
            parts += [f"{offset}:{first}"] if first else []
            parts.append(
                f"{key}:[{' '.join(_format_number(counts.get(index, 0.0)) for index in range(first, last + 1))}]"
            )
    if histogram.hint is not ResetHint.UNKNOWN:
        parts.append(f"counter_reset_hint:{histogram.hint.name.lower()}")
    return "{{" + " ".join(parts) + "}}"


def _format_number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return {math.inf: "+Inf", -math.inf: "-Inf"}.get(value) or f"{value:.15g}"
