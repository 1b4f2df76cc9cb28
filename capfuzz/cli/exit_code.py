"""What the process tells its caller."""

from enum import IntEnum


class ExitCode(IntEnum):
    OK = 0
    FINDINGS = 1
    USAGE = 2
    HARNESS = 3
    INTERRUPTED = 130
