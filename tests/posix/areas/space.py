"""Space: st_blocks, statfs, and the space that holes, truncation and removal free."""
import os

from checks import equal, true, write, write_all

from . import KEEP, PUNCH, STRICT, check, fallocate

MIB = 1 << 20


def used(path):
    return os.stat(path).st_blocks * 512


def put(path, size, at=0):
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    write_all(fd, b"x" * size, at)
    os.fsync(fd)
    return fd


@check("blocks-written", "st_blocks covers what was written, to the block, with little on top")
def _(d):
    for size in (1, 4096, 4097, 100_000, 3 * MIB):
        put(f"{d}/f{size}", size)
        got = used(f"{d}/f{size}")
        true(size <= got <= size + 65_536, f"{size} bytes use {got}")
        # Zonal counts blocks of 4 KiB at its targets, and of 512 bytes at the shard.
        true(not STRICT[0] or size <= got <= -(-size // 4096) * 4096, f"{size} bytes use {got}, and not their blocks of 4 KiB")


@check("blocks-sparse", "a hole uses no blocks")
def _(d):
    put(f"{d}/f", 4096, 1 << 30)
    true(4096 <= used(f"{d}/f") <= 256 * 1024, f"{used(f'{d}/f')} bytes used")


@check("blocks-truncate", "truncate gives blocks back, growing takes none")
def _(d):
    fd = put(f"{d}/f", 4 * MIB)
    os.ftruncate(fd, MIB)
    os.fsync(fd)
    true(MIB <= used(f"{d}/f") <= MIB + 65_536, f"{used(f'{d}/f')} bytes used after shrinking")
    os.ftruncate(fd, 0)
    os.fsync(fd)
    equal(used(f"{d}/f"), 0, "bytes used by an empty file")
    os.ftruncate(fd, 100 * MIB)
    os.fsync(fd)
    equal(used(f"{d}/f"), 0, "bytes used by a hole")


@check("blocks-punch", "punching a hole gives blocks back")
def _(d):
    fd = put(f"{d}/f", 4 * MIB)
    fallocate(fd, PUNCH | KEEP, MIB, 2 * MIB)
    os.fsync(fd)
    true(2 * MIB <= used(f"{d}/f") <= 2 * MIB + 65_536, f"{used(f'{d}/f')} bytes used")


@check("blocks-fallocate", "fallocate takes the blocks that it promises")
def _(d):
    fd = put(f"{d}/f", 1)
    fallocate(fd, 0, 0, 4 * MIB)
    os.fsync(fd)
    true(used(f"{d}/f") >= 4 * MIB, f"{used(f'{d}/f')} bytes used")


@check("blocks-keep-size", "fallocate with KEEP_SIZE takes the blocks that it promises: behind the end too; writing there adds none, and truncate gives them back")
def _(d):
    fd = put(f"{d}/f", 4)
    fallocate(fd, KEEP, 0, 4 * MIB)
    os.fsync(fd)
    equal(os.fstat(fd).st_size, 4, "size")
    # The first 4 KiB of a file are in Zonal's shard, which reserves no space.
    promised = 4 * MIB - 4096 * STRICT[0]
    true(promised <= used(f"{d}/f") <= 4 * MIB + 65_536, f"{used(f'{d}/f')} bytes used")
    write_all(fd, b"x" * 2 * MIB, MIB)
    os.fsync(fd)
    true(promised <= used(f"{d}/f") <= 4 * MIB + 65_536, f"{used(f'{d}/f')} bytes used when a part was written")
    os.ftruncate(fd, 2 * MIB)
    os.fsync(fd)
    true(used(f"{d}/f") <= 2 * MIB + 65_536, f"{used(f'{d}/f')} bytes used after truncate")


@check("blocks-overwrite", "overwriting does not add blocks")
def _(d):
    fd = put(f"{d}/f", 2 * MIB)
    for _ in range(3):
        write_all(fd, b"y" * 2 * MIB, 0)
        os.fsync(fd)
    true(2 * MIB <= used(f"{d}/f") <= 2 * MIB + 65_536, f"{used(f'{d}/f')} bytes used")


@check("statfs", "statfs: a block size, free no more than total, names of 255 bytes")
def _(d):
    s = os.statvfs(d)
    true(s.f_bsize >= 512 and s.f_frsize >= 512, f"block sizes {s.f_bsize} {s.f_frsize}")
    true(0 < s.f_bavail <= s.f_bfree <= s.f_blocks, f"blocks {s.f_bavail} {s.f_bfree} {s.f_blocks}")
    true(s.f_files == 0 or s.f_ffree <= s.f_files, f"files {s.f_ffree} of {s.f_files}")
    equal(s.f_namemax, 255, "longest name")
    fd = os.open(d, os.O_RDONLY)
    equal(os.fstatvfs(fd).f_blocks, s.f_blocks, "fstatfs")


@check("preferred-size", "st_blksize is a power of two from 512 up")
def _(d):
    write(f"{d}/f", b"")
    n = os.stat(f"{d}/f").st_blksize
    true(n >= 512 and n & (n - 1) == 0, f"st_blksize {n}")
