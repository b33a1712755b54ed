"""An existing prometheus.yml, read as it is: its scrape_configs become jobs, its rule_files a list of files.

`discovery` keeps a `Reader` and asks it before each refresh, so that an edited file takes effect without a
restart; the hub takes the rule files at start. What is not known here is named with file and line and left
out; the rest of the file counts. Nothing is written back.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from watchkeeper.collect import oauth2, relabel
from watchkeeper.collect.jobs import Job, Kind, Place
from watchkeeper.errors import CollectError, quote
from watchkeeper.kit import durations
from watchkeeper.kit.access import NOTHING, Access
from watchkeeper.model import labels

# Prometheus' own defaults.
INTERVAL_SECONDS, TIMEOUT_SECONDS = 60.0, 10.0
SIZES = {"": 1, "B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
SD = "_sd_configs"
# Keys that change nothing here: other formats, protocols or limits than those that the scraper has.
IGNORED = frozenset(
    {
        *("fallback_scrape_protocol", "enable_compression", "follow_redirects", "enable_http2"),
        *("track_timestamps_staleness", "convert_classic_histograms_to_nhcb", "native_histogram_bucket_limit"),
        *("native_histogram_min_bucket_factor", "metric_name_validation_scheme", "metric_name_escaping_scheme"),
        *("target_limit", "label_limit", "label_name_length_limit", "label_value_length_limit", "keep_dropped_targets"),
        *("scrape_failure_log_file", "extra_scrape_metrics"),
    }
)
JOB_KEYS = frozenset(
    {
        *("job_name", "scrape_interval", "scrape_timeout", "metrics_path", "scheme", "params", "honor_labels"),
        *("honor_timestamps", "static_configs", "relabel_configs", "metric_relabel_configs", "sample_limit"),
        *("body_size_limit", "basic_auth", "authorization", "bearer_token", "bearer_token_file", "tls_config"),
        *("oauth2", "proxy_url", "no_proxy", "scrape_protocols", "scrape_native_histograms"),
        *("scrape_classic_histograms", "always_scrape_classic_histograms"),
    }
)
# Until Prometheus 3 the first name.
CLASSIC_KEYS = ("scrape_classic_histograms", "always_scrape_classic_histograms")
PROTOBUF = "PrometheusProto"
OAUTH2_KEYS = frozenset(
    {
        *("token_url", "client_id", "client_secret", "client_secret_file", "scopes", "endpoint_params"),
        *("tls_config", "proxy_url", "no_proxy"),
    }
)


@dataclass(frozen=True, slots=True)
class PrometheusConfig:
    """What was understood of a file, and what was not."""

    jobs: tuple[Job, ...] = ()
    rule_files: tuple[str, ...] = ()
    cluster: str | None = None
    problems: tuple[str, ...] = ()


class Reader:
    """One file, read again when it changes; a file that breaks leaves the jobs in force."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found = PrometheusConfig()
        self.problems: tuple[str, ...] = ()
        self._stamp: tuple[int, int] | None = None

    def reread(self) -> bool:
        """True if the jobs may have changed."""
        try:
            stat = self.path.stat()
            if (stat.st_mtime_ns, stat.st_size) == self._stamp:
                return False
            self.found = load(self.path)
            self._stamp, self.problems = (stat.st_mtime_ns, stat.st_size), self.found.problems
        except (OSError, CollectError) as error:
            now = f"The {len(self.found.jobs)} jobs read before stay in force"
            self.problems = (f"{error}. {now}",)
            return False
        return True


class Table(dict[str, Any]):
    """A YAML mapping whose scalars are the text they are written in; `lines` has the line of each key."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, int] = {}


def load(path: Path) -> PrometheusConfig:
    """Read one file; CollectError if it is not YAML or no configuration at all."""
    try:
        return _Reading(path).whole()
    except ValueError as error:
        raise CollectError(f"`global`: {error}", where=str(path)) from error


def rule_paths(path: Path) -> list[Path]:
    """The rule files that a prometheus.yml names, patterns resolved, in their order."""
    return [Path(found) for pattern in load(path).rule_files for found in sorted(glob.glob(pattern))]


@dataclass
class _Reading:
    """Walks one file; every problem is kept and reading goes on."""

    path: Path
    problems: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(
        default_factory=lambda: {"scrape_interval": INTERVAL_SECONDS, "scrape_timeout": TIMEOUT_SECONDS}
    )
    native: bool = False

    def whole(self) -> PrometheusConfig:
        root = _parse(self.path)
        shared = root.get("global")
        if isinstance(shared, Table):
            self.seconds |= {name: self.duration(shared, name, self.seconds[name]) for name in self.seconds}
            self.native = self.wants_native(shared)
        outside = shared.get("external_labels") if isinstance(shared, Table) else None
        jobs = list(self.jobs(root))
        for pattern in _texts(root.get("scrape_config_files")):
            for found in sorted(glob.glob(self.resolve(pattern))):
                more = _Reading(Path(found), self.problems, self.seconds, self.native)
                jobs += more.jobs(_parse(more.path))
        return PrometheusConfig(
            tuple(jobs),
            tuple(self.resolve(pattern) for pattern in _texts(root.get("rule_files"))),
            outside.get("cluster") if isinstance(outside, Table) else None,
            tuple(self.problems),
        )

    def jobs(self, root: Table) -> Iterator[Job]:
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
            try:
                yield self.job(name, table)
            except ValueError as error:
                self.complain(line, f"job {name} is skipped: {error}")

    def job(self, name: str, table: Table) -> Job:
        interval = self.duration(table, "scrape_interval", self.seconds["scrape_interval"])
        timeout = min(self.duration(table, "scrape_timeout", self.seconds["scrape_timeout"]), interval)
        for key in table.keys() - JOB_KEYS - IGNORED:
            if not key.endswith(SD):
                self.complain(table.lines[key], f"job {name}: `{key}` is not known here and left out")
        params = table.get("params")
        limit = _number(table, "sample_limit")
        return Job(
            name=name,
            places=tuple(self.places(name, table)),
            interval_seconds=interval,
            timeout_seconds=timeout,
            scheme=str(table.get("scheme") or "http").lower(),
            metrics_path=str(table.get("metrics_path") or "/metrics"),
            params=tuple((key, tuple(_texts(value))) for key, value in params.items())
            if isinstance(params, Table)
            else (),
            honor_labels=_truth(table, "honor_labels", False),
            honor_timestamps=_truth(table, "honor_timestamps", True),
            native_histograms=self.wants_native(table),
            classic_histograms=any(_truth(table, key, False) for key in CLASSIC_KEYS),
            access=self.access(table),
            rules=self.rules(table, "relabel_configs"),
            metric_rules=self.rules(table, "metric_relabel_configs"),
            max_series=limit or None,
            max_body_bytes=_size(str(table.get("body_size_limit") or "0")) or None,
        )

    def wants_native(self, table: Table) -> bool:
        """Whether pages are read as protobuf: where that is the first protocol, or native histograms are asked for."""
        protocols = _texts(table.get("scrape_protocols"))
        by_protocol = protocols[0] == PROTOBUF if protocols else self.native
        return _truth(table, "scrape_native_histograms", by_protocol)

    def places(self, name: str, table: Table) -> Iterator[Place]:
        readers: dict[str, Callable[[Table], Iterator[Place]]] = {
            "file_sd_configs": self.files,
            "http_sd_configs": self.addresses,
            "dns_sd_configs": self.names,
        }
        groups = tuple(
            (tuple(_texts(group.get("targets"))), labels.Labels(_label_texts(group.get("labels"))))
            for group in self.tables(table, "static_configs")
        )
        if groups:
            yield Place(Kind.STATIC, f"{self.path}: job {name}", groups=groups)
        for key in [key for key in table if key.endswith(SD)]:
            read = readers.get(key)
            if read is None:
                kind = key.removesuffix("_configs")
                words = f"job {name}: {kind} is not read here and skipped; known: static, file_sd, http_sd, dns_sd"
                self.complain(table.lines[key], words)
                continue
            for each in self.tables(table, key):
                yield from read(each)

    def files(self, table: Table) -> Iterator[Place]:
        for pattern in _texts(table.get("files")):
            yield Place(Kind.FILE, self.resolve(pattern))

    def addresses(self, table: Table) -> Iterator[Place]:
        url = str(table.get("url") or "")
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"http_sd needs an http or https `url`, found {quote(url)}")
        yield Place(Kind.HTTP, url, access=self.access(table))

    def names(self, table: Table) -> Iterator[Place]:
        record, port = str(table.get("type") or "SRV").upper(), _number(table, "port")
        if record not in ("A", "AAAA", "SRV"):
            line = min(table.lines.values(), default=0)
            self.complain(line, f"dns_sd of type {record} is not read here and skipped; known: SRV, A, AAAA")
            return
        if record != "SRV" and not 0 < port < 65_536:
            raise ValueError(f"dns_sd of type {record} needs a `port` from 1 to 65535, found {port}")
        for name in _texts(table.get("names")):
            yield Place(Kind.DNS, name, record=record, port=port)

    def access(self, table: Table) -> Access:
        basic, bearer, tls = (table.get(key) or Table() for key in ("basic_auth", "authorization", "tls_config"))
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
        if _truth(tls, "insecure_skip_verify", False):
            given["insecure_skip_verify"] = True
        if isinstance(table.get("oauth2"), Table):
            given["tokens"] = self.tokens(table["oauth2"])
        if proxy := str(table.get("proxy_url") or ""):
            if urlsplit(proxy).scheme != "http" or not urlsplit(proxy).hostname:
                raise ValueError(f"proxy_url must be an http address, found {quote(proxy)}")
            given["proxy_url"] = proxy
            given["no_proxy"] = tuple(one.strip() for one in str(table.get("no_proxy") or "").split(",") if one.strip())
        return Access(**given) if given else NOTHING

    def tokens(self, table: Table) -> oauth2.ClientCredentials:
        for key in ("token_url", "client_id"):
            if not table.get(key):
                raise ValueError(f"oauth2 needs a `{key}`")
        if not str(table["token_url"]).startswith(("http://", "https://")):
            raise ValueError(f"oauth2 needs an http or https `token_url`, found {quote(table['token_url'])}")
        for key in table.keys() - OAUTH2_KEYS:
            self.complain(table.lines[key], f"oauth2: `{key}` is not known here and left out")
        return oauth2.ClientCredentials(
            token_url=str(table["token_url"]),
            client_id=str(table["client_id"]),
            client_secret=str(table.get("client_secret") or ""),
            client_secret_file=self.file(table.get("client_secret_file")),
            scopes=tuple(_texts(table.get("scopes"))),
            parameters=tuple(sorted(_label_texts(table.get("endpoint_params")).items())),
            access=self.access(table),
        )

    def rules(self, table: Table, key: str) -> tuple[relabel.Rule, ...]:
        return tuple(self.rule(each) for each in self.tables(table, key))

    def rule(self, table: Table) -> relabel.Rule:
        known = {
            name: str(table[name]) for name in ("separator", "regex", "target_label", "replacement") if name in table
        }
        known = {name: "" if table[name] is None else value for name, value in known.items()}
        action = str(table.get("action") or relabel.Action.REPLACE).lower()
        if action not in set(relabel.Action):
            raise ValueError(f"relabel action {quote(action)} is not one of {', '.join(relabel.Action)}")
        sources = tuple(_texts(table.get("source_labels")))
        modulus = _number(table, "modulus")
        try:
            return relabel.Rule(source_labels=sources, action=relabel.Action(action), modulus=modulus, **known)
        except ValueError as error:
            raise ValueError(f"line {min(table.lines.values(), default=0)}: {error}") from error

    def tables(self, table: Table, key: str) -> Iterator[Table]:
        found = table.get(key) or []
        for item in found if isinstance(found, list) else [found]:
            if isinstance(item, Table):
                yield item
            else:
                self.complain(table.lines[key], f"`{key}` must be a list of tables, found {quote(item)}")

    def duration(self, table: Table, key: str, default: float) -> float:
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


def _parse(path: Path) -> Table:
    try:
        root = _plain(yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise CollectError(f"cannot be read: {reason}", where=str(path)) from error
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = str(path) if mark is None else f"{path}:{mark.line + 1}"
        raise CollectError(f"not YAML: {getattr(error, 'problem', None) or error}", where=where) from error
    if not isinstance(root, Table):
        raise CollectError("is not a Prometheus configuration: expected keys such as scrape_configs", where=str(path))
    return root


def _plain(node: yaml.Node | None) -> Any:
    if isinstance(node, yaml.MappingNode):
        table = Table()
        for key, value in node.value:
            table[str(key.value)] = _plain(value)
            table.lines[str(key.value)] = key.start_mark.line + 1
        return table
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item) for item in node.value]
    if node is None or node.tag == "tag:yaml.org,2002:null":
        return None
    return str(node.value)


def _texts(found: object) -> list[str]:
    items = found if isinstance(found, list) else [] if found is None else [found]
    return [str(item) for item in items if item is not None]


def _label_texts(found: object) -> dict[str, str]:
    return {name: str(value) for name, value in found.items() if value is not None} if isinstance(found, Table) else {}


def _truth(table: Table, key: str, default: bool) -> bool:
    text = table.get(key)
    if text is None:
        return default
    if str(text).lower() not in ("true", "false"):
        raise ValueError(f"{key} must be true or false, found {quote(text)}")
    return str(text).lower() == "true"


def _number(table: Table, key: str) -> int:
    text = str(table.get(key) or "0")
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise ValueError(f"{key} must be a whole number, found {quote(text)}")
    return int(text)


def _size(text: str) -> int:
    digits = text.rstrip("BKMGibkmg")
    unit = text[len(digits) :].upper()
    if not (digits.isascii() and digits.isdigit()) or unit not in SIZES:
        raise ValueError(f"body_size_limit must be a size such as 10MB, found {quote(text)}")
    return int(digits) * SIZES[unit]
