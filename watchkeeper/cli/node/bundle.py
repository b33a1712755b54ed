"""`watchkeeper bundle`: collect evidence of an incident or a node in one file, from a hub or from this machine."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
# Vendors ask for `nvidia-smi -q` first.
COMMANDS = (("nvidia-smi", "-q"), *local_commands.COMMANDS)
# Harmless orders; their receipts become part of the bundle.
EVIDENCE_ORDERS = ("scan", "describe_gpus")
# Lower ids are system accounts.
FIRST_USER_ID = 1000


@click.command("bundle")
@click.option(
    "--incident", type=options.INCIDENT, metavar="ID", help="Collect the hub's data about this incident and its node."
)
@click.option("--node", metavar="NAME", help="Collect the hub's data about this node.")
@click.option(
    "--local", is_flag=True, help="Collect from this machine: nvidia-smi, kernel log and a scan; needs no hub."
)
@click.option("--cluster", metavar="NAME", help="Cluster of the node, if several clusters have a node of this name.")
@click.option(
    "-o", "--output", "file", required=True, type=click.Path(dir_okay=False, path_type=Path), help="tar.gz to write."
)
@options.force
@click.option(
    "--hide-names", "hides_names", is_flag=True, help="Replace names of nodes and people; secrets are always removed."
)
@click.option("--ask-node", is_flag=True, help="First order the node's agent to run a scan and nvidia-smi -q.")
@click.option("--bug-report", is_flag=True, help=f"With --local: also run {BUG_REPORT}, which takes minutes.")
@options.with_hub_and_json
def command(
    hub: Client, file: Path, force: bool, local: bool, ask_node: bool, bug_report: bool, as_json: bool, **subject: Any
) -> None:
    """Collect evidence for a repair or an RMA in one tar.gz with checksums; only you can read the file.

    Secrets are removed. manifest.json in the file lists what is missing and why. `watchkeeper doctor FILE` reads it.

    \b
    watchkeeper bundle --incident INC-17 -o INC-17.tar.gz
    watchkeeper bundle --local --bug-report -o $(hostname).tar.gz
    """
    incident, node, cluster, hides_names = (subject[name] for name in ("incident", "node", "cluster", "hides_names"))
    if [incident is not None, node is not None, local].count(True) != 1:
        raise click.UsageError("give one of --incident ID, --node NAME and --local")
    if bug_report and not local:
        raise click.UsageError("--bug-report runs on this machine: it needs --local")
    if ask_node and local:
        raise click.UsageError("--ask-node needs a hub; --local reads this machine anyway")
    options.refuse_to_replace(file, force=force)
    if ask_node:
        asked_node = node or hub.incident(incident).incident.place.node
        if not asked_node:
            raise click.UsageError(f"--ask-node: {incident} is not about a single node")
        _order_evidence(hub, asked_node, cluster)
    if local:
        content = _collect_local(hides_names=hides_names, bug_report=bug_report)
    else:
        content = hub.bundle(**subject)
    evidence_file.save(file, content)
    _print_manifest(file, content, as_json=as_json)


def _order_evidence(hub: Client, node: str, cluster: str | None) -> None:
    """Order evidence from the node; the hub adds each receipt to the bundle, a failure is only printed."""
    for kind in EVIDENCE_ORDERS:
        try:
            _, receipt = agent_order.send_and_wait(hub, node, kind, arguments={}, cluster=cluster)
            click.echo(agent_order.format_receipt(node, receipt), err=True)
        except HubError as error:
            click.echo(f"{node}: {kind}: {error}", err=True)


def _print_manifest(file: Path, content: bytes, *, as_json: bool) -> None:
    manifest = wire.loads(dict, evidence_file.read(content)[evidence_file.MANIFEST])
    pieces = manifest["pieces"]
    missing = [f"  missing {entry['name']}: {entry['missing']}" for entry in pieces if "missing" in entry]
    truncated = [f"  truncated {entry['name']}: {entry['cut']}" for entry in pieces if "cut" in entry]
    collected = f"{len(pieces) - len(missing)} files, {manifest['redacted']} redacted"
    lines = [f"{file}: {len(content) / 1024:.0f} KiB, {collected}", *missing, *truncated]
    options.print_result({"file": str(file), "bytes": len(content), **manifest}, lines, as_json=as_json)


def _collect_local(*, hides_names: bool, bug_report: bool) -> bytes:
    host, now = os.uname().nodename, clock.ScaledClock().now()
    no_report = BundleFile("nvidia-bug-report.log", missing_reason="not requested: --bug-report")
    bundle_files = [*_run_commands(), _run_scan(), _run_bug_report() if bug_report else no_report]
    about = {"bundle": "watchkeeper evidence", "subject": host, "place": f"this machine, {host}"}
    about["version"] = __version__
    names: dict[str, str] = {}
    if hides_names:
        users = proc_programs.read_users(Path("/etc/passwd"))
        user_names = [name for uid, name in users.items() if uid >= FIRST_USER_ID]
        names = {**redaction.pseudonyms(user_names, "person"), **redaction.pseudonyms([host], "node")}
    return evidence_file.pack(bundle_files, about, now=now, redaction_rules=evidence_file.Redaction(names))


def _run_commands() -> Iterator[BundleFile]:
    for line in COMMANDS:
        name = f"{'_'.join(line).replace('/', '_')}.txt"
        output = next(iter(local_commands.run_commands([line])), None)
        if output is None:
            yield BundleFile(name, missing_reason=f"{line[0]} is not installed")
        elif not output.text.strip():
            yield BundleFile(name, missing_reason=f"{output.command} printed nothing")
        else:
            yield BundleFile(name, output.text)


def _run_scan() -> BundleFile:
    line = [sys.executable, "-m", "watchkeeper.cli.main", "scan", "--json"]
    try:
        ran = subprocess.run(line, capture_output=True, timeout=SCAN_SECONDS, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return BundleFile("scan.json", missing_reason=f"the scan timed out after {SCAN_SECONDS:g} s")
    if not ran.stdout:
        problem = f"the scan exited with {ran.returncode}: {ran.stderr.decode()[-200:].strip()}"
        return BundleFile("scan.json", missing_reason=problem)
    return BundleFile("scan.json", ran.stdout)


def _run_bug_report() -> BundleFile:
    name, program = "nvidia-bug-report.log", shutil.which(BUG_REPORT)
    if program is None:
        return BundleFile(name, missing_reason=f"{BUG_REPORT} is not installed")
    with tempfile.TemporaryDirectory() as folder:
        line = [program, "--output-file", f"{folder}/report.log"]
        try:
            subprocess.run(line, capture_output=True, timeout=BUG_REPORT_SECONDS, check=False, stdin=subprocess.DEVNULL)
            with gzip.open(f"{folder}/report.log.gz") as report:
                # Uncompressed, so that secrets in it are found and removed.
                return BundleFile(name, report.read(2 * evidence_file.MAX_FILE_BYTES))
        except subprocess.TimeoutExpired:
            return BundleFile(name, missing_reason=f"{BUG_REPORT} timed out after {BUG_REPORT_SECONDS:g} s")
        except (OSError, EOFError) as error:
            return BundleFile(name, missing_reason=f"{BUG_REPORT} wrote no report: {error}")
