"""Programs for `programs.py`: fio, PostgreSQL, and builds of trees. Each checks its own data.

A program prepares its files, then runs beside faults, and is verified later through a new mount.
`errors` are those that it saw, `longest` is the longest call or transaction, in seconds.
"""

import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import threading
import time

from built_tree import Builder

LIMIT_SECONDS = 600
BLOCK = 16 * 1024
WRITES_PER_SECOND = 64
FIO_FILES = 4
POSTGRES = "/usr/lib/postgresql/15/bin"
USERS = ["postgres", "nobody"]
SETTINGS = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    # Reads come from the mount rather than from PostgreSQL's memory; checkpoints are frequent.
    "shared_buffers": "4MB",
    "max_wal_size": "128MB",
    "checkpoint_timeout": "30s",
    "listen_addresses": "",
}
CLIENTS = 4
SCALE = 2
# The balances of all tables tell the same, and each transaction has its line.
SUMS = """SELECT (SELECT sum(abalance) FROM pgbench_accounts),
    (SELECT sum(tbalance) FROM pgbench_tellers),
    (SELECT sum(bbalance) FROM pgbench_branches),
    (SELECT coalesce(sum(delta), 0) FROM pgbench_history),
    (SELECT count(*) FROM pgbench_history),
    (SELECT count(*) FROM pgbench_accounts)"""


class Program(threading.Thread):
    """What a program does in a directory of the cell, with its logs in a local one."""

    def __init__(self, folder, other_folder, local, seconds):
        super().__init__(daemon=True)
        self.folder = f"{folder}/{self.kind}"
        self.other_folder = f"{other_folder}/{self.kind}"
        self.local = f"{local}/{self.kind}"
        self.seconds = seconds
        self.errors = []
        self.longest = 0.0
        self.figures = {}

    @classmethod
    def missing(cls):
        """Why the program cannot run here; None if it can."""

    def prepare(self):
        os.mkdir(self.folder)
        os.makedirs(self.local)

    def run(self):
        try:
            self.work()
        except (OSError, AssertionError, subprocess.SubprocessError) as error:
            self.errors.append(f"{time.strftime('%H:%M:%S')} {self.kind}: {error}")

    def stop(self):
        """Asks a program without an end of its own to end."""

    def verify(self):
        """Checks all files by the program's own means, through a new mount."""

    def end(self):
        """Ends what `prepare` or `verify` has left running."""


class Fio(Program):
    """Writes at random with checksums in each block: buffered with fsync, and past the cache."""

    kind = "fio"

    @classmethod
    def missing(cls):
        if not shutil.which("fio") and os.getuid() == 0:
            words = ["apt-get", "install", "-y", "fio"]
            subprocess.run(words, capture_output=True, timeout=LIMIT_SECONDS, check=False)
        return None if shutil.which("fio") else "fio is missing. Hint: apt-get install fio"

    def job(self, name, jobs, **more):
        """Writes a job file. Each block of each file is written once over older content."""
        length = WRITES_PER_SECOND * self.seconds * BLOCK // FIO_FILES // BLOCK * BLOCK
        keys = {
            "directory": self.folder,
            "ioengine": "psync",
            "rw": "randwrite",
            "bs": BLOCK,
            "nrfiles": FIO_FILES,
            "filesize": length,
            "overwrite": 1,
            "randseed": 7,
            "verify": "crc32c",
            "verify_fatal": 1,
            "verify_state_save": 0,
            "fsync": 16,
            **more,
        }
        lines = ["[global]", *(f"{key}={value}" for key, value in keys.items())]
        for section, own in jobs.items():
            lines += [f"[{section}]", *(f"{key}={value}" for key, value in own.items())]
        path = f"{self.local}/{name}.job"
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        return path

    def fio(self, name, jobs, **more):
        """Runs fio to its end; returns its jobs."""
        output = f"{self.local}/{name}.json"
        words = ["fio", "--output-format=json", f"--output={output}", self.job(name, jobs, **more)]
        limit = LIMIT_SECONDS + self.seconds
        done = subprocess.run(
            words, cwd=self.local, capture_output=True, text=True, timeout=limit, check=False
        )
        with open(output, encoding="utf-8") as file:
            text = file.read()
        said = f"{done.stderr}{done.stdout}{text[: text.find('{')]}"[-800:]
        assert done.returncode == 0, f"fio {name}: exit {done.returncode}: {said}"
        found = json.loads(text[text.index("{") :])["jobs"]
        wrong = [f"{one['jobname']}: {one['error']}" for one in found if one["error"]]
        assert not wrong, f"fio {name}: {wrong}: {said}"
        return found

    def prepare(self):
        super().prepare()
        self.fio("layout", {"buffered": {"numjobs": 2}, "direct": {}}, create_only=1)

    def work(self):
        own = {"direct": 1, "do_verify": 1, "verify_backlog": 64}
        jobs = {"buffered": {"numjobs": 2, "do_verify": 0}, "direct": own}
        began = time.monotonic()
        found = self.fio("write", jobs, rate_iops=WRITES_PER_SECOND)
        parts = {"write": ("write", "clat_ns"), "read": ("read", "clat_ns")}
        parts["fsync"] = ("sync", "lat_ns")
        for name, (part, key) in parts.items():
            most = max(one[part][key]["max"] for one in found) / 1e9
            self.figures[f"longest_{name}_s"] = round(most, 2)
            self.longest = max(self.longest, most)
        self.figures["writes"] = sum(one["write"]["total_ios"] for one in found)
        self.figures["fsyncs"] = sum(one["sync"]["total_ios"] for one in found)
        self.figures["seconds"] = round(time.monotonic() - began, 1)

    def verify(self):
        jobs = {"buffered": {"numjobs": 2}, "direct": {"direct": 1}}
        found = self.fio("verify", jobs, verify_only=1, do_verify=1)
        read = sum(one["read"]["total_ios"] for one in found)
        written = self.figures["writes"]
        assert read == written, f"fio verified {read} blocks of {written}"
        self.figures["verified_blocks"] = read


class Postgres(Program):
    """A server of PostgreSQL whose data directory is in the cell, and pgbench beside it."""

    kind = "postgres"
    server = None
    transactions = None

    @classmethod
    def missing(cls):
        if os.getuid() != 0:
            return "PostgreSQL runs as another user, so this has to be root"
        if not os.path.exists(f"{POSTGRES}/pgbench"):
            return "PostgreSQL 15 is missing. Hint: apt-get install postgresql-15"
        return None

    def tool(self, name, *words, limit=LIMIT_SECONDS, **more):
        """Starts one of PostgreSQL's programs as its user."""
        return subprocess.Popen(
            [f"{POSTGRES}/{name}", *words],
            cwd=self.local,
            env={"LC_ALL": "C", "PATH": f"{POSTGRES}:{os.environ['PATH']}", "PGUSER": "bench"},
            user=self.user.pw_uid,
            group=self.user.pw_gid,
            extra_groups=[],
            text=True,
            stdin=subprocess.DEVNULL,
            **more,
        )

    def ran(self, name, *words):
        """Runs a program to its end; returns what it printed."""
        pipe = subprocess.PIPE
        child = self.tool(name, *words, stdout=pipe, stderr=subprocess.STDOUT)
        said, _ = child.communicate(timeout=LIMIT_SECONDS + self.seconds)
        assert child.returncode == 0, f"{name}: exit {child.returncode}: {said[-800:]}"
        return said

    def prepare(self):
        super().prepare()
        known = {one.pw_name: one for one in pwd.getpwall()}
        self.user = next(known[name] for name in USERS if name in known)
        for path in (self.folder, self.local):
            os.chown(path, self.user.pw_uid, self.user.pw_gid)
            os.chmod(path, 0o700)
        words = ["--username=bench", "--auth=trust", "--no-locale", "--encoding=UTF8"]
        self.ran("initdb", "--pgdata", self.folder, "--data-checksums", *words)
        self.start_server()
        self.ran("pgbench", "--host", self.local, "-i", "-q", "-s", str(SCALE), "postgres")

    def start_server(self):
        words = ["-D", self.folder, "-k", self.local]
        for key, value in SETTINGS.items():
            words += ["-c", f"{key}={value}"]
        with open(f"{self.local}/log", "ab") as log:
            self.server = self.tool("postgres", *words, stdout=log, stderr=log)
        until = time.monotonic() + LIMIT_SECONDS
        while True:
            asked = self.tool("pg_isready", "-q", "-h", self.local, "-d", "postgres")
            if asked.wait(LIMIT_SECONDS) == 0:
                return
            ended = self.server.poll() is not None
            if ended or time.monotonic() > until:
                raise SystemExit(f"PostgreSQL does not start: {self.log()[-800:]}")
            time.sleep(0.2)

    def stop_server(self, how):
        self.server.send_signal(how)
        self.server.wait(LIMIT_SECONDS)
        self.server = None

    def log(self):
        with open(f"{self.local}/log", encoding="utf-8", errors="replace") as file:
            return file.read()

    def check_log(self):
        wrong = [line for line in self.log().splitlines() if re.search("ERROR|FATAL|PANIC", line)]
        wrong = [line for line in wrong if not re.search("starting up|not yet accept", line)]
        assert not wrong, f"PostgreSQL's log: {wrong[:5]}"

    def work(self):
        words = ["-c", str(CLIENTS), "-T", str(self.seconds), "--progress=1", "--log"]
        prefix = f"--log-prefix={self.local}/transactions"
        said = self.ran("pgbench", "--host", self.local, *words, prefix, "postgres")
        assert "failed transactions: 0 (" in said, f"pgbench: {said[-800:]}"
        self.transactions = int(re.search(r"actually processed: (\d+)", said)[1])
        idle = longest_idle = 0
        for rate, failed in re.findall(r"^progress: .* s, ([\d.]+) tps.* (\d+) failed", said, re.M):
            assert failed == "0", f"{failed} transactions failed"
            idle = idle + 1 if float(rate) == 0 else 0
            longest_idle = max(longest_idle, idle)
        for name in os.listdir(self.local):
            if name.startswith("transactions."):
                with open(f"{self.local}/{name}", encoding="utf-8") as file:
                    most = max(int(line.split()[2]) for line in file)
                self.longest = max(self.longest, most / 1e6)
        self.figures["transactions"] = self.transactions
        self.figures["longest_transaction_s"] = round(self.longest, 2)
        self.figures["seconds_without_a_transaction"] = longest_idle
        self.check()
        # Its caches are gone, and what was not flushed: the next start recovers from the log.
        self.stop_server(signal.SIGQUIT)

    def check(self):
        words = ["-X", "-A", "-t", "-F", ",", "-h", self.local, "-d", "postgres", "-c", SUMS]
        found = self.ran("psql", *words).strip().split(",")
        sums, lines, accounts = set(found[:4]), int(found[4]), int(found[5])
        assert len(sums) == 1, f"the balances differ: {found}"
        assert lines == self.transactions, f"{lines} lines of {self.transactions} transactions"
        assert accounts == SCALE * 100_000, f"{accounts} accounts"
        words = ["--install-missing", "--heapallindexed", "--rootdescend", "-d", "postgres"]
        self.ran("pg_amcheck", "-h", self.local, *words)
        self.check_log()

    def verify(self):
        self.start_server()
        self.check()
        self.stop_server(signal.SIGINT)
        said = self.ran("pg_checksums", "--check", "-D", self.folder)
        self.figures["checksummed_blocks"] = int(re.search(r"Blocks scanned: +(\d+)", said)[1])

    def end(self):
        if self.server and self.server.poll() is None:
            self.server.send_signal(signal.SIGQUIT)
            try:
                self.server.wait(15)
            except subprocess.TimeoutExpired:
                self.server.kill()


class Tree(Program):
    """Builds source trees in the cell and on the local disk, and compares all files.

    `longest` is of single calls: how long a compiler waits among its work is not known.
    """

    kind = "tree"

    def prepare(self):
        os.mkdir(self.folder)
        self.builder = Builder(self.folder, self.other_folder, self.local, "programs")

    def work(self):
        self.builder.run()
        self.errors += self.builder.errors
        calls = self.builder.calls
        self.longest = calls.longest[0]
        self.figures["trees"] = self.builder.rounds
        self.figures["compared_files"] = self.builder.compared
        self.figures["longest_call_s"] = round(self.longest, 2)
        self.figures["longest_command_s"] = round(calls.longest_program[0], 2)
        assert self.builder.rounds, "no tree was built"

    def stop(self):
        self.builder.is_stopping = True

    def verify(self):
        for path in (self.builder.path, self.builder.other_path):
            self.builder.compare(path)


PROGRAMS = {one.kind: one for one in (Fio, Postgres, Tree)}
