"""A tree of files that is made twice, in a cell and on a local disk, and compared.

A round makes sources with folders, links, and modes, builds them, and keeps them in a repository of
git. Both copies take the same steps, so each file has to have the same bytes.
"""

import contextlib
import hashlib
import os
import random
import shutil
import stat
import subprocess
import threading
import time

CALL_SECONDS_MAX = 30
# A program makes hundreds of calls, on a machine that is busy with many servers.
PROGRAM_SECONDS_MAX = 120
SLOW_SECONDS = 10
ROUNDS_KEPT = 4
MODULES = 8
MAKEFILE = """OBJECTS = %s
program: $(OBJECTS)
\tgcc -o $@ $(OBJECTS)
obj/%%.o: src/%%.c src/all.h
\tgcc -O1 -c -o $@ $<
"""
GIT = ["git", "-c", "gc.auto=0", "-c", "maintenance.auto=false"]


class Calls:
    """Times calls, and programs that make many. Also one that has not ended yet counts."""

    def __init__(self):
        self.longest = (0.0, "")
        self.longest_program = (0.0, "")
        self.slow = []
        self.current = None

    @contextlib.contextmanager
    def timed(self, what, limit=CALL_SECONDS_MAX):
        began = time.monotonic()
        self.current = (began, what, limit)
        try:
            yield
        finally:
            took = time.monotonic() - began
            if limit == CALL_SECONDS_MAX:
                self.longest = max(self.longest, (took, what))
            else:
                self.longest_program = max(self.longest_program, (took, what))
            if took > SLOW_SECONDS:
                self.slow.append(f"{what} took {took:.1f} s until {time.strftime('%H:%M:%S')}")
            self.current = None
            assert took <= limit, f"{what} took {took:.1f} s"

    def overdue(self):
        """The call that is too long by now, if there is one."""
        current = self.current
        if current and time.monotonic() - current[0] > current[2]:
            return f"no end of {current[1]} after {current[2]} s"
        return None


class Builder(threading.Thread):
    """Builds trees in a first-level directory; compares all that it keeps through two mounts."""

    def __init__(self, path, other_path, local, seed):
        super().__init__(daemon=True)
        self.path = f"{path}/trees"
        self.other_path = f"{other_path}/trees"
        self.local = local
        self.seed = seed
        self.rounds = 0
        self.compared = 0
        self.errors = []
        self.calls = Calls()
        self.is_stopping = False

    def run(self):
        os.makedirs(self.local)
        os.mkdir(self.path)
        while not self.is_stopping and not self.errors:
            try:
                self.round(self.rounds)
                self.rounds += 1
                self.compare([self.path, self.other_path][self.rounds % 2])
            except (OSError, AssertionError) as error:
                self.errors.append(f"{self.path}, round {self.rounds}: {error}")

    def round(self, number):
        name = f"round{number}"
        if number >= ROUNDS_KEPT:
            for base in (self.local, self.path):
                with self.calls.timed(f"removal of a tree in {base}", PROGRAM_SECONDS_MAX):
                    shutil.rmtree(f"{base}/round{number - ROUNDS_KEPT}")
        for base in (self.local, self.path):
            made = f"{base}/{name}"
            self.make(made, random.Random(f"{self.seed} {number}"))
            self.build(made)
            self.commit(made)

    def make(self, base, rng):
        """Sources of a program, and files of all sizes below folders, with links and modes."""
        for folder in ("src", "obj", "data", "data/deep", "data/deep/er"):
            os.makedirs(f"{base}/{folder}")
        names = [f"part{number}" for number in range(MODULES)]
        self.write(f"{base}/src/all.h", "".join(f"int {name}(int);\n" for name in names).encode())
        for name in names:
            body = f"return x * {rng.randrange(1, 1000)} + {rng.randrange(1000)};"
            source = f'#include "all.h"\nint {name}(int x) {{ {body} }}\n'
            self.write(f"{base}/src/{name}.c", source.encode())
        calls = "".join(f'printf("%d\\n", {name}({rng.randrange(99)}));\n' for name in names)
        main = f'#include <stdio.h>\n#include "all.h"\nint main(void) {{\n{calls}return 0;\n}}\n'
        self.write(f"{base}/src/main.c", main.encode())
        objects = " ".join(f"obj/{name}.o" for name in [*names, "main"])
        self.write(f"{base}/Makefile", (MAKEFILE % objects).encode())
        self.write(f"{base}/.gitignore", b"obj/\n")
        for number in range(40):
            folder = rng.choice(["data", "data/deep", "data/deep/er"])
            size = rng.choice([0, 100, 4_000, 30_000, rng.randrange(300_000)])
            path = f"{base}/{folder}/file{number}"
            self.write(path, rng.randbytes(size))
            self.change(path, number, rng)
        self.write(f"{base}/data/large", rng.randbytes(3_000_000))

    def write(self, path, content):
        with self.calls.timed(f"a write of {path}"), open(path, "xb") as file:
            file.write(content)

    def change(self, path, number, rng):
        """Gives some files another name, length, mode, time, or a link."""
        with self.calls.timed(f"a change of {path}"):
            if number % 5 == 0:
                os.rename(path, f"{path}.renamed")
            elif number % 5 == 1:
                os.chmod(path, rng.choice([0o600, 0o755, 0o444]))
                os.utime(path, (1_000_000 + number, 2_000_000 + number))
            elif number % 5 == 2:
                os.symlink(f"file{number}", f"{path}.symlink")
                os.link(path, f"{path}.link")
            elif number % 5 == 3:
                os.truncate(path, rng.randrange(50_000))
                with open(path, "ab") as file:
                    file.write(b"appended")
                    os.fsync(file.fileno())
            else:
                os.unlink(path)

    def build(self, base):
        """Nothing is left to do after a build, and the program prints what it should."""
        self.program(base, "make", "-s", "-j2", "program")
        self.program(base, "make", "-q", "program")
        self.write(f"{base}/printed", self.program(base, "./program"))

    def commit(self, base):
        self.program(base, *GIT, "init", "-q", "-b", "main")
        for message in ("first", "second"):
            self.program(base, *GIT, "add", "-A")
            self.program(base, *GIT, "commit", "-q", "-m", message)
            self.write(f"{base}/data/{message}", message.encode())
        os.unlink(f"{base}/data/second")
        self.program(base, *GIT, "fsck", "--full", "--strict")
        status = self.program(base, *GIT, "status", "--porcelain")
        assert status == b"", f"git status in {base}: {status!r}"

    def program(self, base, *words):
        """Runs a program to its end; returns what it printed."""
        when = "2026-01-01T00:00:00Z"
        fixed = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "LC_ALL": "C"}
        for role in ("AUTHOR", "COMMITTER"):
            of_role = {"NAME": "test", "EMAIL": "test", "DATE": when}
            fixed |= {f"GIT_{role}_{key}": value for key, value in of_role.items()}
        name = f"{' '.join(words).replace(' '.join(GIT), 'git')} in {base}"
        with self.calls.timed(name, PROGRAM_SECONDS_MAX):
            done = subprocess.run(
                words, cwd=base, env={**os.environ, **fixed}, capture_output=True, check=False
            )
        said = (done.stdout + done.stderr)[-500:]
        assert done.returncode == 0, f"{words} in {base}: exit {done.returncode}: {said!r}"
        return done.stdout

    def compare(self, path):
        """Everything in the cell is as on the local disk, and nothing is missing or too much."""
        local, found = self.seen(self.local), self.seen(path)
        names = sorted(name for name in {*local, *found} if local.get(name) != found.get(name))
        shown = [f"{name}: {local.get(name)} became {found.get(name)}" for name in names[:5]]
        assert not names, f"{len(names)} differences in {path}: {'; '.join(shown)}"
        self.compared += sum(1 for one in found.values() if stat.S_ISREG(one[0]))

    def seen(self, base):
        """Mode, link target or size and hash of all below a directory; times where they were set.

        Git's index differs, since it has inode numbers.
        """
        out = {}
        with self.calls.timed(f"a walk through {base}", PROGRAM_SECONDS_MAX):
            walked = list(os.walk(base, onerror=raised))
        for folder, folders, files in walked:
            for name in [*folders, *files]:
                path = os.path.join(folder, name)
                if not path.endswith(".git/index"):
                    with self.calls.timed(f"a look at {path}"):
                        out[os.path.relpath(path, base)] = state(path)
        return out


def raised(error):
    raise error


def state(path):
    status = os.lstat(path)
    if stat.S_ISLNK(status.st_mode):
        return status.st_mode, os.readlink(path)
    if stat.S_ISDIR(status.st_mode):
        return (status.st_mode,)
    with open(path, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    set_time = status.st_mtime if status.st_mtime < 3_000_000 else None
    return status.st_mode, status.st_nlink, status.st_size, set_time, digest
