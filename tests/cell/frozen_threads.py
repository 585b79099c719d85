"""Freezes some threads of a process, like threads that wait for a disk (ptrace(2), by ctypes)."""
import contextlib
import ctypes
import os
import time

PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 0x4206, 0x4207
WALL = 0x40000000

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


def ptrace(request, thread):
    if libc.ptrace(request, thread, None, None):
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace {request:#x} of {thread}: {os.strerror(number)}")


class Frozen:
    """Freezes, within a `with`, the present threads of `pid` whose name begins with `name`.

    The kernel releases them when this process ends.
    """

    def __init__(self, pid, name):
        self.pid, self.name, self.threads = pid, name, []

    def __enter__(self):
        try:
            for thread in map(int, os.listdir(f"/proc/{self.pid}/task")):
                # An idle thread may end at any moment.
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    with open(f"/proc/{self.pid}/task/{thread}/comm", encoding="ascii") as f:
                        is_meant = f.read().startswith(self.name)
                    if is_meant:
                        self.freeze(thread)
        except BaseException:
            self.__exit__()
            raise
        return self

    def freeze(self, thread):
        ptrace(PTRACE_SEIZE, thread)
        self.threads.append(thread)
        ptrace(PTRACE_INTERRUPT, thread)
        end = time.monotonic() + 5
        while os.waitpid(thread, WALL | os.WNOHANG)[0] != thread:
            if time.monotonic() > end:
                raise TimeoutError(f"thread {thread} does not stop")
            time.sleep(0.001)

    def __exit__(self, *why):
        for thread in self.threads:
            ptrace(PTRACE_DETACH, thread)
