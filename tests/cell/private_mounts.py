"""A mount name space for one check, where mount(8) finds this binary as its helper.

An otherwise unused user may mount there. Mounts in it are visible nowhere else; its /dev/fuse is a
node of its own that everybody may open.
"""
import glob
import os
import re
import shutil
import signal
import subprocess

from checks import true
from own_cell import ZONAL, OwnCell

UID = 12345

# A copy of /sbin by links, with mount.zonal; a /dev/fuse and an /etc/passwd for the user.
PREPARE = """
work=$1 zonal=$2 sbin=$(realpath /sbin)
mkdir "$work/sbin" "$work/sbin-old"
mount --bind "$sbin" "$work/sbin-old"
for file in "$work"/sbin-old/*; do ln -s "$file" "$work/sbin/"; done
for name in mount.zonal mount.fuse.zonal; do ln -sf "$zonal" "$work/sbin/$name"; done
mount --bind "$work/sbin" "$sbin"
cp /etc/passwd "$work/passwd"
echo "zonaltest:x:$3:$3::$work/home:/bin/sh" >>"$work/passwd"
mount --bind "$work/passwd" /etc/passwd
echo ready
read -r _
"""


class PrivateCell(OwnCell):
    """A cell, and a mount name space that sees it."""

    def __init__(self, work):
        super().__init__(work)
        self.home, self.binary, self.space = f"{self.base}/home", f"{self.base}/zonal", None

    def make(self):
        super().make()
        os.chmod(self.base, 0o755)
        os.mkdir(self.home)
        os.chown(self.home, UID, UID)
        # Other users may have no access to the build folder.
        shutil.copy(ZONAL, self.binary)
        self.space = subprocess.Popen(["unshare", "-m", "bash", "-euc", PREPARE, "-", self.base, self.binary, str(UID)],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        true(self.space.stdout.readline() == "ready\n", "no name space of mounts")

    def __exit__(self, *why):
        # Its mounts are copies of all present ones; they go away with it, as do processes of a
        # failed check.
        if self.space:
            self.space.communicate("")
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        for file in self.machine_files():
            os.unlink(file)
        super().__exit__(*why)

    def processes(self):
        """Processes that run this check's copy of the binary."""
        found = []
        for proc in glob.glob("/proc/[0-9]*"):
            try:
                if os.readlink(f"{proc}/exe").removesuffix(" (deleted)") == self.binary:
                    found.append(int(proc.removeprefix("/proc/")))
            except OSError:
                pass
        return found

    def command_lines(self):
        """Their command lines, a list of words each."""
        return [self.words_of(pid) for pid in self.processes()]

    @staticmethod
    def words_of(pid):
        try:
            with open(f"/proc/{pid}/cmdline", encoding="utf-8") as f:
                return f.read().rstrip("\0").split("\0")
        except OSError:
            return []

    def machine_files(self):
        """Files that mounts by an address left in the machine's folders."""
        name = re.sub("[^a-zA-Z0-9]", "-", os.path.basename(self.base))
        return [file for folder in ("/run/zonal/mounts", "/var/log/zonal") for file in glob.glob(f"{folder}/*{name}*")]

    def address(self):
        with open(f"{self.folder}/cell.toml", encoding="utf-8") as f:
            return next(line.split('"')[1] for line in f if line.startswith("manager"))

    def within(self, *args, user=False, code=0, limit=60, variables=()):
        """Runs a command in the name space; for the user, with only the given environment."""
        command = ["nsenter", f"--mount=/proc/{self.space.pid}/ns/mnt"]
        if user:
            words = {"HOME": self.home, "PATH": os.environ["PATH"], **dict(variables)}
            command += ["setpriv", "--reuid", str(UID), "--regid", str(UID), "--clear-groups", "env", "-i"]
            command += [f"{name}={value}" for name, value in words.items()]
        done = subprocess.run([*command, *args], capture_output=True, text=True, timeout=limit, check=False, cwd="/")
        text = f"{' '.join(args)}: exit {done.returncode}, not {code}: {(done.stdout + done.stderr).strip()[-500:]}"
        true(code is None or done.returncode == code, text)
        return done

    def open_device(self):
        """Gives the name space a /dev/fuse that the user may open; false if devices cannot be made
        here.
        """
        device = f"{self.base}/fuse"
        made = self.within("sh", "-c", f"mknod -m 666 {device} c 10 229 && mount --bind {device} /dev/fuse", code=None)
        opened = self.within("sh", "-c", "exec 3<>/dev/fuse", user=True, code=None)
        return made.returncode == 0 and opened.returncode == 0

    def points(self, path):
        """[(source, type, options)] of the mounts on a path in the name space."""
        table = self.within("cat", "/proc/self/mounts").stdout
        rows = [line.split(" ") for line in table.splitlines()]
        return [(row[0], row[2], row[3].split(",")) for row in rows if row[1] == path]
