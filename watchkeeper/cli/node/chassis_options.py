"""Options of `watchkeeper agent` about the chassis: whether and how its baseboard controller is asked."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from watchkeeper.agent import chassis

PATH = click.Path(path_type=Path)


def with_chassis_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `agent.chassis`, and hand them to the agent's command as one `chassis`."""

    @click.option("--redfish-url", metavar="URL", help="The baseboard controller, for fans and power supplies.")
    @click.option("--redfish-credentials", "secret", type=PATH, help="File with one line `user:password` for it.")
    @click.option("--redfish-ca", "ca_file", type=PATH, help="Certificates to believe it by, in place of the system's.")
    @click.option("--redfish-insecure", "is_insecure", is_flag=True, help="Do not check its certificate.")
    @click.option("--no-ipmi", is_flag=True, help="Do not ask the controller with ipmitool, though it is there.")
    @functools.wraps(command)
    def wrapper(
        *given: Any,
        redfish_url: str | None,
        secret: Path | None,
        ca_file: Path | None,
        is_insecure: bool,
        no_ipmi: bool,
        **options: Any,
    ) -> Any:
        access = chassis.load_access(secret, ca_file, is_insecure=is_insecure)
        return command(*given, chassis=chassis.ChassisSettings(redfish_url, access, reads_ipmi=not no_ipmi), **options)

    return wrapper
