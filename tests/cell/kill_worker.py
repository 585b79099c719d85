"""One process of `kill.py`: it changes its own files and knows their state after any kill.

Its model has, for each name, the inode and its possible contents:

* An operation that returned is done, whatever server is killed later.
* An operation that failed with EIO or ETIMEDOUT is done or not done, never half: the names are
  compared with both.
* Bytes written but not flushed (close, fsync) may be old or new once the mount's process is killed,
  each byte independently.
* Any other error, and any call that takes longer than `CALL_SECONDS`, is a failure.
"""
import collections
import errno
import fcntl
import os
import random
import stat
import time

KIB = 1 << 10
CALL_SECONDS = 30.0
LOCK_SECONDS = 120.0  # the holder may wait for a server too, in each of its calls
UNKNOWN = (errno.EIO, errno.ETIMEDOUT)
MOUNT_GONE = (errno.ENOTCONN, errno.ECONNABORTED, errno.ENODEV)
FILES, OPENS, DIRECTORIES = 40, 5, 6  # of a worker at most


class Unknown(Exception):
    """The outcome of an operation is not known."""


class MountGone(Exception):
    """The mount's process is dead."""


class Node:
    """An inode: its content, and other possible contents until a flush."""

    def __init__(self, kind, ino=0, target=b""):
        self.kind, self.ino, self.target = kind, ino, target
        self.content, self.older = bytearray(), []
        self.doubtful = self.partial = False
        self.xattrs, self.mode = {}, None
        self.history = collections.deque(maxlen=12)

    def change(self, *what):
        """Called before the content changes."""
        self.older.append(bytes(self.content))
        self.note(*what)

    def note(self, *what):
        self.history.append((f"{time.monotonic() % 1000:.3f}", *what))

    def flushed(self):
        if not self.doubtful:
            self.older.clear()

    def fits(self, found):
        """Whether the content may be `found`."""
        if found == self.content:
            return True
        if not self.doubtful:
            return False
        may = [*self.older, bytes(self.content)]
        sizes = {len(m) for m in may}
        if len(found) not in sizes and not (self.partial and min(sizes) <= len(found) <= max(sizes)):
            return False
        for at in range(0, len(found), 4 * KIB):
            end = min(at + 4 * KIB, len(found))
            part, blocks = found[at:end], [m[at:end].ljust(end - at, b"\0") for m in may]
            if part not in blocks and any(byte not in {b[i] for b in blocks} for i, byte in enumerate(part)):
                return False
        return True

    def adopt(self, found):
        self.content[:] = found
        self.older.clear()
        self.doubtful = self.partial = False


class Pending:
    """A change of names whose outcome is unknown: {name: node or None} before and after."""

    def __init__(self, before, after):
        self.before, self.after = before, after


class Worker:
    def __init__(self, tops, side, number, seed):
        self.tops, self.side, self.number = tops, side, number
        self.random = random.Random(seed * 1000 + number)
        self.home = f"{('one', 'two')[number // 2 % 2]}/kill/w{number}"
        self.names, self.fds, self.pending, self.frozen = {}, [], [], set()
        self.born, self.steps, self.doubts, self.slowest = 0, collections.Counter(), [], 0.0
        self.sure, self.perhaps, self.counter, self.held = 0, 0, None, None
        os.makedirs(self.path(self.home) + "/d0")
        self.names[f"{self.home}/d0"] = Node("dir", os.stat(self.path(f"{self.home}/d0")).st_ino)
        self.open_shared()

    def path(self, name, other=False):
        return f"{self.tops[self.side ^ other]}/{name}"

    # -- calls, and the meaning of their failures

    def call(self, function, *args, limit=CALL_SECONDS):
        begun = time.monotonic()
        try:
            return function(*args)
        except OSError as error:
            if error.errno in MOUNT_GONE:
                raise MountGone from error
            if error.errno in UNKNOWN:
                self.doubts.append((time.monotonic(), f"{function.__name__}: {errno.errorcode[error.errno]}"))
                raise Unknown from error
            raise AssertionError(f"worker {self.number}: {function.__name__}{args[:2]}: {error}") from error
        finally:
            took = time.monotonic() - begun
            if limit == CALL_SECONDS:
                self.slowest = max(self.slowest, took)
            if took > limit:
                raise AssertionError(f"worker {self.number}: {function.__name__}{args[:1]} took {took:.1f} s")

    def rename_names(self, function, args, before, after):
        """Changes names; keeps the change as pending if its outcome is unknown."""
        try:
            result = self.call(function, *args)
        except (Unknown, MountGone):
            self.pending.append(Pending(before, after))
            self.frozen |= set(before) | {id(n) for n in (*before.values(), *after.values()) if n}
            raise
        self.settle(after)
        return result

    def settle(self, names):
        for name, node in names.items():
            if node is None:
                self.names.pop(name, None)
            else:
                self.names[name] = node

    def pick(self, *kinds):
        fits = [(name, node) for name, node in self.names.items()
                if node.kind in kinds and name not in self.frozen and id(node) not in self.frozen]
        return self.random.choice(fits) if fits else (None, None)

    def new_name(self):
        self.born += 1
        folder = self.pick("dir")[0] if self.random.random() < 0.7 else None
        return f"{folder or self.home}/n{self.born}"

    def links(self, node):
        return sum(n is node for n in self.names.values())

    # -- steps

    def make(self):
        if sum(n.kind == "file" for n in self.names.values()) >= FILES:
            return self.unlink()
        name, node = self.new_name(), Node("file")
        flags = os.O_CREAT | os.O_EXCL | self.random.choice((os.O_WRONLY, os.O_RDWR, os.O_RDWR | os.O_APPEND))
        fd = self.rename_names(os.open, (self.path(name), flags, 0o644), {name: None}, {name: node})
        self.fds.append((fd, node, flags))
        node.ino = self.call(os.fstat, fd).st_ino
        self.write_to(fd, node, flags, self.random.choice((0, 1, 100, 4096, 5000, 70 * KIB, 300 * KIB)))
        if self.random.random() < 0.4 or len(self.fds) > OPENS:
            self.close()
        return None

    def write_to(self, fd, node, flags, size):
        data = self.random.randbytes(size)
        if not data:
            return
        end = len(node.content)
        at = end if flags & os.O_APPEND else self.random.choice((0, end, self.random.randrange(end + 1), end + self.random.randrange(9000)))
        node.change("write", at, size, flags)
        grown = node.content.ljust(at, b"\0")
        grown[at:at + size] = data
        node.content[:] = grown
        try:
            done = self.call(os.write, fd, data) if flags & os.O_APPEND else self.call(os.pwrite, fd, data, at)
        except (Unknown, MountGone):
            self.doubt(node)
            raise
        if done != size:
            # The kernel splits a long write; one part failed.
            self.doubts.append((time.monotonic(), f"write: {done} bytes of {size}"))
            self.doubt(node)
            raise Unknown
        if flags & os.O_DSYNC:
            node.flushed()

    def doubt(self, node):
        """Notes a failed call on the content: part of it may have arrived."""
        node.note("failed")
        node.doubtful = node.partial = True
        self.frozen.add(id(node))

    def usable(self):
        fits = [one for one in self.fds if id(one[1]) not in self.frozen]
        return self.random.choice(fits) if fits else None

    def write(self):
        one = self.usable()
        if one:
            self.write_to(*one, self.random.choice((1, 50, 4096, 10_000, 130 * KIB)))

    def reopen(self):
        name, node = self.pick("file")
        if name and len(self.fds) <= OPENS:
            flags = self.random.choice((os.O_WRONLY, os.O_RDWR, os.O_RDWR | os.O_APPEND, os.O_RDWR | os.O_DSYNC))
            self.fds.append((self.call(os.open, self.path(name), flags), node, flags))

    def sync(self):
        one = self.usable()
        if one:
            fd, node, _ = one
            self.flushing(node, self.random.choice((os.fsync, os.fdatasync)), fd)

    def flushing(self, node, function, *args):
        node.note(function.__name__)
        try:
            self.call(function, *args)
        except (Unknown, MountGone):
            self.doubt(node)
            raise
        node.flushed()

    def close(self):
        one = self.usable()
        if one:
            self.fds.remove(one)
            self.flushing(one[1], os.close, one[0])

    def read(self):
        name, node = self.pick("file")
        if not name:
            return
        fd = self.call(os.open, self.path(name), os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            found = self.read_all(fd)
        finally:
            self.call(os.close, fd)
        if found != node.content:
            raise AssertionError(f"{name}: {differs(found, node.content)}; history {list(node.history)}")

    def read_all(self, fd):
        parts, at = [], 0
        while part := self.call(os.pread, fd, 128 * KIB, at):
            parts.append(part)
            at += len(part)
        return b"".join(parts)

    def truncate(self):
        name, node = self.pick("file")
        if not name:
            return
        size = self.random.choice((0, self.random.randrange(len(node.content) + 1), len(node.content) + self.random.randrange(9000)))
        node.change("truncate", size)
        node.content[:] = node.content[:size].ljust(size, b"\0")
        try:
            self.call(os.truncate, self.path(name), size)
        except (Unknown, MountGone):
            self.doubt(node)
            raise

    def rename(self):
        name, node = self.pick("file", "link")
        if not name:
            return
        other, victim = self.pick("file", "link")
        if self.random.random() < 0.5 or other == name or victim is node:
            other, victim = self.new_name(), None
        self.rename_names(os.rename, (self.path(name), self.path(other)), {name: node, other: victim}, {name: None, other: node})

    def link(self):
        name, node = self.pick("file")
        if name and self.links(node) < 4:
            new = self.new_name()
            self.rename_names(os.link, (self.path(name), self.path(new)), {new: None}, {new: node})

    def unlink(self):
        name, node = self.pick("file", "link")
        if name:
            self.rename_names(os.unlink, (self.path(name),), {name: node}, {name: None})

    def symlink(self):
        name, node = self.new_name(), Node("link", target=self.random.randbytes(8).hex().encode())
        if sum(n.kind == "link" for n in self.names.values()) < 10:
            self.rename_names(os.symlink, (node.target, self.path(name).encode()), {name: None}, {name: node})
            node.ino = self.call(os.lstat, self.path(name)).st_ino

    def mkdir(self):
        if sum(n.kind == "dir" for n in self.names.values()) >= DIRECTORIES:
            return self.rmdir()
        self.born += 1
        name, node = f"{self.home}/d{self.born}", Node("dir")
        self.rename_names(os.mkdir, (self.path(name), 0o755), {name: None}, {name: node})
        node.ino = self.call(os.stat, self.path(name)).st_ino
        return None

    def rmdir(self):
        pending = [name for p in self.pending for name in p.before]
        empty = [name for name, node in self.names.items() if node.kind == "dir" and name not in self.frozen
                 and not any(n.startswith(f"{name}/") for n in (*self.names, *pending))]
        if empty:
            name = self.random.choice(empty)
            self.rename_names(os.rmdir, (self.path(name),), {name: self.names[name]}, {name: None})

    def xattr(self):
        name, node = self.pick("file", "dir")
        if not name:
            return
        key, value = f"user.k{self.random.randrange(3)}", self.random.randbytes(self.random.randrange(1, 200))
        old = node.xattrs.get(key)
        try:
            if old is not None and self.random.random() < 0.3:
                value = None
                self.call(os.removexattr, self.path(name), key)
            else:
                self.call(os.setxattr, self.path(name), key, value)
        except (Unknown, MountGone):
            node.xattrs[key] = (old, value)
            self.frozen.add(id(node))
            raise
        node.xattrs[key] = value

    def chmod(self):
        name, node = self.pick("file")
        if not name:
            return
        mode, old = self.random.choice((0o600, 0o640, 0o644, 0o755)), node.mode
        try:
            self.call(os.chmod, self.path(name), mode)
        except (Unknown, MountGone):
            node.mode = (old, mode) if old is not None else None
            self.frozen.add(id(node))
            raise
        node.mode = mode

    def sync_directory(self):
        fd = self.call(os.open, self.path(self.home), os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.call(os.fsync, fd)
        finally:
            self.call(os.close, fd)

    def count(self):
        """Adds one to a number that all workers of both mounts share, under a lock."""
        use_flock, fd = self.random.random() < 0.5, self.counter[0]
        lock = fcntl.flock if use_flock else fcntl.lockf
        if use_flock:
            fd = self.counter[1]
        self.call(lock, fd, fcntl.LOCK_EX, limit=LOCK_SECONDS)
        self.perhaps += 1
        try:
            number = int(self.call(os.pread, fd, 20, 0))
            self.call(os.pwrite, fd, b"%020d" % (number + 1), 0)
        finally:
            self.unlock(lock, fd)
        self.perhaps -= 1
        self.sure += 1

    def unlock(self, lock, fd):
        """Repeats fsync until the shard has it.

        If the first try fails, earlier writes count as unknown.
        """
        try:
            self.call(lock, fd, fcntl.LOCK_UN)
        except Unknown:
            end = time.monotonic() + LOCK_SECONDS
            while time.monotonic() < end:
                try:
                    self.call(lock, fd, fcntl.LOCK_UN)
                    break
                except Unknown:
                    time.sleep(0.1)
            raise

    def open_shared(self):
        """Opens the shared files, and takes this worker's own locks."""
        shared = self.path("one/kill/shared")
        self.counter = [os.open(f"{shared}{i}", os.O_RDWR) for i in range(2)]
        self.held = [os.open(f"{shared}-held", os.O_RDWR), os.open(self.path(f"one/kill/flock-{self.number}"), os.O_RDWR | os.O_CREAT, 0o644)]
        end = time.monotonic() + 20
        while True:
            try:
                fcntl.lockf(self.held[0], fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 10 * self.number)
                fcntl.flock(self.held[1], fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > end:
                    raise AssertionError("locks of the dead mount are still held after 20 s") from None
                time.sleep(0.1)

    STEPS = {"make": 12, "write": 20, "reopen": 6, "sync": 8, "close": 5, "read": 6, "truncate": 5, "rename": 8, "link": 4,
             "unlink": 3, "symlink": 2, "mkdir": 3, "xattr": 5, "chmod": 3, "sync_directory": 2, "count": 8}

    def work(self, is_over, is_gone=lambda: False):
        """Steps until told to end; names of a step with an unknown outcome are left alone from then
        on.

        `is_gone`: this mount is about to be killed, or was. A file opened by name from then on may
        be on the next mount.
        """
        names, weights = list(self.STEPS), list(self.STEPS.values())
        while not is_over():
            step = self.random.choices(names, weights)[0]
            try:
                getattr(self, step)()
                self.steps[step] += 1
            except Unknown:
                self.steps["unknown"] += 1
            except MountGone:
                pass
            except AssertionError:
                if not is_gone():
                    raise
            while is_gone() and not is_over():
                time.sleep(0.02)

    # -- after the kill

    def resume_after_mount(self):
        """Notes that the mount was killed: descriptors and locks are gone, unflushed data is in doubt."""
        for fd in [*(fd for fd, _, _ in self.fds), *self.counter, *self.held]:
            try:
                os.close(fd)
            except OSError:
                pass
        self.fds = []
        for node in {id(n): n for n in self.names.values()}.values():
            node.doubtful = node.doubtful or bool(node.older)
        self.open_shared()

    def verify(self):
        """Compares everything with the model through both mounts; returns the differences."""
        bad = [b for pending in self.pending for b in self.resolve(pending)]
        self.pending, self.frozen = [], set()
        bad += [f"through a descriptor kept open: {b}" for b in self.check_descriptors()]
        # First the names and contents through both mounts.
        own, other = self.compare(False), self.compare(True)
        return bad + [f"through both mounts: {b}" for b in own if b in other] + [f"through its own mount: {b}" for b in own if b not in other] + \
            [f"through the other mount: {b}" for b in other if b not in own]

    def resolve(self, pending):
        found = {}
        for name in pending.before:
            try:
                found[name] = os.lstat(self.path(name)).st_ino
            except FileNotFoundError:
                found[name] = 0
        known = {node.ino for node in self.names.values()}

        def matches(state):
            for name, node in state.items():
                ino = found[name]
                if node is None or ino == 0:
                    if node is not None or ino != 0:
                        return False
                elif node.ino not in (0, ino) or (node.ino == 0 and ino in known):
                    return False
            return True

        if matches(pending.after):
            self.settle(pending.after)
            for name, node in pending.after.items():
                if node:
                    node.ino = found[name]
            return []
        if matches(pending.before):
            return []
        states = [{n: node and node.ino for n, node in s.items()} for s in (pending.before, pending.after)]
        return [f"half done: {found} is neither {states[0]} nor {states[1]}"]

    def check_descriptors(self):
        bad = []
        for fd, node, flags in self.fds:
            if flags & os.O_ACCMODE == os.O_RDWR:
                found = self.read_all(fd)
                if not node.fits(found):
                    bad.append(f"{self.name_of(node)}: {differs(found, node.content)}")
                if node.doubtful:
                    node.adopt(found)
            self.call(os.fsync, fd)
            node.flushed()
        return bad

    def name_of(self, node):
        return next((name for name, n in self.names.items() if n is node), f"inode {node.ino} without a name")

    def compare(self, other):
        bad, found = [], set()
        top = self.path("", other)
        for folder, folders, names in os.walk(self.path(self.home, other)):
            found |= {os.path.join(folder, n)[len(top):] for n in (*folders, *names)}
        bad += [f"{name} should not be there" for name in sorted(found - set(self.names))]
        bad += [f"{name} is missing" for name in sorted(set(self.names) - found)]
        for name in sorted(found & set(self.names)):
            bad += [f"{name}: {b}" for b in self.compare_one(self.path(name, other), self.names[name])]
        return bad

    def compare_one(self, path, node):
        bad, s = [], os.lstat(path)
        kind = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "link"}[stat.S_IFMT(s.st_mode)]
        node.ino = node.ino or s.st_ino
        if (kind, s.st_ino) != (node.kind, node.ino):
            return [f"{kind} {s.st_ino} in place of {node.kind} {node.ino}"]
        if kind == "link":
            return [] if os.readlink(path).encode() == node.target else ["another target"]
        if kind == "file":
            if s.st_nlink != self.links(node):
                bad.append(f"{s.st_nlink} links in place of {self.links(node)}")
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            content = self.read_all(fd)
            os.close(fd)
            if s.st_size != len(content):
                bad.append(f"size {s.st_size}, but {len(content)} bytes")
            if not node.fits(content):
                bad.append(f"{differs(content, node.content)}; history {list(node.history)}")
            elif node.doubtful:
                node.adopt(content)
            mode = node.mode if isinstance(node.mode, tuple) else (node.mode,)
            if node.mode is not None and stat.S_IMODE(s.st_mode) not in mode:
                bad.append(f"mode {s.st_mode:o} is none of {mode}")
            node.mode = stat.S_IMODE(s.st_mode)
        for key, value in list(node.xattrs.items()):
            try:
                here = os.getxattr(path, key)
            except OSError as error:
                if error.errno != errno.ENODATA:
                    raise
                here = None
            if here not in (value if isinstance(value, tuple) else (value,)):
                bad.append(f"{key} differs")
            node.xattrs[key] = here
        return bad


def differs(found, want):
    at = next((i for i, (a, b) in enumerate(zip(found, want)) if a != b), min(len(found), len(want)))
    return f"{len(found)} bytes found, {len(want)} expected, first difference at {at}: {bytes(found[at:at + 16]).hex()} for {bytes(want[at:at + 16]).hex()}"
