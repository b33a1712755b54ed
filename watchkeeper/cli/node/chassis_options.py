"""Options of `watchkeeper agent` for reading the baseboard management controller (BMC)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from watchkeeper.agent import chassis
from watchkeeper.cli.options import path_option


def with_chassis_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for the BMC, and pass them to the command as `chassis`."""

    @click.option("--redfish-url", metavar="URL", help="Redfish URL of the BMC, to read fans and power supplies.")
    @path_option("--redfish-credentials", "secret", help="File with one line `user:password` for --redfish-url.")
    @path_option("--redfish-ca", "ca_file", help="CA certificates that verify the BMC, instead of the system's.")
    @click.option("--redfish-insecure", "is_insecure", is_flag=True, help="Do not verify the certificate of the BMC.")
    @click.option("--no-ipmi", is_flag=True, help="Do not read the BMC with ipmitool.")
    @functools.wraps(command)
    def wrapper(
        *args: Any,
        redfish_url: str | None,
        secret: Path | None,
        ca_file: Path | None,
        is_insecure: bool,
        no_ipmi: bool,
        **options: Any,
    ) -> Any:
        access = chassis.load_access(secret, ca_file, is_insecure=is_insecure)
        return command(*args, chassis=chassis.ChassisSettings(redfish_url, access, reads_ipmi=not no_ipmi), **options)

    return wrapper
