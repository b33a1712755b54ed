"""What the API's document says about Prometheus' endpoints: a sentence and the parameters of each path.

`prometheus_api` puts them into its rows. Names, meanings and limits of parameters are Prometheus' own, except where
the words say otherwise.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypedDict

from watchkeeper.web.answers import Asked


class Series(TypedDict, total=False):
    """A line of a vector or a matrix; numbers are text, as Prometheus writes them."""

    metric: dict[str, str]
    value: tuple[float, str]
    values: list[tuple[float, str]]
    histogram: tuple[float, dict[str, Any]]
    histograms: list[tuple[float, dict[str, Any]]]


class Queried(TypedDict):
    """Prometheus' `data`: series, or one point where the expression is a scalar or a string."""

    resultType: str
    result: list[Series] | tuple[float, str]


QUERY = Asked("query", "a PromQL expression", is_required=True)
TIMEOUT = Asked("timeout", "at most 2m, the default; a query that takes longer is answered with 503 and `timeout`")
LOOKBACK = Asked("lookback_delta", "how far an instant selector looks back, for this query; refused by a remote engine")
LIMIT = Asked("limit", "cuts series, names and values, with a warning", int)
STATS = Asked("stats", "adds the time that the evaluation took; samples are not counted")
START = Asked("start", "RFC 3339 or seconds since 1970")
END = Asked("end", "RFC 3339 or seconds since 1970")
STEP = Asked("step", "a duration or seconds", is_required=True)
MATCH = Asked("match[]", "only series that a selector means", list[str])
MANNER = (TIMEOUT, LOOKBACK, LIMIT, STATS)
CHOSEN = (MATCH, START, END, LIMIT)

WORDS: dict[str, tuple[str, tuple[Asked, ...]]] = {
    "query": ("Evaluate an expression at one time", (QUERY, Asked("time", "now unless given"), *MANNER)),
    "query_range": ("Evaluate an expression over a range of time", (QUERY, START, END, STEP, *MANNER)),
    "query_exemplars": ("Exemplars; the newest 20,000 are kept in memory", (QUERY, START, END)),
    "format_query": ("An expression, written nicely", (QUERY,)),
    "parse_query": ("An expression as a tree", (QUERY,)),
    "series": ("Series that selectors mean", (replace(MATCH, is_required=True), START, END, LIMIT)),
    "labels": ("Names of labels", CHOSEN),
    "label/{name}/values": ("Values of a label", CHOSEN),
    "metadata": ("Type, help and unit of metrics", (Asked("metric", "only this one"), LIMIT)),
    "targets": (
        "Targets and how their last scrape went",
        (Asked("state", "any, active or dropped"), Asked("scrapePool", "only this pool")),
    ),
    "targets/metadata": (
        "What targets say about their metrics",
        (Asked("match_target", "a selector of targets"), Asked("metric", "only this one"), LIMIT),
    ),
    "scrape_pools": ("Names of scrape pools", ()),
    "rules": (
        "Rule groups with their rules and alerts",
        (
            Asked("type", "alert or record"),
            Asked("rule_name[]", "only these rules", list[str]),
            Asked("rule_group[]", "only these groups", list[str]),
            Asked("file[]", "only these files", list[str]),
            MATCH,
            Asked("exclude_alerts", "true: without active alerts"),
            Asked("group_limit", "groups on a page", int),
            Asked("group_next_token", "where the next page begins"),
        ),
    ),
    "alerts": ("Active alerts", ()),
    "alertmanagers": ("Always empty: a hub tells people itself", ()),
    "status/buildinfo": ("The version of Prometheus' API that this is", ()),
    "status/config": ("What is in force, as YAML", ()),
    "status/flags": ("Settings that Prometheus has as flags", ()),
    "status/runtimeinfo": ("Start, rule files and series of this hub", ()),
    "status/tsdb": ("The largest metrics and labels", (LIMIT,)),
    "status/walreplay": ("Always done: a hub answers when its log is read", ()),
    "notifications": ("Always empty: the console has them", ()),
}
FEDERATE = "The newest samples as a metrics page: text, or protobuf with native histograms where `Accept` prefers it"
WRITE = (
    "Remote write 1.0, a snappy block of protobuf: 204 when everything was kept, 400 with reasons and counts when some "
    "samples were not (out of order, too old, more than 10 minutes ahead of the hub's clock, broken histograms); 2.0 "
    "is answered with 415, so that a sender falls back to 1.0"
)
