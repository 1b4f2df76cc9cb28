"""A group of verbs that suggests the nearest one."""

from __future__ import annotations

import difflib
from typing import Any

import click


class VerbGroup(click.Group):
    """A group that suggests the nearest verb."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name = args[0]
        if name not in self.commands and not name.startswith("-"):
            close = difflib.get_close_matches(name, self.commands, n=1, cutoff=0.4)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise click.UsageError(f"no verb named {name!r}{hint} (verbs: {', '.join(self.commands)})", ctx)
        return super().resolve_command(ctx, args)
