"""Every setting with its name, type, default, help and check.

`loading` fills them from the file and the command line; `hub.py` passes each section to its stage;
docs/reference/settings.md is generated from them. Relative paths start at the directory of the settings file, or at the
working directory without a file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from watchkeeper import __version__
from watchkeeper.config.checks import (
    at_least_one,
    at_least_one_minute,
    http_address,
    network,
    not_empty,
    not_negative,
    percentage,
    port_number,
    positive_duration,
    valid_headers,
)
from watchkeeper.kit import durations, quiet_hours
from watchkeeper.model import trust

Check = Callable[[Any], None]
"""Raises ValueError if a value of the right type is invalid."""


def setting(default: Any, help: str, *, check: Check | None = None) -> Any:
    """A dataclass field with its help text, and a check that its type cannot express."""
    return dataclasses.field(default=default, metadata={"help": help, "check": check})


def duration(default: str, help: str) -> Any:
    return setting(default, help, check=positive_duration)


def positive(default: int, help: str) -> Any:
    return setting(default, help, check=at_least_one)


class Seconds:
    """The value of a duration setting in seconds."""

    def __init__(self, setting_name: str) -> None:
        self._setting_name = setting_name

    def __get__(self, section: object, _: type) -> float:
        return durations.parse_seconds(getattr(section, self._setting_name))


# Our agent, the GPU Operator's exporter, and the exporter's own chart.
KUBERNETES_TARGETS = (
    "app.kubernetes.io/name=watchkeeper-agent",
    "app=nvidia-dcgm-exporter",
    "app.kubernetes.io/name=dcgm-exporter",
)


class QueryEngine(StrEnum):
    EMBEDDED = "embedded"
    PROMETHEUS = "prometheus"


class RuleOwner(StrEnum):
    WATCHKEEPER = "watchkeeper"
    SERVER = "server"


class KubernetesSeries(StrEnum):
    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class NotifyVia(StrEnum):
    CONSOLE = "console"
    RECEIVERS = "receivers"
    ALERTMANAGER = "alertmanager"


class DriverName(StrEnum):
    DRY_RUN = "dry_run"
    SIMULATED = "simulated"
    KUBERNETES = "kubernetes"
    SLURM = "slurm"


class RunningJobs(StrEnum):
    WAIT = "wait"
    REQUEUE = "requeue"


@dataclass(frozen=True, slots=True)
class HubSettings:
    """Where the hub listens, where it stores its data, and how users log in."""

    host: str = setting(
        "127.0.0.1", "Listen address. An address other than loopback requires `tokens` or `users`.", check=not_empty
    )
    port: int = setting(9480, "Port of the console and the API. 0 selects any free port.", check=port_number)
    data: str = setting("data", "Data directory. Only this hub may use it.", check=not_empty)
    tokens: str | None = setting(
        None,
        "File of access tokens with their roles. Without `tokens` and `users`, the hub listens on loopback only and"
        " needs no login.",
    )
    users: str | None = setting(None, "File of users and their password hashes. `watchkeeper users` writes it.")
    session_key_file: str | None = setting(
        None,
        "File of the key for login sessions, the same for all hubs. If not set, `session.key` in `data` is created.",
    )
    tls_cert_file: str | None = setting(
        None, "Certificate file for HTTPS, reloaded when it changes. If not set, the hub serves plain HTTP."
    )
    tls_key_file: str | None = setting(
        None, "Private key file of `tls_cert_file`. If not set, that file contains the key too."
    )
    tls_client_ca_file: str | None = setting(
        None, "File of CA certificates for clients. If set, each client needs a certificate of one of these CAs."
    )
    trusted_proxies: tuple[str, ...] = setting(
        (), "Addresses or networks of proxies. The hub trusts their `X-Forwarded-For` and `X-Forwarded-Proto` headers."
    )
    proxy_user_header: str | None = setting(
        None, "Header in which a trusted proxy sends the logged-in user, such as `X-Forwarded-User` of oauth2-proxy."
    )
    proxy_role: str | None = setting(
        None, "Role of users from `proxy_user_header` who are not in `users`. If not set, their login fails."
    )
    order_key_file: str | None = setting(
        None, "File of the key that signs work orders for agents. If not set, the hub sends no work orders."
    )

    def __post_init__(self) -> None:
        for text in self.trusted_proxies:
            network(text)
        if self.proxy_user_header is not None and not self.trusted_proxies:
            raise ValueError("`proxy_user_header` requires the proxy's address in `trusted_proxies`")
        if self.proxy_role not in (None, "viewer", "operator", "admin"):
            raise ValueError(f"`proxy_role` is `{self.proxy_role}`, not one of viewer, operator, admin")
        if self.tls_cert_file is None and (self.tls_key_file or self.tls_client_ca_file):
            raise ValueError("`tls_key_file` and `tls_client_ca_file` require a certificate in `tls_cert_file`")


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """The clusters and targets to monitor, and how often the hub scrapes them."""

    cluster: str = setting("main", "Cluster of targets and nodes for which discovery sets none.", check=not_empty)
    sd_files: tuple[str, ...] = setting((), "Prometheus file_sd files that list targets.")
    sd_urls: tuple[str, ...] = setting((), "Prometheus http_sd URLs that list targets.")
    prometheus_config: str | None = setting(
        None, "Path of a prometheus.yml. The hub also scrapes its scrape_configs and evaluates its rule_files."
    )
    kubernetes: bool = setting(False, "Monitor the Kubernetes cluster that this hub runs in.")
    kubeconfig: str | None = setting(
        None, "Path of a kubeconfig file. The hub monitors its cluster instead of its own."
    )
    kubernetes_context: str | None = setting(None, "Context of `kubeconfig`. If not set, its current context.")
    kubernetes_targets: tuple[str, ...] = setting(
        KUBERNETES_TARGETS, "Labels of the pods to scrape, by priority. The hub scrapes one pod on each node."
    )
    kubernetes_series: KubernetesSeries = setting(
        KubernetesSeries.AUTO,
        "Whether to write the series of kube-state-metrics. `auto`: unless a kube-state-metrics is scraped.",
    )
    slurm: bool = setting(False, "Read the Slurm cluster of this machine with the Slurm commands.")
    slurm_rest_url: str | None = setting(
        None, "URL of slurmrestd, used instead of the commands: `http://slurm:6820` or `unix:///run/slurmrestd.sock`."
    )
    slurm_token_file: str | None = setting(None, "File of the JWT for slurmrestd. It is read for each request.")
    slurm_user: str | None = setting(None, "User name for `slurm_token_file`.")
    slurm_interval: str = duration("15s", "Interval between two reads of Slurm's state.")
    slurm_agent_port: int = setting(
        9400, "Port of the agents on Slurm nodes. 0: the nodes are in the inventory but not scraped.", check=port_number
    )
    inventory: str | None = setting(
        None, "TOML or YAML file of nodes and teams: rack, leaf, pool, NVLink domain, expected GPUs, owners."
    )
    scrape: bool = setting(
        True, "Whether the hub scrapes targets. If `false`, another server does, and target lists only define nodes."
    )
    scrape_interval: str = duration("15s", "Interval between two scrapes of a target.")
    scrape_timeout: str = duration("10s", "Timeout of a scrape, at most `scrape_interval`.")

    def __post_init__(self) -> None:
        url = self.slurm_rest_url
        if url is not None and not url.startswith(("http://", "https://", "unix:///")):
            raise ValueError("`slurm_rest_url` is not a URL such as http://slurm:6820 or unix:///run/rest.sock")

    slurm_interval_seconds = Seconds("slurm_interval")
    scrape_interval_seconds = Seconds("scrape_interval")

    @property
    def reads_pods(self) -> bool:
        """Whether pods of a Kubernetes cluster are targets."""
        return bool(self.kubernetes_targets) and (self.kubernetes or self.kubeconfig is not None)

    @property
    def scrape_timeout_seconds(self) -> float:
        """At most the interval, so that two scrapes of a target never overlap."""
        return min(durations.parse_seconds(self.scrape_timeout), self.scrape_interval_seconds)


@dataclass(frozen=True, slots=True)
class QuerySettings:
    """Where samples are stored, and how they are queried."""

    engine: QueryEngine = setting(
        QueryEngine.EMBEDDED,
        "What stores samples and evaluates PromQL. `prometheus`: a server with the HTTP API of Prometheus.",
    )
    data: str | None = setting(None, "Directory of the samples. If not set, `samples` in `hub.data`.")
    retention: str = duration("15d", "How long samples are kept.")
    max_disk_mebibytes: int | None = setting(
        None, "Disk limit for samples in MiB: the oldest blocks are deleted. If not set, only `retention` applies."
    )
    memory: str = duration("2h", "How long samples also stay in memory, for rules and recent queries.")
    # Unpacked chunks of all blocks together: one metric of 10,000 GPUs over six hours.
    cache_mebibytes: int = positive(128, "Memory for decompressed samples of blocks, kept for the next query, in MiB.")
    block: str = setting("30m", "Time range of a new block on disk.", check=at_least_one_minute)
    out_of_order: str = setting(
        "10m", "How much older than the newest sample of its series a sample may be. `0s` refuses all such samples."
    )
    wal: bool = setting(
        True, "Write samples to the WAL. Without it, a crash loses all samples that are not in a block."
    )
    # About 80 for each GPU, its jobs and pods included: 20,000 GPUs have 1.6 million, which take 3.5 GiB.
    max_series: int = positive(2_000_000, "Limit of active series. Samples of further series are dropped and counted.")
    max_query_mebibytes: int = positive(
        1024,
        "Memory that the results of one query may use at once in the embedded engine, in MiB; for a moment it may need"
        " four times as much. A larger query fails with status 422.",
    )
    near: bool = setting(
        False,
        "With the engine `prometheus`: evaluate rules on samples in this hub's memory (`memory`) instead of the server."
        " Use it only if this hub scrapes all targets and writes them to `write_url`.",
    )
    url: str | None = setting(None, "URL of the Prometheus server, without `/api/v1/query`.")
    write_url: str | None = setting(
        None, "Remote write URL, such as `http://prometheus:9090/api/v1/write`. If not set, no samples are written."
    )
    tenant: str | None = setting(None, "Tenant, sent to the server in the header `X-Scope-OrgID`.")
    headers: tuple[str, ...] = setting((), "Additional headers for the server, each `Name: value`.")
    headers_file: str | None = setting(None, "File of secret headers for the server, one `Name: value` on each line.")
    bearer_token_file: str | None = setting(None, "File of the bearer token for the server.")
    username: str | None = setting(None, "User name for the server.")
    password_file: str | None = setting(None, "File of the password of `username`.")
    ca_file: str | None = setting(None, "File of CA certificates for the server. If not set, those of the system.")
    client_cert_file: str | None = setting(None, "File of the client certificate for the server.")
    client_key_file: str | None = setting(
        None, "Private key file of `client_cert_file`. If not set, that file contains the key too."
    )
    insecure_skip_verify: bool = setting(False, "Do not verify the certificate of the server. For tests only.")
    timeout: str = duration("30s", "Timeout of a request to the server, including retries.")
    retries: int = setting(
        3, "How often a request is retried while the server is overloaded or unreachable.", check=not_negative
    )
    max_answer_mebibytes: int = positive(256, "Size limit of an answer of the server, in MiB.")

    def __post_init__(self) -> None:
        durations.parse_ms(self.out_of_order)
        if self.max_disk_mebibytes is not None:
            at_least_one(self.max_disk_mebibytes)
        http_address("url", self.url)
        http_address("write_url", self.write_url)
        valid_headers(self.headers)
        if self.engine is QueryEngine.PROMETHEUS and self.url is None:
            raise ValueError("the engine `prometheus` requires the URL of a server in `url`")
        if self.near and self.write_url is None:
            raise ValueError("`near` requires `write_url`, and it is not set")
        if self.bearer_token_file and self.username:
            raise ValueError("set `bearer_token_file` or `username`, not both")
        if (self.username is None) != (self.password_file is None):
            raise ValueError("`username` and `password_file` are required together, and one of them is missing")

    retention_seconds = Seconds("retention")
    timeout_seconds = Seconds("timeout")


@dataclass(frozen=True, slots=True)
class RulesSettings:
    """Which rules are evaluated, and what evaluates them."""

    owner: RuleOwner = setting(
        RuleOwner.WATCHKEEPER,
        "What evaluates the rules. `server`: Prometheus, vmalert or a ruler; the hub reads its alerts.",
    )
    server_url: str | None = setting(
        None, "URL of the server that evaluates the rules, without `/api/v1/rules`. If not set, `query.url`."
    )
    files: tuple[str, ...] = setting((), "Prometheus rule files. If empty, the rules shipped with Watchkeeper.")
    slos: str | None = setting(
        None, "File of service level objectives, from which rules are generated. If not set, the shipped examples."
    )
    interval: str = duration("15s", "Default evaluation interval of rule groups.")

    def __post_init__(self) -> None:
        http_address("server_url", self.server_url)

    interval_seconds = Seconds("interval")


@dataclass(frozen=True, slots=True)
class NotifySettings:
    """How users are notified of incidents."""

    via: NotifyVia = setting(
        NotifyVia.CONSOLE,
        "What sends notifications. `console`: nothing is sent, and incidents appear in the console only."
        " `receivers`: the hub sends them by `routes`. `alertmanager`: Alertmanager sends them by its own routes.",
    )
    routes: str | None = setting(None, 'TOML file of receivers and routes, for `via = "receivers"`.')
    alertmanager_urls: tuple[str, ...] = setting(
        (), "URLs of the Alertmanagers that receive alerts, such as `http://alertmanager:9093`."
    )
    heartbeat_file: str | None = setting(
        None, "File with a URL that the hub calls every minute. Use a service that alerts when the calls stop."
    )
    watchdog: bool = setting(
        False, "Also send Alertmanager the alert `Watchdog`, which always fires, so that you notice when alerts stop."
    )
    console_url: str | None = setting(None, "URL of the console for links in notifications.")
    webhook_silence: str = duration(
        "12h",
        "How long after its last notification an alert from Alertmanager's webhook counts as resolved. It must be"
        " longer than Alertmanager's repeat_interval.",
    )

    webhook_silence_seconds = Seconds("webhook_silence")

    def __post_init__(self) -> None:
        for url in self.alertmanager_urls:
            http_address("alertmanager_urls", url)
        http_address("console_url", self.console_url)
        if self.via is NotifyVia.RECEIVERS and self.routes is None:
            raise ValueError("`receivers` requires a file in `routes`")
        if self.via is NotifyVia.ALERTMANAGER and not self.alertmanager_urls:
            raise ValueError("`alertmanager` requires a URL in `alertmanager_urls`")


@dataclass(frozen=True, slots=True)
class CostSettings:
    """The prices of GPUs."""

    # The guides assume 3 and 10 dollars for an A100; the shipped rules use the lower price too.
    dollars_per_gpu_hour: float = setting(3.0, "Price of one GPU-hour in dollars.", check=not_negative)
    prices: str | None = setting(
        None,
        "Price book file: TOML, or OpenCost's CSV. If not set, the shipped price book, and `dollars_per_gpu_hour`"
        " for GPU models without a price.",
    )


@dataclass(frozen=True, slots=True)
class CapacitySettings:
    """Where scaling advice is sent. Watchkeeper does not scale anything itself."""

    advice_webhook: str | None = setting(None, "URL that receives scaling advice as JSON, each time that it changes.")
    advice_token_file: str | None = setting(
        None, "File of the bearer token for `advice_webhook`. It is read for each request."
    )
    advice_interval: str = duration("1h", "Interval between two calculations of advice.")

    advice_interval_seconds = Seconds("advice_interval")

    def __post_init__(self) -> None:
        http_address("advice_webhook", self.advice_webhook)


@dataclass(frozen=True, slots=True)
class TrustRule:
    """The mode for a cause, a pool, or both: one [[remediate.trust]] table."""

    mode: trust.Mode
    cause: str | None = None
    pool: str | None = None


@dataclass(frozen=True, slots=True)
class PoolQuorum:
    """How many GPUs of a pool must stay healthy for jobs of a class: one [[remediate.quorum]] table."""

    job_class: str
    pool: str
    gpus: int


@dataclass(frozen=True, slots=True)
class RemediateSettings:
    """Which repairs Watchkeeper may run, and the limits of the guards."""

    mode: trust.Mode = setting(
        trust.Mode.OBSERVE,
        "How far repairs go: `observe` runs none, `suggest` proposes plans, `ask` waits for approval, `act` runs them.",
    )
    driver: DriverName = setting(
        DriverName.DRY_RUN, "The system that repairs act on. `dry_run` logs the actions and changes nothing."
    )
    kubeconfig: str | None = setting(
        None, "Kubeconfig of a user that may cordon nodes and evict pods. If not set, the cluster of `[fleet]`."
    )
    kubernetes_context: str | None = setting(None, "Context of `kubeconfig`. If not set, its current context.")
    evict_unmanaged: bool = setting(False, "Whether a drain may evict pods that no controller starts again.")
    delete_empty_dirs: bool = setting(
        False, "Whether a drain may evict pods with an emptyDir volume on disk. Its data is lost."
    )
    slurm_commands: str | None = setting(
        None, "Directory of scontrol and squeue. If not set, those in PATH, or else slurmrestd of `[fleet]`."
    )
    running_jobs: RunningJobs = setting(
        RunningJobs.WAIT, "What a drain does with jobs on a Slurm node: `wait` for their end, or `requeue` them."
    )
    call_timeout: str = duration("5s", "Timeout of one call to the Kubernetes API server, or of one Slurm command.")
    trust: tuple[TrustRule, ...] = setting(
        (), "`[[remediate.trust]]` tables: a `mode` for a `cause`, a `pool` or both. The most specific table applies."
    )
    policy: str | None = setting(None, "TOML file of repair steps by cause and pool, which replace the shipped steps.")
    approval: str = duration("1h", "How long an approval is valid while guards refuse it.")
    pool_percent: int = setting(
        20, "Limit of out-of-service nodes of a pool in percent: at least one node, or none with 0.", check=percentage
    )
    fleet_percent: int = setting(
        10,
        "Limit of out-of-service nodes of the fleet in percent: at least one node, or none with 0.",
        check=percentage,
    )
    starts: int = positive(10, "Limit of repairs that start within `starts_window`.")
    starts_window: str = duration("1h", "Time window of `starts` and `reclaims`.")
    attempts: int = positive(2, "Limit of repairs of one node for the same cause within `attempts_window`.")
    attempts_window: str = duration("7d", "Time window of `attempts`.")
    breaker_nodes: int = setting(
        5, "Circuit breaker: if more nodes need a repair in `breaker_window`, all repairs stop until a user resets it."
    )
    breaker_window: str = duration("10m", "Time window of `breaker_nodes`.")
    one_per_domain: tuple[str, ...] = setting(
        ("rack", "leaf", "power"), "Failure domains in which only one node may be out of service at a time."
    )
    quiet_hours: tuple[str, ...] = setting(
        (), "Times in UTC in which no repair starts automatically, such as `22:00-06:00` or `Sat-Sun 00:00-24:00`."
    )
    quorum: tuple[PoolQuorum, ...] = setting(
        (), "`[[remediate.quorum]]` tables: how many `gpus` of a `pool` must stay healthy for jobs of a `job_class`."
    )
    node_checks: tuple[str, ...] | None = setting(
        None,
        "Checks that an agent must pass before its node returns to service: `scan`, `diag_2` and `diag_3` (only after"
        " hardware faults). If not set, all three if agents receive work orders (`hub.order_key_file` is set, `driver`"
        " is `kubernetes` or `slurm`, and the agents allow `diag`). `[]`: only the checks of the hub.",
    )
    hand_over_after: int = positive(
        2, "How many failed repairs of a node for the same cause hand it over to a person, with evidence."
    )
    reclaim: bool = setting(False, "Whether to reclaim allocated, idle GPUs, as far as `mode` and `trust` allow.")
    reclaim_wait: str = duration("1h", "Time between the warning to the owner and the reclaim.")
    reclaim_exempt: tuple[str, ...] = setting(
        (), "Workloads and owners whose idle GPUs are never reclaimed, such as `research/*` or `team=infra`."
    )
    reclaims: int = positive(10, "Limit of reclaims within `starts_window`.")
    xid_quiet: str = duration("5m", "How long a repaired node must have no new Xid before it returns to service.")

    def __post_init__(self) -> None:
        for text in self.quiet_hours:
            quiet_hours.parse(text)

    call_timeout_seconds = Seconds("call_timeout")


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """Where the journal stores events, incidents, repairs and audit entries."""

    path: str | None = setting(None, "SQLite file of the journal. If not set, `journal.sqlite` in `hub.data`.")
    retention: str = duration("90d", "How long events, resolved incidents and audit entries are kept.")
    url_file: str | None = setting(
        None, "File of a PostgreSQL URL, for several hubs. If not set, the journal is the SQLite file of `path`."
    )
    lease: str = duration("10s", "With `url_file`: how long the leader's lease lasts before another hub may lead.")
    hub_url: str | None = setting(
        None, "With `url_file`: URL of this hub for clients while it leads. If not set, from `hub.host` and `hub.port`."
    )

    def __post_init__(self) -> None:
        http_address("hub_url", self.hub_url)
        if self.path is not None and self.url_file is not None:
            raise ValueError("set `path` for a SQLite file or `url_file` for PostgreSQL, not both")
        if self.lease_seconds < 1:
            raise ValueError(f"lease: `{self.lease}` is below the minimum, 1s")

    lease_seconds = Seconds("lease")
    retention_seconds = Seconds("retention")


@dataclass(frozen=True, slots=True)
class FabricSettings:
    """How the InfiniBand fabric is monitored. Set `sweep` or `ufm_url` to enable it."""

    sweep: bool = setting(False, "Scan the fabric from this machine with infiniband-diags. Read-only; requires root.")
    interval: str = duration("60s", "Interval between two scans of the fabric.")
    timeout: str = duration("30s", "Timeout of each program of infiniband-diags, or of a request to UFM.")
    adapter: str | None = setting(None, "Adapter for the scan, such as `mlx5_0`. If not set, the first active adapter.")
    port: int | None = setting(None, "Port of `adapter`. If not set, the first active port.")
    node_names: str | None = setting(None, "File of switch names by GUID (`--node-name-map` of infiniband-diags).")
    ufm_url: str | None = setting(
        None, "URL of UFM, without `/ufmRest`. The fabric is read from UFM instead of a scan."
    )
    ufm_telemetry_url: str | None = setting(
        None, "URL of UFM Telemetry in the Prometheus text format, for the counters of ports."
    )
    ufm_token_file: str | None = setting(None, "File of an access token for UFM.")
    ufm_username: str | None = setting(None, "User name for UFM.")
    ufm_password_file: str | None = setting(None, "File of the password of `ufm_username`.")
    ufm_ca_file: str | None = setting(None, "File of CA certificates for UFM. If not set, those of the system.")
    ufm_insecure_skip_verify: bool = setting(False, "Do not verify the certificate of UFM. For tests only.")

    def __post_init__(self) -> None:
        http_address("ufm_url", self.ufm_url)
        http_address("ufm_telemetry_url", self.ufm_telemetry_url)
        if self.sweep and self.ufm_url:
            raise ValueError("set `sweep` or `ufm_url`, not both")
        if self.ufm_token_file and self.ufm_username:
            raise ValueError("set `ufm_token_file` or `ufm_username`, not both")
        if (self.ufm_username is None) != (self.ufm_password_file is None):
            raise ValueError("`ufm_username` and `ufm_password_file` are required together, and one of them is missing")

    @property
    def is_watched(self) -> bool:
        return self.sweep or self.ufm_url is not None

    interval_seconds = Seconds("interval")
    timeout_seconds = Seconds("timeout")


@dataclass(frozen=True, slots=True)
class RenderSettings:
    """Values for the files that `watchkeeper render` writes. The hub does not use them."""

    hub_url: str = setting("http://watchkeeper-hub:9480", "URL of the hub for agents, Prometheus and Alertmanager.")
    prometheus_url: str = setting("http://prometheus:9090", "URL of Prometheus for Grafana and the hub.")
    targets: tuple[str, ...] = setting(
        (), "Agents or exporters to scrape in addition to `[fleet]`, as a Slurm hostlist: `gpu-[01-16]:9400`."
    )
    namespace: str = setting("watchkeeper", "Namespace of all Kubernetes manifests.", check=not_empty)
    # Tagged with the version: a node that has an image with a moving tag would keep it through every upgrade.
    image: str = setting(f"watchkeeper:{__version__}", "Container image of the agent and the hub.", check=not_empty)
    command: str = setting(
        "/usr/bin/watchkeeper",
        "Path of the `watchkeeper` command on the nodes, for units and scripts.",
        check=not_empty,
    )
    etc: str = setting("/etc/watchkeeper", "Directory of settings and secrets on the nodes.", check=not_empty)
    scan_expected_gpus: int | None = setting(
        None, "Expected GPUs of every node, for units and scripts. If not set, the GPUs that Slurm has configured."
    )
    mig_layouts: tuple[str, ...] = setting(
        (), "MIG layouts, each `NAME: GPU: PROFILE PROFILE…`, such as `mixed: H100 80GB: 3g.40gb 2g.20gb 2g.20gb`."
    )
    mig_boot: str = setting("all-disabled", "MIG layout that the systemd unit applies at boot.", check=not_empty)
    values: tuple[str, ...] = setting(
        (), "Values of the manifests and the Helm chart, each `path=value`, such as `hub.storage.size=200Gi`."
    )
    services: tuple[str, ...] = setting(
        (), "Model server Deployments to autoscale, each `NAMESPACE/NAME=MODEL`: `serving/llama=llama-3-8b`."
    )
    docs_url: str | None = setting(
        None, "URL of the published docs/, for links from dashboards to runbooks. If not set, there are no links."
    )
    models: tuple[str, ...] = setting((), "Hugging Face names of models to download into the model cache in advance.")

    def __post_init__(self) -> None:
        http_address("hub_url", self.hub_url)
        http_address("prometheus_url", self.prometheus_url)
        http_address("docs_url", self.docs_url)


@dataclass(frozen=True, slots=True)
class Settings:
    """All sections of the settings file; an omitted section has its defaults."""

    hub: HubSettings = dataclasses.field(default_factory=HubSettings)
    fleet: FleetSettings = dataclasses.field(default_factory=FleetSettings)
    query: QuerySettings = dataclasses.field(default_factory=QuerySettings)
    rules: RulesSettings = dataclasses.field(default_factory=RulesSettings)
    notify: NotifySettings = dataclasses.field(default_factory=NotifySettings)
    cost: CostSettings = dataclasses.field(default_factory=CostSettings)
    capacity: CapacitySettings = dataclasses.field(default_factory=CapacitySettings)
    remediate: RemediateSettings = dataclasses.field(default_factory=RemediateSettings)
    journal: JournalSettings = dataclasses.field(default_factory=JournalSettings)
    fabric: FabricSettings = dataclasses.field(default_factory=FabricSettings)
    render: RenderSettings = dataclasses.field(default_factory=RenderSettings)

    def __post_init__(self) -> None:
        if self.rules.owner is RuleOwner.SERVER and not (self.rules.server_url or self.query.url):
            raise ValueError("rules.owner: `server` requires the URL of a server in `server_url` or in `query.url`")

    @property
    def samples_path(self) -> Path:
        return Path(self.query.data) if self.query.data else Path(self.hub.data) / "samples"

    @property
    def journal_path(self) -> Path:
        return Path(self.journal.path) if self.journal.path else Path(self.hub.data) / "journal.sqlite"
