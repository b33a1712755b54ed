"""Groups of commands whose help gives each command its whole first sentence; click cuts it where a line ends."""

from __future__ import annotations

import click

# Longer than any first sentence.
WHOLE = 1_000


class FullHelpGroup(click.Group):
    """As click's, with whole sentences in the list of its commands."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(WHOLE)) for name, one in found if one is not None])


FullHelpGroup.group_class = FullHelpGroup
