"""Mapped files, and writes around their pages: other handles, lengths, holes, copies."""
import ctypes
import errno
import mmap
import os
import platform
import shutil
import signal
import struct
import subprocess
import time

from checks import Agent, Skip, equal, fails, read, true, write, write_all

from . import KEEP, LIBC, PUNCH, STRICT, ZERO, check, checked, fallocate

PAGE = 4096
# Long enough for a failure that occurs once in hundreds of turns.
SECONDS = 1.2


def beside(work):
    """Runs work() repeatedly in a child; returns a function that ends it and fails if work() failed."""
    pid = os.fork()
    if pid == 0:
        try:
            while True:
                work()
        except BaseException:
            os._exit(1)

    def end():
        os.kill(pid, signal.SIGKILL)
        _pid, status = os.waitpid(pid, 0)
        true(os.WIFSIGNALED(status), f"the process beside ended: status {status}")
    return end


def stores(path, at=0):
    """A process that counts up in 8 bytes of a shared mapping."""
    view = mmap.mmap(os.open(path, os.O_RDWR), 0)
    place = ctypes.c_uint64.from_buffer(view, at)

    def store():
        for _ in range(1000):
            place.value += 1
    return beside(store)


def aligned(byte, length=PAGE):
    """Memory for O_DIRECT."""
    area = mmap.mmap(-1, length)
    area[:] = byte * length
    return area


def way(flags):
    """Writes at an offset through a handle of these flags."""
    def make(path):
        fd = os.open(path, os.O_WRONLY | flags)
        return lambda data, at: equal(os.pwrite(fd, data, at), len(data))
    return make


def copied(path):
    """Writes by copy_file_range."""
    fd, source = os.open(path, os.O_WRONLY), os.open(f"{path}.source", os.O_RDWR | os.O_CREAT, 0o644)

    def change(data, at):
        os.pwrite(source, data, 0)
        equal(os.copy_file_range(source, fd, len(data), 0, at), len(data))
    return change


WAYS = {"O_WRONLY": way(0), "O_WRONLY with O_SYNC": way(os.O_SYNC), "copy_file_range": copied}


@check("mmap-beside-writes", "data written around a page into which another process stores stays: by O_WRONLY, O_SYNC, copy_file_range; the stores stay too")
def _(d):
    for name, make in WAYS.items():
        path = f"{d}/f"
        write(path, bytes(3 * PAGE))
        change, reader = make(path), os.open(path, os.O_RDONLY)
        end = stores(path, PAGE)
        until, turn = time.monotonic() + SECONDS, 0
        while time.monotonic() < until:
            turn += 1
            want = struct.pack("<Q", turn)
            change(want, PAGE + 2048)
            equal(os.pread(reader, 8, PAGE + 2048), want, f"bytes after write {turn} by {name}")
        end()
        stored = os.pread(reader, 8, PAGE)
        os.close(reader)
        data = read(path)
        equal(data[PAGE + 2048:PAGE + 2056], struct.pack("<Q", turn), f"bytes at the end by {name}")
        equal(data[PAGE:PAGE + 8], stored, "the last store")
        true(not any(data[:PAGE] + data[PAGE + 8:PAGE + 2048] + data[PAGE + 2056:]), "other bytes are not zero")


@check("mmap-beside-direct-writes", "data that O_DIRECT writes into half a page stays while another process stores into the other half")
def _(d):
    path = f"{d}/f"
    write(path, bytes(2 * PAGE))
    half = aligned(b"\0", 2048)
    end, reader = stores(path), os.open(path, os.O_RDONLY)
    for flags in (os.O_WRONLY, os.O_RDWR):
        fd = os.open(path, flags | os.O_DIRECT)
        until, turn = time.monotonic() + SECONDS, 0
        while time.monotonic() < until:
            turn += 1
            half[:8] = struct.pack("<Q", turn)
            equal(os.pwritev(fd, [half], 2048), 2048)
            equal(os.pread(reader, 8, 2048), half[:8], f"bytes after write {turn}")
        os.close(fd)
    end()
    equal(read(path)[2048:2056], half[:8], "bytes at the end")


@check("mmap-beside-appends", "data appended to a page into which another process stores is there at once and stays")
def _(d):
    path, record = f"{d}/f", 16
    for flags in (os.O_WRONLY, os.O_RDWR):
        write(path, bytes(100))
        end, reader, fd = stores(path), os.open(path, os.O_RDONLY), os.open(path, flags | os.O_APPEND)
        until, turn = time.monotonic() + SECONDS, 0
        while time.monotonic() < until:
            want = b"%016d" % turn
            equal(os.write(fd, want), record)
            equal(os.pread(reader, 2 * record, 100 + turn * record), want, f"bytes of append {turn}")
            turn += 1
        end()
        os.close(fd)
        os.close(reader)
        equal(read(path)[100:], b"".join(b"%016d" % i for i in range(turn)), "what was appended")


@check("mmap-beside-holes", "bytes that fallocate makes zeros stay so while another process stores into the same page, and can be stored into afterwards")
def _(d):
    path = f"{d}/f"
    for mode in (PUNCH | KEEP, ZERO):
        write(path, bytes(2 * PAGE))
        end, fd, reader = stores(path), os.open(path, os.O_RDWR), os.open(path, os.O_RDONLY)
        view = mmap.mmap(fd, 0)
        until, turn = time.monotonic() + SECONDS, 0
        while time.monotonic() < until:
            turn += 1
            want = struct.pack("<Q", turn)
            view[2048:2056] = want
            if turn % 3 == 0:
                os.fsync(fd)
                equal(os.pread(reader, 8, 2048), want, f"stored in turn {turn}")
            fallocate(fd, mode, 2048, PAGE)
            equal(os.pread(reader, 8, 2048), bytes(8), f"bytes after hole {turn}")
            equal(view[2048:2056], bytes(8), f"mapped bytes after hole {turn}")
        view[2048:2056] = b"behind.."
        view.close()
        os.close(fd)
        os.close(reader)
        end()
        equal(read(path)[2048:2056], b"behind..", "what was stored after the last hole")


GROWS = {
    "ftruncate": lambda path, fd: os.ftruncate(fd, 9000),
    "truncate": lambda path, fd: os.truncate(path, 9000),
    "pwrite": lambda path, fd: os.pwrite(fd, b"\0" * 10, 8990),
    "pwrite into the page": lambda path, fd: os.pwrite(fd, b"\0" * 10, 7000),
    "pwrite by O_WRONLY": lambda path, fd: write_at(path, os.O_WRONLY, 8990),
    "pwrite by O_DIRECT": lambda path, fd: direct_at(path, 2 * PAGE),
    "fallocate": lambda path, fd: fallocate(fd, 0, 0, 9000),
    "fallocate of zeros": lambda path, fd: fallocate(fd, ZERO, 8000, 1000),
    "copy_file_range": lambda path, fd: copy_zeros(path, 8990),
}


def write_at(path, flags, at):
    other = os.open(path, flags)
    os.pwrite(other, b"\0" * 10, at)
    os.close(other)


def direct_at(path, at):
    other = os.open(path, os.O_RDWR | os.O_DIRECT)
    os.pwritev(other, [aligned(b"\0", 512)], at)
    os.close(other)


def copy_zeros(path, at):
    write(f"{path}.source", b"\0" * 10)
    other, source = os.open(path, os.O_WRONLY), os.open(f"{path}.source", os.O_RDONLY)
    equal(os.copy_file_range(source, other, 10, 0, at), 10)
    os.close(other)
    os.close(source)


def a_store_behind(state, path):
    view = state[path] = mmap.mmap(os.open(path, os.O_RDWR), 5000)
    LIBC.memset(ctypes.c_void_p(address(view) + 6000), 0xdd, 100)


@check("mmap-behind-end", "bytes stored behind the end of a file do not come into it when it grows: by ftruncate, truncate, a write, fallocate, a copy; one mapping or two")
def _(d):
    other = Agent()
    for number, (name, grow) in enumerate(GROWS.items()):
        if "O_DIRECT" in name and not STRICT[0]:
            continue  # ext4 lets them in.
        for others in (0, 1):
            path = f"{d}/f{number}.{others}"
            write(path, b"x" * 5000)
            fd = os.open(path, os.O_RDWR)
            view = mmap.mmap(fd, 5000)
            view[4096:4100] = b"kept"
            LIBC.memset(ctypes.c_void_p(address(view) + 5000), 0xee, 8192 - 5000)
            if others:
                other.call(a_store_behind, path)
            grow(path, fd)
            size = os.fstat(fd).st_size
            want = b"x" * 4096 + b"kept" + b"x" * 900 + bytes(size - 5000)
            equal(os.pread(fd, 10_000, 0), want, f"bytes after {name}")
            # Stores from now on are in the file.
            view.resize(size)
            view[6000:6005] = b"later"
            want = want[:6000] + b"later" + want[6005:]
            equal(read(path), want, f"bytes after {name} and a store")
            view.close()
            os.close(fd)
            equal(read(path), want, f"bytes after {name} and close")
    other.close()


def address(view):
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


CALLS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}


class Direct:
    """Asynchronous direct writes (libaio's calls)."""

    def __init__(self, depth):
        calls = CALLS.get(platform.machine())
        if not calls:
            raise Skip(f"the numbers of the calls on {platform.machine()} are not known")
        setup, _destroy, self.getevents, self.submit = calls
        self.context = ctypes.c_ulong(0)
        checked(LIBC.syscall(setup, depth, ctypes.byref(self.context)))

    def write(self, fd, area, length, at):
        """Starts a write; buffers of writes in progress stay unchanged."""
        # aio_data, aio_key and aio_rw_flags, opcode (1: pwrite), priority, fd, buffer, bytes, offset, reserved, flags, resfd.
        block = struct.pack("<QIIHhIQQqQII", at, 0, 0, 1, 0, fd, address(area), length, at, 0, 0, 0)
        memory = ctypes.create_string_buffer(block, 64)
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(memory))
        equal(checked(LIBC.syscall(self.submit, self.context, ctypes.c_long(1), pointers)), 1, "writes begun")

    def ended(self, least):
        """Waits for this many writes: (offset, bytes written) of those that ended."""
        events = ctypes.create_string_buffer(32 * 64)
        count = checked(LIBC.syscall(self.getevents, self.context, ctypes.c_long(least), ctypes.c_long(64), events, None))
        return [struct.unpack_from("<QQqq", events, 32 * i)[::2] for i in range(count)]


@check("direct-async", "an asynchronous direct write is in what buffered handles and mappings read as soon as it has ended, and later", limit=90)
def _(d):
    pages, path = 64, f"{d}/f"
    for flags in (os.O_RDWR, os.O_WRONLY):
        write(path, bytes(pages * PAGE))
        direct, fd = Direct(64), os.open(path, flags | os.O_DIRECT)
        reading = os.open(path, os.O_RDONLY)
        view = mmap.mmap(reading, 0, prot=mmap.PROT_READ)

        def look():
            other = os.open(path, os.O_RDONLY)
            for page in range(pages):
                os.pread(other, PAGE, page * PAGE)
                _byte = view[page * PAGE]
            os.close(other)
        ends = [beside(look) for _ in range(2)]
        areas = [aligned(b"\0") for _ in range(pages)]
        until, turn = time.monotonic() + SECONDS, 0
        while time.monotonic() < until:
            turn += 1
            for page, area in enumerate(areas):
                area[:] = struct.pack("<Q", turn * pages + page) * (PAGE // 8)
                direct.write(fd, area, PAGE, page * PAGE)
            left = pages
            while left:
                for at, written in direct.ended(1):
                    left -= 1
                    equal(written, PAGE, "bytes written")
                    page = at // PAGE
                    want = struct.pack("<Q", turn * pages + page)
                    equal(os.pread(reading, 8, at + 8), want, f"page {page} read in turn {turn}")
                    equal(view[at + 16:at + 24], want, f"page {page} mapped in turn {turn}")
        for end in ends:
            end()
        other = os.open(path, os.O_RDONLY)
        for page in range(pages):
            equal(os.pread(other, 8, page * PAGE), struct.pack("<Q", turn * pages + page), f"page {page} at the end")
        for each in (other, reading, fd):
            os.close(each)
        view.close()


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


@check("seek-mapped", "SEEK_DATA and SEEK_HOLE know bytes that a process has stored into a mapping and nobody has synced; st_blocks is not 0")
def _(d):
    path, size = f"{d}/f", 8 << 20
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    os.ftruncate(fd, size)
    equal(os.stat(path).st_blocks, 0, "blocks of a hole")
    view = mmap.mmap(fd, size)
    for at in (3 << 20, 100, 1 << 20):
        view[at:at + 4] = b"data"
        other = os.open(path, os.O_RDONLY)
        true(os.stat(path).st_blocks > 0, "st_blocks is 0")
        block = at - at % PAGE
        equal(os.lseek(other, block, os.SEEK_DATA), block, f"data at {at}")
        equal(os.lseek(other, at, os.SEEK_HOLE), block + PAGE, f"hole behind the data at {at}")
        os.close(other)
    equal(os.lseek(fd, 200, os.SEEK_DATA), 200)
    equal(os.lseek(fd, PAGE, os.SEEK_DATA), 1 << 20, "the second part")
    equal(os.lseek(fd, (1 << 20) + PAGE, os.SEEK_DATA), 3 << 20, "the third part")
    view.close()


# tar ends with 1 if a file changes while it is read.
COPIES = {
    "cp": ("cp", "{}", "{}.copy"),
    "cp --sparse=never": ("cp", "--sparse=never", "{}", "{}.copy"),
    "cp --sparse=always": ("cp", "--sparse=always", "{}", "{}.copy"),
    "tar -S": ("sh", "-c", "tar -C $(dirname {0}) -S -cf {0}.tar $(basename {0}) || [ $? = 1 ] && tar -xOf {0}.tar >{0}.copy"),
    "rsync": ("rsync", "{}", "{}.copy"),
    "rsync --sparse": ("rsync", "--sparse", "{}", "{}.copy"),
}


def a_map(state, path, there, size, parts):
    """Makes a file like a database: at its largest size, and filled through the mapping."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    if there:
        write_all(fd, b"t" * there)
    os.ftruncate(fd, size)
    os.close(os.open(path, os.O_RDONLY))
    view = state["view"] = mmap.mmap(fd, size)
    for at in parts:
        view[at:at + 5000] = b"%05d" % (at // PAGE) * 1000


def a_store_on(state, until):
    view, turn = state["view"], 0
    while not os.path.exists(until):
        turn += 1
        view[-8:] = struct.pack("<Q", turn)
        time.sleep(0.001)


@check("copy-mapped", "cp, tar -S and rsync copy what a process stored into a mapping of a file before they began, also while it stores on")
def _(d):
    # A separate process: the kernel writes a mapping's pages when a process that inherited it ends,
    # and the copying tools are children of this one.
    size, mapper = 4 << 20, Agent()
    for number, (name, command) in enumerate(COPIES.items()):
        if not shutil.which(command[0]):
            continue
        for there in (0, size // 2):
            path = f"{d}/f{number}.{there}"
            parts = range(there, size, size // 16)
            mapper.call(a_map, path, there, size, parts)
            mapper.start(a_store_on, f"{path}.end")
            done = subprocess.run([part.format(path) for part in command], capture_output=True, check=False)
            write(f"{path}.end", b"")
            mapper.finish()
            equal(done.returncode, 0, f"status of {name}: {done.stderr}")
            copy = read(f"{path}.copy")
            equal(len(copy), size, f"size of the copy by {name}")
            for at in parts:
                true(copy[at:at + 5000] == b"%05d" % (at // PAGE) * 1000, f"{name}: what was stored at {at} is not in the copy")
            true(copy[:there] == b"t" * there, f"{name}: what was written is not in the copy")
    mapper.close()
