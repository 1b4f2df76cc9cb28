"""What a worker does: one device, cases in, outcomes out, until the parent hangs up or the device is lost."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import socket
import traceback

from capfuzz.devices import open_device
from capfuzz.targets import Case, Subject
from capfuzz.targets.judge import judge
from capfuzz.targets.registry import UnknownNameError
from capfuzz.targets.subjects import ImplementationError, subject_from_label
from capfuzz.workers.wire import Answer, Defect, NotStarted, Ready, Request, WorkerSpec, receive, send

DUMP_STACK = signal.SIGUSR1


def serve(connection: socket.socket, stack: int, output: int, spec: WorkerSpec) -> None:
    """Answers requests. `stack` is the file that a dying or hanging worker's stack goes to, `output` what the code prints."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.enable(file=stack, all_threads=False)
    faulthandler.register(DUMP_STACK, file=stack, all_threads=False)
    with contextlib.suppress(EOFError, BrokenPipeError):
        try:
            subject = subject_from_label(spec.target, spec.implementation)
            opened = open_device(spec.device, spec.number)
            with opened as device:
                send(connection, Ready(device.describe()))
                while True:
                    request: Request = receive(connection)
                    outcome = None
                    try:
                        outcome = judge(device, subject, request.case, request.only)
                    except Exception:
                        send(connection, Defect(f"{_described(subject, request.case)}\n{traceback.format_exc()}"))
                        continue
                    healthy = not outcome.is_fault or device.is_healthy()
                    send(connection, Answer(outcome, last=not healthy))
                    if not healthy:
                        os._exit(0)  # nothing can be put away on a lost device
        except (ImplementationError, UnknownNameError, RuntimeError, OSError) as error:
            send(connection, NotStarted(str(error), by_user=True))
        except Exception:
            send(connection, NotStarted(traceback.format_exc(), by_user=False))


def _described(subject: Subject, case: Case) -> str:
    return f"the harness failed on case {case!r:.400} of {subject.target.name} ({subject.label})"
