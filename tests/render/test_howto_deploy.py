"""The pages about deploying: their commands run, the files they name are rendered, and the values they name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from tests.support.paths import ROOT
from watchkeeper.cli import main
from watchkeeper.config import settings as config
from watchkeeper.render import helm, kubernetes, manifests

HOWTO = ROOT / "docs" / "howto"
PAGES = ("grafana.md", "kubernetes.md", "helm.md", "gpu-operator.md", "install.md")
RENDER = re.compile(r"^watchkeeper render (\w+) (\S+)/ --config hub\.toml", re.M)
VALUE = re.compile(
    r"`((?:image|agent|hub|network|prometheusOperator|dashboards|repair|reclaim)\.[A-Za-z.]+)(?:=[^`]*)?`"
)
# Sections of settings have names like values; these are settings.
SETTINGS = re.compile(r"hub\.(host|port|data|tokens|order_key_file|toml)")


def text(page: str) -> str:
    return (HOWTO / page).read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "target", "folder"),
    [(page, target, folder) for page in PAGES for target, folder in RENDER.findall((HOWTO / page).read_text())],
)
def test_its_command_renders_every_file_that_the_page_names(
    page: str, target: str, folder: str, tmp_path: Path
) -> None:
    (tmp_path / "hub.toml").write_text('[fleet]\ncluster = "prod-1"\n')
    words = ["render", target, str(tmp_path / folder), "--config", str(tmp_path / "hub.toml")]
    done = CliRunner().invoke(main.watchkeeper, words)
    assert done.exit_code == 0, done.output
    named = set(re.findall(rf"(?<![\w/]){folder}/([\w./-]*[\w])", text(page)))
    missing = {path for path in named if not (tmp_path / folder / path).exists()}
    assert not missing


@pytest.mark.parametrize("page", PAGES)
def test_every_value_that_it_names_exists(page: str) -> None:
    values = kubernetes.load_values(config.Settings())
    for path in VALUE.findall(text(page)):
        if not SETTINGS.fullmatch(path):
            manifests.value(values, path)


def test_every_value_of_the_chart_has_a_reason_or_a_name_that_says_it() -> None:
    lines = kubernetes.values_text(config.Settings()).splitlines()
    assert sum(line.lstrip().startswith("#") for line in lines) > 30
    assert set(helm.schema(yaml.safe_load("\n".join(lines)))["properties"]) >= {"agent", "hub", "network", "secrets"}


@pytest.mark.slow
def test_the_table_of_the_stack_names_every_file_of_it(tmp_path: Path) -> None:
    from watchkeeper.render import operator

    written = {file.path.split("/")[0] for file in operator.files(config.Settings())}
    named = set(re.findall(r"^\| `([\w.-]+?)/?` \|", text("gpu-operator.md"), re.M))
    assert written - {"install.sh"} == named


def test_each_shell_of_the_page_is_one_that_click_knows() -> None:
    from click import shell_completion

    shells = set(re.findall(r"_WATCHKEEPER_COMPLETE=(\w+)_source watchkeeper", text("install.md")))
    assert shells == {"bash", "zsh", "fish"}
    assert all(shell_completion.get_completion_class(shell) for shell in shells)
