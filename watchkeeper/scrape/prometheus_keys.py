"""Which keys of a prometheus.yml apply, which are ignored, and which are not supported.

`prometheus_config` looks up each key of a table. A key that is not listed here is reported with its line and ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from watchkeeper.scrape.page_formats import OPENMETRICS, PLAIN_TEXT

# How the keys of service discovery end.
SD_SUFFIX = "_sd_configs"
# Keys of `global` that are the defaults of every job.
INHERITED: Set[str] = {
    *("body_size_limit", "sample_limit", "label_limit", "label_name_length_limit", "label_value_length_limit"),
    *("target_limit", "scrape_protocols", "scrape_native_histograms", "always_scrape_classic_histograms"),
    *("convert_classic_histograms_to_nhcb", "metric_name_validation_scheme", "metric_name_escaping_scheme"),
}
# Prometheus 3's default order. Protobuf comes first if native histograms are enabled.
PROTOCOLS = (OPENMETRICS, "OpenMetricsText0.0.1", "PrometheusText1.0.0", PLAIN_TEXT)
# The first name was used until Prometheus 3.
CLASSIC_KEYS = ("scrape_classic_histograms", "always_scrape_classic_histograms")
# A key with Prometheus' default value has no effect. Another value would change what is stored, so it is reported as
# not supported.
NOT_SUPPORTED = {
    "convert_classic_histograms_to_nhcb": ("false", "classic histograms stay classic"),
    "native_histogram_bucket_limit": ("0", "histograms keep all their buckets"),
    "native_histogram_min_bucket_factor": ("0", "histograms keep their resolution"),
    "track_timestamps_staleness": ("false", "series with explicit timestamps end only by the lookback"),
    "follow_redirects": ("true", "one redirect is followed"),
}
# Keys without effect here: a page without a content type is read as text, and the others do not change the samples.
IGNORED: Set[str] = {
    *("fallback_scrape_protocol", "enable_compression", "enable_http2", "keep_dropped_targets"),
    *("scrape_failure_log_file", "extra_scrape_metrics", "refresh_interval"),
}
CLIENT_KEYS: Set[str] = {
    *("basic_auth", "authorization", "bearer_token", "bearer_token_file", "tls_config", "oauth2", "proxy_url"),
    *("no_proxy", "follow_redirects", "http_headers"),
}
# Headers that the client or other keys set.
RESERVED_HEADERS: Set[str] = {"authorization", "host", "accept", "accept-encoding", "connection", "content-length"}
JOB_KEYS: Set[str] = CLIENT_KEYS | {
    *("job_name", "scrape_interval", "scrape_timeout", "metrics_path", "scheme", "params", "honor_labels"),
    *("honor_timestamps", "static_configs", "relabel_configs", "metric_relabel_configs"),
    *CLASSIC_KEYS,
    *INHERITED,
    *NOT_SUPPORTED,
}
# The keys of tables inside a job.
KEYS: Mapping[str, Set[str]] = {
    "basic_auth": {"username", "password", "password_file"},
    "authorization": {"type", "credentials", "credentials_file"},
    "tls_config": {"ca_file", "cert_file", "key_file", "server_name", "insecure_skip_verify"},
    "oauth2": {
        *("token_url", "client_id", "client_secret", "client_secret_file", "scopes", "endpoint_params"),
        *("tls_config", "proxy_url", "no_proxy"),
    },
    "http_headers": {"values", "secrets", "files"},
    "static_configs": {"targets", "labels"},
    "file_sd_configs": {"files"},
    "http_sd_configs": CLIENT_KEYS | {"url"},
    "dns_sd_configs": {"names", "type", "port"},
    "relabel rule": frozenset(
        {"source_labels", "separator", "regex", "modulus", "target_label", "replacement", "action"}
    ),
}
# How to discover the same targets here.
ALTERNATIVES = {
    "kubernetes_sd": "`fleet.kubernetes` watches the cluster and scrapes the pods of `fleet.kubernetes_targets`",
}
