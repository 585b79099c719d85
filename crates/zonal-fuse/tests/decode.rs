//! Requests decoded from truncated and hostile bytes: an error, never a panic.
#![allow(
    clippy::host_endian_bytes,
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test program"
)]

use zonal_fuse::abi::{self, op};
use zonal_fuse::request::{DecodeError, FuseRequest, Operation, Protocol, RequestHeader};
use zonal_testkit::Rng;

const NEW: Protocol = Protocol {
    minor: abi::MINOR,
    flags: u64::MAX,
};
const OLD: Protocol = Protocol {
    minor: abi::MINOR_MIN,
    flags: 0,
};

fn message(opcode: u32, body: &[u8], extensions: &[u8]) -> Vec<u8> {
    let len = u32::try_from(abi::IN_HEADER + body.len() + extensions.len()).unwrap();
    let mut out = Vec::new();
    out.extend(len.to_ne_bytes());
    out.extend(opcode.to_ne_bytes());
    out.extend(42_u64.to_ne_bytes());
    out.extend(7_u64.to_ne_bytes());
    for id in [1000_u32, 1001, 4711] {
        out.extend(id.to_ne_bytes());
    }
    out.extend(u16::try_from(extensions.len() / 8).unwrap().to_ne_bytes());
    out.extend([0; 2]);
    out.extend(body);
    out.extend(extensions);
    out
}

fn decode<'a>(data: &'a [u8], protocol: &Protocol) -> Result<FuseRequest<'a>, DecodeError> {
    let request = FuseRequest::decode(RequestHeader::decode(data)?, data, protocol)?;
    if let Operation::BatchForget(forgets) = request.operation {
        assert!(forgets.count() <= data.len());
        return Err(DecodeError::Truncated);
    }
    Ok(request)
}

/// Zeros with a WRITE's or SETXATTR's size in its place, then names.
fn body(fixed: usize, size: Option<(usize, u32)>, tail: &[u8]) -> Vec<u8> {
    let mut out = vec![0; fixed];
    if let Some((at, value)) = size {
        out[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
    out.extend(tail);
    out
}

/// Operation, a valid body, and the length of its shortest valid prefix.
fn valid() -> Vec<(u32, Vec<u8>, usize)> {
    let all = |opcode, body: Vec<u8>| {
        let need = body.len();
        (opcode, body, need)
    };
    let padded = |opcode, fixed: usize, need| (opcode, body(fixed, None, b""), need);
    vec![
        all(op::LOOKUP, body(0, None, b"name\0")),
        all(op::FORGET, body(8, None, b"")),
        all(op::GETATTR, body(16, None, b"")),
        all(op::SETATTR, body(88, None, b"")),
        padded(op::READLINK, 0, 0),
        all(op::SYMLINK, body(0, None, b"name\0target\0")),
        all(op::MKNOD, body(16, None, b"n\0")),
        all(op::MKDIR, body(8, None, b"n\0")),
        all(op::UNLINK, body(0, None, b"n\0")),
        all(op::RMDIR, body(0, None, b"n\0")),
        all(op::RENAME, body(8, None, b"old\0new\0")),
        all(op::RENAME2, body(16, None, b"old\0new\0")),
        all(op::LINK, body(8, None, b"n\0")),
        all(op::OPEN, body(8, None, b"")),
        all(op::READ, body(40, None, b"")),
        all(op::WRITE, body(40, Some((16, 4)), b"data")),
        padded(op::STATFS, 0, 0),
        all(op::RELEASE, body(24, None, b"")),
        padded(op::FSYNC, 16, 12),
        all(op::SETXATTR, body(16, Some((0, 3)), b"user.a\0val")),
        all(op::GETXATTR, body(8, None, b"user.a\0")),
        padded(op::LISTXATTR, 8, 4),
        all(op::REMOVEXATTR, body(0, None, b"user.a\0")),
        all(op::FLUSH, body(24, None, b"")),
        padded(op::INIT, 64, 16),
        padded(op::OPENDIR, 8, 4),
        all(op::READDIR, body(40, None, b"")),
        all(op::READDIRPLUS, body(40, None, b"")),
        all(op::RELEASEDIR, body(24, None, b"")),
        padded(op::FSYNCDIR, 16, 12),
        padded(op::GETLK, 48, 44),
        padded(op::SETLK, 48, 44),
        padded(op::SETLKW, 48, 44),
        padded(op::ACCESS, 8, 4),
        all(op::CREATE, body(16, None, b"n\0")),
        padded(op::TMPFILE, 16, 16),
        all(op::INTERRUPT, body(8, None, b"")),
        padded(op::DESTROY, 0, 0),
        all(op::IOCTL, body(32, Some((24, 2)), b"in")),
        padded(op::FALLOCATE, 32, 28),
        padded(op::LSEEK, 24, 20),
        all(op::COPY_FILE_RANGE, body(56, None, b"")),
        all(op::COPY_FILE_RANGE_64, body(56, None, b"")),
        padded(op::SYNCFS, 8, 0),
        all(op::STATX, body(24, None, b"")),
    ]
}

#[test]
fn every_prefix_of_a_valid_request_is_an_error() {
    for (opcode, body, need) in valid() {
        let whole = message(opcode, &body, &[]);
        let request = decode(&whole, &NEW).unwrap_or_else(|e| panic!("{opcode}: {e}"));
        assert!(!matches!(request.operation, Operation::Unknown), "{opcode}");
        assert_eq!((request.header.unique, request.header.nodeid), (42, 7));
        for len in 0..whole.len() {
            // The header has the true length, which the prefix does not match.
            assert!(decode(&whole[..len], &NEW).is_err(), "{opcode} at {len}");
        }
        for len in 0..need {
            let short = message(opcode, &body[..len], &[]);
            assert!(
                decode(&short, &NEW).is_err(),
                "{opcode} with a body of {len}"
            );
            let _ = decode(&short, &OLD);
        }
    }
}

#[test]
fn requests_decode_to_their_contents() {
    let whole = message(op::RENAME2, &body(16, None, b"old\0new\0"), &[]);
    let Operation::Rename(rename) = decode(&whole, &NEW).unwrap().operation else {
        panic!()
    };
    assert_eq!((rename.name, rename.new_name), (&b"old"[..], &b"new"[..]));
    let whole = message(op::WRITE, &body(40, Some((16, 4)), b"data"), &[]);
    let Operation::Write(write) = decode(&whole, &NEW).unwrap().operation else {
        panic!()
    };
    assert_eq!((write.size, write.lock_owner), (4, None));
    // Before SETXATTR_EXT the fixed part is 8 bytes.
    let whole = message(op::SETXATTR, &body(8, Some((0, 3)), b"user.a\0val"), &[]);
    let Operation::Setxattr(set) = decode(&whole, &OLD).unwrap().operation else {
        panic!()
    };
    assert_eq!((set.name, set.value), (&b"user.a"[..], &b"val"[..]));
    // A WRITE that announces more bytes than it has.
    let whole = message(op::WRITE, &body(40, Some((16, u32::MAX)), b"data"), &[]);
    assert_eq!(decode(&whole, &NEW).unwrap_err(), DecodeError::Truncated);
    // A lock of a kind that does not exist.
    let whole = message(op::SETLK, &body(48, Some((32, 9)), b""), &[]);
    assert_eq!(decode(&whole, &NEW).unwrap_err(), DecodeError::BadLock(9));
    // A BATCH_FORGET that announces more inodes than it has.
    let whole = message(
        op::BATCH_FORGET,
        &body(8, Some((0, u32::MAX)), &[0; 32]),
        &[],
    );
    assert_eq!(decode(&whole, &NEW).unwrap_err(), DecodeError::Truncated);
}

#[test]
fn extensions_are_read_or_skipped() {
    let words = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|w| w.to_ne_bytes()).collect() };
    let mkdir = body(8, None, b"n\0");
    let groups = words(&[16, abi::EXT_GROUPS, 1, 77]);
    let request = message(op::MKDIR, &mkdir, &groups);
    assert_eq!(
        decode(&request, &NEW).unwrap().supplementary_group,
        Some(77)
    );
    // A security context (kind = number of contexts) in front.
    let mut both = words(&[24, 1, 0, 0, 0, 0]);
    both.extend(&groups);
    let request = message(op::MKDIR, &mkdir, &both);
    assert_eq!(
        decode(&request, &NEW).unwrap().supplementary_group,
        Some(77)
    );
    let none = words(&[16, abi::EXT_GROUPS, 0, 0]);
    let request = message(op::MKDIR, &mkdir, &none);
    assert_eq!(decode(&request, &NEW).unwrap().supplementary_group, None);
    for bad in [
        words(&[0, abi::EXT_GROUPS, 1, 77]),
        words(&[7, abi::EXT_GROUPS]),
        words(&[24, abi::EXT_GROUPS, 1, 77]),
        words(&[16, abi::EXT_GROUPS, 2, 77]),
        words(&[16, abi::EXT_GROUPS, u32::MAX, 77]),
        words(&[8, abi::EXT_GROUPS]),
    ] {
        let request = message(op::MKDIR, &mkdir, &bad);
        assert!(decode(&request, &NEW).is_err(), "{bad:?}");
    }
    // Extensions longer than the message.
    let mut request = message(op::MKDIR, &mkdir, &groups);
    request[36..38].copy_from_slice(&u16::MAX.to_ne_bytes());
    assert_eq!(decode(&request, &NEW).unwrap_err(), DecodeError::BadLength);
}

#[test]
fn random_bytes_never_panic() {
    let mut random = Rng(20_261_121);
    for round in 0..40_000 {
        let len = random.index(160);
        let junk = random.bytes(len);
        let _ = decode(&junk, &NEW);
        // A right header with a random operation, body and extensions.
        let opcode = u32::try_from(random.below(56)).unwrap();
        let cut = junk.len() / 2;
        let extensions = &junk[cut..][..(junk.len() - cut) / 8 * 8];
        let extensions = if round % 2 == 0 { extensions } else { &[] };
        let whole = message(opcode, &junk[..cut], extensions);
        let _ = decode(&whole, &NEW);
        let _ = decode(&whole, &OLD);
    }
    // Valid requests with one byte changed.
    for (_, whole, _) in valid()
        .into_iter()
        .map(|(opcode, body, need)| (opcode, message(opcode, &body, &[]), need))
    {
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] = random.byte();
            let _ = decode(&changed, &NEW);
        }
    }
}
