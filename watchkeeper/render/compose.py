"""`render compose`: Prometheus, Alertmanager, Grafana, agent and hub on one machine with containers.

The files are those of the other targets, with the names of the containers. The hub opens incidents and sends alerts to
Alertmanager; Prometheus stores history for Grafana and sends no alerts, so that nothing is notified twice. `prepare.sh`
creates secrets on the machine; they are never rendered.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from watchkeeper.catalogue import pack
from watchkeeper.config import settings as config
from watchkeeper.render import alertmanager, prometheus, settings_text, tree, yaml_text
from watchkeeper.render.tree import RenderedFile, in_folder
from watchkeeper.render.yaml_text import YamlPart

# Versions that the rendered configurations were written for; change them here or in an override file.
PROMETHEUS, ALERTMANAGER, GRAFANA = "prom/prometheus:v3.5.0", "prom/alertmanager:v0.28.1", "grafana/grafana:12.0.2"
# Where Grafana's provisioning reads dashboards; a test compares it with the output of `grafana`.
DASHBOARDS = "/var/lib/grafana/dashboards/watchkeeper"
HUB_URL, AGENT = "http://hub:9480", "agent:9400"
ABOUT = """Watchkeeper beside Prometheus, Alertmanager and Grafana. Start it with:
  ./prepare.sh && docker compose up -d                  # on a machine with GPUs: --profile gpu up -d
Console: http://127.0.0.1:9480, with the token of `admin` in secrets/tokens. Grafana: port 3000, Prometheus: port 9090.
Alertmanager sends nothing until [notify] routes has receivers. Put your changes into compose.override.yaml."""
# Restrictions of every container.
HARDENED: dict[str, Any] = {
    "restart": "unless-stopped",
    "read_only": True,
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges:true"],
}
ALERTMANAGER_SERVICE: dict[str, Any] = {
    "image": ALERTMANAGER,
    "command": ["--config.file=/etc/alertmanager/alertmanager.yml", "--storage.path=/alertmanager"],
    **HARDENED,
    "ports": ["127.0.0.1:9093:9093"],
    "volumes": ["./alertmanager/alertmanager.yml:/etc/alertmanager/alertmanager.yml:ro", "alertmanager:/alertmanager"],
    "secrets": [{"source": "webhook", "target": f"{alertmanager.SECRETS}/{alertmanager.HUB}"}],
}
GRAFANA_SERVICE: dict[str, Any] = {
    "image": GRAFANA,
    **HARDENED,
    "tmpfs": ["/tmp"],  # noqa: S108
    "ports": ["127.0.0.1:3000:3000"],
    "environment": {
        "GF_SECURITY_ADMIN_PASSWORD__FILE": "/run/secrets/grafana",
        "GF_ANALYTICS_REPORTING_ENABLED": "false",
    },
    # The token of its data source.
    "env_file": ["./secrets/grafana.env"],
    "volumes": [
        "./grafana/provisioning:/etc/grafana/provisioning:ro",
        f"./grafana/dashboards:{DASHBOARDS}:ro",
        "grafana:/var/lib/grafana",
    ],
    "secrets": ["grafana"],
    "depends_on": ["hub"],
}


def files(settings: config.Settings) -> list[RenderedFile]:
    container_settings = _container_settings(settings)
    console_only = replace(container_settings.notify, via=config.NotifyVia.CONSOLE, alertmanager_urls=())
    without_alerting = replace(container_settings, notify=console_only)
    return [
        RenderedFile("compose.yaml", compose_text(settings)),
        RenderedFile("prepare.sh", pack.text_of("compose/prepare.sh"), is_executable=True),
        RenderedFile("hub.toml", hub_text(container_settings)),
        *in_folder(prometheus.files(without_alerting), "prometheus"),
        *in_folder(alertmanager.files(container_settings), "alertmanager"),
        *in_folder(tree.load("grafana")(container_settings), "grafana"),
    ]


def _container_settings(settings: config.Settings) -> config.Settings:
    """The settings for containers: other host names, and no files or clusters of this machine."""
    fleet = replace(settings.fleet, sd_files=(), prometheus_config=None, kubernetes=False, kubeconfig=None, slurm=False)
    addresses = (AGENT, *settings.render.targets)
    rendered = replace(settings.render, hub_url=HUB_URL, prometheus_url="http://prometheus:9090", targets=addresses)
    via, urls = config.NotifyVia.ALERTMANAGER, ("http://alertmanager:9093",)
    notify = replace(settings.notify, via=via, alertmanager_urls=urls)
    hub = replace(settings.hub, host="0.0.0.0", tokens="/run/secrets/tokens", data="/var/lib/watchkeeper")  # noqa: S104
    return replace(settings, fleet=fleet, render=rendered, notify=notify, hub=hub)


def hub_text(container_settings: config.Settings) -> str:
    about = "The hub's settings in its container, without the files of the machine that rendered them."
    hub = container_settings.hub
    # Alertmanager has the routes.
    overrides = {"hub.host": hub.host, "hub.data": hub.data, "hub.tokens": hub.tokens, "notify.routes": None}
    return yaml_text.comment(about) + "\n" + settings_text.toml(container_settings, overrides)


def compose_text(settings: config.Settings) -> str:
    services = {
        "hub": _hub(settings),
        "agent": _agent(settings),
        "prometheus": _prometheus(settings),
        "alertmanager": ALERTMANAGER_SERVICE,
        "grafana": GRAFANA_SERVICE,
    }
    secrets = {name: {"file": f"./secrets/{name}"} for name in ("tokens", "scrape", "webhook", "grafana")}
    parts = [
        YamlPart({"services": services}),
        YamlPart({"volumes": {name: {} for name in services}}),
        YamlPart({"secrets": secrets}, "Created by prepare.sh."),
    ]
    return yaml_text.document(ABOUT, parts)


def _hub(settings: config.Settings) -> dict[str, Any]:
    return {
        "image": settings.render.image,
        "command": ["hub", "--config", "/etc/watchkeeper/hub.toml", "--log-json"],
        **HARDENED,
        "tmpfs": ["/tmp"],  # noqa: S108
        "ports": ["127.0.0.1:9480:9480"],
        "volumes": ["./hub.toml:/etc/watchkeeper/hub.toml:ro", "hub:/var/lib/watchkeeper"],
        "secrets": ["tokens"],
    }


def _agent(settings: config.Settings) -> dict[str, Any]:
    """The agent reads the node through read-only mounts, as in its DaemonSet; GPUs come from the NVIDIA runtime."""
    gpus = {"driver": "nvidia", "count": "all", "capabilities": ["gpu", "utility"]}
    who = ["--cluster", settings.fleet.cluster, "--node", "${NODE_NAME:?run ./prepare.sh first}"]
    listen = ["--listen", "0.0.0.0:9400", "--open-metrics", "--spool", "/var/lib/watchkeeper/spool"]
    host_paths = ("/proc", "/sys", "/lib/modules", "/boot", "/var/log")
    return {
        "image": settings.render.image,
        "profiles": ["gpu"],
        "command": ["agent", "--hub", HUB_URL, *who, *listen, "--host-root", "/host", "--log-json"],
        **HARDENED,
        # Root, because only root may open /dev/kmsg; with only the capability to read it.
        "user": "0:0",
        "cap_add": ["SYSLOG"],
        "tmpfs": ["/tmp"],  # noqa: S108
        "env_file": ["./secrets/agent.env"],
        "devices": ["/dev/kmsg:/dev/kmsg:r"],
        "volumes": [*(f"{path}:/host{path}:ro" for path in host_paths), "agent:/var/lib/watchkeeper"],
        "deploy": {"resources": {"limits": {"memory": "512M"}, "reservations": {"devices": [gpus]}}},
        "depends_on": ["hub"],
    }


def _prometheus(settings: config.Settings) -> dict[str, Any]:
    return {
        "image": PROMETHEUS,
        "command": [
            "--config.file=/etc/prometheus/prometheus.yml",
            "--storage.tsdb.path=/prometheus",
            f"--storage.tsdb.retention.time={settings.query.retention}",
        ],
        **HARDENED,
        "ports": ["127.0.0.1:9090:9090"],
        # Mounted as single files, so that the secret can be mounted beside them.
        "volumes": [
            "./prometheus/prometheus.yml:/etc/prometheus/prometheus.yml:ro",
            "./prometheus/rules:/etc/prometheus/rules:ro",
            "prometheus:/prometheus",
        ],
        "secrets": [{"source": "scrape", "target": prometheus.TOKEN_FILE}],
    }
