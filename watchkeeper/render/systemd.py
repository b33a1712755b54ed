"""`render systemd`: units of agent and hub, a timer for diagnostics, and the settings of both.

The units are packs/systemd as they are, with the path of the command put in; `watchkeeper agent unit` prints the
first of them from the same file.
"""

from __future__ import annotations

from importlib import resources

from watchkeeper.config import loading
from watchkeeper.config import settings as config
from watchkeeper.render import settings_text
from watchkeeper.render.tree import RenderedFile

UNITS = (
    "watchkeeper-agent.service",
    "watchkeeper-hub.service",
    "watchkeeper-diag.service",
    "watchkeeper-diag.timer",
)
# What StateDirectory= of the hub's unit makes.
STATE = "/var/lib/watchkeeper-hub"
ENVIRONMENT = """\
# Read by watchkeeper-agent.service. The token needs the role `agent`; this file should be root's alone, mode 0600.
WATCHKEEPER_HUB={hub}
{token}# Options that `watchkeeper agent --help` lists. Without a way to sign in, /metrics is served on loopback only.
WATCHKEEPER_AGENT_OPTIONS=--cluster {cluster}{expected}
"""


def files(settings: config.Settings) -> list[RenderedFile]:
    """Paths are those below /, so that the tree can be copied as it is."""
    units = [RenderedFile(f"etc/systemd/system/{name}", unit(name, settings)) for name in UNITS]
    folder = settings.render.etc.strip("/")
    return [
        *units,
        RenderedFile(f"{folder}/agent.env", environment(settings)),
        RenderedFile(f"{folder}/hub.toml", hub(settings)),
    ]


def hub(settings: config.Settings) -> str:
    """The settings as they were given; only the data directory is the unit's own."""
    named = {key: getattr(getattr(settings, key.partition(".")[0]), key.partition(".")[2]) for key in loading.PATH_KEYS}
    files = {key: value for key, value in named.items() if value}
    return f"# Read by watchkeeper-hub.service.\n{settings_text.toml(settings, {**files, 'hub.data': STATE})}"


def unit(name: str, settings: config.Settings) -> str:
    text = resources.files("watchkeeper").joinpath("packs", "systemd", name).read_text(encoding="utf-8")
    return (
        text.replace("@WATCHKEEPER@", settings.render.command)
        .replace("@ETC@", settings.render.etc)
        .replace("/etc/watchkeeper", settings.render.etc)
    )


def environment(settings: config.Settings) -> str:
    expected = settings.render.scan_expected_gpus
    return ENVIRONMENT.format(
        hub=settings.render.hub_url,
        token="WATCHKEEPER_TOKEN=\n" if settings.hub.tokens is not None else "",
        cluster=settings.fleet.cluster,
        expected="" if expected is None else f" --expected-gpus {expected}",
    )
