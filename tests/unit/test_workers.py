"""Workers: whatever an implementation does to its process, its case gets a verdict, and the next case is judged."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch

from capfuzz.campaign.hypothesis_engine import drawn
from capfuzz.devices import Device
from capfuzz.devices.trace import SourceLocation
from capfuzz.differential import Blame, Outcome, Verdict
from capfuzz.targets import Case, Subject, get_target, shipped, targets, variant
from capfuzz.targets import judge as judge_module
from capfuzz.targets.subjects import user
from capfuzz.workers import InProcess, JudgeFailed, WorkerError, WorkerPool
from capfuzz.workers import pool as pool_module
from capfuzz.workers.wire import Inbox, Outbox, Request, packed

TARGET = get_target("fold_indptr")
MIB = 1 << 20

HEAD = """\
import ctypes, os, pathlib, signal, subprocess, sys, threading, time

import torch

from capfuzz.targets.fold_indptr import cached_tensor, fold_indptr, scalar_store

kept = []


"""


def case(fold_factor: int = 1, lengths: tuple[int, ...] = (1, 2), steps: int = 1) -> Case:
    rows: list[dict[str, int | list[int]]] = [{"lengths": [n + step for n in lengths], "start": 0} for step in range(steps)]
    return Case({"fold_factor": fold_factor, "dtype": "int32", "layout": "contiguous"}, rows)


GOOD, BAD = case(), case(fold_factor=5)

Write = Callable[..., Subject]
Open = Callable[..., WorkerPool]


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """`mine(statements)`: an implementation that is right, and runs these statements first if `fold_factor` is above 4."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(statements: str, always: bool = False) -> Subject:
        condition = "True" if always else "fold_factor > 4"
        body = textwrap.indent(textwrap.dedent(statements).strip(), " " * 8)
        (tmp_path / "mine.py").write_text(
            f"{HEAD}def bad(indptr, fold_factor):\n    if {condition}:\n{body}\n    return fold_indptr(indptr, fold_factor)\n"
        )
        sys.modules.pop("mine", None)
        importlib.invalidate_caches()
        return user(TARGET, "mine:bad")

    yield write
    sys.modules.pop("mine", None)


@pytest.fixture
def opened() -> Iterator[Open]:
    """`opened(subject, ...)`: a pool on the simulated device; it is closed at the end, and nothing may be left of it."""
    pools: list[WorkerPool] = []

    def open_pool(subject: Subject, **options: Any) -> WorkerPool:
        pool = WorkerPool(subject, "sim", **options)
        pool.__enter__()
        pools.append(pool)
        return pool

    yield open_pool
    for pool in pools:
        pool.__exit__()


def all_of(pool: Any, cases: list[Case]) -> list[tuple[Case, Outcome]]:
    """Feeds every case and takes every outcome."""
    found: list[tuple[Case, Outcome]] = []
    for each in cases:
        found += pool.feed(each)
    return [*found, *pool.drain()]


def blamed_text(outcome: Outcome) -> str | None:
    return None if outcome.blame.location is None else outcome.blame.location.text


# -- deaths ------------------------------------------------------------------------------------------------------------

DEATHS: dict[str, tuple[str, str, str | None]] = {
    "os._exit": ("os._exit(7)", "the process ended: exit status 7", None),
    "os._exit(0)": ("os._exit(0)", "the process ended: exit status 0", None),
    "segfault": ("ctypes.string_at(0)", "the process ended: killed by SIGSEGV", "ctypes.string_at(0)"),
    "abort": ("os.abort()", "the process ended: killed by SIGABRT", "os.abort()"),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", "the process ended: killed by SIGKILL", None),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM)", "the process ended: killed by SIGTERM", None),
    "real-time signal": ("os.kill(os.getpid(), 40)", "the process ended: killed by signal 40", None),
    "segfault in a thread": (
        """
        thread = threading.Thread(target=ctypes.string_at, args=(0,))
        thread.start()
        thread.join()
        """,
        "the process ended: killed by SIGSEGV",
        None,
    ),
    "KeyboardInterrupt": (
        "raise KeyboardInterrupt",
        "the process was ended by KeyboardInterrupt",
        "raise KeyboardInterrupt",
    ),
    "hangs up": ("os.closerange(3, 100)\ntime.sleep(60)", "the process closed its connection to capfuzz", None),
    "becomes another program": (
        "os.execvp('sleep', ['sleep', '60'])",
        "the process closed its connection to capfuzz",
        None,
    ),
}


@pytest.mark.parametrize("name", DEATHS)
def test_a_death_is_a_crash_of_its_case_and_of_no_other(mine: Write, opened: Open, name: str) -> None:
    statements, message, line = DEATHS[name]
    pool = opened(mine(statements), case_seconds=30.0)
    begun = time.monotonic()
    outcomes = all_of(pool, [GOOD, BAD, GOOD, BAD, GOOD])
    assert [outcome.verdict.value for _, outcome in outcomes] == ["equivalent", "crash", "equivalent", "crash", "equivalent"]
    assert time.monotonic() - begun < 10, "seen at once, not at the end of its time"
    for outcome in (outcomes[1][1], outcomes[3][1], pool.judge(BAD)):
        assert (outcome.verdict, outcome.cause, outcome.message) == (Verdict.CRASH, None, message)
        assert blamed_text(outcome) == line


HANGS = {
    "sleeps": ("while True:\n    time.sleep(0.01)", {"time.sleep(0.01)"}),
    "is busy": ("while True:\n    pass", {"while True:", "pass"}),
    "waits in C": ("torch.from_numpy(__import__('numpy').zeros(1)); time.sleep(60)", None),
    "stops itself": ("os.kill(os.getpid(), signal.SIGSTOP)", {None}),
    "catches everything": ("while True:\n    try:\n        time.sleep(1)\n    except BaseException:\n        pass", None),
    "waits for a thread": ("thread = threading.Event()\nthread.wait()", {"thread.wait()"}),
    "reads what nobody writes": ("os.read(os.pipe()[0], 1)", {"os.read(os.pipe()[0], 1)"}),
}


@pytest.mark.parametrize("name", HANGS)
def test_a_case_that_does_not_end_is_a_hang(mine: Write, opened: Open, name: str) -> None:
    statements, lines = HANGS[name]
    pool = opened(mine(statements), case_seconds=0.3)
    outcomes = [outcome for _, outcome in all_of(pool, [GOOD, BAD, GOOD])]
    assert [outcome.verdict.value for outcome in outcomes] == ["equivalent", "hang", "equivalent"]
    assert outcomes[1].message == "no end after 0.3 s"
    if lines is not None:
        assert blamed_text(outcomes[1]) in lines
    begun = time.monotonic()
    assert pool.judge(BAD, seconds=0.1).message == "no end after 0.1 s"
    assert time.monotonic() - begun < 1.5
    assert pool.judge(BAD, seconds=60.0).message == "no end after 0.3 s", "the limit of the pool is the most there is"


def test_every_case_has_its_own_time(mine: Write, opened: Open) -> None:
    """Two are with a worker at once: the second has all of its time when the first is done."""
    pool = opened(mine("time.sleep(0.15)", always=True), case_seconds=1.2)  # three or four calls a case
    assert [outcome.label for _, outcome in all_of(pool, [GOOD] * 4)] == ["equivalent"] * 4


def test_searching_for_the_line_has_a_time_of_its_own(mine: Write, opened: Open) -> None:
    """A slow fault is that fault, not a hang."""
    pool = opened(mine("time.sleep(0.1)\nreturn scalar_store(indptr, fold_factor) + 1"), case_seconds=0.7)
    assert pool.judge(BAD).label == "capture_error:host_copy"
    mended = opened(mine("time.sleep(0.15)\nreturn fold_indptr(indptr, fold_factor) + 1"), case_seconds=0.7)
    outcome = mended.judge(BAD)
    assert (outcome.label, outcome.blame.location is None) == ("reference_mismatch", False)


def test_a_death_while_the_line_is_searched_leaves_the_fault_without_it(mine: Write, opened: Open) -> None:
    pool = opened(
        mine(
            """
            kept.append(torch.cuda.is_current_stream_capturing())
            if sum(kept) > 1:
                os._exit(1)
            return fold_indptr(indptr, fold_factor) + 1
            """
        )
    )
    [(_, outcome)] = all_of(pool, [BAD])
    assert (outcome.label, outcome.blame) == ("reference_mismatch", Blame(None, None))
    assert outcome.mismatch is not None


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "share", lambda workers: 96 * MIB)


@pytest.mark.usefixtures("little_memory")
def test_a_case_that_takes_all_memory_is_a_crash(mine: Write, opened: Open) -> None:
    pool = opened(
        mine(
            """
            for _ in range(30):  # not for ever: 300 MB, if nobody looks
                kept.append(bytearray(10 << 20))
                time.sleep(0.02)
            time.sleep(60)
            """
        )
    )
    outcomes = [outcome for _, outcome in all_of(pool, [GOOD, BAD, GOOD])]
    assert [outcome.verdict.value for outcome in outcomes] == ["equivalent", "crash", "equivalent"]
    assert (outcomes[1].label, outcomes[1].message) == ("crash:out_of_memory", "the process took more than 96 MiB")
    assert blamed_text(outcomes[1]) in {"kept.append(bytearray(10 << 20))", "time.sleep(0.02)"}


@pytest.mark.usefixtures("little_memory")
def test_memory_that_adds_up_over_many_cases_is_no_fault_of_the_last(mine: Write, opened: Open) -> None:
    """Another worker goes on. Each answers more often than memory is looked at."""
    subject = mine(
        """
        if not torch.cuda.is_current_stream_capturing():
            kept.append(bytearray(2 << 20))
            time.sleep(0.004)
            assert len(kept) < 120
        """,
        always=True,
    )
    pool = opened(subject)
    first = pool._workers[0].pid
    assert {outcome.label for _, outcome in all_of(pool, [GOOD] * 40)} == {"equivalent"}
    assert pool._workers[0].pid != first


# -- what is no fault --------------------------------------------------------------------------------------------------

HARMLESS = {
    "closes its output": "os.closerange(1, 3)",
    "closes its streams": "sys.stdout.close(); sys.stderr.close()",
    "prints a lot": "print('x' * 1_000_000, flush=True); os.write(2, b'y' * 1_000_000)",
    "reads its input": "assert sys.stdin.read() == ''",
    "starts threads": "[threading.Thread(target=time.sleep, args=(0.3,)).start() for _ in range(4)]",
    "starts a thread that never ends": "threading.Thread(target=threading.Event().wait).start()",
    "starts a process": "subprocess.Popen(['sleep', '60'])",
    "forks, and both come back": "os.fork()",
    "goes elsewhere": "os.chdir('/')",
    "ignores signals": "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "leaves the group": "os.getpgid(0) == os.getsid(0) or os.setsid() if os.getpgid(0) != os.getpid() else None",
    "interrupts itself": "os.kill(os.getpid(), signal.SIGINT)",
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_is_no_fault_of_the_case_is_none(
    mine: Write, opened: Open, capfd: pytest.CaptureFixture[str], name: str, processes: Any
) -> None:
    pool = opened(mine(HARMLESS[name]))
    assert [outcome.label for _, outcome in all_of(pool, [GOOD, BAD, GOOD, BAD, GOOD])] == ["equivalent"] * 5
    family = processes.below(os.getpid())
    pool.__exit__()
    assert not processes.left(family), "nor what the implementation started"
    assert capfd.readouterr() == ("", "")


def test_output_without_end_does_not_fill_the_disk(mine: Write, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = opened(mine("while True:\n    os.write(1, b'x' * 65536)\n    time.sleep(0.001)"), case_seconds=1.0)
    most = 0
    cut = type(pool._workers[0]).cut_output

    def watched(worker: Any) -> None:
        nonlocal most
        most = max(most, os.fstat(worker.output.fileno()).st_size)
        cut(worker)

    monkeypatch.setattr("capfuzz.workers.handle._MOST_PRINTED", MIB)
    monkeypatch.setattr(type(pool._workers[0]), "cut_output", watched)
    assert pool.judge(BAD).verdict is Verdict.HANG
    assert MIB < most < 30 * MIB


# -- the order, and agreement with a judge in this process -----------------------------------------------------------------


def test_outcomes_come_in_the_order_of_the_cases(mine: Write, opened: Open) -> None:
    pool = opened(mine("time.sleep(0.4 if fold_factor == 8 else 0.0)"), count=3)
    cases = [case(fold_factor=8), *(case(fold_factor=1 + n % 4, lengths=(n,)) for n in range(30))]
    found: list[tuple[Case, Outcome]] = []
    while_it_slept = 0
    for each in cases:
        found += pool.feed(each)
        while_it_slept += not found
    assert while_it_slept > 10, "the others went on"
    found += pool.drain()
    assert [each for each, _ in found] == cases


def test_what_is_done_behind_a_slow_case_is_bounded_and_known(
    mine: Write, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "AHEAD", 10)
    pool = opened(mine("time.sleep(0.3)"), count=2)
    assert list(pool.feed(BAD)) == []
    begun = time.monotonic()
    for n in range(9):
        assert list(pool.feed(case(lengths=(n,)))) == []
    assert time.monotonic() - begun < 0.8, "the slow one takes 0.9 s"
    assert len(list(pool.known())) >= 5
    assert next(iter(pool.feed(GOOD)))[0] == BAD, "waits for the first one, behind which there is no more room"


def test_draining_what_was_begun_waits_for_nothing_else(mine: Write, opened: Open) -> None:
    pool = opened(mine("time.sleep(0.3)"))
    cases = [BAD, case(lengths=(1,))]
    for each in cases:
        assert list(pool.feed(each)) == []
    assert [each for each, _ in pool.drain(begun_only=True)] == cases[:1]
    assert list(pool.drain()) == []
    assert pool.judge(GOOD).label == "equivalent", "what was dropped is not taken for it"


EVERY = [(target.name, name) for target in targets().values() for name in (None, *target.variants)]
# Each pair costs two processes: of the other targets the shipped implementation and one variant.
SOME = [(target.name, name) for target in targets().values() for name in (None, *list(target.variants)[:1])]


@pytest.mark.parametrize(
    ("target", "name", "cases", "workers"),
    [
        *((target, name, 40, workers) for target, name in EVERY if target == "fold_indptr" for workers in (1, 3)),
        *((target, name, 6, 2) for target, name in SOME if target != "fold_indptr"),
    ],
)
def test_workers_say_what_a_judge_in_this_process_says(
    device: Device, opened: Open, target: str, name: str | None, cases: int, workers: int
) -> None:
    found = get_target(target)
    subject = shipped(found) if name is None else variant(found, name)
    # A worker that starts cold says what a process that has run the implementation cannot.
    chosen = [each for each in drawn(found.strategy(), cases, 7) if not each.schedule.is_cold]
    here = all_of(InProcess(device, subject), chosen)
    there = all_of(opened(subject, count=workers), chosen)
    assert [each for each, _ in there] == chosen
    for (_, mine), (_, theirs) in zip(here, there, strict=True):
        assert (mine.label, mine.message) == (theirs.label, theirs.message)
        assert located(mine) == located(theirs)


def located(outcome: Outcome) -> tuple[Any, ...]:
    where = outcome.blame.location
    return outcome.blame.op, where and SourceLocation(where.file, where.line, where.function, where.text)


# -- defects of capfuzz ------------------------------------------------------------------------------------------------


def test_a_defect_comes_in_its_turn_with_its_case_and_traceback(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    real = judge_module.check

    def planted(device: Any, function: Any, feeds: Any, *rest: Any) -> Any:
        if feeds[0]["fold_factor"] == 5:
            raise RuntimeError("planted defect")
        return real(device, function, feeds, *rest)

    monkeypatch.setattr(judge_module, "check", planted)
    pool = opened(shipped(TARGET), count=2)
    found: list[tuple[Case, Outcome]] = []
    with pytest.raises(JudgeFailed, match="RuntimeError: planted defect") as raised:
        for each in (GOOD, BAD, GOOD, GOOD):
            found += pool.feed(each)
        found += pool.drain()
    assert len(found) == 1
    assert raised.value.case == BAD and "in planted" in raised.value.traceback
    assert pool.judge(GOOD).label == "equivalent"


def test_a_defect_in_this_process_has_its_case_too(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(*_: object) -> NoReturn:
        raise RuntimeError("planted defect")

    monkeypatch.setattr(judge_module, "check", planted)
    judge = InProcess(device, shipped(TARGET))
    for ask in (lambda: judge.judge(GOOD), lambda: list(judge.feed(GOOD))):
        with pytest.raises(JudgeFailed, match="RuntimeError: planted defect") as raised:
            ask()
        assert raised.value.case == GOOD and "in planted" in raised.value.traceback


# -- workers that do not start -----------------------------------------------------------------------------------------


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_is_for_the_user_to_mend(processes: Any) -> None:
    with pytest.raises(WorkerError, match=r"no GPU is available here .*; `--device sim` needs no GPU$") as raised:
        WorkerPool(shipped(TARGET), "cuda").__enter__()
    assert raised.value.by_user
    assert not processes.left(processes.below(os.getpid()))


@pytest.mark.parametrize(
    ("label", "says"),
    [
        ("user:nosuch:f", "no module named 'nosuch'"),
        ("user:leaves:f", r"it ends the process \(sys.exit\(3\)\)"),
        ("variant:nosuch", "no variant named 'nosuch'"),
    ],
)
def test_an_implementation_that_a_worker_cannot_find(tmp_path: Path, mine: Write, label: str, says: str) -> None:
    mine("pass")
    (tmp_path / "leaves.py").write_text("import sys\n\nsys.exit(3)\n")
    with pytest.raises(WorkerError, match=says) as raised:
        WorkerPool(replace(shipped(TARGET), label=label), "sim").__enter__()
    assert raised.value.by_user


def test_a_worker_that_dies_as_it_starts_says_what_it_said(mine: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    def planted(*_: object) -> NoReturn:
        print("last words", flush=True)
        os._exit(5)

    monkeypatch.setattr("capfuzz.workers.worker.subject_from_label", planted)
    with pytest.raises(WorkerError, match="ended while it started: exit status 5, after it had said:\nlast words") as raised:
        WorkerPool(shipped(TARGET), "sim").__enter__()
    assert not raised.value.by_user


def test_a_worker_that_does_not_start_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capfuzz.workers.handle.START_SECONDS", 0.2)
    monkeypatch.setattr("capfuzz.workers.worker.subject_from_label", lambda *_: time.sleep(60))
    with pytest.raises(WorkerError, match="did not start in time"):
        WorkerPool(shipped(TARGET), "sim").__enter__()


def test_a_fresh_interpreter_where_a_fork_could_not_use_the_gpu(
    mine: Write, opened: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It does not look for modules in the working directory first: a user's `random.py` is not the standard library's."""
    (tmp_path / "random.py").write_text("raise AssertionError('imported')\n")
    (tmp_path / "json.py").write_text("raise AssertionError('imported')\n")
    subject = mine("os._exit(7)")
    sys.path.remove(str(tmp_path))
    monkeypatch.setattr("capfuzz.workers.zygote._gpu_is_used", lambda: True)
    pool = opened(subject)
    assert [outcome.label for _, outcome in all_of(pool, [GOOD, BAD, GOOD])] == ["equivalent", "crash", "equivalent"]
    pool.__exit__()
    gc.collect()


# -- processes and files -----------------------------------------------------------------------------------------------


def files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_fifty_restarts_leave_nothing_behind(mine: Write, opened: Open, processes: Any) -> None:
    pool = opened(mine("os._exit(1)"), count=2)
    all_of(pool, [BAD] * 4)
    family = processes.below(os.getpid())

    def what_is_there() -> list[int]:
        zygote_files = os.listdir(f"/proc/{pool._zygote._pid}/fd")  # type: ignore[union-attr]
        return [len(processes.below(os.getpid())), files(), len(zygote_files)]

    before = what_is_there()
    outcomes = all_of(pool, [BAD] * 50)
    assert {outcome.label for _, outcome in outcomes} == {"crash"}
    assert len(family) == 3, "a zygote and two workers"
    deadline = time.monotonic() + 5  # a worker may be on its way, with its files in the zygote: now, or when `before` was taken
    left = what_is_there()
    while left != np.minimum(left, before).tolist() and time.monotonic() < deadline:
        time.sleep(0.02)
        left = what_is_there()
    assert left == np.minimum(left, before).tolist(), "and no zombies"


def test_pools_one_inside_the_other_close_in_any_order(opened: Open, processes: Any) -> None:
    """The second zygote is forked from a process that has the connections of the first."""
    before = files()
    pools = [opened(shipped(TARGET)) for _ in range(3)]
    family = processes.below(os.getpid())
    assert len(family) == 6
    begun = time.monotonic()
    for pool in (pools[1], pools[0], pools[2]):
        assert pool.judge(GOOD).label == "equivalent"
        pool.__exit__()
    assert time.monotonic() - begun < 3
    assert not processes.left(family)
    assert files() == before


def test_a_worker_that_is_killed_while_it_has_nothing_to_do_is_nobodys_fault(opened: Open) -> None:
    pool = opened(shipped(TARGET))
    for _ in range(3):
        os.kill(pool._workers[0].pid, signal.SIGKILL)
        time.sleep(0.05)
        assert pool.judge(GOOD).label == "equivalent"


def test_the_zygotes_death_is_one_clear_error(mine: Write, opened: Open, processes: Any) -> None:
    pool = opened(mine("time.sleep(60)"), count=2)
    family = processes.below(os.getpid())
    assert list(pool.feed(BAD)) == []
    os.kill(pool._zygote._pid, signal.SIGKILL)  # type: ignore[union-attr]
    with pytest.raises(WorkerError) as raised:
        list(pool.drain())
    assert str(raised.value) == "the process that starts workers has ended: killed by SIGKILL"
    assert not raised.value.by_user
    pool.__exit__()
    assert not processes.left(family)


def test_a_zygote_that_does_not_answer(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capfuzz.workers.zygote.ANSWER_SECONDS", 0.2)
    monkeypatch.setattr("capfuzz.workers.zygote.END_SECONDS", 0.2)
    pool = opened(shipped(TARGET))
    os.kill(pool._zygote._pid, signal.SIGSTOP)  # type: ignore[union-attr]
    os.kill(pool._workers[0].pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match="the process that starts workers does not answer"):
        pool.judge(GOOD)
    pool.__exit__()


PARENT = """\
import os, sys, time

from capfuzz.targets import Case, get_target
from capfuzz.targets.subjects import user
from capfuzz.workers import WorkerPool

subject = user(get_target("fold_indptr"), "mine:bad")
case = Case({"fold_factor": 5, "dtype": "int32", "layout": "contiguous"}, [{"lengths": [1], "start": 0}])
with WorkerPool(subject, "sim", 2, 60.0) as one, WorkerPool(subject, "sim", 1, 60.0) as two:
    list(one.feed(case))
    list(two.feed(case))
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("whole_group", [False, True])
def test_a_parent_that_is_killed_leaves_no_worker_behind(mine: Write, processes: Any, whole_group: bool) -> None:
    """Two workers are busy for ever, one has nothing to do."""
    mine("while True:\n    pass")
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, start_new_session=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"ready\n"
    family = processes.below(parent.pid)
    assert len(family) == 5
    (os.killpg if whole_group else os.kill)(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    assert not processes.left(family)


def test_a_worker_hands_its_files_to_nobody(mine: Write, opened: Open, tmp_path: Path) -> None:
    subject = mine("subprocess.run(['sh', '-c', 'ls -l /proc/self/fd > files'], close_fds=False, check=True)")
    assert opened(subject).judge(BAD).label == "equivalent"
    listed = (tmp_path / "files").read_text()
    assert "socket:" not in listed and listed.count("deleted") <= 2, "standard output and error only"


def test_no_core_is_left(mine: Write, opened: Open, tmp_path: Path) -> None:
    opened(mine("ctypes.string_at(0)")).judge(BAD)
    assert {path.name for path in tmp_path.iterdir()} == {"mine.py"}


@pytest.mark.usefixtures("device")
def test_workers_are_forked_also_where_the_simulated_device_is_open(opened: Open) -> None:
    """It says that the GPU is in use."""
    assert torch.cuda.is_initialized()
    assert opened(shipped(TARGET))._zygote._process is None  # type: ignore[union-attr]


def test_a_pool_is_open_soon(opened: Open) -> None:
    best = 60.0
    for _ in range(3):
        begun = time.monotonic()
        pool = opened(shipped(TARGET))
        pool.judge(GOOD)
        best = min(best, time.monotonic() - begun)
    assert best < 0.2


# -- messages ----------------------------------------------------------------------------------------------------------


def test_answers_of_any_size(mine: Write, opened: Open) -> None:
    """A mismatch holds both sides: here millions of elements."""
    pool = opened(mine("return fold_indptr(indptr, fold_factor) + 1"))
    outcome = pool.judge(case(fold_factor=1024, lengths=tuple([1] * 2000)))
    assert outcome.mismatch is not None and not isinstance(outcome.mismatch.actual, str)
    assert outcome.mismatch.actual.nbytes > 8_000_000


def test_a_large_case_behind_one_that_hangs_is_not_waited_for(mine: Write, opened: Open) -> None:
    """It does not fit into the connection of a worker that reads nothing."""
    pool = opened(mine("time.sleep(60)"), case_seconds=0.4)
    large = case(lengths=tuple([300] * 100_000), steps=2)
    assert len(packed(Request(large))) > 400_000
    outcomes = all_of(pool, [BAD, large, BAD, GOOD])
    assert [outcome.label for _, outcome in outcomes] == ["hang", "equivalent", "hang", "equivalent"]


def test_half_a_message_is_not_waited_for() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        inbox = Inbox(ours)
        data = packed("one") + packed("two") + packed("three")
        theirs.sendall(data[:-1])
        assert list(inbox.receive()) == ["one", "two"]
        assert list(inbox.receive()) == []
        theirs.sendall(data[-1:] + packed("four"))
        theirs.close()
        assert list(inbox.receive()) == ["three", "four"]
        with pytest.raises(EOFError):
            list(inbox.receive())


def test_what_is_not_taken_is_sent_later() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        outbox = Outbox(ours)
        large = b"x" * (4 << 20)
        outbox.send(large)
        outbox.send("small")
        assert outbox.waits and not outbox.is_sent
        inbox, received = Inbox(theirs), []
        while len(received) < 2:
            outbox.flush()
            received += inbox.receive()
        assert received == [large, "small"]
        assert outbox.is_sent and not outbox.waits
        theirs.close()
        outbox.send("nobody")
        assert not outbox.waits and not outbox.is_sent
