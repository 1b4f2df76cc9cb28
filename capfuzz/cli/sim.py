"""`capfuzz sim SCRIPT [ARGS...]` and `capfuzz sim -m MODULE [ARGS...]`"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import click

from capfuzz.cli.errors import BadInputError, ProgramFailed


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-m", "module", is_flag=True, help="Run a module, as `python -m` does.")
@click.argument("program")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def sim(module: bool, program: str, args: tuple[str, ...]) -> None:
    """Run an unmodified program that uses torch.cuda graphs, without a GPU."""
    from capfuzz.devices.sim import sim as simulated

    if not module and not Path(program).is_file():
        raise BadInputError(f"{program}: no such file (a module is run with -m)")
    sys.argv = [program, *args]
    sys.path.insert(0, os.getcwd() if module else str(Path(program).resolve().parent))
    with simulated():
        try:
            if module:
                runpy.run_module(program, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(program, run_name="__main__")
        except (KeyboardInterrupt, SystemExit):  # as under python, Ctrl-C without its traceback
            raise
        except BaseException as error:
            if module and isinstance(error, ImportError) and error.name in (None, program) and program in str(error):
                raise BadInputError(f"-m {program}: {error}") from error
            raise ProgramFailed(error) from error
