"""Set-id bits and capabilities that a write removes, whichever mount set them."""
import contextlib
import ctypes
import errno
import mmap
import os

from between import LIBC, check, checked
from checks import equal, fails, write

ALICE = 12345
CAPABILITY = "security.capability"
# cap_net_bind_service, permitted and effective: VFS_CAP_REVISION_2.
VALUE = bytes.fromhex("0100000200040000000000000000000000000000")


@contextlib.contextmanager
def acting_as_alice():
    os.setegid(ALICE)
    os.seteuid(ALICE)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def write_direct(fd):
    with mmap.mmap(-1, 4096) as block:
        os.pwritev(fd, [block], 0)


def fallocate(fd):
    checked(LIBC.fallocate(fd, 0, ctypes.c_long(0), ctypes.c_long(4096)))


WAYS = {
    "write": (os.O_RDWR, lambda fd: os.write(fd, b"1")),
    "write-only": (os.O_WRONLY, lambda fd: os.write(fd, b"1")),
    "append": (os.O_RDWR | os.O_APPEND, lambda fd: os.write(fd, b"1")),
    "sync": (os.O_RDWR | os.O_SYNC, lambda fd: os.write(fd, b"1")),
    "direct": (os.O_RDWR | os.O_DIRECT, write_direct),
    "ftruncate": (os.O_RDWR, lambda fd: os.ftruncate(fd, 9000)),
        # By path.
    "truncate": (os.O_RDWR, None),
    "fallocate": (os.O_RDWR, fallocate),
    "copy": (os.O_RDWR, lambda fd: os.copy_file_range(fd, fd, 10, 0, 5000)),
}


@check("set-id-and-capabilities", "a change of a file's bytes by another user drops set-id bits and capabilities, whichever mount set them", root=True)
def _(a, b):
    for writer in (a, b):
        for before in (True, False):
            for mode, is_capable in ((0o777, True), (0o6777, False), (0o6777, True), (0o2767, False), (0o6766, False)):
                for way, (flags, change) in WAYS.items():
                    what = f"{way} to mode {mode:o}{' with a capability' * is_capable}, opened {'before' if before else 'after'} it had that"
                    write(f"{a}/f", b"x" * 10_000)
                    os.chmod(f"{a}/f", 0o777)
                    with acting_as_alice():
                        fd = os.open(f"{writer}/f", flags) if before else -1
                    if is_capable:
                        os.setxattr(f"{a}/f", CAPABILITY, VALUE)
                    os.chmod(f"{a}/f", mode)
                    with acting_as_alice():
                        fd = fd if before else os.open(f"{writer}/f", flags)
                        try:
                            change(fd) if change else os.truncate(f"{writer}/f", 9000)
                        except OSError as error:
                            raise AssertionError(f"{what}: {error}") from error
                    os.close(fd)
                    for side in (a, b):
                        equal(f"{os.stat(f'{side}/f').st_mode & 0o7777:o}", f"{mode & 0o777:o}", f"mode after {what}")
                        fails(errno.ENODATA, os.getxattr, f"{side}/f", CAPABILITY)
                    os.unlink(f"{a}/f")
