"""An existing prometheus.yml, read as it is: its scrape_configs become jobs, its rule_files a list of files.

`discovery` keeps a `Reader` and asks it before each refresh, so that an edited file takes effect without a
restart; the hub takes the rule files at start. What is not known here is named with file and line and left
out; the rest of the file counts. Nothing is written back.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from watchkeeper.errors import CollectError, quote
from watchkeeper.kit import durations, files
from watchkeeper.model import labels
from watchkeeper.net import oauth2
from watchkeeper.net.access import NO_ACCESS, Access
from watchkeeper.scrape import page_formats, relabel
from watchkeeper.scrape.jobs import DiscoveryKind, LabelLimits, ScrapeJob, TargetListLocation
from watchkeeper.scrape.page_formats import PROTOBUF
from watchkeeper.scrape.prometheus_keys import (
    CLASSIC_KEYS,
    IGNORED,
    INHERITED,
    INSTEAD,
    JOB_KEYS,
    KEYS,
    NOT_KEPT,
    OWN_HEADERS,
    PROTOCOLS,
    SD,
)
from watchkeeper.scrape.prometheus_yaml import (
    YamlTable,
    label_texts,
    parse_file,
    parse_size,
    read_bool,
    read_count,
    texts,
)

# Prometheus' own defaults.
INTERVAL_SECONDS, TIMEOUT_SECONDS = 60.0, 10.0


@dataclass(frozen=True, slots=True)
class PrometheusConfig:
    """What was understood of a file, and what was not."""

    jobs: tuple[ScrapeJob, ...] = ()
    rule_files: tuple[str, ...] = ()
    cluster: str | None = None
    problems: tuple[str, ...] = ()


class ConfigReader:
    """One file, read again when it changes; a file that breaks leaves the jobs in force."""

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
    """Read one file; CollectError if it is not YAML or no configuration at all."""
    try:
        return _ConfigFileReader(path).whole()
    except ValueError as error:
        raise CollectError(f"`global`: {error}", where=str(path)) from error


def rule_paths(path: Path) -> list[Path]:
    """The rule files that a prometheus.yml names, patterns resolved, in their order."""
    return [Path(found) for pattern in load(path).rule_files for found in sorted(glob.glob(pattern))]


@dataclass
class _ConfigFileReader:
    """Walks one file; every problem is kept and reading goes on."""

    path: Path
    problems: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(
        default_factory=lambda: {"scrape_interval": INTERVAL_SECONDS, "scrape_timeout": TIMEOUT_SECONDS}
    )
    # What jobs have from `global`.
    inherited: YamlTable = field(default_factory=YamlTable)

    def whole(self) -> PrometheusConfig:
        root = parse_file(self.path)
        shared = root.get("global")
        if isinstance(shared, YamlTable):
            self.seconds |= {name: self.duration(shared, name, self.seconds[name]) for name in self.seconds}
            for key in INHERITED & shared.keys():
                self.inherited[key], self.inherited.lines[key] = shared[key], shared.lines[key]
        outside = shared.get("external_labels") if isinstance(shared, YamlTable) else None
        jobs = list(self.jobs(root))
        for pattern in texts(root.get("scrape_config_files")):
            for found in sorted(glob.glob(self.resolve(pattern))):
                more = _ConfigFileReader(Path(found), self.problems, self.seconds, self.inherited)
                jobs += more.jobs(parse_file(more.path))
        return PrometheusConfig(
            tuple(jobs),
            tuple(self.resolve(pattern) for pattern in texts(root.get("rule_files"))),
            outside.get("cluster") if isinstance(outside, YamlTable) else None,
            tuple(self.problems),
        )

    def jobs(self, root: YamlTable) -> Iterator[ScrapeJob]:
        seen: set[str] = set()
        for table in self.tables(root, "scrape_configs"):
            name = str(table.get("job_name") or "")
            line = min(table.lines.values(), default=0)
            if not name or name in seen:
                self.complain(
                    line, f"a scrape config needs a `job_name` of its own, found {quote(name)}; it is skipped"
                )
                continue
            seen.add(name)
            table.inherit(self.inherited)
            try:
                yield self.job(name, table)
            except ValueError as error:
                self.complain(line, f"job {name} is skipped: {error}")

    def job(self, name: str, table: YamlTable) -> ScrapeJob:
        interval = self.duration(table, "scrape_interval", self.seconds["scrape_interval"])
        timeout = min(self.duration(table, "scrape_timeout", self.seconds["scrape_timeout"]), interval)
        self.name_unknown(f"job {name}", table, JOB_KEYS)
        for key, (default, instead) in NOT_KEPT.items():
            if str(table.get(key) or default).lower() != default:
                self.complain(table.lines[key], f"job {name}: `{key}: {table[key]}` is not kept here; {instead}")
        params = table.get("params")
        protocols = self.protocols(table)
        return ScrapeJob(
            name=name,
            places=tuple(self.places(name, table)),
            interval_seconds=interval,
            timeout_seconds=timeout,
            scheme=str(table.get("scheme") or "http").lower(),
            metrics_path=str(table.get("metrics_path") or "/metrics"),
            params=tuple((key, tuple(texts(value))) for key, value in params.items())
            if isinstance(params, YamlTable)
            else (),
            honor_labels=read_bool(table, "honor_labels", False),
            honor_timestamps=read_bool(table, "honor_timestamps", True),
            native_histograms=PROTOBUF in protocols,
            protocols=protocols,
            escaping=_escaping(table),
            classic_histograms=any(read_bool(table, key, False) for key in CLASSIC_KEYS),
            access=self.access(table),
            rules=self.rules(table, "relabel_configs"),
            metric_rules=self.rules(table, "metric_relabel_configs"),
            max_series=read_count(table, "sample_limit") or None,
            max_body_bytes=parse_size(str(table.get("body_size_limit") or "0")) or None,
            max_targets=read_count(table, "target_limit") or None,
            label_limits=LabelLimits(
                read_count(table, "label_limit"),
                read_count(table, "label_name_length_limit"),
                read_count(table, "label_value_length_limit"),
            ),
        )

    def protocols(self, table: YamlTable) -> tuple[str, ...]:
        """What pages are asked for as, the best first; protobuf, which is slow, where native histograms are wanted.

        They are where the job says so, or where protobuf is its first protocol.
        """
        listed = texts(table.get("scrape_protocols"))
        if unknown := [name for name in listed if name not in page_formats.PROTOCOLS]:
            raise ValueError(f"scrape_protocols has {quote(unknown[0])}; known are {', '.join(page_formats.PROTOCOLS)}")
        is_native = read_bool(table, "scrape_native_histograms", listed[:1] == [PROTOBUF])
        if is_native:
            return tuple(listed) or (PROTOBUF, *PROTOCOLS)
        return tuple(name for name in listed if name != PROTOBUF) or PROTOCOLS

    def name_unknown(self, where: str, table: YamlTable, known: Set[str]) -> None:
        for key in sorted(table.keys() - known - IGNORED, key=table.lines.__getitem__):
            if not key.endswith(SD):
                self.complain(table.lines[key], f"{where}: `{key}` is not known here and left out")

    def places(self, name: str, table: YamlTable) -> Iterator[TargetListLocation]:
        readers: dict[str, Callable[[YamlTable], Iterator[TargetListLocation]]] = {
            "file_sd_configs": self.files,
            "http_sd_configs": self.addresses,
            "dns_sd_configs": self.names,
        }
        for group in self.tables(table, "static_configs"):
            self.name_unknown(f"job {name}: static_configs", group, KEYS["static_configs"])
        groups = tuple(
            (tuple(texts(group.get("targets"))), labels.Labels(label_texts(group.get("labels"))))
            for group in self.tables(table, "static_configs")
        )
        if groups:
            yield TargetListLocation(DiscoveryKind.STATIC, f"{self.path}: job {name}", groups=groups)
        for key in [key for key in table if key.endswith(SD)]:
            read = readers.get(key)
            if read is None:
                kind = key.removesuffix("_configs")
                instead = INSTEAD.get(kind, "have its targets written to a list for file_sd or http_sd")
                self.complain(table.lines[key], f"job {name}: {kind} is not read here and skipped; {instead}")
                continue
            for each in self.tables(table, key):
                self.name_unknown(f"job {name}: {key}", each, KEYS[key])
                yield from read(each)

    def files(self, table: YamlTable) -> Iterator[TargetListLocation]:
        for pattern in texts(table.get("files")):
            yield TargetListLocation(DiscoveryKind.FILE, self.resolve(pattern))

    def addresses(self, table: YamlTable) -> Iterator[TargetListLocation]:
        url = str(table.get("url") or "")
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"http_sd needs an http or https `url`, found {quote(url)}")
        yield TargetListLocation(DiscoveryKind.HTTP, url, access=self.access(table))

    def names(self, table: YamlTable) -> Iterator[TargetListLocation]:
        record, port = str(table.get("type") or "SRV").upper(), read_count(table, "port")
        if record not in ("A", "AAAA", "SRV"):
            line = min(table.lines.values(), default=0)
            self.complain(line, f"dns_sd of type {record} is not read here and skipped; known: SRV, A, AAAA")
            return
        if record != "SRV" and not 0 < port < 65_536:
            raise ValueError(f"dns_sd of type {record} needs a `port` from 1 to 65535, found {port}")
        for name in texts(table.get("names")):
            yield TargetListLocation(DiscoveryKind.DNS, name, record=record, port=port)

    def access(self, table: YamlTable) -> Access:
        tables = {key: self.inner(table, key) for key in ("basic_auth", "authorization", "tls_config")}
        for key, inner in tables.items():
            self.name_unknown(key, inner, KEYS[key])
        basic, bearer, tls = tables.values()
        found = {
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
        given: dict[str, Any] = {name: str(value) for name, value in found.items() if value}
        if read_bool(tls, "insecure_skip_verify", False):
            given["insecure_skip_verify"] = True
        for name, values in self.inner(table, "http_headers").items():
            self.header(name, values, given)
        if isinstance(table.get("oauth2"), YamlTable):
            given["tokens"] = self.tokens(table["oauth2"])
        if proxy := str(table.get("proxy_url") or ""):
            if urlsplit(proxy).scheme != "http" or not urlsplit(proxy).hostname:
                raise ValueError(f"proxy_url must be an http address, found {quote(proxy)}")
            given["proxy_url"] = proxy
            given["no_proxy"] = tuple(one.strip() for one in str(table.get("no_proxy") or "").split(",") if one.strip())
        return Access(**given) if given else NO_ACCESS

    def header(self, name: str, values: object, given: dict[str, Any]) -> None:
        """One entry of `http_headers`: values as they are, and values in files."""
        is_name = name.isascii() and name.replace("-", "").isalnum() and name.lower() not in OWN_HEADERS
        if not is_name or not isinstance(values, YamlTable):
            raise ValueError(f"http_headers: {quote(name)} is no header that can be set, or has no values")
        self.name_unknown(f"http_headers: {name}", values, KEYS["http_headers"])
        shown = (*texts(values.get("values")), *texts(values.get("secrets")))
        if any(not text.isprintable() for text in shown):
            raise ValueError(f"http_headers: a value of {name} has characters that no header may have")
        files = tuple((name, self.resolve(path)) for path in texts(values.get("files")))
        given["extra"] = (*given.get("extra", ()), *((name, text) for text in shown))
        given["extra_files"] = (*given.get("extra_files", ()), *files)

    def tokens(self, table: YamlTable) -> oauth2.ClientCredentials:
        for key in ("token_url", "client_id"):
            if not table.get(key):
                raise ValueError(f"oauth2 needs a `{key}`")
        if not str(table["token_url"]).startswith(("http://", "https://")):
            raise ValueError(f"oauth2 needs an http or https `token_url`, found {quote(table['token_url'])}")
        self.name_unknown("oauth2", table, KEYS["oauth2"])
        return oauth2.ClientCredentials(
            token_url=str(table["token_url"]),
            client_id=str(table["client_id"]),
            client_secret=str(table.get("client_secret") or ""),
            client_secret_file=self.file(table.get("client_secret_file")),
            scopes=tuple(texts(table.get("scopes"))),
            parameters=tuple(sorted(label_texts(table.get("endpoint_params")).items())),
            access=self.access(table),
        )

    def rules(self, table: YamlTable, key: str) -> tuple[relabel.RelabelRule, ...]:
        return tuple(self.rule(each) for each in self.tables(table, key))

    def rule(self, table: YamlTable) -> relabel.RelabelRule:
        self.name_unknown("relabel rule", table, KEYS["relabel rule"])
        known = {
            name: str(table[name]) for name in ("separator", "regex", "target_label", "replacement") if name in table
        }
        known = {name: "" if table[name] is None else value for name, value in known.items()}
        action = str(table.get("action") or relabel.RelabelAction.REPLACE).lower()
        if action not in set(relabel.RelabelAction):
            raise ValueError(f"relabel action {quote(action)} is not one of {', '.join(relabel.RelabelAction)}")
        sources = tuple(texts(table.get("source_labels")))
        modulus = read_count(table, "modulus")
        try:
            return relabel.RelabelRule(
                source_labels=sources, action=relabel.RelabelAction(action), modulus=modulus, **known
            )
        except ValueError as error:
            raise ValueError(f"line {min(table.lines.values(), default=0)}: {error}") from error

    def tables(self, table: YamlTable, key: str) -> Iterator[YamlTable]:
        found = table.get(key) or []
        for item in found if isinstance(found, list) else [found]:
            if isinstance(item, YamlTable):
                yield item
            else:
                self.complain(table.lines[key], f"`{key}` must be a list of tables, found {quote(item)}")

    def inner(self, table: YamlTable, key: str) -> YamlTable:
        found = table.get(key)
        if found is None or isinstance(found, YamlTable):
            return found or YamlTable()
        raise ValueError(f"`{key}` must be a table, found {quote(found)}")

    def duration(self, table: YamlTable, key: str, default: float) -> float:
        text = table.get(key)
        if text is None:
            return default
        try:
            seconds = durations.parse_seconds(str(text))
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from error
        if seconds <= 0:
            raise ValueError(f"{key} must be longer than 0s")
        return seconds

    def file(self, path: object) -> str:
        return self.resolve(str(path)) if path else ""

    def resolve(self, path: str) -> str:
        """A relative path counts from the directory of the file it stands in, as in Prometheus."""
        return str(self.path.parent / path)

    def complain(self, line: int, problem: str) -> None:
        self.problems.append(f"{self.path}:{line}: {problem}")


def _escaping(table: YamlTable) -> str:
    """How names beyond [a-zA-Z0-9_:] are to come: as they are, unless the job wants them as they were before."""
    is_legacy = str(table.get("metric_name_validation_scheme") or "utf8") == "legacy"
    found = str(table.get("metric_name_escaping_scheme") or ("underscores" if is_legacy else "allow-utf-8"))
    if found not in page_formats.ESCAPINGS:
        raise ValueError(
            f"metric_name_escaping_scheme is one of {', '.join(page_formats.ESCAPINGS)}, found {quote(found)}"
        )
    return found
