"""Every command in the documents exists, and those that can be run here are run."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from tests import servers
from tests.house import docs_commands, generate
from tests.house.tree import files
from tests.support.paths import ROOT
from tests.support.running_product import await_that
from watchkeeper.errors import QueryError
from watchkeeper.query.promql import parser

DOCS = [path for path in files() if path.suffix == ".md" and (ROOT / "docs") in path.parents]
BLOCKS = [block for page in DOCS for block in docs_commands.blocks(page)]
ALONE = [block for block in BLOCKS if not block.why_not and not block.needs_hub]
WITH_HUB = [block for block in BLOCKS if block.needs_hub]
SAMPLE = Path(__file__).parent / "docs_sample"
SECONDS = 60
# Of the fleet that the documents ask about, as the hub counts them.
GPUS = "64"
LINK = re.compile(r"\]\(([^)#\s]+\.md)\)")
PROMQL = re.compile(r"^```promql\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# --json and -r, but neither -2h nor a lone dash
OPTION = re.compile(r"--?[a-z]")


def test_every_command_and_option_in_the_documents_exists() -> None:
    calls = [(block, words) for block in BLOCKS for line in block.commands for words in docs_commands.own_calls(line)]
    assert len(calls) > 50
    assert not [f"{block.name}: {problem}" for block, words in calls if (problem := unknown_word(words))]


def unknown_word(words: list[str]) -> str:
    """The first command or option that the command line does not know, or an empty text."""
    command, context = generate.commands()["watchkeeper"], None
    for position, word in enumerate(words):
        if word == "--":
            return ""
        if OPTION.match(word):
            if not knows_option(command, word.partition("=")[0]):
                return f"{command.name} has no option {word}"
        elif isinstance(command, click.Group):
            context = click.Context(command, parent=context, info_name=command.name)
            inner = command.get_command(context, word)
            if inner is not None:
                command = inner
            elif position == 0:
                return f"there is no command {word}"
    return ""


def knows_option(command: click.Command, option: str) -> bool:
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return option in options | {"-h", "--help", "--version"}


def test_a_mark_is_one_of_the_two_that_are_known() -> None:
    strange = [
        f"{page.relative_to(ROOT)}: {line}"
        for page in DOCS
        for line in page.read_text().splitlines()
        if line.startswith(("<!-- run", "<!-- not run"))
        and (not (mark := docs_commands.MARK.fullmatch(line)) or (mark["verb"] == "run" and mark["words"] != "hub"))
    ]
    assert not strange


def test_what_is_run_starts_nothing_but_harmless_programs() -> None:
    started = [(block, docs_commands.programs(line)) for block in (*ALONE, *WITH_HUB) for line in block.commands]
    strange = {f"{block.name}: {', '.join(names - docs_commands.HARMLESS)}" for block, names in started}
    assert not {text for text in strange if not text.endswith(": ")}, "put `<!-- not run: why -->` above the block"


def test_every_query_in_the_documents_is_promql() -> None:
    fences = [(page, text) for page in DOCS for text in PROMQL.findall(page.read_text())]
    assert len(fences) > 20
    for page, text in fences:
        for query in re.split(r"\n\s*\n", text):
            try:
                parser.parse(query)
            except QueryError as error:
                pytest.fail(f"{page.relative_to(ROOT)}: {error}\n{query}", pytrace=False)


@pytest.mark.parametrize("folder", ["howto", "learn", "runbooks"])
def test_the_first_page_of_a_folder_names_all_others(folder: str) -> None:
    pages = {page.name for page in (ROOT / "docs" / folder).glob("*.md")}
    named = set(LINK.findall((ROOT / "docs" / folder / "README.md").read_text()))
    assert pages - named == {"README.md"}


@pytest.fixture
def work_folder(tmp_path: Path) -> Path:
    """A folder with a file of each kind that the documents name."""
    shutil.copytree(SAMPLE, tmp_path, dirs_exist_ok=True)
    hours = [(hour, 600 + 100 * math.sin(hour * math.tau / 24)) for hour in range(24 * 21)]
    rows = [f"{1_790_000_000 + hour * 3600},{gpus:.0f}" for hour, gpus in hours]
    (tmp_path / "demand.csv").write_text("\n".join(["time,running_gpus", *rows]) + "\n")
    return tmp_path


def run(block: docs_commands.Block, folder: Path, *, hub: str = "http://127.0.0.1:9") -> None:
    """Each line as a shell would; 1 without a word on the standard error is a verdict and not a failure."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    home = {"HOME": str(folder), "WATCHKEEPER_HUB": hub, "PATH": path, "LANG": "C.UTF-8"}
    for line in block.commands:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line],
            cwd=folder, env=home, capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        is_verdict = done.returncode == 1 and not done.stderr
        assert done.returncode == 0 or is_verdict, f"{block.name}: {line}\n{done.stdout[-800:]}\n{done.stderr[-800:]}"


@pytest.mark.slow
@pytest.mark.parametrize("block", ALONE, ids=lambda block: block.name)
def test_commands_that_need_nothing_do_what_the_page_says(block: docs_commands.Block, work_folder: Path) -> None:
    run(block, work_folder)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A hub with a simulated fleet, as `watchkeeper up` starts it."""
    folder = tmp_path_factory.mktemp("hub")
    url = f"http://127.0.0.1:{servers.free_port()}"
    command = [sys.executable, "-m", "watchkeeper", "up", "--gpus", GPUS, "--data", folder / "data", "--mode", "ask"]
    with servers.running([*command, "--port", url.rpartition(":")[2]], ready_url=f"{url}/-/ready", log=folder / "log"):
        wait_for_samples(url)
        yield url


def wait_for_samples(url: str) -> None:
    """Until every GPU was read once: some questions are about one of them, whichever that is."""
    path = "/api/v1/query?query=count(DCGM_FI_DEV_GPU_TEMP)"
    await_that(
        lambda: [result["value"][1] for result in read_json(url, path)["data"]["result"]] == [GPUS], within_seconds=90
    )


def read_json(url: str, path: str) -> Any:
    with urllib.request.urlopen(f"{url}{path}", timeout=30) as answer:
        return json.load(answer)


@pytest.mark.slow
@pytest.mark.parametrize("block", WITH_HUB, ids=lambda block: block.name)
def test_commands_against_a_hub_do_what_the_page_says(block: docs_commands.Block, work_folder: Path, hub: str) -> None:
    if any("INC-1" in line for line in block.commands):
        # A reader takes longer to type than the hub to see what the page has broken before.
        await_that(lambda: read_json(hub, "/api/incidents?open=0")["incidents"], within_seconds=90)
    run(block, work_folder, hub=hub)


@pytest.mark.servers
@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    try:
        import mkdocs  # noqa: F401
    except ImportError:
        why = "mkdocs is not installed; `make docs` installs it, so does `make test`"
        if os.environ.get("REQUIRE_SERVERS") == "1":
            pytest.fail(f"{why} (REQUIRE_SERVERS=1)", pytrace=False)
        pytest.skip(why)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path / "site"]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=55, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "site" / "learn" / "xid-and-memory.html").is_file()


PAGE = """
<!-- not run: needs a GPU -->
```sh
watchkeeper scan
```

```
watchkeeper query 'a | b' \\
  --json     # as JSON; for programs
```

```
Full on Thursday.
```

```toml
watchkeeper = true
```
"""


def test_blocks_of_commands_are_told_from_other_blocks_and_their_marks_are_read(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    first, second = docs_commands.blocks(page)
    assert (first.commands, first.why_not) == (("watchkeeper scan",), "needs a GPU")
    assert (second.why_not, second.needs_hub, len(second.commands)) == ("", False, 1)
    assert docs_commands.programs(second.commands[0]) == {"watchkeeper"}


@pytest.mark.parametrize("words", ["scan --no-such-thing", "no-such-command", "rules check --colour"])
def test_a_command_or_option_that_does_not_exist_is_found(words: str) -> None:
    assert unknown_word(words.split())
