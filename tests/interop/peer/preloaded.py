"""Imports modules, waits for commands and forks for each: torchtitan alone takes eight seconds of a processor to import.

    preloaded.py MODULE...

Started by tests/faults/warm_start.py, whose commands it reads as tests/support/warm_start.cpp does: `python PROGRAM.py arguments`. torchtitan
itself is imported once more by each program, which changes parts of it first.
"""

import ctypes
import importlib
import os
import runpy
import signal
import socket
import struct
import sys
import time
import traceback

PR_SET_PDEATHSIG = 1


def received(connection: socket.socket) -> tuple[bytes, list[int]]:
    """The text of a command and its outputs; nothing at the end of the connection."""
    head, outputs, _, _ = socket.recv_fds(connection, 4, 2)
    if len(head) != 4:
        return b"", []
    return connection.recv(struct.unpack("I", head)[0], socket.MSG_WAITALL), outputs


def run(text: bytes, outputs: list[int], parent: int) -> int:
    while os.getppid() == parent:  # which is about to end, and leaves us to the test: we are to end with that
        time.sleep(0.001)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for number, output in enumerate(outputs, 1):
        os.dup2(output, number)
        os.close(output)
    count, folder, *words = map(os.fsdecode, text.split(b"\0")[:-1])
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(word.split("=", 1) for word in words[int(count):])
    sys.argv = words[1:int(count)]
    sys.path[0] = os.path.dirname(sys.argv[0])
    code = 0
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def main() -> None:
    connection = socket.socket(fileno=int(os.environ["HYPERION_WARM_START"]))
    connection.set_inheritable(False)
    for module in sys.argv[1:]:
        importlib.import_module(module)
    for name in [name for name in sys.modules if name.split(".")[0] == "torchtitan"]:
        del sys.modules[name]
    while True:
        text, outputs = received(connection)
        if not text:
            return
        between = os.fork()  # its child is given to the test when it ends
        if between == 0:
            own, job = os.getpid(), os.fork()
            if job == 0:
                connection.close()
                os._exit(run(text, outputs, own))
            connection.sendall(struct.pack("i", job))
            os._exit(0)
        if os.waitpid(between, 0)[1] != 0:
            return  # no job: the test finds the connection closed
        connection.sendall(b"\1")
        for output in outputs:
            os.close(output)


if __name__ == "__main__":
    main()
