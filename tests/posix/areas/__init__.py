"""The areas of semantics.py: each module registers its checks here."""
import ctypes
import os

from checks import Registry

R = Registry()
check = R.check
STRICT = [False]
LIBC = ctypes.CDLL(None, use_errno=True)
PUNCH = 2  # FALLOC_FL_PUNCH_HOLE
KEEP = 1  # FALLOC_FL_KEEP_SIZE
ZERO = 0x10  # FALLOC_FL_ZERO_RANGE


def checked(result):
    """Turns a C function's -1 into an OSError."""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def fallocate(fd, mode, offset, length):
    """fallocate(2) with every mode, which Python's library lacks."""
    checked(LIBC.fallocate(fd, mode, ctypes.c_int64(offset), ctypes.c_int64(length)))


def renameat2(old, new, flags):
    """renameat2(2) by path."""
    checked(LIBC.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags))
