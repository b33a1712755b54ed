"""`watchkeeper bundle`: evidence about an incident or a node as one file, from a hub or from this machine itself."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from watchkeeper import __version__
from watchkeeper.cli import options
from watchkeeper.cli.node import agent_order
from watchkeeper.client.hub import Client
from watchkeeper.errors import HubError
from watchkeeper.kit import clock, evidence_file, redaction, wire
from watchkeeper.kit.evidence_file import BundleFile
from watchkeeper.readers.node import local_commands, proc_programs

BUG_REPORT = "nvidia-bug-report.sh"
BUG_REPORT_SECONDS = 300.0
SCAN_SECONDS = 120.0
# What a vendor asks for first; the rest is what the doctor asks.
COMMANDS = (("nvidia-smi", "-q"), *local_commands.COMMANDS)
# Harmless orders whose receipts belong into a bundle.
ASKED = ("scan", "describe_gpus")
# Below are accounts of the system.
FIRST_PERSON = 1000


@click.command("bundle")
@click.option(
    "--incident", type=options.INCIDENT, metavar="ID", help="Everything the hub knows about this incident and its node."
)
@click.option("--node", metavar="NAME", help="Everything the hub knows about this node.")
@click.option("--local", is_flag=True, help="This machine itself: nvidia-smi, kernel log, a scan. Needs no hub.")
@click.option("--cluster", metavar="NAME", help="The node's cluster, if its name occurs twice.")
@click.option("-o", "--output", "file", required=True, type=click.Path(dir_okay=False, path_type=Path))
@options.force
@click.option("--hide-names", is_flag=True, help="Replace names of nodes and people; secrets are always taken out.")
@click.option("--ask-node", is_flag=True, help="First have the node's agent scan itself and run nvidia-smi -q.")
@click.option("--bug-report", is_flag=True, help=f"With --local: run {BUG_REPORT} too, which takes minutes.")
@options.as_json
@options.with_hub
def command(
    hub: Client,
    file: Path,
    force: bool,
    incident: str | None,
    node: str | None,
    local: bool,
    cluster: str | None,
    hide_names: bool,
    ask_node: bool,
    bug_report: bool,
    as_json: bool,
) -> None:
    """Gather evidence for whoever repairs or replaces the machine, as a tar.gz with checksums that only you may read.

    Secrets are taken out; manifest.json inside says what is missing and why. `watchkeeper doctor FILE` reads it back.

    \b
    watchkeeper bundle --incident INC-17 -o INC-17.tar.gz
    watchkeeper bundle --local --bug-report -o $(hostname).tar.gz
    """
    if [incident is not None, node is not None, local].count(True) != 1:
        raise click.UsageError("name one of --incident ID, --node NAME and --local")
    if bug_report and not local:
        raise click.UsageError("--bug-report runs on this machine: it needs --local")
    if ask_node and local:
        raise click.UsageError("--ask-node goes through a hub; --local asks this machine anyway")
    options.refuse_to_replace(file, force=force)
    if ask_node:
        _ask_node(hub, _node_of(hub, incident) if incident is not None else node or "", cluster)
    if local:
        content = _local(hide_names=hide_names, bug_report=bug_report)
    else:
        content = hub.bundle(incident=incident, node=node, cluster=cluster, hides_names=hide_names)
    evidence_file.save(file, content)
    _tell(file, content, as_json=as_json)


def _node_of(hub: Client, incident: str) -> str:
    node = hub.incident(incident).incident.place.node
    if not node:
        raise click.UsageError(f"--ask-node: {incident} is about no single node")
    return node


def _ask_node(hub: Client, node: str, cluster: str | None) -> None:
    """What comes of it is in the hub's journal then, and in the bundle; a node that is silent costs only its part."""
    for kind in ASKED:
        try:
            _, receipt = agent_order.give_and_wait(hub, node, kind, arguments={}, cluster=cluster)
            click.echo(agent_order.said(node, receipt), err=True)
        except HubError as error:
            click.echo(f"{node}: {kind}: {error}", err=True)


def _tell(file: Path, content: bytes, *, as_json: bool) -> None:
    manifest = wire.loads(dict, evidence_file.read(content)[evidence_file.MANIFEST])
    missing = [piece for piece in manifest["pieces"] if "missing" in piece]
    cut = [piece for piece in manifest["pieces"] if "cut" in piece]
    if as_json:
        options.print_json({"file": str(file), "bytes": len(content), **manifest})
        return
    there = len(manifest["pieces"]) - len(missing)
    click.echo(f"{file}: {len(content) / 1024:.0f} KiB, {there} pieces, {manifest['redacted']} taken out")
    for piece in missing:
        click.echo(f"  missing {piece['name']}: {piece['missing']}")
    for piece in cut:
        click.echo(f"  cut {piece['name']}: {piece['cut']}")


def _local(*, hide_names: bool, bug_report: bool) -> bytes:
    host, now = os.uname().nodename, clock.ScaledClock().now()
    pieces = [*_commands(), _scan(), _bug_report() if bug_report else _no_bug_report()]
    about = {
        "bundle": "watchkeeper evidence",
        "subject": host,
        "place": f"this machine, {host}",
        "version": __version__,
    }
    names: dict[str, str] = {}
    if hide_names:
        people = [name for uid, name in proc_programs.read_users(Path("/etc/passwd")).items() if uid >= FIRST_PERSON]
        names = {**redaction.pseudonyms(people, "person"), **redaction.pseudonyms([host], "node")}
    return evidence_file.pack(pieces, about, now=now, redaction_rules=evidence_file.Redaction(names))


def _commands() -> Iterator[BundleFile]:
    for line in COMMANDS:
        name = f"{'_'.join(line).replace('/', '_')}.txt"
        found = next(iter(local_commands.run_commands([line])), None)
        if found is None:
            yield BundleFile(name, missing_reason=f"{line[0]} is not on this machine")
        elif not found.text.strip():
            yield BundleFile(name, missing_reason=f"{found.command} printed nothing")
        else:
            yield BundleFile(name, found.text)


def _scan() -> BundleFile:
    line = [sys.executable, "-m", "watchkeeper.cli.main", "scan", "--json"]
    try:
        ran = subprocess.run(line, capture_output=True, timeout=SCAN_SECONDS, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return BundleFile("scan.json", missing_reason=f"the scan did not end within {SCAN_SECONDS:g} s")
    if not ran.stdout:
        return BundleFile(
            "scan.json", missing_reason=f"the scan ended with {ran.returncode}: {ran.stderr.decode()[-200:].strip()}"
        )
    return BundleFile("scan.json", ran.stdout)


def _no_bug_report() -> BundleFile:
    return BundleFile("nvidia-bug-report.log", missing_reason="it was not asked for: --bug-report")


def _bug_report() -> BundleFile:
    name, program = "nvidia-bug-report.log", shutil.which(BUG_REPORT)
    if program is None:
        return BundleFile(name, missing_reason=f"{BUG_REPORT} is not on this machine")
    with tempfile.TemporaryDirectory() as folder:
        line = [program, "--output-file", f"{folder}/report.log"]
        try:
            subprocess.run(line, capture_output=True, timeout=BUG_REPORT_SECONDS, check=False, stdin=subprocess.DEVNULL)
            with gzip.open(f"{folder}/report.log.gz") as report:
                # Unpacked: what is packed could not be searched for secrets.
                return BundleFile(name, report.read(2 * evidence_file.MAX_FILE_BYTES))
        except subprocess.TimeoutExpired:
            return BundleFile(name, missing_reason=f"{BUG_REPORT} did not end within {BUG_REPORT_SECONDS:g} s")
        except (OSError, EOFError) as error:
            return BundleFile(name, missing_reason=f"{BUG_REPORT} left no report: {error}")
