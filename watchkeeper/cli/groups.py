"""Command groups whose help shows the whole first sentence of each command; click truncates it to one line."""

from __future__ import annotations

import click

# Longer than the first sentence of any command.
MAX_HELP_LENGTH = 1_000


class FullHelpGroup(click.Group):
    """A click group whose help shows whole sentences."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, command.get_short_help_str(MAX_HELP_LENGTH))
                    for name, command in commands
                    if command is not None
                ]
            )


FullHelpGroup.group_class = FullHelpGroup
