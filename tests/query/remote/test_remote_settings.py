"""Settings of a server: what belongs together, and what must not stand in the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from watchkeeper.config import loading
from watchkeeper.config.settings import QueryEngine, RuleOwner
from watchkeeper.errors import SettingsError

SERVER = 'engine = "prometheus"\nurl = "http://prometheus:9090"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "watchkeeper.toml"


def test_a_server_is_named_and_secret_files_count_from_the_settings_file(file: Path) -> None:
    file.write_text(f'[query]\n{SERVER}bearer_token_file = "token"\ntimeout = "5s"\n[rules]\nowner = "server"\n')
    settings = loading.load(file)
    assert settings.query.engine is QueryEngine.PROMETHEUS
    assert settings.query.bearer_token_file == str(file.parent / "token")
    assert settings.query.timeout_seconds == 5.0
    assert settings.rules.owner is RuleOwner.SERVER


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[query]\nengine = "prometheus"', "query: the engine `prometheus` requires the URL of a server in `url`"),
        ('[query]\nurl = "prometheus:9090"', "query: `url` is not an http or https URL"),
        ('[query]\nurl = "http://prometheus:90900"', "query: `url` is not an http or https URL"),
        ('[query]\nurl = ""', "query: `url` is not an http or https URL"),
        ('[query]\nurl = "http://me:pw@prom:9090"', "query: `url` contains credentials; use `username`"),
        ('[query]\nwrite_url = "ftp://x"', "query: `write_url` is not an http or https URL"),
        ('[query]\nusername = "me"', "query: `username` and `password_file` are required together"),
        ('[query]\nheaders = ["Authorization: Bearer abc"]', "query: Authorization in `headers` is a secret"),
        ('[query]\nheaders = ["no colon"]', "query: an item of `headers` is not `Name: value`"),
        ("[query]\nretries = -1", "query.retries: -1 is below the minimum, 0"),
        ('[rules]\nowner = "server"', "rules.owner: `server` requires the URL of a server in `server_url`"),
        (
            f'[query]\n{SERVER}bearer_token_file = "t"\nusername = "me"\npassword_file = "p"',
            "query: set `bearer_token_file` or `username`, not both",
        ),
    ],
)
def test_settings_that_cannot_work_are_explained_without_their_secrets(file: Path, text: str, problem: str) -> None:
    file.write_text(text)
    with pytest.raises(SettingsError) as caught:
        loading.load(file)
    [found] = caught.value.problems
    assert found.startswith(f"{file}: {problem}")
    assert "abc" not in found
    assert "pw@" not in found
