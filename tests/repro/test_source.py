"""Source that stands alone: what is taken along, what is left behind, and what cannot be copied."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from capfuzz.devices.layout import LAYOUTS, Argument, Space
from capfuzz.repro.inputs import PLACE, arguments_text
from capfuzz.repro.literals import array_literal, literal
from capfuzz.repro.reach import arcs_of
from capfuzz.repro.source import CannotStandAloneError, Source, standalone


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    monkeypatch.syspath_prepend(tmp_path)

    def make(text: str) -> ModuleType:
        (tmp_path / "alone.py").write_text(text)
        importlib.invalidate_caches()
        sys.modules.pop("alone", None)
        return importlib.import_module("alone")

    yield make
    sys.modules.pop("alone", None)


def run(source: Source) -> dict[str, object]:
    """The names that the source binds when it runs where nothing else is."""
    names: dict[str, object] = {"__name__": "somewhere_else"}
    exec("\n".join([*source.imports, *source.statements]), names)
    return names


WHOLE = '''
"""A module."""
from __future__ import annotations
import functools, os
import torch
import torch.nn.functional as F
from math import gcd as common, pi
from typing import Any

FACTOR: int = 2
UNUSED = 5
_state: dict[str, int] = {}
_state["first"] = FACTOR
_other = {}
_other["never"] = 1


def unused(x: Any) -> Any:
    return os.getcwd(), UNUSED, pi


@functools.lru_cache(maxsize=None)
def cached(n: int) -> int:
    """Kept."""
    return n * FACTOR


def helper(
    x: torch.Tensor,
    *rest: int,
    scale: int = common(4, 6),
    **given: Any,
) -> torch.Tensor:
    """Has a docstring
    of two lines."""
    width: int = 1
    # A comment stays.
    def inner(y: int) -> int:
        return y + width

    return F.pad(x, (inner(0), 0)) * scale


def op(x: torch.Tensor, n: int) -> torch.Tensor:
    """What it does."""
    _state["calls"] = _state.get("calls", 0) + 1
    unused = n
    return helper(x) + cached(n) + unused
'''


def test_what_is_named_comes_along_and_nothing_else(module: Callable[[str], ModuleType]) -> None:
    made = module(WHOLE)
    source = standalone([made.op])
    assert source.names == ["op"]
    assert source.packages == set()
    assert source.imports == ["import functools", "import torch.nn.functional as F", "from math import gcd as common"]
    text = "\n".join(source.statements)
    for word in ("UNUSED", "_other", "pi", "os.", "torch.Tensor", "Any", ": int", "-> ", "two lines", "Kept."):
        assert word not in text, word
    for word in (
        "FACTOR = 2",
        '_state["first"] = FACTOR',
        "@functools.lru_cache(maxsize=None)",
        "# A comment stays.",
        "What it does.",
    ):
        assert word in text, word
    assert "def helper(x, *rest, scale=common(4, 6), **given):" in text
    moved = run(source)["op"]
    assert callable(moved)
    assert torch.equal(moved(torch.ones(2), 3), made.op(torch.ones(2), 3))


def test_a_kept_decorator_keeps_its_hints(module: Callable[[str], ModuleType]) -> None:
    """Custom ops and Triton's kernels are made of them."""
    made = module(
        "import torch\nfrom torch import Tensor\n\n"
        '@torch.library.custom_op("alone::twice", mutates_args=())\n'
        "def twice(x: Tensor) -> Tensor:\n    return x * 2\n\n"
        "@twice.register_fake\ndef _(x):\n    return torch.empty_like(x)\n\n"
        "def op(x):\n    return twice(x)\n"
    )
    text = "\n".join(standalone([made.op]).statements)
    assert "def twice(x: Tensor) -> Tensor:" in text
    assert "@twice.register_fake" in text
    assert "from torch import Tensor" in standalone([made.op]).imports


def test_other_packages_are_said(module: Callable[[str], ModuleType]) -> None:
    made = module("import numpy as np\nimport msgspec\n\ndef op(x):\n    return np.add(x, 1), msgspec\n")
    assert standalone([made.op]).packages == {"numpy", "msgspec"}


def test_what_a_factory_made(module: Callable[[str], ModuleType]) -> None:
    made = module(
        "def base(x):\n    return x + 1\n\n"
        "def body(x):\n    return x\n\n"
        "def wrapped(fault, times):\n    def body(x):\n        return fault(x) * times\n    return body\n\n"
        "op = wrapped(base, 3)\n"
    )
    source = standalone([made.op])
    assert source.names == ["body_"]
    names = run(source)
    assert names["body_"](1) == 6  # type: ignore[operator]


def test_a_decorated_function_of_the_user(module: Callable[[str], ModuleType]) -> None:
    made = module(
        "import functools\n\ndef twice(f):\n    "
        "@functools.wraps(f)\n    def inner(x):\n        return 2 * f(x)\n    return inner\n\n"
        "@twice\ndef op(x):\n    return x + 1\n"
    )
    source = standalone([made.op])
    assert run(source)["op"](1) == 4  # type: ignore[operator]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("op = lambda x: x\n", "made at run time"),
        ("import functools\nop = functools.partial(max, 1)\n", "cannot be read|made at run time"),
        ("exec('def op(x):\\n    return x')\n", "made at run time"),
        ("class Op:\n    def __call__(self, x):\n        return x\n\nop = Op()\n", "made at run time"),
        ("from math import *\n\ndef op(x):\n    return floor(x)\n", "no statement of alone says what floor is"),
        (
            "def outer(big):\n    def inner(x):\n        return big\n    return inner\n\nop = outer([1])\n",
            "has big from the function",
        ),
        ("import capfuzz\n\ndef op(x):\n    return capfuzz.sim\n", "imports from capfuzz"),
    ],
)
def test_what_cannot_be_copied(module: Callable[[str], ModuleType], text: str, says: str) -> None:
    made = module(text)
    with pytest.raises(CannotStandAloneError, match=says):
        standalone([made.op])


BRANCHES = """
def op(x, kind, where=None):
    total = 0
    if kind == "one":
        total += one(x)
    elif kind in ("two", "three"):
        # of two kinds
        total += two(x)
        if where is None:
            total += 100
    else:
        total += three(x)
    if kind != "one" and where is None:
        total += 1000
    if x > 0:
        return total
    return early(total, kind)


def early(total, kind):
    if kind == "one":
        return total + 1
    rest = three(total)
    return rest


def one(x):
    return x + 1


def two(x):
    return x + 2


def three(x):
    return x + 3
"""


@pytest.mark.parametrize(
    ("arguments", "gone", "kept"),
    [
        ([(1, "one")], ["def two", "else", "1000"], ["def one", "if x > 0", "total += one(x)"]),
        ([(-1, "one")], ["def two", "def three", "rest"], ["def one", "return total + 1"]),
        ([(1, "two")], ["def one", "elif", "if where"], ["total += two(x)", "total += 1000", "# of two kinds"]),
        ([(1, "one"), (1, "two")], ["total += three(x)\n    else"], ['if kind == "one":', "def one", "def two"]),
    ],
)
def test_sides_that_are_not_taken_go(
    module: Callable[[str], ModuleType], arguments: list[tuple[int, str]], gone: list[str], kept: list[str]
) -> None:
    made = module(BRANCHES)
    arcs = arcs_of(lambda: [made.op(*given) for given in arguments], {str(made.__file__)})
    text = "\n\n".join(standalone([made.op], arcs).statements)
    moved = run(standalone([made.op], arcs))["op"]
    assert callable(moved)
    assert [moved(*given) for given in arguments] == [made.op(*given) for given in arguments]
    for word in kept:
        assert word in text, text
    for word in gone:
        assert word not in text, text


def test_a_test_that_may_wait_for_the_device_stays(module: Callable[[str], ModuleType]) -> None:
    made = module("def op(x, kind):\n    if kind == 'a' and x.item() > 0:\n        return 1\n    return 2\n")
    arcs = arcs_of(lambda: made.op(torch.ones(()), "a"), {str(made.__file__)})
    assert "x.item() > 0" in "\n".join(standalone([made.op], arcs).statements)


def test_tracing_is_put_back() -> None:
    before = sys.gettrace()
    with pytest.raises(ZeroDivisionError):
        arcs_of(lambda: 1 // 0, set())
    assert sys.gettrace() is before


# -- inputs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        [],
        0,
        True,
        None,
        "last",
        1.5,
        [1, 2, 3],
        [7] * 40,
        list(range(3, 60)),
        list(range(60, 3, -2)),
        [0] * 20 + [5, 6] + list(range(100, 130)) + [-1],
        [[1, 2], [3, 4]],
        [True] * 30 + [False],
        [1.0] * 9 + [float("inf")],
        [[0] * 12, list(range(12))],
    ],
)
def test_literals_are_what_they_stand_for(values: object) -> None:
    text = literal(values)
    assert eval(text) == values
    assert len(text) <= len(repr(values)) + 12


def test_a_nan_stays_one() -> None:
    assert np.isnan(eval(literal([float("nan")]))[0])


def test_an_empty_array_keeps_its_shape() -> None:
    assert eval(array_literal(np.zeros((0, 3)))).shape == (0, 3)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (0, 3)])
@pytest.mark.parametrize("dtype", ["int32", "int64", "bool", "float32", "uint8"])
def test_arguments_lie_as_the_case_has_them(layout: str, shape: tuple[int, ...], dtype: str) -> None:
    """Values, dtype, strides and offset; the cells in between hold no plausible value."""
    array = (np.arange(int(np.prod(shape))) % 2).reshape(shape).astype(dtype)
    argument = Argument(array, LAYOUTS[layout], Space.HOST)
    names: dict[str, object] = {"torch": torch}
    exec(PLACE, names)
    made = eval(arguments_text([{"x": argument, "n": 3}], guarded=True), names)
    assert made["n"] == 3
    x = made["x"]
    assert x.dtype is getattr(torch, dtype) and x.shape == shape and x.tolist() == array.tolist()
    assert x.storage_offset() == LAYOUTS[layout].before
    whole = x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
    assert whole.numel() == LAYOUTS[layout].before + LAYOUTS[layout].step * array.size + 4
    if dtype not in ("bool", "uint8"):
        assert (whole > 1000).sum() == whole.numel() - array.size


def test_steps_share_a_line() -> None:
    first, second = Argument(np.array([1, 2], np.int64)), Argument(np.array([3, 4], np.int64), space=Space.PINNED)
    assert '"x": torch.tensor([[1, 2], [3, 4]][step], dtype=torch.int64, device="cuda")' in arguments_text(
        [{"x": first}, {"x": Argument(np.array([3, 4], np.int64))}], guarded=False
    )
    assert "pin_memory=True" in arguments_text([{"x": second}], guarded=False)
