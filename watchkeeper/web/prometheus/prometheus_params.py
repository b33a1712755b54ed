"""Document Prometheus' endpoints for the API reference: a summary and the parameters of each path.

`prometheus_api` adds them to its endpoints. Parameters have Prometheus' names, meanings and limits unless the
description says otherwise.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypedDict

from watchkeeper.web.endpoint import QueryParam


class QuerySeries(TypedDict, total=False):
    """A series of a vector or a matrix; numbers are strings, as in Prometheus."""

    metric: dict[str, str]
    value: tuple[float, str]
    values: list[tuple[float, str]]
    histogram: tuple[float, dict[str, Any]]
    histograms: list[tuple[float, dict[str, Any]]]


class QueryData(TypedDict):
    """Prometheus' `data`: series, or one point for a scalar or a string."""

    resultType: str
    result: list[QuerySeries] | tuple[float, str]


QUERY = QueryParam("query", "The PromQL expression to evaluate.", is_required=True)
TIMEOUT = QueryParam("timeout", "Evaluation timeout, such as 30s, at most 2m; then 503 `timeout`. Default: 2m.")
LOOKBACK = QueryParam(
    "lookback_delta", "Lookback of instant selectors for this query, such as 5m; not supported by a remote engine."
)
LIMIT = QueryParam("limit", "Maximum number of results, with a warning if truncated. Default: all.", int)
STATS = QueryParam("stats", "Set to all to add the evaluation time to the answer; samples are not counted.")
START = QueryParam("start", "Start time: RFC 3339 or Unix seconds.")
END = QueryParam("end", "End time: RFC 3339 or Unix seconds.")
STEP = QueryParam("step", "Resolution: a duration such as 15s, or seconds.", is_required=True)
MATCH = QueryParam("match[]", "Return only series that match this selector; repeat it for several.", list[str])
QUERY_OPTIONS = (TIMEOUT, LOOKBACK, LIMIT, STATS)
SELECTION = (MATCH, START, END, LIMIT)

SUMMARIES: dict[str, tuple[str, tuple[QueryParam, ...]]] = {
    "query": (
        "Evaluate an instant query",
        (QUERY, QueryParam("time", "Evaluation time: RFC 3339 or Unix seconds. Default: now."), *QUERY_OPTIONS),
    ),
    "query_range": ("Evaluate a range query", (QUERY, START, END, STEP, *QUERY_OPTIONS)),
    "query_exemplars": ("Exemplars of series; the newest 20,000 are kept in memory", (QUERY, START, END)),
    "format_query": ("Format a PromQL expression", (QUERY,)),
    "parse_query": ("Parse a PromQL expression into a syntax tree", (QUERY,)),
    "series": ("List series that match selectors", (replace(MATCH, is_required=True), START, END, LIMIT)),
    "labels": ("List label names", SELECTION),
    "label/{name}/values": ("List the values of a label", SELECTION),
    "metadata": ("Type, help and unit of metrics", (QueryParam("metric", "Return only this metric."), LIMIT)),
    "targets": (
        "List scrape targets with the result of their last scrape",
        (
            QueryParam("state", "Return only targets in this state: any, active or dropped. Default: any."),
            QueryParam("scrapePool", "Return only targets of this scrape pool."),
        ),
    ),
    "targets/metadata": (
        "Metric metadata by scrape target",
        (
            QueryParam("match_target", "Return only targets whose labels match this selector."),
            QueryParam("metric", "Return only this metric."),
            LIMIT,
        ),
    ),
    "scrape_pools": ("List scrape pools", ()),
    "rules": (
        "List rule groups with their rules and alerts",
        (
            QueryParam("type", "Return only rules of this type: alert or record."),
            QueryParam("rule_name[]", "Return only rules with this name; repeat it for several.", list[str]),
            QueryParam("rule_group[]", "Return only groups with this name; repeat it for several.", list[str]),
            QueryParam("file[]", "Return only rules of this file; repeat it for several.", list[str]),
            replace(MATCH, description="Return only rules whose labels match this selector; repeat it for several."),
            QueryParam("exclude_alerts", "true: omit active alerts."),
            QueryParam("group_limit", "Number of groups per page.", int),
            QueryParam("group_next_token", "`groupNextToken` of the previous page."),
        ),
    ),
    "alerts": ("List pending and firing alerts", ()),
    "alertmanagers": ("Alertmanagers; always empty, because the hub sends notifications itself", ()),
    "status/buildinfo": ("Version of the hub", ()),
    "status/config": ("Active configuration as YAML", ()),
    "status/flags": ("Settings of the hub under the names of Prometheus' flags", ()),
    "status/runtimeinfo": ("Start time, last rule reload and retention of the hub", ()),
    "status/tsdb": (
        "Cardinality: the metrics and labels with the most series",
        (replace(LIMIT, description="Number of entries in each list, at most 10,000. Default: 10."),),
    ),
    "status/walreplay": ("WAL replay; always done, because the hub serves requests only after it", ()),
    "notifications": ("Notifications of Prometheus' own pages; always empty", ()),
}
FEDERATE_SUMMARY = "Newest samples as a metrics page: text, or protobuf with native histograms if `Accept` prefers it"
WRITE_SUMMARY = (
    "Receive samples by remote write 1.0 (protobuf in a snappy block): 204 if all were stored, 400 with reasons and "
    "counts if some were dropped (out of order, too old, more than 10 minutes ahead of the hub's clock, invalid "
    "histograms); 2.0 returns 415, so that the sender falls back to 1.0"
)
