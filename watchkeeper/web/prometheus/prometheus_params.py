"""What the API's document says about Prometheus' endpoints: a sentence and the parameters of each path.

`prometheus_api` puts them into its rows. Names, meanings and limits of parameters are Prometheus' own, except where
the words say otherwise.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypedDict

from watchkeeper.web.endpoint import QueryParam


class QuerySeries(TypedDict, total=False):
    """A line of a vector or a matrix; numbers are text, as Prometheus writes them."""

    metric: dict[str, str]
    value: tuple[float, str]
    values: list[tuple[float, str]]
    histogram: tuple[float, dict[str, Any]]
    histograms: list[tuple[float, dict[str, Any]]]


class QueryData(TypedDict):
    """Prometheus' `data`: series, or one point where the expression is a scalar or a string."""

    resultType: str
    result: list[QuerySeries] | tuple[float, str]


QUERY = QueryParam("query", "a PromQL expression", is_required=True)
TIMEOUT = QueryParam("timeout", "at most 2m, the default; a query that takes longer is answered with 503 and `timeout`")
LOOKBACK = QueryParam(
    "lookback_delta", "how far an instant selector looks back, for this query; refused by a remote engine"
)
LIMIT = QueryParam("limit", "cuts series, names and values, with a warning", int)
STATS = QueryParam("stats", "adds the time that the evaluation took; samples are not counted")
START = QueryParam("start", "RFC 3339 or seconds since 1970")
END = QueryParam("end", "RFC 3339 or seconds since 1970")
STEP = QueryParam("step", "a duration or seconds", is_required=True)
MATCH = QueryParam("match[]", "only series that a selector means", list[str])
MANNER = (TIMEOUT, LOOKBACK, LIMIT, STATS)
CHOSEN = (MATCH, START, END, LIMIT)

WORDS: dict[str, tuple[str, tuple[QueryParam, ...]]] = {
    "query": ("Evaluate an expression at one time", (QUERY, QueryParam("time", "now unless given"), *MANNER)),
    "query_range": ("Evaluate an expression over a range of time", (QUERY, START, END, STEP, *MANNER)),
    "query_exemplars": ("Exemplars; the newest 20,000 are kept in memory", (QUERY, START, END)),
    "format_query": ("An expression, written nicely", (QUERY,)),
    "parse_query": ("An expression as a tree", (QUERY,)),
    "series": ("Series that selectors mean", (replace(MATCH, is_required=True), START, END, LIMIT)),
    "labels": ("Names of labels", CHOSEN),
    "label/{name}/values": ("Values of a label", CHOSEN),
    "metadata": ("Type, help and unit of metrics", (QueryParam("metric", "only this one"), LIMIT)),
    "targets": (
        "Targets and how their last scrape went",
        (QueryParam("state", "any, active or dropped"), QueryParam("scrapePool", "only this pool")),
    ),
    "targets/metadata": (
        "What targets say about their metrics",
        (QueryParam("match_target", "a selector of targets"), QueryParam("metric", "only this one"), LIMIT),
    ),
    "scrape_pools": ("Names of scrape pools", ()),
    "rules": (
        "Rule groups with their rules and alerts",
        (
            QueryParam("type", "alert or record"),
            QueryParam("rule_name[]", "only these rules", list[str]),
            QueryParam("rule_group[]", "only these groups", list[str]),
            QueryParam("file[]", "only these files", list[str]),
            MATCH,
            QueryParam("exclude_alerts", "true: without active alerts"),
            QueryParam("group_limit", "groups on a page", int),
            QueryParam("group_next_token", "where the next page begins"),
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
