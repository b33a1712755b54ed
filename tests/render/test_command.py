"""`watchkeeper render` as a person uses it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.render import fleet_settings
from watchkeeper import __version__
from watchkeeper.cli.hub import render
from watchkeeper.errors import StartRefused
from watchkeeper.render import tree

MINE = ["prometheus", "alertmanager", "systemd", "slurm", "mig"]


def ran(*arguments: str | Path) -> Result:
    return CliRunner().invoke(render.command, [str(part) for part in arguments])


@pytest.mark.parametrize("target", MINE)
def test_every_target_renders_the_same_bytes_twice(target: str, tmp_path: Path) -> None:
    config, out = fleet_settings.write(tmp_path), tmp_path / "out"
    first = ran(target, out, "--config", config)
    assert first.exit_code == 0, first.output
    assert "unchanged" not in first.output
    second = ran(target, out, "--config", config, "--check")
    assert (second.exit_code, "new" in second.output, "changed," in second.output) == (0, False, False)


@pytest.mark.parametrize("target", MINE)
def test_no_target_writes_a_secret(target: str, tmp_path: Path) -> None:
    config, out = fleet_settings.write(tmp_path), tmp_path / "out"
    assert ran(target, out, "--config", config).exit_code == 0
    for path in out.rglob("*"):
        text = path.read_text() if path.is_file() else ""
        assert not [secret for secret in fleet_settings.SECRETS if secret in text], path


IMAGE = re.compile(r"^\s*(?:- )?(?:image|hub|agent): *\"?([\w./-]+:[\w.@:-]+|[\w.-]+/[\w./-]+)\"?\s*$", re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["kubernetes", "helm", "compose", "operator"])
def test_every_image_has_a_version(target: str, tmp_path: Path) -> None:
    assert ran(target, tmp_path / "out").exit_code == 0
    files = [path for path in (tmp_path / "out").rglob("*.yaml") if path.is_file()]
    images = [image for path in files for image in IMAGE.findall(path.read_text())]
    assert [image for image in images if image.endswith(":latest") or ":" not in image] == []
    assert f"watchkeeper:{__version__}" in images


def test_an_edited_file_is_kept_until_it_is_forced(tmp_path: Path) -> None:
    ran("alertmanager", tmp_path)
    path = tmp_path / "alertmanager.yml"
    path.write_text(rendered := path.read_text() + "# mine\n")
    kept = ran("alertmanager", tmp_path)
    assert (kept.exit_code, path.read_text()) == (1, rendered)
    assert "! alertmanager.yml  (edited since it was rendered)" in kept.output
    forced = ran("alertmanager", tmp_path, "--force")
    assert (forced.exit_code, "# mine" in path.read_text()) == (0, False)


def test_a_script_can_be_run_even_if_a_copy_lost_its_mode(tmp_path: Path) -> None:
    ran("slurm", tmp_path)
    script = tmp_path / "etc" / "slurm" / "watchkeeper-health.sh"
    assert script.stat().st_mode & 0o111
    script.chmod(0o644)
    ran("slurm", tmp_path)
    assert script.stat().st_mode & 0o111


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "etc").write_text("a file, not a folder")
    found = ran("slurm", tmp_path)
    assert isinstance(found.exception, StartRefused)
    assert "etc/slurm/watchkeeper-epilog.sh: cannot be written" in str(found.exception)


def test_a_check_writes_nothing_and_fails_where_something_differs(tmp_path: Path) -> None:
    found = ran("systemd", tmp_path / "out", "--check")
    assert (found.exit_code, (tmp_path / "out").exists()) == (1, False)
    assert found.output.endswith("6 new; nothing was written\n")


def test_a_rule_file_that_is_gone_from_the_settings_is_removed_from_the_tree(tmp_path: Path) -> None:
    rules = tmp_path / "mine.yaml"
    rules.write_text("groups: [{name: g, rules: [{record: 'a:b', expr: up}]}]\n")
    config, out = fleet_settings.write(tmp_path), tmp_path / "out"
    ran("prometheus", out, "--config", config)
    config.write_text(config.read_text() + '[rules]\nfiles = ["mine.yaml"]\n')
    found = ran("prometheus", out, "--config", config)
    assert "- rules/thermal.yaml  (no longer rendered)" in found.output
    assert [path.name for path in (out / "rules").iterdir()] == ["mine.yaml"]


def test_json_says_what_was_done_to_each_file(tmp_path: Path) -> None:
    found = json.loads(ran("alertmanager", tmp_path, "--json").output)
    assert found == {
        "ok": True,
        "written": True,
        "files": [{"path": "alertmanager.yml", "standing": "new", "refused": False}],
    }


def test_a_directory_or_standard_output_must_be_chosen() -> None:
    assert ran("alertmanager").exit_code == 2
    assert ran("alertmanager", "out", "--stdout").exit_code == 2


def test_every_target_that_is_named_has_a_module() -> None:
    assert [name for name in tree.TARGETS if not callable(tree.load(name))] == []
