"""The rule that an error breaks, from the words of CUDA and of HIP, and the cause behind the masking error."""

from __future__ import annotations

import pytest

from capfuzz.devices.errors import HOST_COPY_TEXT, CudaError, HostCopyError, Rule, ThrustError, first_line, root_cause, rule_of

MASKED = "CUDA error: operation failed due to a previous error during capture"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("CUDA error: operation not permitted when stream is capturing", Rule.SYNCHRONIZATION),
        ("HIP error: operation not permitted when stream is capturing", Rule.SYNCHRONIZATION),
        ("HIP error: capturing stream has unjoined work", Rule.UNJOINED_STREAM),
        ("HIP error: dependency created on uncaptured work in another stream", Rule.FOREIGN_STREAM),
        ("HIP error: operation not permitted on an event last recorded in a capturing stream", Rule.SYNCHRONIZATION),
        (HOST_COPY_TEXT, Rule.HOST_COPY),
        (HOST_COPY_TEXT.replace("CUDA", "HIP"), Rule.HOST_COPY),
        (MASKED, Rule.SYNCHRONIZATION),
        ("no such bucket", Rule.HOST_EXCEPTION),
    ],
)
def test_the_rule_of_a_text(text: str, rule: Rule) -> None:
    assert rule_of(RuntimeError(text)) is rule


@pytest.mark.parametrize("masked", [MASKED, MASKED.replace("CUDA", "HIP")])
def test_the_cause_stands_behind_the_masking_error(masked: str) -> None:
    cause = RuntimeError("capturing stream has unjoined work")
    error = RuntimeError(masked)
    error.__context__ = cause
    assert root_cause(error) is cause
    assert rule_of(error) is Rule.UNJOINED_STREAM


def test_a_chain_that_bites_its_tail_ends() -> None:
    error = RuntimeError(MASKED)
    error.__context__ = error
    assert root_cause(error) is error


def test_errors_are_called_what_they_are_on_hardware() -> None:
    assert type(CudaError("cudaErrorIllegalState")).__name__ == "AcceleratorError"
    assert {type(HostCopyError()).__name__, type(ThrustError("transform")).__name__} == {"RuntimeError"}
    assert first_line(CudaError("cudaErrorStreamCaptureUnjoined")) == "CUDA error: capturing stream has unjoined work"
