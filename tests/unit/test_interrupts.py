"""Ctrl-C is seen even where Python drops it."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from capfuzz.campaign import Budget, Campaign, hypothesis_engine
from capfuzz.campaign.interrupts import Interrupts
from capfuzz.devices import Device
from capfuzz.targets import Subject, get_target
from capfuzz.workers import InProcess


def test_an_interrupt_that_user_code_swallows_ends_the_campaign(device: Device) -> None:
    target = get_target("fold_indptr")
    calls = 0

    def swallows(**arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 1:
            with contextlib.suppress(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
        return target.implementation(**arguments)

    with Interrupts() as interrupts:
        subject = Subject(target, "user:x:y", swallows)
        campaign = Campaign(
            subject,
            InProcess(device, subject),
            lambda event: None,
            engine="hypothesis",
            seed=1,
            budget=Budget(max_examples=50),
            corpus=None,
            interrupts=interrupts,
        )
        with pytest.raises(KeyboardInterrupt):
            hypothesis_engine.run(campaign)
    assert campaign.cases == 1


def test_an_interrupt_in_a_finaliser_waits_for_the_next_case(capfd: pytest.CaptureFixture[str]) -> None:
    class Finalised:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    with Interrupts() as interrupts:
        Finalised()
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
        interrupts.check()
    assert capfd.readouterr().err == ""


def test_the_handler_is_put_back_and_another_one_is_left_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts():
        pass
    assert signal.getsignal(signal.SIGINT) is before
    mine = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            interrupts.check()
    finally:
        signal.signal(signal.SIGINT, mine)
