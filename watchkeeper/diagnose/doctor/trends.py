"""Numbers of a training log over its length: memory that only grows, data that takes most of a step, a loss that runs away."""

from __future__ import annotations

import re
from collections.abc import Sequence

from watchkeeper.diagnose.doctor.facts import Facts
from watchkeeper.diagnose.doctor.listing import Listing, add

MIN_SAMPLES = 20
# Growth over a log of at least this share is more than a warm-up.
GROWTH = 1.3
DATA_SHARE = 0.5
RUNAWAY = 3.0
SLOW_LOAD_SECONDS = 300
MANY_WAITING = 100
# allocated 41.20 GiB      cpu mem: 812.4 GB      rss=12034 MB
MEMORY = re.compile(r"(?i)\b(?:rss|host[ _]mem\w*|cpu[ _]mem\w*|(?:max[ _])?mem(?:ory)?(?:[ _](?:allocated|used|usage))?|allocated)\b[^\d\n]{0,16}(\d+(?:\.\d+)?) ?(gi?b|mi?b)\b")
# data_time: 0.912 … time: 1.104       data 0.9s batch 1.1s
DATA_TIME = re.compile(r"(?i)\b(?:data(?:_|[ -])?(?:time|loading)?|load(?:er)?_time)\b\s*[:=]?\s*(\d+\.\d+)")
STEP_TIME = re.compile(r"(?i)(?<!data_)(?<!data )(?<!load_)\b(?:(?:batch|iter|step|iteration|total)(?:[_ ]?time)?|time)\b\s*[:=(]?\s*(\d+\.\d+)\s*(?:s\b|\||,|$|\()?")
LOSS = re.compile(r"(?i)\b(?:train_)?(?:lm )?loss\b\s*[:=]?\s*(\d+\.\d+(?:e[+-]?\d+)?)")
KINDS = frozenset({"training_log", "application_log", "text", "system_log", "serving_log", "python_traceback", "cuda_error"})


def read(listing: Listing, facts: Facts) -> None:
    if listing.kind not in KINDS:
        return
    memory = _series(listing.lines, MEMORY)
    if len(memory) >= MIN_SAMPLES and _only_grows([value for _, value in memory]):
        add(facts, listing, "memory-grows", line=memory[-1][0], fields={})
    data, step = _series(listing.lines, DATA_TIME), _series(listing.lines, STEP_TIME)
    steps = dict(step)
    shares = [(line, value / steps[line]) for line, value in data if steps.get(line)]
    if len(shares) >= 3 and _median([share for _, share in shares]) > DATA_SHARE and all(share <= 1 for _, share in shares):
        add(facts, listing, "data-time-high", line=shares[-1][0], fields={})
    loss = [value for _, value in _series(listing.lines, LOSS)]
    if len(loss) >= MIN_SAMPLES and min(loss[-5:]) > RUNAWAY * max(min(loss), 1e-3) and loss[-1] > loss[0]:
        add(facts, listing, "loss-rises", line=_series(listing.lines, LOSS)[-1][0], fields={})


def _series(lines: Sequence[str], pattern: re.Pattern[str]) -> list[tuple[int, float]]:
    """The first number of each line that has one, with its line."""
    found = []
    for number, line in enumerate(lines, 1):
        match = pattern.search(line[:2000])
        if match is not None:
            scale = 1024.0 if match.lastindex and match.lastindex > 1 and match[2].lower().startswith("g") else 1.0
            found.append((number, float(match[1]) * scale))
    return found


def _only_grows(values: Sequence[float]) -> bool:
    """Quarter by quarter higher, and not because of a warm-up in the first one."""
    quarter = len(values) // 4
    means = [sum(values[at * quarter : (at + 1) * quarter]) / quarter for at in range(4)]
    return means[0] < means[1] < means[2] < means[3] and means[3] > GROWTH * means[1]


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
