"""The areas of two_mounts.py: each module registers its checks here.

Also lock calls that report EINTR, and functions that run in another process.
"""
import ctypes
import fcntl
import hashlib
import os
import struct
import time

from checks import Agent, Registry, true, write

R = Registry()
check = R.check
LIBC = ctypes.CDLL(None, use_errno=True)
SCALE = [1.0]
F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW = 36, 37, 38
KINDS = ("flock", "fcntl", "ofd")


def rounds(n):
    return max(3, int(n * SCALE[0]))


def lock_call(fd, kind, exclusive, wait, start=0, length=0):
    """Takes a lock of the given kind; raises OSError."""
    if kind == "flock":
        how = (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | (0 if wait else fcntl.LOCK_NB)
        checked(LIBC.flock(fd, how))
        return
    command = {("fcntl", False): fcntl.F_SETLK, ("fcntl", True): fcntl.F_SETLKW,
               ("ofd", False): F_OFD_SETLK, ("ofd", True): F_OFD_SETLKW}[kind, wait]
    record_lock(fd, command, fcntl.F_WRLCK if exclusive else fcntl.F_RDLCK, start, length)


def soon(take, *args):
    """Takes a lock, which has to be free within 2 s."""
    deadline = time.monotonic() + 2
    while True:
        try:
            return take(*args)
        except OSError:
            true(time.monotonic() < deadline, "the lock outlives its last descriptor")


def unlock_call(fd, kind, start=0, length=0):
    if kind == "flock":
        checked(LIBC.flock(fd, fcntl.LOCK_UN))
        return
    command = fcntl.F_SETLK if kind == "fcntl" else F_OFD_SETLK
    record_lock(fd, command, fcntl.F_UNLCK, start, length)


def record_lock(fd, command, what, start, length):
    """fcntl with a struct flock; returns it as (type, whence, start, len, pid)."""
    buf = ctypes.create_string_buffer(struct.pack("hhqqi4x", what, os.SEEK_SET, start, length, 0), 32)
    checked(LIBC.fcntl(fd, command, buf))
    return struct.unpack("hhqqi4x", buf.raw)


def checked(result):
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def a_write(_state, path, data):
    write(path, data)


def a_pread(state, path, n, at):
    return os.pread(state[path], n, at)


def version_of(n):
    return (b"%08d" % n) * (500 + n % 7 * 300)


def make_record(writer, i, size):
    """One line: writer, number, padding of varying length, and a hash of them."""
    fill = chr(97 + (writer + i) % 26) * (size // 2 + (writer * 7919 + i * 104729) % size)
    body = f"{writer:03d} {i:06d} {fill}"
    return f"{body} {hashlib.md5(body.encode()).hexdigest()}\n".encode()


def agents(n):
    return [Agent() for _ in range(n)]


def close_all(*them):
    for agent in them:
        agent.close()
