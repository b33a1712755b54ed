"""`render compose`: Prometheus, Alertmanager, Grafana, agent and hub on one machine with containers.

The configurations are those of the other targets, for the names that containers have here. The hub opens incidents and
tells Alertmanager, which tells people; Prometheus keeps history for Grafana and alerts nobody, so that nothing is
told twice. Secrets are made on the machine by `prepare.sh` and are never rendered.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from typing import Any

from watchkeeper.config import settings as config
from watchkeeper.render import alertmanager, prometheus, settings_text, targets, yaml_text
from watchkeeper.render.tree import RenderedFile, in_folder
from watchkeeper.render.yaml_text import YamlPart

# Versions that the rendered configurations were written for; change them here or in an override file.
PROMETHEUS, ALERTMANAGER, GRAFANA = "prom/prometheus:v3.5.0", "prom/alertmanager:v0.28.1", "grafana/grafana:12.0.2"
# Where Grafana's provisioning looks for dashboards; a test compares it with what `grafana` writes.
DASHBOARDS = "/var/lib/grafana/dashboards/watchkeeper"
HUB_URL, AGENT = "http://hub:9480", "agent:9400"
ABOUT = """Watchkeeper beside Prometheus, Alertmanager and Grafana. Start it with:
  ./prepare.sh && docker compose up -d                  # on a machine with GPUs: --profile gpu up -d
Console: http://127.0.0.1:9480, with the token of `admin` in secrets/tokens. Grafana: port 3000, Prometheus: port 9090.
Until [notify] routes names receivers, Alertmanager tells nobody. What you change belongs into compose.override.yaml."""
# What every container of ours, and most of the others, can do without.
HARDENED: dict[str, Any] = {
    "restart": "unless-stopped",
    "read_only": True,
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges:true"],
}


def files(settings: config.Settings) -> list[RenderedFile]:
    here = _here(settings)
    quiet = replace(here, notify=replace(here.notify, via=config.NotifyVia.CONSOLE, alertmanager_urls=()))
    made = resources.files("watchkeeper").joinpath("packs", "compose", "prepare.sh").read_text(encoding="utf-8")
    return [
        RenderedFile("compose.yaml", compose_text(settings)),
        RenderedFile("prepare.sh", made, is_executable=True),
        RenderedFile("hub.toml", hub_text(here)),
        *in_folder(prometheus.files(quiet), "prometheus"),
        *in_folder(alertmanager.files(here), "alertmanager"),
        *in_folder(targets.load("grafana")(here), "grafana"),
    ]


def _here(settings: config.Settings) -> config.Settings:
    """The settings as they are among the containers: other names, and no files or clusters of this machine."""
    fleet = replace(settings.fleet, sd_files=(), prometheus_config=None, kubernetes=False, kubeconfig=None, slurm=False)
    rendered = replace(
        settings.render,
        hub_url=HUB_URL,
        prometheus_url="http://prometheus:9090",
        targets=(AGENT, *settings.render.targets),
    )
    told = replace(settings.notify, via=config.NotifyVia.ALERTMANAGER, alertmanager_urls=("http://alertmanager:9093",))
    hub = replace(settings.hub, host="0.0.0.0", tokens="/run/secrets/tokens", data="/var/lib/watchkeeper")  # noqa: S104
    return replace(settings, fleet=fleet, render=rendered, notify=told, hub=hub)


def hub_text(here: config.Settings) -> str:
    about = "The hub's settings in its container; those of the machine it was rendered on, less what cannot go along."
    there = {
        "hub.host": here.hub.host,
        "hub.data": here.hub.data,
        "hub.tokens": here.hub.tokens,
        # Alertmanager has them.
        "notify.routes": None,
    }
    return yaml_text.comment(about) + "\n" + settings_text.toml(here, there)


def compose_text(settings: config.Settings) -> str:
    parts = [
        YamlPart(
            {
                "services": {
                    "hub": _hub(settings),
                    "agent": _agent(settings),
                    "prometheus": _prometheus(settings),
                    "alertmanager": _alertmanager(),
                    "grafana": _grafana(),
                }
            }
        ),
        YamlPart({"volumes": {name: {} for name in ("hub", "agent", "prometheus", "alertmanager", "grafana")}}),
        YamlPart(
            {"secrets": {name: {"file": f"./secrets/{name}"} for name in ("tokens", "scrape", "webhook", "grafana")}},
            "Made by prepare.sh, once.",
        ),
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
    """Sees the node through read-only mounts, as its DaemonSet does; GPUs come from the NVIDIA runtime."""
    gpus = {"driver": "nvidia", "count": "all", "capabilities": ["gpu", "utility"]}
    who = ["--cluster", settings.fleet.cluster, "--node", "${NODE_NAME:?run ./prepare.sh first}"]
    listen = ["--listen", "0.0.0.0:9400", "--open-metrics", "--spool", "/var/lib/watchkeeper/spool"]
    seen = ("/proc", "/sys", "/lib/modules", "/boot", "/var/log")
    return {
        "image": settings.render.image,
        "profiles": ["gpu"],
        "command": ["agent", "--hub", HUB_URL, *who, *listen, "--host-root", "/host", "--log-json"],
        **HARDENED,
        # Root, because /dev/kmsg is root's; of root's powers only the one that reads it.
        "user": "0:0",
        "cap_add": ["SYSLOG"],
        "tmpfs": ["/tmp"],  # noqa: S108
        "env_file": ["./secrets/agent.env"],
        "devices": ["/dev/kmsg:/dev/kmsg:r"],
        "volumes": [*(f"{path}:/host{path}:ro" for path in seen), "agent:/var/lib/watchkeeper"],
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
        # The folder itself stays the image's, so that the secret can be laid beside them.
        "volumes": [
            "./prometheus/prometheus.yml:/etc/prometheus/prometheus.yml:ro",
            "./prometheus/rules:/etc/prometheus/rules:ro",
            "prometheus:/prometheus",
        ],
        "secrets": [{"source": "scrape", "target": prometheus.TOKEN_FILE}],
    }


def _alertmanager() -> dict[str, Any]:
    return {
        "image": ALERTMANAGER,
        "command": ["--config.file=/etc/alertmanager/alertmanager.yml", "--storage.path=/alertmanager"],
        **HARDENED,
        "ports": ["127.0.0.1:9093:9093"],
        "volumes": [
            "./alertmanager/alertmanager.yml:/etc/alertmanager/alertmanager.yml:ro",
            "alertmanager:/alertmanager",
        ],
        "secrets": [{"source": "webhook", "target": f"{alertmanager.SECRETS}/{alertmanager.HUB}"}],
    }


def _grafana() -> dict[str, Any]:
    return {
        "image": GRAFANA,
        **HARDENED,
        "tmpfs": ["/tmp"],  # noqa: S108
        "ports": ["127.0.0.1:3000:3000"],
        "environment": {
            "GF_SECURITY_ADMIN_PASSWORD__FILE": "/run/secrets/grafana",
            "GF_ANALYTICS_REPORTING_ENABLED": "false",
        },
        # The token with which its data source asks the hub.
        "env_file": ["./secrets/grafana.env"],
        "volumes": [
            "./grafana/provisioning:/etc/grafana/provisioning:ro",
            f"./grafana/dashboards:{DASHBOARDS}:ro",
            "grafana:/var/lib/grafana",
        ],
        "secrets": ["grafana"],
        "depends_on": ["hub"],
    }
