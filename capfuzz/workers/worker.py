"""What a worker does: one device, cases in, outcomes out, until the parent hangs up or the device is lost."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import signal
import socket
import traceback

from capfuzz.devices import Device, open_device
from capfuzz.devices.errors import first_line
from capfuzz.devices.trace import blamed
from capfuzz.differential import Blame, Outcome, Verdict
from capfuzz.targets import Subject
from capfuzz.targets.judge import judge
from capfuzz.targets.mending import mend
from capfuzz.targets.op_trace import trace_case
from capfuzz.targets.registry import UnknownNameError
from capfuzz.targets.subjects import ImplementationError, subject_from_label
from capfuzz.workers.isolation import settle
from capfuzz.workers.wire import (
    Answer,
    Defect,
    MendAnswer,
    MendRequest,
    NotStarted,
    Ready,
    Request,
    Seen,
    Traced,
    TraceRequest,
    WorkerSpec,
    packed,
    receive,
    send,
)

DUMP_STACK = signal.SIGUSR1


def serve(connection: socket.socket, stack: int, output: int, spec: WorkerSpec) -> None:
    """Answers requests. `stack` is the file that a dying or hanging worker's stack goes to, `output` what the code prints."""
    settle(connection.fileno(), stack, output)
    faulthandler.enable(file=stack, all_threads=False)
    faulthandler.register(DUMP_STACK, file=stack, all_threads=False)
    with contextlib.suppress(EOFError, BrokenPipeError), contextlib.ExitStack() as opened:
        try:
            subject = subject_from_label(spec.target, spec.implementation)
            device = opened.enter_context(open_device(spec.device, spec.number))
            ready = Ready(device.describe())
        except (ImplementationError, UnknownNameError) as error:
            send(connection, NotStarted(str(error), by_user=True))
        except (RuntimeError, OSError) as error:  # the device
            advice = "" if spec.device == "sim" else "; `--device sim` needs no GPU"
            send(connection, NotStarted(f"{error}{advice}", by_user=True))
        except Exception:
            send(connection, NotStarted(traceback.format_exc(), by_user=False))
        else:
            gc.freeze()  # what is here now is here to stay: a schedule that collects garbage need not look at it
            send(connection, ready)
            _answer(connection, device, subject)


def _answer(connection: socket.socket, device: Device, subject: Subject) -> None:
    process = os.getpid()
    is_last = False
    while not is_last:
        request: Request | TraceRequest | MendRequest = receive(connection)
        try:
            if isinstance(request, TraceRequest):
                trace = trace_case(device, subject, request.case)
                is_last = trace.error is not None and not device.is_healthy()
                answer = packed(Traced(trace, is_last))
            elif isinstance(request, MendRequest):
                is_last = True  # what the implementation keeps is not what it was
                answer = packed(MendAnswer(mend(subject, request.cases, request.seconds)))
            else:
                outcome = judge(device, subject, request.case, request.only, lambda fault: send(connection, Seen(fault)))
                is_last = outcome.is_fault and not device.is_healthy()
                answer = packed(Answer(outcome, is_last))
        except Exception as error:
            answer = packed(Defect(f"{type(error).__name__}: {error}", traceback.format_exc(), is_last))
        except BaseException as error:
            # Nobody interrupts a worker: the implementation raised it, and any process would end by it.
            is_last = True
            text = "the process was ended by " + ": ".join(dict.fromkeys([type(error).__name__, first_line(error)]))
            answer = packed(Answer(Outcome(Verdict.CRASH, None, text, Blame(blamed(error), None)), is_last))
        if os.getpid() != process:  # a process that the implementation forked, and that came back
            os._exit(0)
        connection.sendall(answer)
    os._exit(0)  # nothing can be put away on a lost device
