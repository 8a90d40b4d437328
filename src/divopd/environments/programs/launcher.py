"""Becomes a program, after seeing to it that the program does not outlive who started it.

    python -I -S launcher.py LIFELINE COMMAND…

LIFELINE is the reading end of a pipe that the starter holds open: when the starter dies, in whatever way, the kernel
kills this process group (Linux). It imports next to nothing: a program should start as fast as without it.
"""

import fcntl
import os
import signal
import sys

NOT_STARTED = 127  # as a shell says it


def main(lifeline: int, command: list[str]) -> None:
    if hasattr(fcntl, "F_SETSIG"):
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
        try:
            os.read(lifeline, 1)
        except BlockingIOError:  # it is open
            pass
        else:
            os._exit(NOT_STARTED)  # it was closed before the kernel knew whom to tell
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(NOT_STARTED)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
