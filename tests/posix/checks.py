"""A small runner for checks of a directory's behaviour: standard library only.

Each check runs in a child process of its own with a fresh directory and a time limit. So a check
that hangs, crashes or changes its user id affects no other one. A check that exceeds its limit is
killed and counts as failed; one that cannot even be killed is reported.

A check is a function with an identity and the statement that it proves; docs name the identity.
"""
import argparse
import errno
import os
import pickle
import select
import shutil
import signal
import socket
import struct
import sys
import time
import traceback


class Skip(Exception):
    """Raised by a check that does not apply here; the reason is printed."""


class Check:
    """One statement and the function that proves it."""

    def __init__(self, ident, statement, fn, root, long, limit):
        self.ident, self.statement, self.fn = ident, statement, fn
        self.root, self.long, self.limit = root, long, limit


class Registry:
    """The checks of one script, in the order in which they were written."""

    def __init__(self):
        self.checks = []

    def check(self, ident, statement, root=False, long=False, limit=60):
        """Registers a function under `ident`; `root`: needs uid 0; `long`: only with --long."""
        def take(fn):
            if any(c.ident == ident for c in self.checks):
                raise SystemExit(f"two checks are called {ident}")
            self.checks.append(Check(ident, statement, fn, root, long, limit))
            return fn
        return take

    def run(self, title, parser, make_args):
        """Parses the command line, runs the selected checks, prints a summary and exits."""
        parser.add_argument("--list", action="store_true", help="print the identities and statements")
        parser.add_argument("--only", default="", help="comma-separated parts of identities to run")
        parser.add_argument("--skip", default="", help="comma-separated identities to leave out")
        parser.add_argument("--long", action="store_true", help="also run what takes minutes")
        if "--list" in sys.argv:
            for c in self.checks:
                print(f"{c.ident}\t{c.statement}")
            sys.exit(0)
        args = parser.parse_args()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        only = [s for s in args.only.split(",") if s]
        skip = [s for s in args.skip.split(",") if s]
        counts = {"ok": 0, "skipped": 0, "FAILED": 0}
        for c in self.checks:
            if only and not any(part in c.ident for part in only) or c.ident in skip:
                continue
            if c.long and not args.long:
                continue
            if c.root and os.geteuid() != 0:
                result, why = "skipped", "needs root"
            else:
                given, cleanup = make_args(args, c)
                start = time.monotonic()
                result, why = run_one(c, given)
                took = time.monotonic() - start
                cleanup(result)
                why = f"{why}" if why else f"{took:.2f} s" if took > 1 else ""
            counts[result] += 1
            print(f"{result:8}{c.ident}{'  ' + why if why else ''}", flush=True)
        print(f"{title}: {counts['ok']} passed, {counts['skipped']} skipped, {counts['FAILED']} failed")
        sys.exit(1 if counts["FAILED"] or not counts["ok"] else 0)


def run_one(c, given):
    """Runs one check in a child; returns (result, reason)."""
    ours, theirs = socket.socketpair()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        ours.close()
        os.setpgid(0, 0)
        send(theirs, run_inside(c, given))
        os._exit(0)
    theirs.close()
    answer = None
    try:
        answer = receive(ours, c.limit)
        ours.close()
        dead = answer is not None and reap(pid, 5)
    finally:
        kill_group(pid)
    dead = dead or reap(pid, 5)
    if not dead:
        return "FAILED", f"hung for {c.limit} s, and does not die at SIGKILL"
    if answer is None:
        return "FAILED", f"no answer in {c.limit} s (hung, or the process died)"
    return answer


def run_inside(c, given):
    me = os.getpid()
    try:
        c.fn(*given)
        return "ok", ""
    except Skip as e:
        return "skipped", str(e)
    except BaseException as e:  # a check may end in any way; each is a failure with its location
        if os.getpid() != me:  # a child that the check forked
            traceback.print_exc()
            os._exit(99)
        return "FAILED", told(e)


def told(error):
    """An error with the lines that it passed through, and the errors during whose handling it was
    raised.
    """
    where = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    lines = " < ".join(f"{os.path.basename(f.filename)}:{f.lineno}" for f in reversed(where))
    before = f"; after {told(error.__context__)}" if error.__context__ and not error.__suppress_context__ else ""
    return f"{type(error).__name__}: {error} ({lines}){before}"


def send(sock, value):
    """Sends one pickled value with its length before it."""
    data = pickle.dumps(value)
    sock.sendall(struct.pack("<I", len(data)) + data)


def receive(sock, limit):
    """Receives one value, or None if the other end closed or `limit` seconds passed."""
    end, data = time.monotonic() + limit, b""
    while len(data) < 4 or len(data) < 4 + struct.unpack("<I", data[:4])[0]:
        left = end - time.monotonic()
        if left <= 0 or not select.select([sock], [], [], left)[0]:
            return None
        more = sock.recv(65536)
        if not more:
            return None
        data += more
    return pickle.loads(data[4:])


def kill_group(pid):
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def reap(pid, limit):
    """Waits for a child's end for at most `limit` seconds; False if it still runs."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        try:
            if os.waitpid(pid, os.WNOHANG)[0] == pid:
                return True
        except ChildProcessError:
            return True
        time.sleep(0.002)
    return False


class Agent:
    """A child process that runs functions on request, so that locks have different owners."""

    ends = set()  # our ends of all agents' sockets: a new agent must not keep them open

    def __init__(self):
        self.sock, theirs = socket.socketpair()
        Agent.ends.add(self.sock)
        self.pid = os.fork()
        if self.pid == 0:
            for end in Agent.ends:
                end.close()
            self.serve(theirs)
            os._exit(0)
        theirs.close()
        self.pending = False

    @staticmethod
    def serve(sock):
        state = {}
        try:
            while (job := receive(sock, 3600)) is not None:
                send(sock, Agent.perform(state, *job))
        except OSError:  # the caller is gone
            os._exit(1)

    @staticmethod
    def perform(state, fn, args):
        try:
            return "value", fn(state, *args)
        except OSError as e:
            return "errno", e.errno
        except BaseException as e:
            return "error", f"{type(e).__name__}: {e}"

    def start(self, fn, *args):
        """Starts a call without waiting for it."""
        send(self.sock, (fn, args))
        self.pending = True

    def done(self, limit):
        """Whether the call begun with start() has ended within `limit` seconds."""
        return bool(select.select([self.sock], [], [], limit)[0])

    def finish(self, limit=20):
        """The result of the call begun with start(); raises what it raised."""
        answer = receive(self.sock, limit)
        if answer is None:
            raise AssertionError(f"no answer from the other process in {limit} s")
        self.pending = False
        kind, value = answer
        if kind == "errno":
            raise OSError(value, os.strerror(value))
        if kind == "error":
            raise AssertionError(value)
        return value

    def call(self, fn, *args, limit=20):
        """Runs fn(state, *args) in the agent and returns its result."""
        self.start(fn, *args)
        return self.finish(limit)

    def kill(self, limit=2):
        """Sends SIGKILL; returns the seconds until the end, or fails if they exceed `limit`."""
        start = time.monotonic()
        os.kill(self.pid, signal.SIGKILL)
        if not reap(self.pid, limit):
            raise AssertionError(f"pid {self.pid} is still there {limit} s after SIGKILL")
        self.drop()
        return time.monotonic() - start

    def close(self):
        """Lets the agent end, which closes its files, and waits for its end."""
        self.drop()
        if not reap(self.pid, 5):
            raise AssertionError(f"pid {self.pid} does not end")

    def drop(self):
        self.sock.close()
        Agent.ends.discard(self.sock)


def equal(got, want, what="value"):
    if got != want:
        raise AssertionError(f"{what} is {short(got)}, expected {short(want)}")


def true(condition, what):
    if not condition:
        raise AssertionError(what)


def short(value):
    text = repr(value)
    return text if len(text) < 110 else f"{text[:100]}... ({len(text)} characters)"


def fails(wanted, fn, *args, **kwargs):
    """Asserts that fn(*args) fails with one of the given errnos; returns the errno."""
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    names = "/".join(errno.errorcode[w] for w in wanted)
    try:
        got = fn(*args, **kwargs)
    except OSError as e:
        if e.errno not in wanted:
            name = errno.errorcode.get(e.errno, e.errno)
            raise AssertionError(f"failed with {name}, expected {names}") from e
        return e.errno
    raise AssertionError(f"succeeded with {short(got)}, expected {names}")


def write(path, data, flags=0, mode=0o644):
    """Creates or empties a file and writes all of data."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | flags, mode)
    try:
        write_all(fd, data)
    finally:
        os.close(fd)


def write_all(fd, data, offset=None):
    view = memoryview(data)
    while view:
        n = os.write(fd, view) if offset is None else os.pwrite(fd, view, offset)
        view = view[n:]
        offset = None if offset is None else offset + n


def read(path):
    """The whole content of a file."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return read_fd(fd)
    finally:
        os.close(fd)


def read_fd(fd):
    parts = []
    while True:
        part = os.read(fd, 1 << 20)
        if not part:
            return b"".join(parts)
        parts.append(part)


def pattern(seed, size):
    """Bytes that differ by position and by seed, made quickly."""
    block = bytes((i * 131 + seed * 17 + (i >> 8) * 7) & 0xFF for i in range(4093))
    return (block * (size // len(block) + 1))[:size]


def as_user(uid, gid, groups, fn, *args):
    """Runs fn(*args) in a child with the given ids and returns its result or raises its error."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            if uid != os.geteuid():
                os.setgroups(groups)
                os.setresgid(gid, gid, gid)
                os.setresuid(uid, uid, uid)
            send(theirs, ("value", fn(*args)))
        except OSError as e:
            send(theirs, ("errno", e.errno))
        except BaseException as e:
            send(theirs, ("error", f"{type(e).__name__}: {e}"))
        os._exit(0)
    theirs.close()
    answer = receive(ours, 30)
    reap(pid, 5)
    if answer is None:
        raise AssertionError("no answer from the child that changed its user")
    if answer[0] == "errno":
        raise OSError(answer[1], os.strerror(answer[1]))
    if answer[0] == "error":
        raise AssertionError(answer[1])
    return answer[1]


def in_child(fn, *args):
    """Runs fn in a child with the same ids (for limits, signals, descriptors)."""
    return as_user(os.getuid(), os.getgid(), os.getgroups(), fn, *args)


def fresh(parent, name):
    """An empty directory that everybody may pass through."""
    path = os.path.join(parent, name)
    shutil.rmtree(path, ignore_errors=True)
    os.mkdir(path)
    os.chmod(path, 0o755)
    return path


def argument_parser(text, *positional):
    parser = argparse.ArgumentParser(description=text)
    for name in positional:
        parser.add_argument(name)
    return parser
