"""A program that changes durable files all the time, and keeps what must be in them."""

import os
import random
import threading
import time

FILES = 16
LENGTH_MAX = 2_000_000


class FileLoad(threading.Thread):
    """Makes, changes, reads and removes files, and keeps what it wrote."""

    def __init__(self, number, folder, other_folder, seed):
        super().__init__(daemon=True)
        self.number = number
        self.folders = [folder, other_folder]
        self.rng = random.Random(f"{seed} {number}")
        self.files = {}
        self.errors = []
        self.differing = []
        self.changes = 0
        self.began = time.monotonic()
        self.longest = 0.0
        self.doing = ""
        self.is_stopping = False

    def run(self):
        while not self.is_stopping:
            name = f"{self.number}-{self.rng.randrange(FILES)}"
            self.began = time.monotonic()
            try:
                self.change(name)
            except OSError as error:
                took = f"{self.doing} for {time.monotonic() - self.began:.1f} s"
                self.errors.append(f"{time.strftime('%H:%M:%S')} {name}, {took}: {error}")
                # Its content is unknown from now on.
                self.is_stopping = True
            self.longest = max(self.longest, time.monotonic() - self.began)
            self.changes += 1
            time.sleep(0.01)

    def change(self, name):
        path = f"{self.folders[0]}/{name}"
        known = self.files.get(name)
        choice = self.rng.randrange(9)
        if known is None or choice == 0:
            self.replace(name, path)
        elif choice == 1 or len(known) > LENGTH_MAX:
            self.doing = "removes"
            os.unlink(path)
            del self.files[name]
        elif choice == 2:
            self.doing = "truncates"
            size = self.rng.randrange(len(known) + 50_000)
            with open(path, "r+b") as file:
                file.truncate(size)
                os.fsync(file.fileno())
            self.files[name] = known[:size].ljust(size, b"\0")
        elif choice in (3, 4, 5):
            at = len(known) if choice == 3 else self.rng.randrange(len(known) + 1)
            self.write_at(name, path, at)
        else:
            self.compare(name, self.folders[choice % 2])

    def some_bytes(self, most):
        return self.rng.randbytes(self.rng.randrange(1, most))

    def replace(self, name, path):
        self.doing = "makes"
        content = self.some_bytes(600_000)
        with open(f"{path}.new", "xb") as file:
            file.write(content)
            os.fsync(file.fileno())
        os.rename(f"{path}.new", path)
        self.files[name] = content

    def write_at(self, name, path, at):
        self.doing = "writes"
        known, content = self.files[name], self.some_bytes(200_000)
        with open(path, "r+b") as file:
            file.seek(at)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self.files[name] = known[:at] + content + known[at + len(content) :]

    def compare(self, name, folder):
        self.doing = "reads"
        with open(f"{folder}/{name}", "rb") as file:
            found = file.read()
        if found != self.files[name]:
            self.differing.append(f"{name}: {difference(found, self.files[name])}")


def difference(found, known):
    pairs = zip(found, known, strict=False)
    first = next((at for at, (one, other) in enumerate(pairs) if one != other), None)
    return f"{len(found)} bytes, written {len(known)}, the first other byte at {first}"
