"""`capfuzz trace`: the op trace of one capture."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from capfuzz.cli.trace_text import WIDTH
from capfuzz.targets import fold_indptr

Run = Callable[..., Any]

OWN = """\
import torch

BUFFER = torch.zeros(4, device="cuda")
SIDE = torch.cuda.Stream()


def scalars():
    x = BUFFER + 2.5
    x[1:] = 7
    return x.mul_(torch.tensor(3.0)).clamp(0, 5)


def aside():
    y = BUFFER * 1.5
    with torch.cuda.stream(SIDE):
        BUFFER.add_(1)
        BUFFER[1:].copy_(torch.ones(3))
    return y.view(2, 2)


def on_host():
    host = torch.ones(3, dtype=torch.int64)
    total = host.sum().item()
    host.numpy()
    return host.pin_memory().to("cuda", non_blocking=True), total


def unjoined():
    SIDE.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(SIDE):
        BUFFER.add_(1)


def raises():
    BUFFER.add_(1)
    if torch.cuda.is_current_stream_capturing():
        raise ValueError("not here")


def raises_eagerly():
    raise ValueError("never")


def many():
    parts = torch.split(BUFFER, 1)
    torch.cat([*parts, BUFFER, *parts[:2], BUFFER])
    torch.sort(BUFFER)
    torch._foreach_clamp_max_([(BUFFER + n) for n in (3, 4)], [1.0, 2.5])


def nothing():
    pass


def needs(a, *rest, b, c=1, **more):
    return a


def takes_the_targets(indptr, fold_factor):
    return indptr


def optional(a=1, *rest, b=2, **more):
    return BUFFER + a


class Module:
    def __call__(self):
        return BUFFER + 1


module = Module()
"""


@pytest.fixture
def own(work: Path) -> Path:
    """A module that makes tensors of its own, at import too."""
    path = work / "own.py"
    path.write_text(OWN)
    return path


def line_of(text: str, function: Callable[..., Any]) -> int:
    """The number of the first line of `function` that begins with `text`."""
    lines, first = inspect.getsourcelines(function)
    return next(first + n for n, line in enumerate(lines) if line.strip().startswith(text))


def ops(out: str) -> list[list[str]]:
    """The cells of a trace's rows: name, what was read, what was written, what became of it."""
    return [re.split(r"\s{2,}| (?=->)", row.strip()) for row in out.splitlines() if re.match(r"    \S", row)]


SHIPPED = """\
fold_indptr (shipped) on sim
  case       batch 3, fold_factor 1, dtype int32, layout contiguous, no changed inputs
             captured  indptr = [0, 2, 2, 5]

capfuzz/targets/fold_indptr.py:{a}  lengths = torch.diff(indptr).repeat_interleave(fold_factor)
    slice.Tensor     int32[4]    -> int32[3]    view
    slice.Tensor     int32[4]    -> int32[3]    view
    sub.Tensor       int32[3] x2 -> int32[3]    recorded
    unsqueeze        int32[3]    -> int32[3,1]  view
    expand           int32[3,1]  -> int32[3,1]  view
    clone            int32[3,1]  -> int32[3,1]  recorded
    view             int32[3,1]  -> int32[3]    view
capfuzz/targets/fold_indptr.py:{b}  return F.pad(torch.cumsum(lengths, 0), (1, 0)).to(indptr.dtype)
    cumsum           int32[3]    -> int64[3]    recorded
    constant_pad_nd  int64[3]    -> int64[4]    recorded
    _to_copy         int64[4]    -> int32[4]    recorded

10 ops: 5 recorded, 5 views, 0 host, 0 baked
"""

SCALAR_STORE = """\
fold_indptr (variant:scalar_store) on sim
  case       batch 3, fold_factor 1, dtype int32, layout contiguous, no changed inputs
             captured  indptr = [0, 2, 2, 5]

capfuzz/targets/fold_indptr.py:{a}  lengths = torch.diff(indptr).repeat_interleave(fold_factor)
    slice.Tensor         int32[4]    -> int32[3]     view
    slice.Tensor         int32[4]    -> int32[3]     view
    sub.Tensor           int32[3] x2 -> int32[3]     recorded
    unsqueeze            int32[3]    -> int32[3,1]   view
    expand               int32[3,1]  -> int32[3,1]   view
    clone                int32[3,1]  -> int32[3,1]   recorded
    view                 int32[3,1]  -> int32[3]     view
capfuzz/targets/fold_indptr.py:{b}  out = torch.empty(lengths.numel() + 1, dtype=indptr.dtype, de...
    empty.memory_format              -> int32[4]     alloc
capfuzz/targets/fold_indptr.py:{c}  out[0] = 0
    lift_fresh           cpu int32[] -> cpu int32[]  host
    select.int           int32[4]    -> int32[]      view

10 ops before the error: 2 recorded, 6 views, 1 host, 0 baked, 1 alloc

FAILED   capture_error:host_copy
  line       capfuzz/targets/fold_indptr.py:{c} in scalar_store
                 out[0] = 0
             lowers to copy_
  message    Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU
             tensor is pinned. Please use tensor.pin_memory() or allocate the tensor with
             pin_memory=True.
  mend       keep the value on the device: `out[:1].zero_()` or `out[:1].fill_(v)` instead of
             `out[0] = v`; `F.pad` to prepend; device tensors instead of lists or CPU tensors as
             indices
"""

HOST_LENGTHS = """\
fold_indptr (variant:host_lengths) on sim
  case       batch 3, fold_factor 1, dtype int32, layout contiguous, no changed inputs
             captured  indptr = [0, 2, 2, 5]

capfuzz/targets/fold_indptr.py:{a}  staged = torch.from_numpy(np.cumsum(folded)).to(indptr.dtype)...
    lift_fresh   cpu int64[4] -> cpu int64[4]  host
    _to_copy     cpu int64[4] -> cpu int32[4]  host
    _pin_memory  cpu int32[4] -> cpu int32[4]  host
capfuzz/targets/fold_indptr.py:{b}  return staged.to(indptr.device, non_blocking=True)
    copy_        cpu int32[4] -> int32[4]      recorded

4 ops: 1 recorded, 0 views, 3 host, 0 baked
"""


def test_shipped(capfuzz: Run) -> None:
    result = capfuzz("trace", "fold_indptr")
    function = fold_indptr.fold_indptr
    assert result.out == SHIPPED.format(a=line_of("lengths", function), b=line_of("return", function))
    assert (result.code, result.err) == (0, "")


def test_a_failed_capture_is_shown_up_to_there(capfuzz: Run) -> None:
    result = capfuzz("trace", "fold_indptr", "--variant", "scalar_store")
    a, b, c = (line_of(text, fold_indptr.scalar_store) for text in ("lengths", "out =", "out[0]"))
    assert result.out == SCALAR_STORE.format(a=a, b=b, c=c)
    assert (result.code, result.err) == (1, "")


def test_host_work(capfuzz: Run) -> None:
    result = capfuzz("trace", "fold_indptr", "--variant", "host_lengths")
    function = fold_indptr.host_lengths
    assert result.out == HOST_LENGTHS.format(a=line_of("staged", function), b=line_of("return staged", function))
    assert (result.code, result.err) == (0, "")


def test_a_wait_is_shown_with_rule_line_and_hint(capfuzz: Run) -> None:
    result = capfuzz("trace", "fold_indptr", "--variant", "item_read")
    assert result.code == 1
    assert "FAILED   capture_error:synchronization\n" in result.out
    assert f"fold_indptr.py:{line_of('if (indptr', fold_indptr.item_read)} in item_read\n" in result.out
    assert "lowers to _local_scalar_dense\n" in result.out
    assert "message    CUDA error: operation not permitted when stream is capturing\n" in result.out
    assert "mend       do not read a device value on the host" in result.out


def test_own_implementation_of_a_target(capfuzz: Run, mine: Path) -> None:
    result = capfuzz("trace", "fold_indptr", "--impl", "mine:bad")
    assert result.code == 1
    assert result.out.startswith("fold_indptr (user:mine:bad) on sim\n")
    assert "mine.py:13  out[0] = 0\n" in result.out and "mine.py:13 in bad\n" in result.out
    assert capfuzz("trace", "fold_indptr", "--impl", "mine:good").code == 0


def test_a_targets_own_function_by_its_module(capfuzz: Run) -> None:
    by_module = capfuzz("trace", "capfuzz.targets.fold_indptr:scalar_store")
    assert by_module.out == capfuzz("trace", "fold_indptr", "--variant", "scalar_store").out
    assert by_module.code == 1
    assert capfuzz("trace", "capfuzz.targets.fold_indptr:fold_indptr").out == capfuzz("trace", "fold_indptr").out


def test_the_case_of_an_entry(capfuzz: Run, save: Callable[..., Path]) -> None:
    case = {
        "values": {"fold_factor": 2, "dtype": "int64", "layout": "strided"},
        "steps": [{"lengths": [3, 1], "start": 1}, {"lengths": [9, 9], "start": 0}],
    }
    result = capfuzz("trace", "fold_indptr", "--entry", save("one", case=case))
    assert result.code == 0
    assert "batch 2, fold_factor 2, dtype int64, layout strided" in result.out
    assert "captured  indptr = [1, 4, 5]" in result.out
    assert ["cumsum", "int64[4]", "-> int64[4]", "recorded"] in ops(result.out)


def test_scalars_are_baked_with_their_values(capfuzz: Run, own: Path) -> None:
    result = capfuzz("trace", "own:scalars")
    assert (result.code, result.err) == (0, "")
    assert result.out == (
        "own:scalars on sim\n"
        "\n"
        "own.py:8  x = BUFFER + 2.5\n"
        "    add.Tensor    float32[4]                -> float32[4]     baked 2.5\n"
        "own.py:9  x[1:] = 7\n"
        "    lift_fresh    cpu float32[]             -> cpu float32[]  host\n"
        "    slice.Tensor  float32[4]                -> float32[3]     view\n"
        "    fill_.Tensor  cpu float32[]             -> float32[3]     baked 7.0\n"
        "own.py:10  return x.mul_(torch.tensor(3.0)).clamp(0, 5)\n"
        "    lift_fresh    cpu float32[]             -> cpu float32[]  host\n"
        "    mul_.Tensor   float32[4], cpu float32[] -> float32[4]     baked 3.0\n"
        "    clamp         float32[4]                -> float32[4]     baked 0, 5\n"
        "\n"
        "7 ops: 0 recorded, 1 view, 2 host, 4 baked\n"
    )


def test_work_beside_the_capture_ran_at_once(capfuzz: Run, own: Path) -> None:
    result = capfuzz("trace", "own:aside")
    assert result.code == 0
    assert [row[-1] for row in ops(result.out)] == ["baked 1.5", "at once", "view", "host", "at once", "view"]
    assert result.out.endswith("\n6 ops: 0 recorded, 2 views, 1 host, 1 baked, 2 at once\n")


def test_what_the_host_reads(capfuzz: Run, own: Path) -> None:
    result = capfuzz("trace", "own:on_host")
    assert result.code == 0
    assert [(row[0], row[-1]) for row in ops(result.out)] == [
        ("ones", "host"),
        ("sum", "host"),
        ("item", "host"),
        ("numpy", "host"),
        ("_pin_memory", "host"),
        ("copy_", "recorded"),
    ]


def test_a_failure_when_the_capture_ends_blames_no_line(capfuzz: Run, own: Path) -> None:
    result = capfuzz("trace", "own:unjoined")
    assert result.code == 1
    assert "1 op before the error: 0 recorded, 0 views, 0 host, 1 baked\n" in result.out
    assert "FAILED   capture_error:unjoined_stream\n" in result.out
    assert "line       no line could be blamed: this shows when the capture ends\n" in result.out
    assert "capturing stream has unjoined work" in result.out and "current.wait_stream(side)" in result.out


def test_an_exception_of_the_users(capfuzz: Run, own: Path) -> None:
    result = capfuzz("trace", "own:raises")
    assert result.code == 1
    assert "FAILED   capture_error:host_exception\n" in result.out
    assert "message    ValueError: not here\n" in result.out
    assert f"own.py:{OWN[: OWN.index('raise ValueError')].count(chr(10)) + 1} in raises\n" in result.out


def test_an_exception_while_warming_up(capfuzz: Run, own: Path) -> None:
    result = capfuzz("trace", "own:raises_eagerly")
    assert result.code == 1
    assert "FAILED   eager_error:ValueError, before the capture" in result.out
    assert " ops" not in result.out and "in raises_eagerly\n" in result.out


def test_long_rows_are_folded(capfuzz: Run, own: Path) -> None:
    out = capfuzz("trace", "own:many").out
    assert max(map(len, out.splitlines())) <= WIDTH
    assert out == (
        "own:many on sim\n"
        "\n"
        "own.py:45  parts = torch.split(BUFFER, 1)\n"
        "    split.Tensor  float32[4]                 -> float32[1] x4  view\n"
        "own.py:46  torch.cat([*parts, BUFFER, *parts[:2], BUFFER])\n"
        "    cat           float32[1] x4, float32[4], -> float32[14]    recorded\n"
        "                  float32[1] x2, float32[4]\n"
        "own.py:47  torch.sort(BUFFER)\n"
        "    sort          float32[4]                 -> float32[4],    recorded\n"
        "                                                int64[4]\n"
        "own.py:48  torch._foreach_clamp_max_([(BUFFER + n) for n in (3, 4)], [1.0, 2.5])\n"
        "    add.Tensor    float32[4]                 -> float32[4]     baked 3\n"
        "    add.Tensor    float32[4]                 -> float32[4]     baked 4\n"
        "    _foreach_clamp_max_.ScalarList\n"
        "                  float32[4] x2              -> float32[4] x2  baked 1.0, 2.5\n"
        "\n"
        "6 ops: 2 recorded, 1 view, 0 host, 3 baked\n"
    )


@pytest.mark.parametrize("name", ["optional", "module", "nothing"])
def test_what_is_called_without_arguments(capfuzz: Run, own: Path, name: str) -> None:
    result = capfuzz("trace", f"own:{name}")
    assert (result.code, result.err) == (0, "")


def test_nothing_at_all(capfuzz: Run, own: Path) -> None:
    assert capfuzz("trace", "own:nothing").out == "own:nothing on sim\n\n0 ops: 0 recorded, 0 views, 0 host, 0 baked\n"


def test_plain_when_not_a_terminal(capfuzz: Run) -> None:
    assert "\x1b" not in capfuzz("trace", "fold_indptr", "--variant", "host_lengths").out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["own:needs"],
            "own:needs needs arguments (a, b); as an implementation of a target it gets them: capfuzz",
        ),
        (["own:needs"], "capfuzz trace TARGET --impl own:needs"),
        (["own:takes_the_targets"], "capfuzz trace fold_indptr --impl own:takes_the_targets"),
        (["own:nosuch"], "'own:nosuch': own has no function 'nosuch'"),
        (["nosuch:f"], "'nosuch:f': no module named 'nosuch'"),
        (["own:"], "'own:': write MODULE:FUNCTION"),
        (["own:nothing", "--entry", "one.json"], "--entry: own:nothing is no target's implementation"),
        (["own:nothing", "--variant", "scalar_store"], "--variant and --impl name an implementation of a target"),
        (["own:nothing", "--impl", "mine:good"], "--variant and --impl name an implementation of a target"),
        (["fold_indptrr"], "did you mean 'fold_indptr'?"),
        (["fold_indptr", "--variant", "nosuch"], "has no variant named 'nosuch'"),
        (["fold_indptr", "--variant", "scalar_store", "--impl", "mine:good"], "two implementations"),
        (["fold_indptr", "--impl", "mine:CONSTANT"], "has no function 'CONSTANT'"),
        (["fold_indptr", "--entry", "nosuch.json"], "nosuch.json: cannot be read"),
        ([], "Missing argument"),
        (["fold_indptr", "more"], "unexpected extra argument"),
    ],
)
def test_usage_errors(capfuzz: Run, own: Path, mine: Path, arguments: list[str], says: str) -> None:
    result = capfuzz("trace", *arguments)
    assert (result.code, result.out) == (2, "")
    assert says in result.err and "Traceback" not in result.err


def test_an_entry_that_is_broken(capfuzz: Run, save: Callable[..., Path]) -> None:
    result = capfuzz("trace", "fold_indptr", "--entry", save("one", schema=99))
    assert (result.code, result.out) == (2, "")
    assert "field $.schema" in result.err


def test_a_module_is_imported_on_the_device(capfuzz: Run, own: Path) -> None:
    """Its tensors are made at import, which without a GPU fails anywhere else."""
    assert capfuzz("trace", "own:optional").code == 0
    assert sys.modules["own"].BUFFER.device.type == "cuda"


def test_ctrl_c_is_no_finding(capfuzz: Run, work: Path) -> None:
    (work / "stop.py").write_text("def f():\n    raise KeyboardInterrupt\n")
    assert capfuzz("trace", "stop:f").code == 130


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_here(capfuzz: Run) -> None:
    result = capfuzz("trace", "fold_indptr", "--device", "cuda")
    assert result.code == 2
    assert "no GPU is available here" in result.err
    assert "`--device sim` needs no GPU" in result.err
