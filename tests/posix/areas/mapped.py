"""Mapped files, and pages that are written round: other handles, lengths, holes, copies."""
import errno
import os

from checks import equal, fails, true

from . import check

PAGE = 4096


@check("seek-hole-block", "SEEK_HOLE tells no place inside a block that has data, SEEK_DATA is of one mind with it")
def _(d):
    for at in (0, 100, 5000, 300_000, (3 << 20) + 10):
        fd = os.open(f"{d}/f{at}", os.O_RDWR | os.O_CREAT, 0o644)
        os.pwrite(fd, b"data", at)
        equal(os.lseek(fd, at, os.SEEK_HOLE), at + 4, "the hole at the end")
        os.ftruncate(fd, 16 << 20)
        for synced in (False, True):
            if synced:
                os.fsync(fd)
            hole = os.lseek(fd, at, os.SEEK_HOLE)
            true(hole >= at + 4 and hole % PAGE == 0, f"the hole behind the data at {at} begins at {hole}")
            equal(os.lseek(fd, hole - 1, os.SEEK_DATA), hole - 1, "data before the hole")
            fails(errno.ENXIO, os.lseek, fd, hole, os.SEEK_DATA)
