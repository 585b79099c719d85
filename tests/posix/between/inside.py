"""Mounts, programs and working directories inside one mount, while the other mount changes names."""
import concurrent.futures
import contextlib
import errno
import os
import shutil
import subprocess
import tempfile
import threading
import time

from between import SCALE, check, rounds
from checks import equal, fails, read, true, write


@contextlib.contextmanager
def mounted(kind, path, *options):
    """A mount on a directory; unmounted in any case, since every shared mount name space sees it."""
    subprocess.run(["mount", "-t", kind, *options, "none", path], check=True)
    try:
        yield
    finally:
        while os.path.ismount(path):
            subprocess.run(["umount", "-l", path], check=True)


def change_all(b, number):
    """Makes changes of every kind in the other mount's directories: names, attributes, the directory."""
    for folder in (b, f"{b}/d", f"{b}/beside"):
        write(f"{folder}/new{number}", b"1")
        os.rename(f"{folder}/new{number}", f"{folder}/moved{number}")
        os.mkdir(f"{folder}/dir{number}")
        os.chmod(folder, 0o755)
        os.utime(folder)
        os.rmdir(f"{folder}/dir{number}")
        if number % 2:
            os.unlink(f"{folder}/moved{number}")


def look(a):
    for folder in (a, f"{a}/d", f"{a}/beside"):
        os.stat(folder)
        os.listdir(folder)
        fails(errno.ENOENT, os.stat, f"{folder}/absent")


@check("mount-inside", "a mount on a directory stays there whatever the other mount changes beside and above it", limit=60)
def _(a, b):
    for folder in ("d/m/below", "beside"):
        os.makedirs(f"{a}/{folder}")
    with mounted("tmpfs", f"{a}/d/m"):
        write(f"{a}/d/m/in", b"inside")
        for number in range(rounds(30)):
            look(a)
            change_all(b, number)
            true(os.path.ismount(f"{a}/d/m"), "what is mounted")
            equal(read(f"{a}/d/m/in"), b"inside", "content")
    equal(os.listdir(f"{a}/d/m"), ["below"], "what lies below it")


@check("overlay-above", "an overlay whose lower layer the other mount changes beside goes on, for names of before and new ones", limit=60)
def _(a, b):
    with open("/proc/filesystems", encoding="ascii") as f:
        if "overlay" not in f.read().split():
            print("  this kernel has no overlayfs", flush=True)
            return
    for folder in ("d/deep", "beside"):
        os.makedirs(f"{a}/{folder}")
    for name in ("d/deep/f", "d/g", "h"):
        write(f"{a}/{name}", name.encode())
    upper = tempfile.mkdtemp(dir="/dev/shm")
    try:
        for folder in ("upper", "work", "all"):
            os.mkdir(f"{upper}/{folder}")
        layers = f"lowerdir={a},upperdir={upper}/upper,workdir={upper}/work"
        above = f"{upper}/all"
        with mounted("overlay", above, "-o", layers):
            for number in range(rounds(30)):
                for name in ("d/deep/f", "d/g", "h"):
                    equal(read(f"{above}/{name}"), name.encode(), "content")
                write(f"{above}/d/own", b"own")
                os.unlink(f"{above}/d/own")
                write(f"{b}/beside/new{number}", b"1")
                write(f"{b}/new{number}", b"1")
                equal(sorted(os.listdir(f"{above}/d")), ["deep", "g"], "names")
    finally:
        shutil.rmtree(upper, ignore_errors=True)


@check("worked-in", "a working directory, a program that runs and an open directory keep their paths whatever the other mount changes beside them", limit=60)
def _(a, b):
    for folder in ("d/work", "beside"):
        os.makedirs(f"{a}/{folder}")
    shutil.copy(shutil.which("sleep"), f"{a}/d/program")
    os.chmod(f"{a}/d/program", 0o755)
    folder = os.open(f"{a}/d/work", os.O_RDONLY)
    with subprocess.Popen([f"{a}/d/program", "60"], cwd=f"{a}/d/work") as running:
        try:
            links = {name: os.readlink(f"/proc/{running.pid}/{name}") for name in ("cwd", "exe")}
            for number in range(rounds(30)):
                look(a)
                change_all(b, number)
                look(a)
                for name, link in links.items():
                    equal(os.readlink(f"/proc/{running.pid}/{name}"), link, name)
                equal(os.readlink(f"/proc/self/fd/{folder}"), links["cwd"], "path of the descriptor")
        finally:
            running.kill()
    os.close(folder)


def change_for(mine, theirs, seconds):
    """Makes, renames and removes own names, directories too, and looks at the other side's.

    Returns the longest call and the number of turns.
    """
    longest, turns, end = 0.0, 0, time.monotonic() + seconds

    def timed(function, *args):
        nonlocal longest
        begun = time.monotonic()
        try:
            return function(*args)
        finally:
            longest = max(longest, time.monotonic() - begun)

    while time.monotonic() < end:
        timed(write, f"{mine}-f", b"1")
        timed(os.path.exists, f"{theirs}-f")
        timed(os.rename, f"{mine}-f", f"{mine}-g")
        timed(os.mkdir, f"{mine}-d")
        timed(os.path.exists, f"{theirs}-d/x")
        timed(write, f"{mine}-d/x", b"1")
        timed(os.listdir, os.path.dirname(mine))
        timed(os.chmod, os.path.dirname(mine), 0o755)
        timed(os.unlink, f"{mine}-d/x")
        timed(os.rename, f"{mine}-d", f"{mine}-e")
        timed(os.rmdir, f"{mine}-e")
        timed(os.unlink, f"{mine}-g")
        turns += 1
    return longest, turns


@check("both-change", "two mounts that change one directory at the same time, with several processes each, never wait for one another, and see what the other did", limit=120)
def _(a, b):
    seconds = 6 * SCALE[0] + 2
    with concurrent.futures.ProcessPoolExecutor(4) as pool:
        pairs = ((a, "a", "b"), (a, "c", "d"), (b, "b", "a"), (b, "d", "c"))
        ran = [pool.submit(change_for, f"{side}/{mine}", f"{side}/{other}", seconds) for side, mine, other in pairs]
        ran = [one.result() for one in ran]
    longest = max(longest for longest, _turns in ran)
    print(f"  the longest call: {longest:.2f} s; turns: {[turns for _longest, turns in ran]}", flush=True)
    # When they waited for one another, it was until the leases expired, after 5.5 s.
    true(longest < 3, f"a call took {longest:.1f} s")
    equal((os.listdir(a), os.listdir(b)), ([], []), "names left")
    for number in range(rounds(50)):
        there, here = ((a, b), (b, a))[number % 2]
        write(f"{here}/own{number}", b"1")
        write(f"{there}/n{number}", b"1")
        true(os.path.exists(f"{here}/n{number}"), "a name made by the other")
        os.rename(f"{there}/n{number}", f"{there}/m{number}")
        fails(errno.ENOENT, os.stat, f"{here}/n{number}")


@check("moved-between", "a name that this mount moved into another directory is gone here as soon as the other mount removed it there", limit=60)
def _(a, b):
    for folder in ("from", "to"):
        os.mkdir(f"{a}/{folder}")
    for number in range(rounds(20)):
        os.path.exists(f"{a}/to/f")
        write(f"{a}/from/f", b"1")
        os.stat(f"{a}/from/f")
        os.rename(f"{a}/from/f", f"{a}/to/f")
        if number % 2:
            os.rename(f"{b}/to/f", f"{b}/to/g")
            os.unlink(f"{b}/to/g")
        else:
            os.unlink(f"{b}/to/f")
        fails(errno.ENOENT, os.stat, f"{a}/to/f")


@contextlib.contextmanager
def names_made(folder, rate=100):
    """Makes and removes this many names a second in a directory, from a thread."""
    over = threading.Event()
    failed = []

    def make():
        number = 0
        try:
            while not over.wait(1 / rate):
                write(f"{folder}/name{number}", b"1")
                if number >= 10:
                    os.unlink(f"{folder}/name{number - 10}")
                number += 1
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    equal(failed, [], "names of the other mount")


def run(*command, cwd=None):
    """The output of a program that must succeed."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, errors="replace")
    true(done.returncode == 0, f"{command}: {done.stdout[-300:]} {done.stderr[-300:]}")
    return done.stdout


def package(folder, version, files):
    """Builds a package of this many files of its version."""
    tree = f"{folder}/tree{version}"
    for number in range(files):
        write_below(f"{tree}/usr/share/beside/{number % 7}/f{number}", f"{version} {number}".encode())
    write_below(f"{tree}/etc/beside.conf", f"version {version}".encode())
    control = f"Package: beside\nVersion: {version}\nArchitecture: all\nMaintainer: nobody <nobody@example.org>\nDescription: files\n"
    write_below(f"{tree}/DEBIAN/control", control.encode())
    write_below(f"{tree}/DEBIAN/conffiles", b"/etc/beside.conf\n")
    run("dpkg-deb", "--build", "--root-owner-group", tree, f"{folder}/{version}.deb")
    return f"{folder}/{version}.deb"


def write_below(path, content):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    write(path, content)


@check("packages-beside", "dpkg installs, upgrades and removes packages in a tree with file systems mounted inside, beside a mount that makes 100 names a second", limit=120)
def _(a, b):
    if not shutil.which("dpkg-deb"):
        print("  no dpkg here", flush=True)
        return
    root, files = f"{a}/root", rounds(200)
    for folder in ("var/lib/dpkg/info", "var/lib/dpkg/updates", "tmp", "run"):
        os.makedirs(f"{root}/{folder}")
    write(f"{root}/var/lib/dpkg/status", b"")
    os.mkdir(f"{a}/beside")
    dpkg = ("dpkg", f"--root={root}", "--force-unsafe-io", "--log=/dev/null")
    local = tempfile.mkdtemp()
    try:
        packages = [package(local, version, files) for version in (1, 2)]
        with mounted("tmpfs", f"{root}/tmp"), mounted("tmpfs", f"{root}/run"), names_made(f"{b}/beside"), names_made(b):
            write(f"{root}/tmp/in", b"inside")
            for version, file in enumerate(packages, 1):
                run(*dpkg, "--force-confnew", "--install", file)
                equal(run(*dpkg, "--verify"), "", "what dpkg finds changed")
                for number in range(files):
                    equal(read(f"{root}/usr/share/beside/{number % 7}/f{number}"), f"{version} {number}".encode(), "content")
                equal(read(f"{root}/tmp/in"), b"inside", "content of what is mounted")
            run(*dpkg, "--purge", "beside")
            true(os.path.ismount(f"{root}/tmp") and os.path.ismount(f"{root}/run"), "what is mounted")
            true(not os.path.exists(f"{root}/usr/share/beside"), "files of a removed package")
    finally:
        shutil.rmtree(local)


@check("git-beside", "git commits, packs and checks a repository, and a shell walks it, beside a mount that makes 100 names a second", limit=120)
def _(a, b):
    os.mkdir(f"{a}/beside")
    tree, files = f"{a}/tree", rounds(200)
    git = ("git", "-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "gc.auto=0")
    with names_made(f"{b}/beside"), names_made(b):
        run("git", "init", "-q", tree)
        for turn in range(3):
            for number in range(turn, files, 3):
                write_below(f"{tree}/d{number % 5}/f{number}", f"{turn} {number}".encode())
            run(*git, "add", "-A", cwd=tree)
            run(*git, "commit", "-q", "-m", f"turn {turn}", cwd=tree)
            equal(run(*git, "status", "--porcelain", cwd=tree), "", "what git finds changed")
        found = run("sh", "-c", "cd d1 && cd .. && find d? -type f | wc -l", cwd=tree)
        equal(int(found), files, "files that a shell finds")
        run(*git, "gc", "-q", cwd=tree)
        run(*git, "fsck", "--full", "--strict", cwd=tree)
        equal(run(*git, "status", "--porcelain", cwd=tree), "", "what git finds changed")
