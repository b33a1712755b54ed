"""Every command line of ours that is rendered into a unit, script or container is one that our own parser takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest
import yaml

from watchkeeper.cli.main import watchkeeper
from watchkeeper.config import settings as config
from watchkeeper.render import compose, slurm, systemd

COMMAND = config.RenderSettings().command
# What a shell fills in while the script runs.
FILLED = {'"--slurm-$when"': "--slurm-prolog", '"$gpus"': "0", '"${options[@]}"': "--slurm-health --drain"}


def command_lines() -> Iterator[tuple[str, list[str]]]:
    settings = config.Settings()
    for file in systemd.files(settings):
        for line in re.findall(rf"^ExecStart={COMMAND} (.*)$", file.text, re.M):
            yield file.path, shlex.split(line.replace("$WATCHKEEPER_AGENT_OPTIONS", "--cluster main"))
    for file in slurm.files(settings):
        for line in re.findall(rf"{COMMAND} (scan .*) 2>&1", file.text):
            for shown, value in FILLED.items():
                line = line.replace(shown, value)
            yield file.path, shlex.split(line)
    for name, service in yaml.safe_load(compose.compose_text(settings))["services"].items():
        if service["image"] == settings.render.image:
            yield name, service["command"]


LINES = list(command_lines())


def test_every_kind_of_command_line_is_found() -> None:
    assert [words[0] for _, words in LINES] == ["agent", "hub", "diag", "scan", "scan", "scan", "hub", "agent"]


@pytest.mark.parametrize(("where", "words"), LINES, ids=[f"{where.rpartition('/')[2]}" for where, _ in LINES])
def test_our_own_parser_takes_the_command_line(where: str, words: list[str]) -> None:
    outer = click.Context(watchkeeper)
    command = watchkeeper.get_command(outer, words[0])
    assert command is not None, where
    # Options are read and checked; nothing is run.
    assert command.make_context(words[0], list(words[1:]), parent=outer).params
