"""Every setting, once: its name, type, default, help and check.

`loading` fills these from the file and the command line; `hub.py` hands each section to the stage it
belongs to; docs/reference/settings.md is generated from them. Relative paths count from the directory
of the settings file, or from the working directory where there is no file.
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
    at_least_zero,
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
"""Raises ValueError with what is wrong with a value that has the right type."""


def setting(default: Any, help: str, *, check: Check | None = None) -> Any:
    """A dataclass field with its sentence for people and the check its type cannot express."""
    return dataclasses.field(default=default, metadata={"help": help, "check": check})


# Our agent, the GPU Operator's exporter, and the exporter's own chart.
KUBERNETES_TARGETS = (
    "app.kubernetes.io/name=watchkeeper-agent",
    "app=nvidia-dcgm-exporter",
    "app.kubernetes.io/name=dcgm-exporter",
)


class QueryEngine(StrEnum):
    """Where samples live and who answers PromQL."""

    EMBEDDED = "embedded"
    PROMETHEUS = "prometheus"


class RuleOwner(StrEnum):
    """Who evaluates the rules."""

    WATCHKEEPER = "watchkeeper"
    SERVER = "server"


class KubernetesSeries(StrEnum):
    """Whether the hub writes what kube-state-metrics would."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


class NotifyVia(StrEnum):
    """Who tells people."""

    CONSOLE = "console"
    RECEIVERS = "receivers"
    ALERTMANAGER = "alertmanager"


class DriverName(StrEnum):
    """Which cluster a plan is meant for."""

    DRY_RUN = "dry_run"
    SIMULATED = "simulated"
    KUBERNETES = "kubernetes"
    SLURM = "slurm"


class RunningJobs(StrEnum):
    """What happens to the jobs of a Slurm node that is drained."""

    WAIT = "wait"
    REQUEUE = "requeue"


@dataclass(frozen=True, slots=True)
class HubSettings:
    """Where the hub listens and keeps what it knows."""

    host: str = setting(
        "127.0.0.1", "address to listen on; anything but loopback needs `tokens` or `users`", check=not_empty
    )
    port: int = setting(9480, "port of console and API; 0 takes a free one", check=port_number)
    data: str = setting("data", "directory that this hub alone uses", check=not_empty)
    tokens: str | None = setting(None, "file of access tokens with their roles; none: loopback only, no sign-in")
    users: str | None = setting(None, "file of people with passwords, which `watchkeeper users` writes")
    session_key_file: str | None = setting(
        None, "file of the key that signs sessions, for several hubs; none: `session.key` in `data`, made when missing"
    )
    tls_cert_file: str | None = setting(None, "certificate for HTTPS, read again when it changes; none: plain HTTP")
    tls_key_file: str | None = setting(None, "key of that certificate; none: it is in the same file")
    tls_client_ca_file: str | None = setting(
        None, "certificates of who vouches for clients; with it a client needs a certificate of its own as well"
    )
    trusted_proxies: tuple[str, ...] = setting(
        (), "addresses or networks of proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` are believed"
    )
    proxy_user_header: str | None = setting(
        None, "header in which those proxies name who signed in, such as `X-Forwarded-User` of oauth2-proxy"
    )
    proxy_role: str | None = setting(
        None, "role of people whom the proxy names and `users` does not; none: they are not let in"
    )
    order_key_file: str | None = setting(None, "file of the key that seals work orders for agents; none: no orders")

    def __post_init__(self) -> None:
        for text in self.trusted_proxies:
            network(text)
        if self.proxy_user_header is not None and not self.trusted_proxies:
            raise ValueError("`proxy_user_header` needs the proxy's address in `trusted_proxies`")
        if self.proxy_role not in (None, "viewer", "operator", "admin"):
            raise ValueError(f"`proxy_role` is `{self.proxy_role}`, not one of viewer, operator, admin")
        if self.tls_cert_file is None and (self.tls_key_file or self.tls_client_ca_file):
            raise ValueError("`tls_key_file` and `tls_client_ca_file` need a certificate in `tls_cert_file`")


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """What is watched, and how often it is read."""

    cluster: str = setting("main", "name of the cluster where discovery does not give one", check=not_empty)
    sd_files: tuple[str, ...] = setting((), "Prometheus file_sd files with the targets")
    sd_urls: tuple[str, ...] = setting((), "Prometheus http_sd addresses with the targets")
    prometheus_config: str | None = setting(
        None, "an existing prometheus.yml; its scrape_configs are scraped and its rule_files evaluated as well"
    )
    kubernetes: bool = setting(False, "watch the Kubernetes cluster that this hub runs in")
    kubeconfig: str | None = setting(None, "watch the Kubernetes cluster of this kubeconfig file instead")
    kubernetes_context: str | None = setting(None, "context of that file; none: its current one")
    kubernetes_targets: tuple[str, ...] = setting(
        KUBERNETES_TARGETS, "labels of the pods to read, best first: of each node one pod is read"
    )
    kubernetes_series: KubernetesSeries = setting(
        KubernetesSeries.AUTO, "write kube-state-metrics' series; `auto`: unless a kube-state-metrics is scraped"
    )
    slurm: bool = setting(False, "ask the Slurm cluster of this machine with its own commands")
    slurm_rest_url: str | None = setting(
        None, "ask slurmrestd instead: `http://slurm:6820`, or `unix:///run/slurmrestd.sock`"
    )
    slurm_token_file: str | None = setting(None, "file of the JWT for slurmrestd, read anew each time")
    slurm_user: str | None = setting(None, "user name that goes with the JWT")
    slurm_interval: str = setting("15s", "how often slurmctld is asked", check=positive_duration)
    slurm_agent_port: int = setting(
        9400, "port at which the agents of Slurm's nodes are read; 0: they are expected, not read", check=port_number
    )
    inventory: str | None = setting(
        None, "file (TOML or YAML) of nodes and teams: rack, leaf, pool, NVLink domain, expected GPUs, owners"
    )
    scrape: bool = setting(
        True, "read targets; false: Prometheus or vmagent does, and lists only say which nodes there should be"
    )
    scrape_interval: str = setting("15s", "how often each target is read", check=positive_duration)
    scrape_timeout: str = setting("10s", "how long a target may take to answer", check=positive_duration)

    def __post_init__(self) -> None:
        url = self.slurm_rest_url
        if url is not None and not url.startswith(("http://", "https://", "unix:///")):
            raise ValueError("`slurm_rest_url` is not an address such as http://slurm:6820 or unix:///run/rest.sock")

    @property
    def slurm_interval_seconds(self) -> float:
        return durations.parse_seconds(self.slurm_interval)

    @property
    def reads_pods(self) -> bool:
        """True where pods of a Kubernetes cluster are targets."""
        return bool(self.kubernetes_targets) and (self.kubernetes or self.kubeconfig is not None)

    @property
    def scrape_interval_seconds(self) -> float:
        return durations.parse_seconds(self.scrape_interval)

    @property
    def scrape_timeout_seconds(self) -> float:
        """Never longer than the interval: a slow target must not overlap with its own next turn."""
        return min(durations.parse_seconds(self.scrape_timeout), self.scrape_interval_seconds)


@dataclass(frozen=True, slots=True)
class QuerySettings:
    """How samples are kept and asked for."""

    engine: QueryEngine = setting(
        QueryEngine.EMBEDDED, "who keeps samples and answers PromQL; `prometheus` is any server with its HTTP API"
    )
    data: str | None = setting(None, "directory of the samples; none: `samples` in `hub.data`")
    retention: str = setting("15d", "how long samples are kept", check=positive_duration)
    max_disk_mebibytes: int | None = setting(
        None, "when samples take more on disk, the oldest go; none: only `retention` counts"
    )
    memory: str = setting(
        "2h", "how long samples stay in memory as well, where rules find them", check=positive_duration
    )
    # Unpacked chunks of all blocks together: one metric of 10,000 GPUs over six hours.
    cache_mebibytes: int = setting(
        128, "samples of blocks that stay unpacked in memory for the next question", check=at_least_one
    )
    block: str = setting("30m", "how much time the first block of samples on disk has", check=at_least_one_minute)
    out_of_order: str = setting("10m", "how late a sample may come after newer ones of its series; `0s`: never")
    wal: bool = setting(True, "log samples at once; without, a crash loses what is in no block yet")
    # About 80 for each GPU, its jobs and pods included: 20,000 GPUs have 1.6 million, which take 3.5 GiB.
    max_series: int = setting(2_000_000, "series kept at once; more are left out and counted", check=at_least_one)
    near: bool = setting(
        False,
        "with a server: evaluate rules on the `memory` of what this hub writes there; for one that reads all targets",
    )
    url: str | None = setting(None, "the server to ask: what stands before `/api/v1/query`")
    write_url: str | None = setting(
        None, "where it takes remote write, such as `http://prometheus:9090/api/v1/write`; none: nothing is written"
    )
    tenant: str | None = setting(None, "sent to the server as `X-Scope-OrgID`")
    headers: tuple[str, ...] = setting((), "more headers for the server, each `Name: value`")
    headers_file: str | None = setting(None, "file of more headers, one `Name: value` on each line, for secret ones")
    bearer_token_file: str | None = setting(None, "file of the bearer token for the server")
    username: str | None = setting(None, "user name for the server")
    password_file: str | None = setting(None, "file of that user's password")
    ca_file: str | None = setting(None, "certificates that vouch for the server; none: those of the system")
    client_cert_file: str | None = setting(None, "our certificate for the server")
    client_key_file: str | None = setting(None, "key of our certificate; none: it is in the same file")
    insecure_skip_verify: bool = setting(False, "trust whoever answers at the address; for trials only")
    timeout: str = setting("30s", "how long the server may take, retries included", check=positive_duration)
    retries: int = setting(3, "how often a request is repeated while the server is busy or away", check=at_least_zero)
    max_answer_mebibytes: int = setting(256, "largest answer that is read from the server", check=at_least_one)

    def __post_init__(self) -> None:
        durations.parse_ms(self.out_of_order)
        if self.max_disk_mebibytes is not None:
            at_least_one(self.max_disk_mebibytes)
        http_address("url", self.url)
        http_address("write_url", self.write_url)
        valid_headers(self.headers)
        if self.engine is QueryEngine.PROMETHEUS and self.url is None:
            raise ValueError("the engine `prometheus` needs the address of a server in `url`")
        if self.near and self.write_url is None:
            raise ValueError("`near` keeps what is written to a server, and there is no `write_url`")
        if self.bearer_token_file and self.username:
            raise ValueError("the server gets `bearer_token_file` or `username`, not both")
        if (self.username is None) != (self.password_file is None):
            raise ValueError("`username` and `password_file` belong together, and one of them is missing")

    @property
    def retention_seconds(self) -> float:
        return durations.parse_seconds(self.retention)

    @property
    def timeout_seconds(self) -> float:
        return durations.parse_seconds(self.timeout)


@dataclass(frozen=True, slots=True)
class RulesSettings:
    """Which rules run, and who runs them."""

    owner: RuleOwner = setting(
        RuleOwner.WATCHKEEPER, "who evaluates the rules; `server`: we read the alerts of Prometheus, vmalert or a ruler"
    )
    server_url: str | None = setting(None, "that server: what stands before `/api/v1/rules`; none: `query.url`")
    files: tuple[str, ...] = setting((), "Prometheus rule files; empty: the rules shipped with Watchkeeper")
    slos: str | None = setting(None, "file of service level objectives that become rules; none: the shipped examples")
    interval: str = setting("15s", "how often a group without an interval of its own runs", check=positive_duration)

    def __post_init__(self) -> None:
        http_address("server_url", self.server_url)

    @property
    def interval_seconds(self) -> float:
        return durations.parse_seconds(self.interval)


@dataclass(frozen=True, slots=True)
class NotifySettings:
    """How people hear of an incident."""

    via: NotifyVia = setting(
        NotifyVia.CONSOLE,
        "who tells people: nobody but the console, our own receivers and routes, or Alertmanager with its own",
    )
    routes: str | None = setting(None, "TOML file of receivers and routes, for `receivers`")
    alertmanager_urls: tuple[str, ...] = setting((), "Alertmanagers to tell, such as `http://alertmanager:9093`")
    heartbeat_file: str | None = setting(
        None,
        "file of the address that is called every minute while the hub works, for whoever raises the alarm when not",
    )
    watchdog: bool = setting(
        False,
        "also give Alertmanager an alert `Watchdog` that always fires; route it to what raises the alarm at its end",
    )
    console_url: str | None = setting(None, "the console's address as people reach it, for links in messages")
    webhook_silence: str = setting(
        "12h",
        "an alert of Alertmanager's webhook that is neither repeated nor ended for so long counts as over; longer than"
        " its repeat_interval",
        check=positive_duration,
    )

    @property
    def webhook_silence_seconds(self) -> float:
        return durations.parse_seconds(self.webhook_silence)

    def __post_init__(self) -> None:
        for url in self.alertmanager_urls:
            http_address("alertmanager_urls", url)
        http_address("console_url", self.console_url)
        if self.via is NotifyVia.RECEIVERS and self.routes is None:
            raise ValueError("`receivers` needs a file in `routes`")
        if self.via is NotifyVia.ALERTMANAGER and not self.alertmanager_urls:
            raise ValueError("`alertmanager` needs an address in `alertmanager_urls`")


@dataclass(frozen=True, slots=True)
class CostSettings:
    """What GPUs cost."""

    # The guides assume 3 and 10 dollars for an A100; the shipped rules use the lower one too.
    dollars_per_gpu_hour: float = setting(3.0, "price of one GPU for one hour", check=not_negative)
    prices: str | None = setting(
        None, "price book, TOML or OpenCost's CSV; none: the shipped one, and the price above for models that it lacks"
    )


@dataclass(frozen=True, slots=True)
class CapacitySettings:
    """Who is told what the fleet needs. Nothing is done about it."""

    advice_webhook: str | None = setting(
        None, "address that scaling advice is sent to, as JSON and each time it is another one"
    )
    advice_token_file: str | None = setting(None, "file of the bearer token for that address, read anew each time")
    advice_interval: str = setting("1h", "how often the advice is worked out for it", check=positive_duration)

    @property
    def advice_interval_seconds(self) -> float:
        return durations.parse_seconds(self.advice_interval)

    def __post_init__(self) -> None:
        http_address("advice_webhook", self.advice_webhook)


@dataclass(frozen=True, slots=True)
class TrustRule:
    """How far to go for one cause, in one pool, or for both: one [[remediate.trust]]."""

    mode: trust.Mode
    cause: str | None = None
    pool: str | None = None


@dataclass(frozen=True, slots=True)
class PoolQuorum:
    """How many healthy GPUs a pool keeps for jobs of a class: one [[remediate.quorum]]."""

    job_class: str
    pool: str
    gpus: int


@dataclass(frozen=True, slots=True)
class RemediateSettings:
    """How far Watchkeeper may go on its own."""

    mode: trust.Mode = setting(trust.Mode.OBSERVE, "trust ladder; observe never touches a machine")
    driver: DriverName = setting(DriverName.DRY_RUN, "the cluster that plans are made for")
    kubeconfig: str | None = setting(
        None, "kubeconfig with the right to cordon and evict; none: the cluster that `fleet` watches"
    )
    kubernetes_context: str | None = setting(None, "context of that file; none: its current one")
    evict_unmanaged: bool = setting(False, "a drain may evict pods that no controller would start again")
    delete_empty_dirs: bool = setting(False, "a drain may evict pods with an emptyDir on disk, which is lost then")
    slurm_commands: str | None = setting(
        None, "directory of scontrol and squeue; none: wherever PATH finds them, else slurmrestd of [fleet]"
    )
    running_jobs: RunningJobs = setting(
        RunningJobs.WAIT, "jobs of a Slurm node that is drained: `wait` for their end, or `requeue` them"
    )
    call_timeout: str = setting(
        "5s", "how long one call to the API server or one command of Slurm may take", check=positive_duration
    )
    trust: tuple[TrustRule, ...] = setting(
        (), "`[[remediate.trust]]` tables: a `mode` for a `cause`, a `pool` or both; the most exact one holds"
    )
    policy: str | None = setting(None, "TOML file of steps that replace the shipped ones, by cause and by pool")
    approval: str = setting("1h", "how long a person's yes holds while guards object", check=positive_duration)
    pool_percent: int = setting(20, "most of a pool's nodes that may be out at once, but one always", check=percentage)
    fleet_percent: int = setting(10, "the same of all nodes", check=percentage)
    starts: int = setting(10, "most repairs that begin within `starts_window`", check=at_least_one)
    starts_window: str = setting("1h", "the time for `starts`", check=positive_duration)
    attempts: int = setting(2, "most repairs of one node for one cause within `attempts_window`", check=at_least_one)
    attempts_window: str = setting("7d", "the time for `attempts`", check=positive_duration)
    breaker_nodes: int = setting(
        5, "more nodes that want a repair within `breaker_window` stop all repairs until a person resets that"
    )
    breaker_window: str = setting("10m", "the time for `breaker_nodes`", check=positive_duration)
    one_per_domain: tuple[str, ...] = setting(
        ("rack", "leaf", "power"), "failure domains of which never two nodes are out at once"
    )
    quiet_hours: tuple[str, ...] = setting(
        (), "times in UTC in which nothing begins by itself, such as `22:00-06:00` or `Sat-Sun 00:00-24:00`"
    )
    quorum: tuple[PoolQuorum, ...] = setting(
        (), "`[[remediate.quorum]]` tables: `gpus` that must stay healthy in a `pool` for jobs of a `job_class`"
    )
    node_checks: tuple[str, ...] | None = setting(
        None,
        "what a node's agent must find well before its node is given back: `scan`, `diag_2`, and `diag_3`, which is for"
        " faults of hardware only; none: all three where agents get work orders (`hub.order_key_file`, with `driver`"
        " kubernetes or slurm), who must allow `diag`; `[]` leaves it at what the hub sees itself",
    )
    hand_over_after: int = setting(
        2, "failed repairs of one node for one cause after which it is for people, with evidence", check=at_least_one
    )
    reclaim: bool = setting(False, "GPUs that are held and idle may be taken back, as far as `mode` and `trust` go")
    reclaim_wait: str = setting("1h", "how long an owner has after the warning", check=positive_duration)
    reclaim_exempt: tuple[str, ...] = setting((), "who keeps idle GPUs: workloads like `research/*`, or `team=infra`")
    reclaims: int = setting(10, "most that are taken back within `starts_window`", check=at_least_one)
    xid_quiet: str = setting(
        "5m", "how long a repaired node must be without a new Xid before it is given back", check=positive_duration
    )

    def __post_init__(self) -> None:
        for text in self.quiet_hours:
            quiet_hours.parse(text)

    @property
    def call_timeout_seconds(self) -> float:
        return durations.parse_seconds(self.call_timeout)


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """Where events, incidents, plans and audit are kept."""

    path: str | None = setting(None, "SQLite file of the journal; none: `journal.sqlite` in `hub.data`")
    retention: str = setting("90d", "how long events, resolved incidents and audit are kept", check=positive_duration)
    url_file: str | None = setting(
        None, "file of the address of a PostgreSQL database, for several hubs; none: the journal is the SQLite file"
    )
    lease: str = setting(
        "10s", "with `url_file`: how long a leader that is not heard of keeps its lead", check=positive_duration
    )
    hub_url: str | None = setting(
        None, "with `url_file`: this hub's own address, which followers name as the leader's; none: from host and port"
    )

    def __post_init__(self) -> None:
        http_address("hub_url", self.hub_url)
        if self.path is not None and self.url_file is not None:
            raise ValueError("the journal is in a file (`path`) or in PostgreSQL (`url_file`), not in both")
        if self.lease_seconds < 1:
            raise ValueError(f"lease: `{self.lease}` is below the smallest possible value, 1s")

    @property
    def lease_seconds(self) -> float:
        return durations.parse_seconds(self.lease)

    @property
    def retention_seconds(self) -> float:
        return durations.parse_seconds(self.retention)


@dataclass(frozen=True, slots=True)
class FabricSettings:
    """How the InfiniBand fabric is looked at; nothing is asked unless `sweep` or `ufm_url` is set."""

    sweep: bool = setting(False, "walk the fabric from this machine with infiniband-diags; only reads, needs root")
    interval: str = setting("60s", "how often the fabric is looked at", check=positive_duration)
    timeout: str = setting("30s", "how long each program, or UFM, may take", check=positive_duration)
    adapter: str | None = setting(None, "adapter to walk the fabric from, such as `mlx5_0`; none: the first active one")
    port: int | None = setting(None, "port of that adapter; none: the first active one")
    node_names: str | None = setting(None, "file of switch names by GUID (`--node-name-map` of infiniband-diags)")
    ufm_url: str | None = setting(
        None, "address of UFM, which then says what the fabric is; what stands before `/ufmRest`"
    )
    ufm_telemetry_url: str | None = setting(None, "page of UFM Telemetry in Prometheus' text, for the ports' counters")
    ufm_token_file: str | None = setting(None, "file of an access token of UFM")
    ufm_username: str | None = setting(None, "user name for UFM")
    ufm_password_file: str | None = setting(None, "file of that user's password")
    ufm_ca_file: str | None = setting(None, "certificates that vouch for UFM; none: those of the system")
    ufm_insecure_skip_verify: bool = setting(False, "trust whoever answers at the address; for trials only")

    def __post_init__(self) -> None:
        http_address("ufm_url", self.ufm_url)
        http_address("ufm_telemetry_url", self.ufm_telemetry_url)
        if self.sweep and self.ufm_url:
            raise ValueError("the fabric is looked at by `sweep` or through `ufm_url`, not both")
        if self.ufm_token_file and self.ufm_username:
            raise ValueError("UFM gets `ufm_token_file` or `ufm_username`, not both")
        if (self.ufm_username is None) != (self.ufm_password_file is None):
            raise ValueError("`ufm_username` and `ufm_password_file` belong together, and one of them is missing")

    @property
    def is_watched(self) -> bool:
        return self.sweep or self.ufm_url is not None

    @property
    def interval_seconds(self) -> float:
        return durations.parse_seconds(self.interval)

    @property
    def timeout_seconds(self) -> float:
        return durations.parse_seconds(self.timeout)


@dataclass(frozen=True, slots=True)
class RenderSettings:
    """What `watchkeeper render` writes and the hub itself need not know."""

    hub_url: str = setting(
        "http://watchkeeper-hub:9480", "the hub's address as agents, Prometheus and Alertmanager reach it"
    )
    prometheus_url: str = setting("http://prometheus:9090", "the address of Prometheus as Grafana and the hub reach it")
    targets: tuple[str, ...] = setting(
        (), "agents or exporters to scrape, in Slurm's short form: `gpu-[01-16]:9400`; beside what [fleet] names"
    )
    namespace: str = setting("watchkeeper", "namespace of everything that is written for Kubernetes", check=not_empty)
    # By version: a node that has an image of a tag that moves would keep it through every upgrade.
    image: str = setting(f"watchkeeper:{__version__}", "container image of agent and hub", check=not_empty)
    command: str = setting(
        "/usr/bin/watchkeeper", "path of the command on the machines that units and scripts are for", check=not_empty
    )
    etc: str = setting("/etc/watchkeeper", "directory of settings and secrets on those machines", check=not_empty)
    scan_expected_gpus: int | None = setting(
        None, "GPUs that every node should have, for scripts and units; none: what Slurm has promised to jobs"
    )
    mig_layouts: tuple[str, ...] = setting(
        (), "MIG layouts: `NAME: GPU: PROFILE PROFILE…`, as in `mixed: H100 80GB: 3g.40gb 2g.20gb 2g.20gb`"
    )
    mig_boot: str = setting("all-disabled", "the MIG layout that the boot unit applies", check=not_empty)
    values: tuple[str, ...] = setting(
        (), "values of the manifests and the chart, each `path=value`, as in `hub.storage.size=200Gi`"
    )
    services: tuple[str, ...] = setting(
        (), "serving Deployments that are scaled, each `NAMESPACE/NAME=MODEL`, as in `serving/llama=llama-3-8b`"
    )
    docs_url: str | None = setting(
        None, "where people read docs/, for links from dashboards to runbooks; none: no such links"
    )
    models: tuple[str, ...] = setting(
        (), "models to fetch into the model cache ahead of time, as Hugging Face names them"
    )

    def __post_init__(self) -> None:
        http_address("hub_url", self.hub_url)
        http_address("prometheus_url", self.prometheus_url)
        http_address("docs_url", self.docs_url)


@dataclass(frozen=True, slots=True)
class Settings:
    """All sections of the file; an absent section has its defaults."""

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
            raise ValueError("rules.owner: `server` needs the address of a server in `server_url` or in `query.url`")

    @property
    def samples_path(self) -> Path:
        return Path(self.query.data) if self.query.data else Path(self.hub.data) / "samples"

    @property
    def journal_path(self) -> Path:
        return Path(self.journal.path) if self.journal.path else Path(self.hub.data) / "journal.sqlite"
