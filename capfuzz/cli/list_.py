"""`capfuzz list [TARGET...]`"""

from __future__ import annotations

import click

from capfuzz.cli import options
from capfuzz.cli.console import console
from capfuzz.targets import Target, targets


@click.command("list")
@click.argument("names", metavar="[TARGET...]", nargs=-1)
def list_targets(names: tuple[str, ...]) -> None:
    """Show targets, their axes and their faulty variants with the verdict that each must get."""
    chosen = [options.target_of(name) for name in names] if names else list(targets().values())
    out = console()
    for target in chosen:
        out.print(_text(target))


def _text(target: Target) -> str:
    axes = [*(f"{axis.name} ({', '.join(map(str, axis.common))})" for axis in target.fixed), *(a.name for a in target.stepped)]
    lines = [f"{target.name}: {target.summary}", f"  axes      {'; '.join(axes)}", "  variants"]
    width = max((len(name) for name in target.variants), default=0)
    label = max((len(v.label) for v in target.variants.values()), default=0)
    lines += [f"    {v.name:<{width}}  {v.label:<{label}}  {v.summary}" for v in target.variants.values()]
    return "\n".join(lines)
