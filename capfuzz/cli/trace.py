"""`capfuzz trace TARGET` and `capfuzz trace MODULE:FUNCTION`"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import click

from capfuzz import corpus as corpora
from capfuzz.cli import options
from capfuzz.cli.console import console
from capfuzz.cli.errors import BadInputError
from capfuzz.cli.exit_code import ExitCode
from capfuzz.cli.text import case_text, field
from capfuzz.cli.trace_text import failure_text, summary, trace_lines
from capfuzz.devices import Device, DeviceMissingError, open_device
from capfuzz.devices.tracer import trace_capture
from capfuzz.differential.run import SEED
from capfuzz.targets import Case, InvalidCaseError, Subject, Target, shipped, targets, variant
from capfuzz.targets.axes import RowsAxis
from capfuzz.targets.op_trace import OpTrace, op_trace, trace_case
from capfuzz.targets.subjects import ImplementationError, check_arguments, import_function

_LENGTHS = ([2, 0, 3], [2, 1, 3], [1, 1, 1])  # what a batch of three may have, the more telling first


@click.command()
@click.argument("what", metavar="TARGET|MODULE:FUNCTION")
@click.option("--variant", "variant_name", metavar="NAME", help="A registered faulty variant of the target.")
@options.impl_option
@click.option(
    "--entry",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Take the captured inputs of a corpus entry of the target. [default: a simple case of batch 3]",
)
@options.device_option
def trace(what: str, variant_name: str | None, impl: str | None, entry: Path | None, device: str) -> int:
    """Show one capture op by op: the line that launched it, what it read and wrote, and what became of it.

    recorded: a kernel or a copy that every replay runs again. baked: the same, with the values shown frozen into it. view,
    alloc: nothing for a replay to run. host: it ran on the host at capture, and no replay runs it again. at once: it ran on a
    stream outside the capture, which did not record it.

    A MODULE:FUNCTION that is no target's implementation makes its own tensors: it is called without arguments, once to warm up
    and once more to be captured. The exit status is 0 if the capture succeeded, 1 if it failed.
    """
    with _opened(options.device_name(device)) as opened:
        if ":" in what:
            if variant_name is not None or impl is not None:
                raise BadInputError("--variant and --impl name an implementation of a target; give them with TARGET")
            found = _imported(opened, what)
        else:
            found = options.subject_of(options.target_of(what), variant_name, impl, options.device_name(device))
        if isinstance(found, Subject):
            target = found.target
            case = simple_case(target) if entry is None else _case_of(entry, target)
            title = f"{target.name} ({found.label}) on {opened.name}\n{field('case', case_text(target, case))}"
            traced = trace_case(opened, found, case)
        elif entry is not None:
            raise BadInputError(f"--entry: {what} is no target's implementation, and takes no case; give it as TARGET --impl")
        else:
            title, traced = f"{what} on {opened.name}", op_trace(opened, trace_capture(opened, found, SEED))
    _print(title, traced)
    return ExitCode.OK if traced.error is None else ExitCode.FINDINGS


def _opened(name: str) -> AbstractContextManager[Device]:
    try:
        return open_device(name)
    except DeviceMissingError as error:
        raise BadInputError(f"{error}; `--device sim` needs no GPU") from error


def _print(title: str, traced: OpTrace) -> None:
    out = console()
    out.print(title)
    out.print()
    if traced.error is None or not traced.warm_up:
        for line, style in trace_lines(traced.records):
            out.print(line, style=style)
        if traced.records:
            out.print()
        out.print(summary(traced.records, failed=traced.error is not None))
    if traced.error is not None:
        if not traced.warm_up:
            out.print()
        out.print(failure_text(traced.error, traced.warm_up))


def _case_of(path: Path, target: Target) -> Case:
    """The captured inputs of an entry. Raises `BadInputError`."""
    try:
        entry = corpora.load(path)
    except corpora.CorpusError as error:
        raise BadInputError(str(error)) from error
    if entry.target != target.name:
        raise BadInputError(f"{path}: is an entry of {entry.target}, not of {target.name}")
    return Case(entry.case.values, entry.case.steps[:1])


def simple_case(target: Target) -> Case:
    """The simplest case with three requests that the target accepts, without changed inputs. Raises `BadInputError`."""
    for case in _simple_cases(target):
        try:
            target.feeds(case)
        except InvalidCaseError:
            continue
        return case
    raise BadInputError(f"{target.name} accepts no simple case; give one with --entry")


def _simple_cases(target: Target) -> Iterator[Case]:
    values = {axis.name: axis.simplest for axis in target.fixed}
    for rows in _LENGTHS:
        step: dict[str, int | list[int]] = {
            axis.name: [max(axis.least, row) for row in rows] if isinstance(axis, RowsAxis) else axis.least
            for axis in target.stepped
        }
        yield Case(dict(values), [step])


def _imported(device: Device, spec: str) -> Subject | Callable[[], Any]:
    """What `spec` names: an implementation of a target, or a function to be called without arguments.

    It is imported on the device, because its module may make tensors of its own. Raises `BadInputError`.
    """
    try:
        function: Callable[..., Any] = device.eager(partial(import_function, spec), SEED)
    except ImplementationError as error:
        raise BadInputError(str(error).removeprefix("--impl ")) from error
    for target in targets().values():
        if function is target.implementation:
            return shipped(target)
        for name, known in target.variants.items():
            if function is known.function:
                return variant(target, name)
    needed = _required(function)
    if needed:
        raise BadInputError(
            f"{spec} needs arguments ({', '.join(needed)}); as an implementation of a target it gets them: "
            f"capfuzz trace {_fitting(spec, function)} --impl {spec}"
        )
    return function


def _required(function: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(function, follow_wrapped=False).parameters.values()
    except (TypeError, ValueError):  # a builtin: nothing is known of it
        return []
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is inspect.Parameter.empty and p.kind not in optional]


def _fitting(spec: str, function: Callable[..., Any]) -> str:
    """The target whose arguments the function takes, or `TARGET` where none or several are."""
    fitting = []
    for target in targets().values():
        try:
            check_arguments(target, spec, function)
        except ImplementationError:
            continue
        fitting.append(target.name)
    return fitting[0] if len(fitting) == 1 else "TARGET"
