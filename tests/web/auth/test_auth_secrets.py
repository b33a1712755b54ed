"""Plant a secret in every setting that takes one, then search for them in all outputs of a hub."""

from __future__ import annotations

import dataclasses
import gzip
import re
import typing
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests import servers
from tests.support.running_product import WATCHKEEPER, await_that, command
from tests.web.small_hub import SmallHub
from watchkeeper.config import settings
from watchkeeper.web.app import create_app
from watchkeeper.web.auth import users
from watchkeeper.web.auth.auth import Auth, Role, User

# Files that are named in the settings and hold no secret.
HARMLESS = {
    "query.ca_file",
    "query.client_cert_file",
    "fabric.ufm_ca_file",
    "hub.tls_cert_file",
    "hub.tls_client_ca_file",
}
# Files that a hub reads before it listens; each has its own test below or in test_auth_tls.
STOPS_THE_START = {"journal.url_file", "query.client_key_file", "hub.tls_key_file"}
PLANTED = {
    "hub.tokens": "ann admin {0}\n",
    "hub.users": None,
    "hub.session_key_file": "{0}",
    "hub.order_key_file": "{0}\n",
    "fleet.slurm_token_file": "{0}\n",
    "query.headers_file": "X-Api-Key: {0}\n",
    "query.password_file": "{0}\n",
    "query.bearer_token_file": "{0}\n",
    "notify.routes": None,
    "notify.heartbeat_file": "http://127.0.0.1:1/ping/{0}\n",
    "fabric.ufm_token_file": "{0}\n",
    "fabric.ufm_password_file": "{0}\n",
    "capacity.advice_token_file": "{0}\n",
}
EVENT = (
    b'[{"id": "e1", "kind": "xid", "code": 79, "place": {"cluster": "main", "node": "n1"}, '
    b'"at": "2026-11-15T12:00:00Z", "text": "Xid 79"}]'
)
PASSWORD = "planted-password-of-ann"


def secret_of(key: str) -> str:
    return f"planted-{key.replace('.', '-').replace('_', '-')}".ljust(48, "x")


def test_every_setting_that_names_a_file_is_planted_or_known_to_be_harmless() -> None:
    named = {
        f"{section}.{field.name}"
        for section, kind in typing.get_type_hints(settings.Settings).items()
        for field in dataclasses.fields(kind)
        if field.name.endswith("_file") or field.name in ("tokens", "users", "routes")
    }
    assert named == set(PLANTED) | HARMLESS | STOPS_THE_START


def plant(folder: Path) -> str:
    """Write every secret and the settings that name them; settings that exclude each other take turns."""
    for key, text in PLANTED.items():
        path = folder / key
        path.touch(mode=0o600)
        path.write_text((text or "").format(secret_of(key)))
    users.write_users(folder / "hub.users", [User("ann", Role.ADMIN, users.hash_password(PASSWORD))])
    for name in ("apprise", "hook"):
        (folder / name).write_text(f"json://127.0.0.1:1/{secret_of(name)}\n" if name == "apprise" else secret_of(name))
    (folder / "notify.routes").write_text(
        f'[[receivers]]\nname = "a"\napprise_file = "{folder}/apprise"\n[[receivers]]\nname = "b"\n'
        f'webhook = "http://127.0.0.1:1/hook"\ntoken_file = "{folder}/hook"\n'
        '[[routes]]\nreceivers = ["a", "b"]\nwait = "0s"\n'
    )
    return """
[hub]
data = "kept"
tokens = "hub.tokens"
users = "hub.users"
session_key_file = "hub.session_key_file"
order_key_file = "hub.order_key_file"
[fleet]
slurm_rest_url = "http://127.0.0.1:1"
slurm_token_file = "fleet.slurm_token_file"
slurm_user = "slurm"
slurm_interval = "1s"
scrape_interval = "1s"
[query]
engine = "prometheus"
url = "http://127.0.0.1:1"
write_url = "http://127.0.0.1:1/api/v1/write"
headers_file = "query.headers_file"
bearer_token_file = "query.bearer_token_file"
timeout = "1s"
retries = 0
[rules]
interval = "1s"
[notify]
via = "receivers"
routes = "notify.routes"
heartbeat_file = "notify.heartbeat_file"
[fabric]
ufm_url = "http://127.0.0.1:1"
ufm_token_file = "fabric.ufm_token_file"
interval = "1s"
[capacity]
advice_webhook = "http://127.0.0.1:1/advice"
advice_token_file = "capacity.advice_token_file"
advice_interval = "1s"
"""


def by_password(text: str) -> str:
    """The same settings with a user name and password wherever a token stood."""
    text = text.replace(
        'bearer_token_file = "query.bearer_token_file"', 'username = "u"\npassword_file = "query.password_file"'
    )
    return text.replace(
        'ufm_token_file = "fabric.ufm_token_file"', 'ufm_username = "u"\nufm_password_file = "fabric.ufm_password_file"'
    )


@pytest.fixture(params=["tokens", "passwords"])
def outputs(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, bytes]:
    """All outputs of a hub with planted secrets: its answers, its evidence and its log."""
    text = plant(tmp_path)
    (tmp_path / "hub.toml").write_text(text if request.param == "tokens" else by_password(text))
    port = servers.free_port()
    url, log = f"http://127.0.0.1:{port}", tmp_path / "hub.log"
    line = [*WATCHKEEPER, "hub", "--config", str(tmp_path / "hub.toml"), "--port", str(port), "--log-json"]
    with servers.running(line, ready_url=f"{url}/-/ready", log=log) as server:
        outputs_by_source = {
            "push": ask(f"{url}/api/events", EVENT),
            "wrong": ask(f"{url}/api/login", b'{"token": "planted-wrong"}'),
        }
        await_that(lambda: len(re.findall(rb"notify_failures_total.* [1-9]", ask(f"{url}/metrics"))) == 2)
        for path in readable():
            outputs_by_source[path] = ask(f"{url}{path}")
        outputs_by_source["command line"] = Path(f"/proc/{server.pid}/cmdline").read_bytes()
    return outputs_by_source | {"log": log.read_bytes()}


def readable() -> list[str]:
    table = create_app(SmallHub().services, Auth()).state.endpoints
    paths = [re.sub(r"\{[^}]*\}", "n1", row.path) for row in table if "GET" in row.methods and row.path != "/api/live"]
    return [*paths, "/api/bundle?node=n1", "/api/incidents/INC-1", "/api/incidents/INC-1/notices"]


def ask(url: str, body: bytes | None = None) -> bytes:
    headers = {"Authorization": f"Bearer {secret_of('hub.tokens')}", "Content-Type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60) as answer:
            content: bytes = answer.read()
    except urllib.error.HTTPError as error:
        with error:
            content = error.read()
    return gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content


@pytest.mark.slow
def test_no_secret_is_in_an_answer_in_the_evidence_in_the_log_or_on_the_command_line(outputs: dict[str, bytes]) -> None:
    leaks = [(where, word) for where, text in outputs.items() for word in re.findall(rb"planted-[a-z-]+", text)]
    assert leaks == []
    assert b"$argon2" not in b"".join(outputs.values())
    # The search means something only if the hub has tried to use them.
    assert b"slurm" in outputs["log"]
    assert b"127.0.0.1:1" in outputs["/api/status"]


@pytest.mark.slow
def test_an_unreachable_database_is_reported_without_its_password(tmp_path: Path) -> None:
    (tmp_path / "url").write_text(f"postgresql://ann:{secret_of('journal.url_file')}@127.0.0.1:1/db")
    (tmp_path / "hub.toml").write_text('[hub]\ndata = "kept"\nport = 0\n[journal]\nurl_file = "url"\n')
    done = command("hub", "--config", str(tmp_path / "hub.toml"))
    assert done.returncode != 0
    assert "planted-" not in done.stdout + done.stderr
