"""A cell, and extra mounts that may be killed or wait for stopped servers."""
import contextlib
import errno
import glob
import os
import re
import signal
import subprocess
import time

from cell import ZONAL, Cell
from checks import read, true, write_all

COMES_BACK_SECONDS = 10


def make_point(path):
    """Makes a mount point; a dead mount may be on it, which cannot be looked at as a directory."""
    try:
        os.mkdir(path)
    except FileExistsError:
        pass


class OwnMounts(Cell):
    """The cell, and extra mounts that may be killed."""

    def own_mount(self, name, *options):
        path = f"{os.path.dirname(self.folder)}/own-{name}"
        make_point(path)
        self.zonal("mount", "--cell", self.folder, path, "--zone", "1", *options)
        return path

    def own_mount_by_address(self, name):
        path = f"{os.path.dirname(self.folder)}/own-{name}"
        make_point(path)
        with open(f"{self.folder}/cell.toml", encoding="utf-8") as f:
            manager = re.search(r'^manager = "(.*)"', f.read(), re.M)[1]
        self.zonal("mount", "--cell", manager, "--key-file", f"{self.folder}/cell.key", path, "--zone", "1")
        return path

    def mount_pid(self, path):
        for record in glob.glob(f"{self.folder}/mounts/*.toml") + glob.glob("/run/zonal/mounts/*.toml"):
            with open(record, encoding="utf-8") as f:
                text = f.read()
            pid = int(re.search(r"^pid = (\d+)", text, re.M)[1])
            # A killed and unmounted mount keeps its record until the next mount of the cell.
            if re.search(r'^path = "(.*)"', text, re.M)[1] == path and os.path.exists(f"/proc/{pid}/exe"):
                return pid
        raise AssertionError(f"{path} has no record")

    def rests(self, path):
        """Waits until a mount has nothing to send: its housekeeping sleeps without a time limit."""
        task, end = f"/proc/{self.mount_pid(path)}/task", time.monotonic() + COMES_BACK_SECONDS
        names = {thread: read(f"{task}/{thread}/comm") for thread in os.listdir(task)}
        keeper, = (thread for thread, name in names.items() if name == b"housekeeping\n")
        while True:
            # The number of a futex call, and the pointer to its time limit.
            call = read(f"{task}/{keeper}/syscall").split()
            if len(call) > 4 and call[4] == b"0x0":
                return
            true(time.monotonic() < end, f"housekeeping of {path} does not rest")
            time.sleep(0.01)

    def kill_mount_alone(self, path):
        """Unmounts, ignoring errors."""
        pid = self.mount_pid(path)
        os.kill(pid, signal.SIGKILL)
        return pid

    def kill_mount(self, path):
        pid = self.kill_mount_alone(path)
        end = time.monotonic() + 5
        while os.path.exists(f"/proc/{pid}/exe"):
            true(time.monotonic() < end, "a killed mount goes on")
            time.sleep(0.01)
        while took(os.listdir, path)[1] != errno.ENOTCONN:
            true(time.monotonic() < end, "a killed mount still aborts")
            time.sleep(0.01)

    def end_mount(self, path):
        subprocess.run([ZONAL, "umount", "--force", path], capture_output=True, timeout=60, check=False)
        name = re.sub("[^a-zA-Z0-9]", "-", path).strip("-")[-60:]
        for file in glob.glob(f"/run/zonal/mounts/*{name}-*") + glob.glob(f"/var/log/zonal/*{name}-*"):
            os.unlink(file)
        os.rmdir(path)

    def pids(self, *kinds):
        return [pid for name, (pid, *_) in self.nodes().items() if name.startswith(kinds)]

    def kill_servers(self, *kinds):
        for pid in self.pids(*kinds):
            os.kill(pid, signal.SIGKILL)

    @contextlib.contextmanager
    def stopped(self, *kinds, only=slice(None)):
        """Stops these servers within a `with` (SIGSTOP)."""
        pids = self.pids(*kinds)[only]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        # A thread in a call to the kernel goes on until it leaves it.
        end = time.monotonic() + 20
        while not all(stands_still(pid) for pid in pids):
            true(time.monotonic() < end, "a server goes on after SIGSTOP")
            time.sleep(0.01)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def up(self):
        self.zonal("up", "--dir", self.folder, limit=120)

    def log(self, path):
        name = os.path.basename(path)
        for file in os.listdir(f"{self.folder}/mounts"):
            if file.endswith(".log") and name in file:
                with open(f"{self.folder}/mounts/{file}", encoding="utf-8", errors="replace") as f:
                    return f.read()
        return ""


def stands_still(pid):
    """Whether each thread of a process is stopped."""
    def state(thread):
        with open(f"/proc/{pid}/task/{thread}/stat", encoding="utf-8") as f:
            return f.read().rpartition(")")[2].split()[0]
    return all(state(thread) in "Tt" for thread in os.listdir(f"/proc/{pid}/task"))


def drop(fd):
    """Closes a descriptor of a dead mount."""
    took(os.close, fd)


def below(path, d):
    """The same directory through another mount."""
    return f"{path}/one/{os.path.basename(d)}"


def write_at(path, data, flags, sync=True):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o644)
    write_all(fd, data)
    if sync:
        os.fsync(fd)
    return fd


def took(function, *args):
    """Seconds, and the errno (0: none)."""
    begun = time.monotonic()
    try:
        function(*args)
        return time.monotonic() - begun, 0
    except OSError as error:
        return time.monotonic() - begun, error.errno


def comes_back(works):
    end = time.monotonic() + COMES_BACK_SECONDS
    while True:
        try:
            return works()
        except OSError:
            true(time.monotonic() < end, f"no answer {COMES_BACK_SECONDS} s after the servers went on")
            time.sleep(0.1)
