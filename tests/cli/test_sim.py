"""`capfuzz sim`: an unmodified torch.cuda program prints what it prints on a GPU, and ends as it ends under python."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

Run = Callable[..., Any]

# PyTorch's own recipe: warm up on a side stream, capture, then fill the static inputs and replay.
GRAPH = """\
import torch

assert torch.cuda.is_available()
static_input = torch.zeros(4, device="cuda")
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        static_output = static_input * 2 + 1
torch.cuda.current_stream().wait_stream(side)

graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    static_output = static_input * 2 + 1

for step in range(3):
    static_input.copy_(torch.arange(4.0) + step)
    before = static_output.clone() if step else None
    graph.replay()
    print(step, static_output)
    if before is not None:
        print("was", before)
torch.cuda.synchronize()
print(static_output.cpu(), static_output.device, static_output.is_cuda, static_output.sum().item())
"""
GRAPH_PRINTS = """\
0 tensor([1., 3., 5., 7.], device='cuda:0')
1 tensor([3., 5., 7., 9.], device='cuda:0')
was tensor([1., 3., 5., 7.], device='cuda:0')
2 tensor([ 5.,  7.,  9., 11.], device='cuda:0')
was tensor([3., 5., 7., 9.], device='cuda:0')
tensor([ 5.,  7.,  9., 11.]) cuda:0 True 32.0
"""

ABOUT_ITSELF = """\
import sys

import beside

if __name__ == "__main__":
    print(sys.argv[1:], beside.NAME, __file__.endswith("about.py"))
    sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def about(work: Path) -> Path:
    """A program in a directory of its own, with a module beside it."""
    directory = work / "programs"
    directory.mkdir()
    (directory / "beside.py").write_text("NAME = 'beside'\n")
    path = directory / "about.py"
    path.write_text(ABOUT_ITSELF)
    return path


def test_graph_program_prints_what_a_gpu_prints(capfuzz: Run, work: Path) -> None:
    (work / "program.py").write_text(GRAPH)
    result = capfuzz("sim", "program.py")
    assert (result.code, result.err) == (0, "")
    assert result.out == GRAPH_PRINTS


def test_module(capfuzz: Run, work: Path) -> None:
    package = work / "mypackage"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text("import mypackage.program\n")
    (package / "program.py").write_text(GRAPH)
    for name in ("mypackage.program", "mypackage"):
        result = capfuzz("sim", "-m", name)
        assert (result.code, result.out) == (0, GRAPH_PRINTS)


def test_torch_is_put_back(capfuzz: Run, work: Path) -> None:
    (work / "program.py").write_text("import torch\ntorch.ones(1, device='cuda')\nraise ValueError('boom')\n")
    before = (torch.cuda.is_available, torch.cuda.CUDAGraph, torch.cuda.Stream, torch.zeros)
    assert capfuzz("sim", "program.py").code == 1
    assert (torch.cuda.is_available, torch.cuda.CUDAGraph, torch.cuda.Stream, torch.zeros) == before
    assert torch.zeros(1).device.type == "cpu"


@pytest.mark.parametrize("code", [0, 1, 2, 7, 130])
def test_status_and_arguments_are_the_programs_own(capfuzz: Run, about: Path, code: int) -> None:
    result = capfuzz("sim", "programs/about.py", code, "--flag", "-x", "-h", "--help", "-m", "--", "last")
    assert result.code == code
    assert result.out == f"{[str(code), '--flag', '-x', '-h', '--help', '-m', '--', 'last']} beside True\n"


def test_argv_0_is_the_program(capfuzz: Run, work: Path) -> None:
    (work / "program.py").write_text("import sys\nprint(sys.argv[0], sys.path[0])\n")
    assert capfuzz("sim", "program.py").out == f"program.py {work}\n"


def test_module_gets_its_arguments(capfuzz: Run, work: Path) -> None:
    (work / "mymodule.py").write_text("import sys\nprint(__name__, sys.argv[1:])\nsys.exit(4)\n")
    result = capfuzz("sim", "-m", "mymodule", "-m", "--seed", "3")
    assert (result.code, result.out) == (4, "__main__ ['-m', '--seed', '3']\n")


def test_message_in_sys_exit(process: Run, work: Path) -> None:
    (work / "program.py").write_text("import sys\nsys.exit('no weights')\n")
    result = process("sim", "program.py")
    assert (result.code, result.out, result.err) == (1, "", "no weights\n")


def test_exception_gives_its_traceback_and_status_1(process: Run, work: Path) -> None:
    """In a process: the interpreter prints it. What it says is what CUDA says."""
    (work / "program.py").write_text(
        "import torch\n\nx = torch.ones(3, device='cuda')\ng = torch.cuda.CUDAGraph()\n"
        "with torch.cuda.graph(g):\n    n = x.sum().item()\nprint('not reached')\n"
    )
    result = process("sim", "program.py")
    assert (result.code, result.out) == (1, "")
    assert "Traceback (most recent call last)" in result.err
    assert 'program.py", line 6, in <module>' in result.err
    assert "n = x.sum().item()" in result.err
    assert "CUDA error: operation not permitted when stream is capturing" in result.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nosuch.py"], "nosuch.py: no such file"),
        (["."], "no such file"),
        (["-m", "nosuchmodule"], "nosuchmodule"),
        (["-m", "nosuchpackage.part"], "nosuchpackage"),
        ([], "PROGRAM"),
        (["--nosuchoption", "program.py"], "--nosuchoption"),
    ],
)
def test_program_that_is_not_there(capfuzz: Run, work: Path, arguments: list[str], says: str) -> None:
    (work / "program.py").write_text("print('run')\n")
    result = capfuzz("sim", *arguments)
    assert (result.code, result.out) == (2, "")
    assert says in result.err and "Traceback" not in result.err


def test_import_error_inside_a_module_is_the_modules_own(capfuzz: Run, work: Path) -> None:
    (work / "mymodule.py").write_text("import nosuchdependency\n")
    result = capfuzz("sim", "-m", "mymodule")
    assert result.code == 1
    assert "Traceback" in result.err and "nosuchdependency" in result.err


@pytest.mark.parametrize(
    "source",
    ["raise EOFError('boom')", "raise BrokenPipeError('boom')", "class Stop(BaseException): pass\nraise Stop('boom')"]
    + ["import click\nraise click.UsageError('boom')", "import click\nraise click.exceptions.Exit(0)  # boom"],
)
def test_exception_that_capfuzz_or_click_has_a_meaning_for(capfuzz: Run, work: Path, source: str) -> None:
    (work / "program.py").write_text(f"{source}\n")
    result = capfuzz("sim", "program.py")
    assert result.code == 1
    assert "Traceback" in result.err and "boom" in result.err and "program.py" in result.err
    assert "defect of capfuzz" not in result.err


def test_excepthook_of_the_program(process: Run, work: Path) -> None:
    (work / "program.py").write_text("import sys\nsys.excepthook = lambda *a: print('mine', a[1])\nraise ValueError('boom')\n")
    result = process("sim", "program.py")
    assert (result.code, result.out, result.err) == (1, "mine boom\n", "")


def test_syntax_error(capfuzz: Run, work: Path) -> None:
    (work / "program.py").write_text("def f(:\n")
    result = capfuzz("sim", "program.py")
    assert result.code == 1
    assert "SyntaxError" in result.err and "program.py" in result.err


def test_program_that_deals_with_click_itself(capfuzz: Run, work: Path) -> None:
    """capfuzz is a click program too; an error of the user's program is not an error in capfuzz's arguments."""
    (work / "program.py").write_text(
        "import click\n\n@click.command()\n@click.option('--size', type=int)\ndef main(size):\n    print(size)\n\nmain()\n"
    )
    assert capfuzz("sim", "program.py", "--size", "3").out == "3\n"
    wrong = capfuzz("sim", "program.py", "--size", "many")
    assert wrong.code == 2 and "program.py" in wrong.err


def test_sys_path_finds_the_working_directory_for_modules(capfuzz: Run, work: Path) -> None:
    (work / "mymodule.py").write_text("import sys\nimport other\nprint(other.NAME)\n")
    (work / "other.py").write_text("NAME = 'other'\n")
    assert capfuzz("sim", "-m", "mymodule").out == "other\n"
    assert "mymodule" not in sys.modules
