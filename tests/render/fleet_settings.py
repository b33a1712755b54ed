"""One configured fleet for the tests of `render`: an inventory, receivers and routes, targets of every kind."""

from __future__ import annotations

from pathlib import Path

from watchkeeper.config import loading
from watchkeeper.config import settings as config

INVENTORY = """
[[nodes]]
match = ["gpu-[01-04]"]
expected_gpus = 8

[[nodes]]
match = ["login1"]
expected_gpus = 0

[[teams]]
team = "language"
namespaces = ["research", "research-*"]
"""
ROUTES = """
[[receivers]]
name = "oncall"
apprise_file = "oncall"

[[receivers]]
name = "tickets"
webhook = "https://tickets.example/hook"
token_file = "secret"
per_minute = 6

[[routes]]
receivers = ["oncall"]
match = ['severity="critical"', 'team=~"language|vision"']
escalate_after = "15m"
escalate_to = ["tickets"]
goes_on = true

[[routes]]
receivers = ["tickets", "oncall"]
match = ['severity!="info"', 'family="nvlink"']
hours = ["Mon-Fri 08:00-18:00", "Sat"]
zone = "Europe/Berlin"
tells_resolved = false

[[routes]]
receivers = ["tickets"]
match = ['severity=~"critical|warning"']

[digest]
receivers = ["oncall"]
"""
SETTINGS = """
[hub]
tokens = "tokens"
[fleet]
cluster = "east"
sd_files = ["targets/*.json"]
inventory = "inventory.toml"
[notify]
via = "receivers"
routes = "notify.toml"
alertmanager_urls = ["http://alertmanager:9093/am"]
[render]
targets = ["a[1-2]:9400"]
"""
SECRETS = ("HiddenA", "HiddenB", "HiddenD", "passw0rd")


def write(folder: Path, more: str = "") -> Path:
    """The settings file of the fleet, with everything that it names."""
    (folder / "inventory.toml").write_text(INVENTORY)
    (folder / "notify.toml").write_text(ROUTES)
    (folder / "oncall").write_text(
        "slack://HiddenA/HiddenB/HiddenC/#gpu\nmailto://u:passw0rd@example.com\ntgram://123456789:HiddenD/42\n"
    )
    path = folder / "hub.toml"
    path.write_text(SETTINGS + more)
    return path


def load(folder: Path, more: str = "") -> config.Settings:
    return loading.load(write(folder, more))
