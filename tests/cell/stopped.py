#!/usr/bin/env python3
"""The cost of stopped servers (SIGSTOP), one check for each sentence of docs/semantics.md.

    tests/cell/stopped.py --cell DIR --mount PATH [--only PART,...] [--list]

The cell is one that `zonal up` made, with the directory `one` at its top. Only mounts made for this
purpose, beside the cell's folder, have to wait. ZONAL names the binary. Root only.
"""
import concurrent.futures
import contextlib
import errno
import fcntl
import mmap
import os
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "posix"))
from cell import ZONAL, run  # noqa: E402
from checks import Registry, Skip, equal, read, reap, true, write, write_all  # noqa: E402
from frozen_threads import Frozen  # noqa: E402
from own_mounts import OwnMounts, below, comes_back, took, write_at  # noqa: E402

R = Registry()
check = R.check
CALL_SECONDS = 30

# Stores into each page of a mapping, and leaves the pages dirty.
DIRTY_MAPPING = """import mmap,sys,time
f = open(sys.argv[1], 'rb+')
m = mmap.mmap(f.fileno(), 0); m[:] = b'd' * len(m); print('dirty', flush=True); time.sleep(99)
"""


@check("stopped-storage", "with stopped storage servers every call ends within 30 s with an error, the mount's log names the server, and killed processes end at once", limit=300)
def _(c, d):
    own = c.own_mount("stopped")
    try:
        e = below(own, d)
        fd = write_at(f"{e}/f", b"x" * 100_000, 0)
        reader = write_at(f"{e}/cold", b"y" * 300_000, 0)
        os.posix_fadvise(reader, 0, 0, os.POSIX_FADV_DONTNEED)
        # The kernel writes their pages when they end.
        dirty = []
        for name in ("mapped", "mapped-too"):
            write(f"{e}/{name}", b"m" * 5_000_000)
            dirty.append(subprocess.Popen([sys.executable, "-c", DIRTY_MAPPING, f"{e}/{name}"], stdout=subprocess.PIPE))
            equal(dirty[-1].stdout.readline(), b"dirty\n", "what the owner of a mapping says")
        with c.stopped("storage"):
            for name, code in (("owner of a dirty mapping", None), ("writer", "open(p+'/w','wb').write(b'x'*5_000_000)"), ("reader", "open(p+'/cold','rb').read()"),
                               ("fsync", "import os; f=open(p+'/s','wb'); f.write(b'x'*9000); f.flush(); os.fsync(f.fileno())"),
                               ("page fault", "import mmap; f=open(p+'/cold','rb'); mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)[200_000]"),
                               ("exit", "import os,time; f=os.open(p+'/x',os.O_CREAT|os.O_WRONLY); os.write(f,b'x'*9000); print('wrote', flush=True); time.sleep(99)")):
                victim = dirty[0]
                if code:
                    command = [sys.executable, "-c", f"print('begins', flush=True); p={e!r}; {code}"]
                    victim = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
                    for word in ("begins", "wrote") if name == "exit" else ("begins",):
                        equal(victim.stdout.readline(), f"{word}\n".encode(), f"what the {name} says")
                    time.sleep(1)
                true(victim.poll() is None, f"the {name} has ended before it is killed")
                begun = time.monotonic()
                victim.kill()
                true(reap(victim.pid, 5), f"a killed {name} is there after 5 s")
                lasted = time.monotonic() - begun
                print(f"  a killed {name} ends after {lasted:.2f} s", flush=True)
                true(lasted < 2.5, f"a killed {name} took {lasted:.1f} s to end")
            # The writers' data fills the mount's buffer: the kernel waits until these pages are
            # done, as a call does.
            dirty[1].kill()
            begun = time.monotonic()
            os.pwrite(fd, b"z" * 50_000, 0)
            for name, call in (("fsync", lambda: os.fsync(fd)), ("read", lambda: read(f"{e}/cold")), ("O_SYNC write", lambda: write_at(f"{e}/f", b"1", os.O_SYNC, False))):
                lasted, error = took(call)
                print(f"  {name} ends after {lasted:.1f} s with {errno.errorcode.get(error, error)}", flush=True)
                equal(errno.errorcode.get(error, error), "ETIMEDOUT", name)
                true(lasted <= CALL_SECONDS, f"{name} took {lasted:.1f} s")
            true(reap(dirty[1].pid, max(0.1, begun + CALL_SECONDS - time.monotonic())), f"a killed owner of a dirty mapping is there after {CALL_SECONDS} s")
            true(re.search(r"no answer .*target", c.log(own)), "the mount's log names no target")
        comes_back(lambda: os.fsync(fd))
        equal(read(f"{d}/f")[:50_000], b"z" * 50_000, "what was written before fsync failed, synced later")
        end = time.monotonic() + 30
        while read(f"{d}/x") != b"x" * 9000 or any(read(f"{d}/{name}") != b"d" * 5_000_000 for name in ("mapped", "mapped-too")):
            true(time.monotonic() < end, "what a killed process wrote does not arrive after 30 s")
            time.sleep(0.2)
        for one in (fd, reader):
            os.close(one)
    finally:
        c.end_mount(own)


@check("stopped-truncate", "a truncation, and an O_DSYNC write, that a stopped storage server does not hear of fail and are whole: the size at once, and what a descriptor of before reads", limit=120)
def _(c, d):
    own = c.own_mount("truncating")
    fds = {}
    try:
        e = below(own, d)
        cuts = {"by-name": (0, os.truncate), "by-name-to-a-part": (1_500_000, os.truncate), "by-descriptor": (0, lambda path, size: os.ftruncate(fds[path], size)),
                "by-open": (0, lambda path, _: os.close(os.open(path, os.O_RDWR | os.O_TRUNC)))}
        for name in cuts:
            path = f"{e}/{name}"
            write(path, b"o" * 5_000_000)
            fds[path] = os.open(path, os.O_RDWR)
            equal(len(os.pread(fds[path], 5_000_000, 0)), 5_000_000, "what fills the kernel's pages")
            # Some are gathered, after the new end.
            os.pwrite(fds[path], b"n" * 50, 1_500_000)
            if name == "by-open":
                os.fsync(fds[path])
        # The kernel writes its pages when it has the reply.
        write(f"{e}/mapped", b"o" * 3_000_000)
        fds["mapped"] = os.open(f"{e}/mapped", os.O_RDWR)
        mapping = mmap.mmap(fds["mapped"], 0)
        mapping[:] = b"m" * 3_000_000
        # In each column of the file.
        synced = {f"{e}/synced{at}": at for at in (500_000, 1_500_000, 2_500_000)}
        for path in synced:
            fds[path] = os.open(path, os.O_CREAT | os.O_RDWR | os.O_DSYNC)
            equal(os.stat(path).st_size, 0, "the size of a new file")
        with c.stopped("storage", only=slice(1, 2)):
            with concurrent.futures.ThreadPoolExecutor() as pool:
                writes = {path: pool.submit(took, os.pwrite, fds[path], b"s" * 50, at) for path, at in synced.items()}
                mapped = pool.submit(took, os.truncate, f"{e}/mapped", 0)
                ended = {name: pool.submit(took, lambda name=name, size=size, cut=cut: cut(f"{e}/{name}", size)) for name, (size, cut) in cuts.items()}
            for name, (size, _) in cuts.items():
                lasted, error = ended[name].result()
                print(f"  {name} ends after {lasted:.1f} s with {errno.errorcode.get(error, error)}", flush=True)
                equal(errno.errorcode.get(error, error), "ETIMEDOUT", name)
                true(lasted <= CALL_SECONDS, f"{name} took {lasted:.1f} s")
                equal(os.fstat(fds[f"{e}/{name}"]).st_size, size, f"{name}: the size")
            equal(sorted(bool(write.result()[1]) for write in writes.values()), [False, False, True], "whether writes were not synced")
            equal([os.fstat(fds[path]).st_size for path in synced], [at + 50 for at in synced.values()], "sizes with writes that were not synced")
            true(mapped.result()[1] and mapped.result()[0] <= CALL_SECONDS, f"of a changed mapping: {mapped.result()}")
        mapping.close()
        for name, (size, _) in cuts.items():
            path = f"{e}/{name}"
            comes_back(lambda path=path: os.fsync(fds[path]))
            for how, found in (("the descriptor of before", os.pread(fds[path], 5_000_000, 0)), ("its mount", read(path)), ("another mount", read(f"{d}/{name}"))):
                true(found == b"o" * size, f"{name}, through {how}: {len(found)} bytes, {found.count(0)} of them zeros")
        for path, at in synced.items():
            found = [os.pread(fds[path], 5_000_000, 0)]
            comes_back(lambda path=path: os.fsync(fds[path]))
            found += [os.pread(fds[path], 5_000_000, 0), read(f"{d}/{os.path.basename(path)}")]
            true(found == [b"\0" * at + b"s" * 50] * 3, f"before {path} is synced, after, and in another mount: {[len(bytes) for bytes in found]} bytes")
    finally:
        for fd in fds.values():
            os.close(fd)
        c.end_mount(own)


@check("stopped-other-zone", "df below a directory of one zone answers at once while the other zone's servers are stopped", limit=120)
def _(c, d):
    before = os.statvfs(d)
    with c.stopped("meta2", "storage2"):
        lasted, error = took(os.statvfs, d)
        true(not error and lasted < 3, f"df: {errno.errorcode.get(error, error)} after {lasted:.1f} s")
        equal(os.statvfs(d).f_blocks, before.f_blocks, "blocks of zone 1")


@check("stopped-metadata", "with stopped metadata servers `ls` and open end within 30 s with an error, a crowd of them too, and killed processes end at once", limit=300)
def _(c, d):
    own = c.own_mount("stopped-meta", "--no-cache")
    try:
        e = below(own, d)
        write(f"{e}/f", b"x")
        with c.stopped("meta", "manager"):
            lister = subprocess.Popen(["ls", "-l", e], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            # More than the mount has workers.
            crowd = [subprocess.Popen(["stat", f"{e}/f{n}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for n in range(40)]
            begun = time.monotonic()
            time.sleep(1)
            for one in crowd:
                one.kill()
            for one in crowd:
                true(reap(one.pid, 5), "a killed process is there after 5 s")
            print(f"  40 killed processes have ended after {time.monotonic() - begun - 1:.2f} s", flush=True)
            true(time.monotonic() - begun - 1 < 3, f"40 killed processes took {time.monotonic() - begun - 1:.1f} s to end")
            status = lister.wait(CALL_SECONDS)
            print(f"  ls ends after {time.monotonic() - begun:.1f} s", flush=True)
            true(status != 0, "ls succeeded")
            lasted, error = took(os.open, f"{e}/f", os.O_RDONLY)
            true(error == errno.ETIMEDOUT and lasted <= CALL_SECONDS, f"open: {errno.errorcode.get(error, error)} after {lasted:.1f} s")
            true(re.search(r"no answer .*shard", c.log(own)), "the mount's log names no shard")
        equal(comes_back(lambda: read(f"{e}/f")), b"x", "content")
    finally:
        c.end_mount(own)


@check("silent-errno", "a server that does not answer is ETIMEDOUT for every call, whether the mount has a connection to it, makes one, or has never talked to it: names, reads, writes, fsync, truncations; one whose process is gone is EIO", limit=240)
def _(c, d):
    own, fresh = c.own_mount("silent", "--deadline", "2s"), c.own_mount("fresh", "--deadline", "2s")
    fds = []
    try:
        e = below(own, d)
        write(f"{e}/silent", b"s" * 5_000_000)
        fds = [write_at(f"{e}/w{number}", b"w" * 100_000, 0) for number in range(3)]
        reader = os.open(f"{e}/silent", os.O_RDONLY | os.O_DIRECT)
        fds.append(reader)

        def calls(base, place):
            """In sequence: the pool waits a moment before it connects again to a silent server."""
            for number in range(3):
                if place == "meta":
                    yield "mkdir", lambda: os.mkdir(f"{base}/made")
                    yield "stat", lambda: os.stat(f"{base}/no-such")
                    yield "open", lambda: os.close(os.open(f"{base}/other", os.O_CREAT | os.O_WRONLY))
                else:
                    yield "read", lambda: direct(f"{base}/silent")
                    yield "fsync", lambda: (os.pwrite(fds[0], b"n" * 100_000, 0), os.fsync(fds[0]))
                    yield "O_SYNC write", lambda: write_at(f"{base}/w1", b"n" * 100_000, os.O_SYNC, False)
                    yield "truncate", lambda number=number: os.truncate(f"{base}/w2", os.stat(f"{base}/w2").st_size - 100 - number)

        def told(base, place):
            found = {}
            for name, call in calls(base, place):
                found.setdefault(name, set()).add(errno.errorcode.get(took(call)[1], 0))
            return found

        for place, kinds in (("storage", ["storage"]), ("meta", ["meta", "manager"])):
            for base in (e, below(fresh, d)):
                with c.stopped(*kinds):
                    for name, errors in told(base, place).items():
                        equal(errors, {"ETIMEDOUT"}, f"{name} with {place} servers that stand still")
                comes_back(lambda base=base: os.stat(f"{base}/silent"))
                comes_back(lambda: os.fsync(fds[0]))
        c.kill_servers("storage")
        equal(errno.errorcode.get(took(direct, f"{e}/silent")[1], 0), "EIO", "a read from servers that are gone")
        c.up()
        comes_back(lambda: direct(f"{e}/silent"))
    finally:
        for fd in fds:
            took(os.close, fd)
        c.end_mount(own)
        c.end_mount(fresh)


@check("umount-says", "an unmount that waits reports why: bytes not sent, servers that do not answer, files open, and how to give up; lost data is reported at the end", limit=180)
def _(c, d):
    waits, gives_up, held = (c.own_mount(name, *options) for name, options in (("waits", ("--deadline", "60s")), ("gives-up", ("--deadline", "3s")), ("held", ())))
    said = {}

    def umount(path):
        done = subprocess.run([ZONAL, "umount", path], capture_output=True, text=True, timeout=90, check=False)
        return done.returncode, done.stderr

    fd = None
    try:
        for own in (waits, gives_up):
            write(f"{below(own, d)}/f-{os.path.basename(own)}", b"")
        fd = os.open(f"{below(held, d)}/held", os.O_CREAT | os.O_RDWR)
        with c.stopped("storage"), concurrent.futures.ThreadPoolExecutor() as pool:
            for own in (waits, gives_up):
                # A close would wait for the servers; the end of a killed process does not.
                code = "import os,sys,time; os.pwrite(os.open(sys.argv[1], os.O_WRONLY), b'u' * 3_000_000, 0); print('wrote', flush=True); time.sleep(99)"
                writer = subprocess.Popen([sys.executable, "-c", code, f"{below(own, d)}/f-{os.path.basename(own)}"], stdout=subprocess.PIPE)
                equal(writer.stdout.readline(), b"wrote\n", "what the writer says")
                writer.kill()
                true(reap(writer.pid, 5), "the writer is there after 5 s")
            ended = {own: pool.submit(umount, own) for own in (waits, gives_up, held)}
            said = {own: one.result() for own, one in ended.items()}
            print(f"  {said}", flush=True)
            for own, words in ((waits, r"still runs: .*(2\.9|3\.0|3000000|2\.86).* are not sent yet; no answer from .*target \d+ at 127\.0\.0\.1:\d+"),
                               (gives_up, r"could not be sent and are lost; no answer from .*target \d+ at"), (held, r"still runs: files are open \(1\)")):
                equal(said[own][0], 1, f"exit of umount {own}")
                true(re.search(words, said[own][1]), f"umount {own} says: {said[own][1]}")
            for own in (waits, held):
                true(f"zonal umount --force {own}" in said[own][1], f"how to give up: {said[own][1]}")
            c.zonal("umount", "--force", waits)
        os.close(fd)
        fd = None
    finally:
        if fd is not None:
            os.close(fd)
        for own in (waits, gives_up, held):
            c.end_mount(own)


@check("stopped-queue", "of twelve threads that write one file, and of twelve that make names in one directory, behind stopped servers each ends with an error, the last within 30 s; the written data arrives later", limit=180)
def _(c, d):
    own = c.own_mount("queue")
    fds, places = [], [number << 16 for number in range(12)]
    try:
        e = below(own, d)
        write(f"{e}/queue", b"q" * (1 << 20))
        fds = [os.open(f"{e}/queue", os.O_WRONLY | os.O_SYNC) for _ in places]
        writers = [lambda fd=fd, at=at: os.pwrite(fd, b"w" * 8192, at) for fd, at in zip(fds, places)]
        makers = [lambda at=at: os.mkdir(f"{e}/made-{at}") for at in places]
        # Nothing but these writes makes the mount send them again.
        c.rests(own)
        for what, kinds, calls in (("writer", ["storage"], writers), ("maker", ["meta", "manager"], makers)):
            with c.stopped(*kinds), concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
                # The kernel lets them through one at a time.
                ended = list(pool.map(took, calls))
            lasted = max(lasted for lasted, _ in ended)
            print(f"  the last {what} ends after {lasted:.1f} s", flush=True)
            equal({errno.errorcode.get(error, error) for _, error in ended}, {"ETIMEDOUT"}, f"how {what}s end")
            true(lasted <= CALL_SECONDS, f"the last {what} ended after {lasted:.1f} s")
        comes_back(lambda: os.listdir(e))
        end = time.monotonic() + CALL_SECONDS
        while any(read(f"{d}/queue")[at:at + 8192] != b"w" * 8192 for at in places):
            true(time.monotonic() < end, "what was written does not arrive")
            time.sleep(0.2)
    finally:
        for fd in fds:
            took(os.close, fd)
        c.end_mount(own)


@check("restart-short", "calls under way and begun while metadata servers are killed and come back within seconds go on, however long the mount has waited for an event of theirs", limit=180)
def _(c, d):
    own = c.own_mount("restart")
    try:
        e, ended = below(own, d), []
        with concurrent.futures.ThreadPoolExecutor() as pool:
            for number in range(3):
                os.mkdir(f"{e}/before{number}")
                # A poll for events may run that long when its connection breaks.
                time.sleep(11 + 3 * number)
                for pid in c.pids("meta", "manager"):
                    os.kill(pid, signal.SIGKILL)
                time.sleep(0.5)
                calls = [pool.submit(took, os.mkdir, f"{e}/during{number}"), pool.submit(took, os.listdir, own)]
                time.sleep(2)
                c.up()
                ended += [call.result() for call in calls]
        print(f"  they took {', '.join(f'{lasted:.1f}' for lasted, _ in ended)} s", flush=True)
        true(all(error == 0 for _, error in ended), f"calls while servers were away for 3 s: {ended}")
    finally:
        c.end_mount(own)


def direct(path):
    """The first 256 KiB, past the page cache."""
    fd, memory = os.open(path, os.O_RDONLY | os.O_DIRECT), mmap.mmap(-1, 256 << 10)
    os.preadv(fd, [memory], 0)
    os.close(fd)
    return memory[:]


def freeze_connections(c, stack):
    """Freezes, until the stack ends, the storage servers' threads that read from present connections."""
    try:
        threads = [stack.enter_context(Frozen(pid, "connection")).threads for pid in c.pids("storage")]
    except PermissionError as error:
        raise Skip(str(error)) from error
    true(any(threads), "no connection stands still")


def stays(path, synced, at):
    """Waits a second, for a late write to arrive."""
    for _ in range(20):
        time.sleep(0.05)
        found = direct(path)[at:at + len(synced)]
        true(found == synced, f"a late write lies over what was synced: {found[:16]!r}")


@check("late-write", "a write that was given up and sent again changes nothing when a stopped thread of the storage server reads it at last: data synced since stays", limit=120)
def _(c, d):
    # Long enough for a busy machine to send it again in the rest of the time.
    own = c.own_mount("late", "--deadline", "4s")
    path, at, size = f"{below(own, d)}/late", 64 << 10, 16 << 10
    older, newer = b"o" * size, b"n" * size
    fd = write_at(path, b"b" * (256 << 10), 0)
    os.fsync(fd)

    def synced(data):
        begun = time.monotonic()
        os.pwrite(fd, data, at)
        os.fsync(fd)
        return time.monotonic() - begun

    try:
        with contextlib.ExitStack() as stack:
            freeze_connections(c, stack)
            true(synced(older) > 3.5, "the first write had an answer at once, although who would read it stands still")
            synced(newer)
            equal(read(path)[at:at + size], newer, "what was written last")
        stays(f"{d}/late", newer, at)
    finally:
        os.close(fd)
        c.end_mount(own)


@check("mount-killed-under-drop", "a mount that is killed while the kernel waits to drop pages of a file that it is writing ends, with the calls on it, and is mounted again", limit=120)
def _(c, d):
    own = c.own_mount("drop")
    try:
        e = below(own, d)
        write(f"{d}/written", b"x" * 100_000)
        fd = os.open(f"{e}/written", os.O_RDWR | os.O_SYNC)
        for _ in range(3):
            os.listdir(e)
            os.stat(f"{e}/written")
        with concurrent.futures.ThreadPoolExecutor() as pool:
            with c.stopped("storage"):
                # Part of a page that the kernel does not have: the page is locked until the reply.
                writing = pool.submit(took, os.pwrite, fd, b"s" * 100, 50_000)
                time.sleep(0.5)
                true(not writing.done(), "the write was not held up")
                # Another mount changes the file: its pages are to be dropped, and the write has one
                # of them locked.
                for _ in range(3):
                    os.utime(f"{d}/written")
                    time.sleep(0.1)
                c.kill_mount_alone(own)
                begun = time.monotonic()
                ended = concurrent.futures.wait([writing], timeout=8)
                print(f"  the write ends after {time.monotonic() - begun:.1f} s", flush=True)
                if ended.not_done:
                    subprocess.run(["umount", "-f", own], capture_output=True, check=False)
                true(not ended.not_done, "a write of a killed mount does not end")
                true(writing.result()[1], "a killed mount syncs")
        took(os.close, fd)
        c.zonal("mount", "--cell", c.folder, own, "--zone", "1")
        equal(len(read(f"{e}/written")), 100_000, "mounted again")
    finally:
        c.end_mount(own)


@check("late-write-killed", "a write of a mount whose process was killed changes nothing when a thread of the storage server that stood still reads it at last: what another mount has synced there since stays", limit=120)
def _(c, d):
    at, size = 64 << 10, 16 << 10
    older, newer = b"o" * size, b"n" * size
    write(f"{d}/late", b"b" * (256 << 10))
    own, other = c.own_mount("late-killed"), None
    try:
        fd = write_at(f"{below(own, d)}/late", b"b" * (256 << 10), 0)
        with contextlib.ExitStack() as stack:
            freeze_connections(c, stack)
            with concurrent.futures.ThreadPoolExecutor() as pool:
                writing = pool.submit(lambda: (took(os.pwrite, fd, older, at), took(os.fsync, fd)))
                time.sleep(1)
                true(not writing.done(), "the first write had an answer at once, although who would read it stands still")
                c.kill_mount(own)
                true(writing.result(10)[1][1], "a killed mount syncs")
            took(os.close, fd)
            # Its connections are new ones.
            other = c.own_mount("late-other")
            fd = os.open(f"{below(other, d)}/late", os.O_RDWR)
            os.pwrite(fd, newer, at)
            os.fsync(fd)
            os.close(fd)
        stays(f"{d}/late", newer, at)
    finally:
        for path in filter(None, (own, other)):
            c.end_mount(path)


@check("stopped-holder", "a mount that stands still for longer than its session lasts loses its lock to another one: nothing that it has gathered arrives, the holder's writes are EIO until its fsync or close was, once each, and its log says so", limit=180)
def _(c, d):
    own = c.own_mount("holder")
    try:
        holder = os.open(f"{below(own, d)}/held", os.O_CREAT | os.O_RDWR)
        # After the bytes that the shard stores, and in them.
        write_all(holder, b"b" * 200_000)
        fcntl.flock(holder, fcntl.LOCK_EX)
        os.fsync(holder)
        os.pwrite(holder, b"o" * 50_000, 100_000)
        os.pwrite(holder, b"o" * 100, 0)
        os.kill(c.mount_pid(own), signal.SIGSTOP)
        try:
            other = os.open(f"{d}/held", os.O_RDWR)
            lasted, error = took(fcntl.flock, other, fcntl.LOCK_EX)
            print(f"  the lock is another mount's after {lasted:.1f} s", flush=True)
            equal(error, 0, "a lock that is waited for")
            true(lasted < 90, f"a lock of a mount that stands still was waited for {lasted:.0f} s")
            os.pwrite(other, b"n" * 50_000, 100_000)
            os.pwrite(other, b"n" * 100, 0)
            os.fsync(other)
        finally:
            os.kill(c.mount_pid(own), signal.SIGCONT)
        end = time.monotonic() + 30
        while "others have got the locks" not in c.log(own):
            true(time.monotonic() < end, "the mount's log does not say that a lock was lost")
            time.sleep(0.1)
        # The kernel may split a write: one EIO could be a short count for the program.
        write_to = (os.pwrite, b"o" * 100, 0)
        calls = ("write", *write_to), ("second write", *write_to), ("fsync", os.fsync)
        for name, call, *more in calls:
            equal(errno.errorcode.get(took(call, holder, *more)[1]), "EIO", f"the holder's {name}")
        equal(took(os.fsync, holder)[1], 0, "another fsync")
        equal(took(os.pwrite, holder, b"b" * 100, 199_900)[1], 0, "a write after it")
        again = os.dup(holder)
        equal(errno.errorcode.get(took(os.close, holder)[1]), "EIO", "the holder's close")
        equal(took(os.close, again)[1], 0, "another close")
        for path in (f"{d}/held", f"{below(own, d)}/held"):
            found = read(path)
            equal((found[:100], found[100_000:150_000]), (b"n" * 100, b"n" * 50_000), "what the new holder wrote")
            equal(found[150_000:], b"b" * 50_000, "the rest")
        os.close(other)
    finally:
        c.end_mount(own)


if __name__ == "__main__":
    run("stopped", R, __doc__, OwnMounts)
