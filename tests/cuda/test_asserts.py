"""What the GPU does with values that a kernel was not made for. A process for each: an assert costs it its device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.asserting_ops import USES
from tests.cuda.test_cuda_device import pytestmark as pytestmark

_STEPS = """
import sys
import torch
from tests.asserting_ops import USES, outcome, values

use, which = USES[sys.argv[1]], sys.argv[2]
if which == "eager":
    print(outcome(lambda: use.call(values(use, "good"))), outcome(lambda: use.call(values(use, "bad"))))
else:
    use.call(values(use, "good"))
    static, graph = values(use, which), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()

    def capture():
        with torch.cuda.graph(graph):
            use.call(static)

    captured = outcome(capture)
    if captured == "ran":
        static.copy_(values(use, "bad"))
    print(captured, outcome(graph.replay) if captured == "ran" else "none")
"""


@pytest.mark.parametrize("which", ["eager", "good", "bad"])
@pytest.mark.parametrize("name", USES)
def test_the_table_is_what_the_gpu_does(name: str, which: str) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", _STEPS, name, which]
    child = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120)
    use = USES[name]
    expected = f"ran {use.eager}" if which == "eager" else f"{'ran' if use.capture == 'ran' else 'refused'} {use.replay}"
    assert child.stdout.splitlines()[-1:] == [expected], child.stderr
