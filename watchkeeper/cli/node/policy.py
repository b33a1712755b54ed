"""`watchkeeper agent policy`: list and set the limits of DCGM's policies on this node, as `dcgmi policy`.

It writes the file that the agent watches; nothing is done to a GPU.
"""

from __future__ import annotations

import math
from pathlib import Path

import click

from watchkeeper.agent.gpus import policies, policy_limits
from watchkeeper.cli import options

OFF = "off"


@click.group("policy", cls=options.FullHelpGroup)
def command() -> None:
    """List and set the limits whose violation the agent of this node reports, as `dcgmi policy --get` and `--set`.

    A violation becomes an event and an incident that name the policy. No GPU is changed.
    """


@command.command("list")
@options.as_json
@options.spool
def list_policies(as_json: bool, spool: Path) -> None:
    """List the policies of this node with their limits, and where each limit comes from."""
    limits = policy_limits.PolicyLimits(spool)
    current = {policy.name: policy for policy in limits.policies()}
    rows = [(shipped, current.get(shipped.name)) for shipped in policies.load_policies()]
    if as_json:
        options.print_json({"policies": [_as_plain(shipped, policy) for shipped, policy in rows]})
        return
    table = []
    for shipped, policy in rows:
        limit = OFF if policy is None else policy.limit_text
        source = policies.SET_SOURCE if policy is None else policy.source
        table.append([shipped.name, limit, (policy or shipped).words, shipped.cause, source])
    options.print_table(["POLICY", "VIOLATED AT", "OF", "CAUSE", "SOURCE"], table)


def _as_plain(shipped: policies.DcgmPolicy, policy: policies.DcgmPolicy | None) -> dict[str, object]:
    source = policies.SET_SOURCE if policy is None else policy.source
    limit = (
        None
        if policy is None
        else next((value for value in (policy.at_least, policy.at_most, policy.grows_by) if value is not None), None)
    )
    return {
        "name": shipped.name,
        "dcgm_bit": shipped.bit,
        "is_on": policy is not None,
        "is_set": source == policies.SET_SOURCE,
        "limit": limit,
        "violated_at": None if policy is None else policy.limit_text,
        "of": (policy or shipped).words,
        "measures": list((policy or shipped).measures),
        "cause": shipped.cause,
        "source": source,
    }


@command.command("set")
@click.argument("name")
@click.argument("limit")
@options.spool
def set_limit(name: str, limit: str, spool: Path) -> None:
    """Set the limit of one policy on this node, or turn the policy off.

    \b
    watchkeeper agent policy set thermal 85     a GPU at 85 °C or more
    watchkeeper agent policy set power 600      a GPU at 600 watts or more
    watchkeeper agent policy set pcie 100       100 or more PCIe replays in a minute
    watchkeeper agent policy set nvlink off     no events about NVLink errors
    """
    file = policy_limits.PolicyLimits(spool)
    try:
        value = None if limit == OFF else float(limit)
        if value is not None and not math.isfinite(value):
            raise ValueError
    except ValueError as error:
        raise click.UsageError(f"LIMIT {limit[:40]} is neither a number nor `{OFF}`") from error
    try:
        file.write({**file.read(), name: value})
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    policy = next((policy for policy in file.policies() if policy.name == name), None)
    state = OFF if policy is None else f"violated at {policy.limit_text} ({policy.words})"
    click.echo(f"{name}: {state}. The agent applies it within seconds.")


@command.command("reset")
@click.argument("names", nargs=-1, metavar="[NAME]…")
@options.spool
def reset(names: tuple[str, ...], spool: Path) -> None:
    """Return policies to the shipped limits; without a name all of them."""
    file, known_names = policy_limits.PolicyLimits(spool), [policy.name for policy in policies.load_policies()]
    if unknown := [name for name in names if name not in known_names]:
        raise click.UsageError(f"no policy {', '.join(unknown)[:80]}; use one of {', '.join(known_names)}")
    kept = {name: limit for name, limit in file.read().items() if name not in names} if names else {}
    file.write(kept)
    click.echo(f"{', '.join(names) or 'All policies'}: the shipped limit. The agent applies it within seconds.")
