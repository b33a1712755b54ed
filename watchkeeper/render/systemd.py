"""`render systemd`: units of agent and hub, a timer for diagnostics, and the settings of both.

The units are packs/systemd with the path of the command; `watchkeeper agent unit` prints the first of them.
"""

from __future__ import annotations

from watchkeeper.catalogue import pack
from watchkeeper.config import loading
from watchkeeper.config import settings as config
from watchkeeper.render import settings_text
from watchkeeper.render.tree import RenderedFile

UNITS = ("agent.service", "hub.service", "diag.service", "diag.timer")
# Created by StateDirectory= of the hub's unit.
STATE = "/var/lib/watchkeeper-hub"
ENVIRONMENT = """\
# Read by watchkeeper-agent.service. The token needs the role `agent`; this file must belong to root with mode 0600.
WATCHKEEPER_HUB={hub}
{token}# Options of `watchkeeper agent --help`. Without authentication, /metrics is served on loopback only.
WATCHKEEPER_AGENT_OPTIONS=--cluster {cluster}{expected}
"""


def files(settings: config.Settings) -> list[RenderedFile]:
    """Paths start below /, so that the tree can be copied to the root directory."""
    names = [f"watchkeeper-{name}" for name in UNITS]
    units = [RenderedFile(f"etc/systemd/system/{name}", unit(name, settings)) for name in names]
    folder = settings.render.etc.strip("/")
    return [
        *units,
        RenderedFile(f"{folder}/agent.env", environment(settings)),
        RenderedFile(f"{folder}/hub.toml", hub(settings)),
    ]


def hub(settings: config.Settings) -> str:
    named = {key: getattr(getattr(settings, key.partition(".")[0]), key.partition(".")[2]) for key in loading.PATH_KEYS}
    files = {key: value for key, value in named.items() if value}
    return f"# Read by watchkeeper-hub.service.\n{settings_text.toml(settings, {**files, 'hub.data': STATE})}"


def unit(name: str, settings: config.Settings) -> str:
    text, etc = pack.text_of(f"systemd/{name}"), settings.render.etc
    text = text.replace("@WATCHKEEPER@", settings.render.command)
    return text.replace("@ETC@", etc).replace("/etc/watchkeeper", etc)


def environment(settings: config.Settings) -> str:
    expected = settings.render.scan_expected_gpus
    return ENVIRONMENT.format(
        hub=settings.render.hub_url,
        token="WATCHKEEPER_TOKEN=\n" if settings.hub.tokens is not None else "",
        cluster=settings.fleet.cluster,
        expected="" if expected is None else f" --expected-gpus {expected}",
    )
