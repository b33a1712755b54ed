"""Read an existing prometheus.yml: its scrape_configs become jobs, its rule_files a list of files.

`discovery` has a `ConfigReader` and calls it before each refresh, so that an edited file takes effect without a
restart. Unknown keys are reported with file and line and ignored; the rest of the file applies.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from watchkeeper.errors import CollectError, quote
from watchkeeper.kit import files
from watchkeeper.model import labels
from watchkeeper.net import oauth2
from watchkeeper.net.access import NO_ACCESS, Access
from watchkeeper.scrape import page_formats, prometheus_keys, relabel
from watchkeeper.scrape.jobs import DiscoveryKind, LabelLimits, ScrapeJob, TargetListLocation
from watchkeeper.scrape.page_formats import PROTOBUF
from watchkeeper.scrape.prometheus_yaml import YamlTable, parse_file

# Prometheus' own defaults.
INTERVAL_SECONDS, TIMEOUT_SECONDS = 60.0, 10.0


@dataclass(frozen=True, slots=True)
class PrometheusConfig:
    """The parts of a file that apply, and the problems of the others."""

    jobs: tuple[ScrapeJob, ...] = ()
    rule_files: tuple[str, ...] = ()
    cluster: str | None = None
    problems: tuple[str, ...] = ()


class ConfigReader:
    """One file, read again when it changes; a file that becomes invalid keeps the jobs active."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = PrometheusConfig()
        self.problems: tuple[str, ...] = ()
        self._stamp: files.FileStamp | None = None

    def reload(self) -> bool:
        """True if the jobs may have changed."""
        stamp = files.read_stamp(self.path)
        is_new = stamp is None or stamp != self._stamp
        if is_new:
            try:
                self.config = load(self.path)
            except (OSError, CollectError) as error:
                now = f"The {len(self.config.jobs)} jobs read before stay in force"
                self.problems = (f"{error}. {now}",)
                return False
        self._stamp, self.problems = stamp, self.config.problems
        return is_new


def load(path: Path) -> PrometheusConfig:
    """Read one file; CollectError if it is not YAML or not a Prometheus configuration."""
    try:
        return _ConfigFileReader(path).read()
    except ValueError as error:
        raise CollectError(f"`global`: {error}", where=str(path)) from error


def rule_paths(path: Path) -> list[Path]:
    """The rule files that a prometheus.yml names, with patterns expanded, in their order."""
    return [Path(path_text) for pattern in load(path).rule_files for path_text in sorted(glob.glob(pattern))]


@dataclass
class _ConfigFileReader:
    """Read one file; problems are recorded, and the rest of the file is read."""

    path: Path
    problems: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(
        default_factory=lambda: {"scrape_interval": INTERVAL_SECONDS, "scrape_timeout": TIMEOUT_SECONDS}
    )
    # The keys that jobs inherit from `global`.
    inherited: YamlTable = field(default_factory=YamlTable)

    def read(self) -> PrometheusConfig:
        root = parse_file(self.path)
        shared = root.get("global")
        if isinstance(shared, YamlTable):
            self.seconds |= {name: shared.read_seconds(name, self.seconds[name]) for name in self.seconds}
            for key in prometheus_keys.INHERITED & shared.keys():
                self.inherited[key], self.inherited.lines[key] = shared[key], shared.lines[key]
        external_labels = shared.get("external_labels") if isinstance(shared, YamlTable) else None
        jobs = list(self.jobs(root))
        for pattern in root.read_texts("scrape_config_files"):
            for config_path in sorted(glob.glob(self.resolve(pattern))):
                included = _ConfigFileReader(Path(config_path), self.problems, self.seconds, self.inherited)
                jobs += included.jobs(parse_file(included.path))
        return PrometheusConfig(
            tuple(jobs),
            tuple(self.resolve(pattern) for pattern in root.read_texts("rule_files")),
            external_labels.get("cluster") if isinstance(external_labels, YamlTable) else None,
            tuple(self.problems),
        )

    def jobs(self, root: YamlTable) -> Iterator[ScrapeJob]:
        names: set[str] = set()
        for table in self.tables(root, "scrape_configs"):
            name = str(table.get("job_name") or "")
            line = table.first_line
            if not name or name in names:
                self.add_problem(line, f"a scrape config needs a unique `job_name`, found {quote(name)}; skipped")
                continue
            names.add(name)
            table.inherit(self.inherited)
            try:
                yield self.job(name, table)
            except ValueError as error:
                self.add_problem(line, f"job {name} skipped: {error}")

    def job(self, name: str, table: YamlTable) -> ScrapeJob:
        interval = table.read_seconds("scrape_interval", self.seconds["scrape_interval"])
        timeout = min(table.read_seconds("scrape_timeout", self.seconds["scrape_timeout"]), interval)
        self.report_unknown_keys(f"job {name}", table, prometheus_keys.JOB_KEYS)
        for key, (default, consequence) in prometheus_keys.NOT_SUPPORTED.items():
            if str(table.get(key) or default).lower() != default:
                self.add_problem(table.lines[key], f"job {name}: `{key}: {table[key]}` is ignored; {consequence}")
        params = table["params"] if isinstance(table.get("params"), YamlTable) else YamlTable()
        protocols = self.protocols(table)
        return ScrapeJob(
            name=name,
            locations=tuple(self.locations(name, table)),
            interval_seconds=interval,
            timeout_seconds=timeout,
            scheme=str(table.get("scheme") or "http").lower(),
            metrics_path=str(table.get("metrics_path") or "/metrics"),
            params=tuple((key, tuple(params.read_texts(key))) for key in params),
            honor_labels=table.read_bool("honor_labels", False),
            honor_timestamps=table.read_bool("honor_timestamps", True),
            native_histograms=PROTOBUF in protocols,
            protocols=protocols,
            escaping=_escaping(table),
            classic_histograms=any(table.read_bool(key, False) for key in prometheus_keys.CLASSIC_KEYS),
            access=self.access(table),
            rules=tuple(map(self.rule, self.tables(table, "relabel_configs"))),
            metric_rules=tuple(map(self.rule, self.tables(table, "metric_relabel_configs"))),
            max_series=table.read_count("sample_limit") or None,
            max_body_bytes=table.read_size("body_size_limit") or None,
            max_targets=table.read_count("target_limit") or None,
            label_limits=LabelLimits(
                table.read_count("label_limit"),
                table.read_count("label_name_length_limit"),
                table.read_count("label_value_length_limit"),
            ),
        )

    def protocols(self, table: YamlTable) -> tuple[str, ...]:
        """The formats to request, in order of preference; protobuf, which is slow, only for native histograms."""
        # A job enables them explicitly, or by listing protobuf as its first protocol.
        listed = table.read_texts("scrape_protocols")
        if unsupported := [name for name in listed if name not in page_formats.PROTOCOLS]:
            raise ValueError(
                f"scrape_protocols has {quote(unsupported[0])}; supported: {', '.join(page_formats.PROTOCOLS)}"
            )
        is_native = table.read_bool("scrape_native_histograms", listed[:1] == [PROTOBUF])
        if is_native:
            return tuple(listed) or (PROTOBUF, *prometheus_keys.PROTOCOLS)
        return tuple(name for name in listed if name != PROTOBUF) or prometheus_keys.PROTOCOLS

    def report_unknown_keys(self, where: str, table: YamlTable, allowed: Set[str]) -> None:
        for key in sorted(table.keys() - allowed - prometheus_keys.IGNORED, key=table.lines.__getitem__):
            if not key.endswith(prometheus_keys.SD_SUFFIX):
                self.add_problem(table.lines[key], f"{where}: `{key}` is not supported and ignored")

    def locations(self, name: str, table: YamlTable) -> Iterator[TargetListLocation]:
        readers: dict[str, Callable[[YamlTable], Iterator[TargetListLocation]]] = {
            "file_sd_configs": self.file_locations,
            "http_sd_configs": self.http_locations,
            "dns_sd_configs": self.dns_locations,
        }
        for group in self.tables(table, "static_configs"):
            self.report_unknown_keys(f"job {name}: static_configs", group, prometheus_keys.KEYS["static_configs"])
        groups = tuple(
            (tuple(group.read_texts("targets")), labels.Labels(group.read_labels("labels")))
            for group in self.tables(table, "static_configs")
        )
        if groups:
            yield TargetListLocation(DiscoveryKind.STATIC, f"{self.path}: job {name}", groups=groups)
        for key in [key for key in table if key.endswith(prometheus_keys.SD_SUFFIX)]:
            read = readers.get(key)
            if read is None:
                kind = key.removesuffix("_configs")
                remedy = prometheus_keys.ALTERNATIVES.get(kind, "write its targets to a list for file_sd or http_sd")
                self.add_problem(table.lines[key], f"job {name}: {kind} is not supported and skipped; {remedy}")
                continue
            for entry in self.tables(table, key):
                self.report_unknown_keys(f"job {name}: {key}", entry, prometheus_keys.KEYS[key])
                yield from read(entry)

    def file_locations(self, table: YamlTable) -> Iterator[TargetListLocation]:
        for pattern in table.read_texts("files"):
            yield TargetListLocation(DiscoveryKind.FILE, self.resolve(pattern))

    def http_locations(self, table: YamlTable) -> Iterator[TargetListLocation]:
        url = str(table.get("url") or "")
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"http_sd needs an http or https `url`, found {quote(url)}")
        yield TargetListLocation(DiscoveryKind.HTTP, url, access=self.access(table))

    def dns_locations(self, table: YamlTable) -> Iterator[TargetListLocation]:
        record, port = str(table.get("type") or "SRV").upper(), table.read_count("port")
        if record not in ("A", "AAAA", "SRV"):
            line = table.first_line
            self.add_problem(line, f"dns_sd of type {record} is not supported and skipped; supported: SRV, A, AAAA")
            return
        if record != "SRV" and not 0 < port < 65_536:
            raise ValueError(f"dns_sd of type {record} needs a `port` from 1 to 65535, found {port}")
        for name in table.read_texts("names"):
            yield TargetListLocation(DiscoveryKind.DNS, name, record=record, port=port)

    def access(self, table: YamlTable) -> Access:
        tables = {key: table.read_table(key) for key in ("basic_auth", "authorization", "tls_config")}
        for key, inner in tables.items():
            self.report_unknown_keys(key, inner, prometheus_keys.KEYS[key])
        basic, bearer, tls = tables.values()
        values_by_field = {
            "username": basic.get("username"),
            "password": basic.get("password"),
            "password_file": self.file(basic.get("password_file")),
            "scheme": bearer.get("type"),
            "credentials": bearer.get("credentials") or table.get("bearer_token"),
            "credentials_file": self.file(bearer.get("credentials_file") or table.get("bearer_token_file")),
            "ca_file": self.file(tls.get("ca_file")),
            "cert_file": self.file(tls.get("cert_file")),
            "key_file": self.file(tls.get("key_file")),
            "server_name": tls.get("server_name"),
        }
        arguments: dict[str, Any] = {name: str(value) for name, value in values_by_field.items() if value}
        if tls.read_bool("insecure_skip_verify", False):
            arguments["insecure_skip_verify"] = True
        for name, values in table.read_table("http_headers").items():
            self.header(name, values, arguments)
        if isinstance(table.get("oauth2"), YamlTable):
            arguments["tokens"] = self.tokens(table["oauth2"])
        if proxy := str(table.get("proxy_url") or ""):
            if urlsplit(proxy).scheme != "http" or not urlsplit(proxy).hostname:
                raise ValueError(f"proxy_url must be an http URL, found {quote(proxy)}")
            arguments["proxy_url"] = proxy
            arguments["no_proxy"] = tuple(
                host.strip() for host in str(table.get("no_proxy") or "").split(",") if host.strip()
            )
        return Access(**arguments) if arguments else NO_ACCESS

    def header(self, name: str, values: object, arguments: dict[str, Any]) -> None:
        """One entry of `http_headers`: literal values, and values in files."""
        is_allowed = (
            name.isascii() and name.replace("-", "").isalnum() and name.lower() not in prometheus_keys.RESERVED_HEADERS
        )
        if not is_allowed or not isinstance(values, YamlTable):
            raise ValueError(f"http_headers: {quote(name)} is not allowed, or has no values")
        self.report_unknown_keys(f"http_headers: {name}", values, prometheus_keys.KEYS["http_headers"])
        header_values = (*values.read_texts("values"), *values.read_texts("secrets"))
        if any(not text.isprintable() for text in header_values):
            raise ValueError(f"http_headers: a value of {name} has characters that are not allowed in a header")
        files = tuple((name, self.resolve(path)) for path in values.read_texts("files"))
        arguments["extra_headers"] = (*arguments.get("extra_headers", ()), *((name, text) for text in header_values))
        arguments["extra_header_files"] = (*arguments.get("extra_header_files", ()), *files)

    def tokens(self, table: YamlTable) -> oauth2.ClientCredentials:
        for key in ("token_url", "client_id"):
            if not table.get(key):
                raise ValueError(f"oauth2 needs a `{key}`")
        if not str(table["token_url"]).startswith(("http://", "https://")):
            raise ValueError(f"oauth2 needs an http or https `token_url`, found {quote(table['token_url'])}")
        self.report_unknown_keys("oauth2", table, prometheus_keys.KEYS["oauth2"])
        return oauth2.ClientCredentials(
            token_url=str(table["token_url"]),
            client_id=str(table["client_id"]),
            client_secret=str(table.get("client_secret") or ""),
            client_secret_file=self.file(table.get("client_secret_file")),
            scopes=tuple(table.read_texts("scopes")),
            parameters=tuple(sorted(table.read_labels("endpoint_params").items())),
            access=self.access(table),
        )

    def rule(self, table: YamlTable) -> relabel.RelabelRule:
        self.report_unknown_keys("relabel rule", table, prometheus_keys.KEYS["relabel rule"])
        texts = {name: table[name] for name in ("separator", "regex", "target_label", "replacement") if name in table}
        arguments = {name: "" if value is None else str(value) for name, value in texts.items()}
        action = str(table.get("action") or relabel.RelabelAction.REPLACE).lower()
        if action not in set(relabel.RelabelAction):
            raise ValueError(f"relabel action {quote(action)} is not one of {', '.join(relabel.RelabelAction)}")
        sources = tuple(table.read_texts("source_labels"))
        modulus = table.read_count("modulus")
        try:
            return relabel.RelabelRule(
                source_labels=sources, action=relabel.RelabelAction(action), modulus=modulus, **arguments
            )
        except ValueError as error:
            raise ValueError(f"line {table.first_line}: {error}") from error

    def tables(self, table: YamlTable, key: str) -> Iterator[YamlTable]:
        entries = table.get(key) or []
        for item in entries if isinstance(entries, list) else [entries]:
            if isinstance(item, YamlTable):
                yield item
            else:
                self.add_problem(table.lines[key], f"`{key}` must be a list of tables, found {quote(item)}")

    def file(self, path: object) -> str:
        return self.resolve(str(path)) if path else ""

    def resolve(self, path: str) -> str:
        """A relative path starts at the directory of its file, as in Prometheus."""
        return str(self.path.parent / path)

    def add_problem(self, line: int, problem: str) -> None:
        self.problems.append(f"{self.path}:{line}: {problem}")


def _escaping(table: YamlTable) -> str:
    """How to escape names outside [a-zA-Z0-9_:]: not at all, unless the job uses the legacy scheme."""
    is_legacy = str(table.get("metric_name_validation_scheme") or "utf8") == "legacy"
    scheme = str(table.get("metric_name_escaping_scheme") or ("underscores" if is_legacy else "allow-utf-8"))
    if scheme not in page_formats.ESCAPINGS:
        raise ValueError(
            f"metric_name_escaping_scheme must be one of {', '.join(page_formats.ESCAPINGS)}, found {quote(scheme)}"
        )
    return scheme
