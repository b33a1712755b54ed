"""Find trends in the values of a training log: growing memory, slow input, a diverging loss."""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import median_high

from watchkeeper.doctor.listing import Listing

MIN_SAMPLES = 20
MAX_LINES = 2000
# Growth by this factor over a log is more than a warm-up.
GROWTH_FACTOR = 1.3
DATA_SHARE = 0.5
DIVERGENCE_FACTOR = 3.0
# allocated 41.20 GiB      cpu mem: 812.4 GB      rss=12034 MB
MEMORY = re.compile(
    r"(?i)\b(?:rss|host[ _]mem\w*|cpu[ _]mem\w*|(?:max[ _])?mem(?:ory)?(?:[ _](?:allocated|used|usage))?|allocated)\b"
    r"[^\d\n]{0,16}(\d+(?:\.\d+)?) ?(gi?b|mi?b)\b"
)
# data_time: 0.912 … time: 1.104       data 0.9s batch 1.1s
DATA_TIME = re.compile(r"(?i)\b(?:data(?:_|[ -])?(?:time|loading)?|load(?:er)?_time)\b\s*[:=]?\s*(\d+\.\d+)")
STEP_TIME = re.compile(
    r"(?i)(?<!data_)(?<!data )(?<!load_)\b(?:(?:batch|iter|step|iteration|total)(?:[_ ]?time)?|time)\b"
    r"\s*[:=(]?\s*(\d+\.\d+)\s*(?:s\b|\||,|$|\()?"
)
LOSS = re.compile(r"(?i)\b(?:train_)?(?:lm )?loss\b\s*[:=]?\s*(\d+\.\d+(?:e[+-]?\d+)?)")
KINDS = frozenset(
    {"training_log", "application_log", "text", "system_log", "serving_log", "python_traceback", "cuda_error"}
)


def read_trend_signs(listing: Listing) -> None:
    if listing.kind not in KINDS:
        return
    # At most MAX_LINES lines, evenly spread.
    spacing = max(1, len(listing.lines) // MAX_LINES)
    lines = [(at + 1, listing.lines[at]) for at in range(0, len(listing.lines), spacing)]
    memory = _series(lines, MEMORY)
    if len(memory) >= MIN_SAMPLES and _grows_steadily([value for _, value in memory]):
        listing.add_sign("memory-grows", memory[-1][0])
    steps = dict(_series(lines, STEP_TIME))
    data_shares = {line: value / steps[line] for line, value in _series(lines, DATA_TIME) if steps.get(line)}
    shares = list(data_shares.values())
    if len(shares) >= 3 and median_high(shares) > DATA_SHARE and max(shares) <= 1:
        listing.add_sign("data-time-high", max(data_shares))
    loss = _series(lines, LOSS)
    if len(loss) >= MIN_SAMPLES and _diverges([value for _, value in loss]):
        listing.add_sign("loss-rises", loss[-1][0])


def _diverges(values: Sequence[float]) -> bool:
    """Whether the last fifth is far above the best fifth and above the first; a noisy but steady loss is not."""
    fifth = len(values) // 5
    medians = [median_high(values[at * fifth : (at + 1) * fifth]) for at in range(5)]
    is_far_above = medians[4] > DIVERGENCE_FACTOR * max(min(medians), 1e-3)
    return is_far_above and medians[4] > medians[0] and medians[3] <= medians[4]


def _series(lines: Sequence[tuple[int, str]], pattern: re.Pattern[str]) -> list[tuple[int, float]]:
    """The first value of each line that matches, with its line number."""
    samples = []
    for number, line in lines:
        if (match := pattern.search(line[:2000])) is not None:
            scale = 1024.0 if match.lastindex and match.lastindex > 1 and match[2].lower().startswith("g") else 1.0
            samples.append((number, float(match[1]) * scale))
    return samples


def _grows_steadily(values: Sequence[float]) -> bool:
    """Whether each quarter is higher than the one before, not only because of a warm-up in the first."""
    quarter = len(values) // 4
    means = [sum(values[at * quarter : (at + 1) * quarter]) / quarter for at in range(4)]
    return means[0] < means[1] < means[2] < means[3] and means[3] > GROWTH_FACTOR * means[1]
