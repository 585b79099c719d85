//! Unsent bytes of a socket. They are asked for here because `unsafe` is forbidden in the crate
//! that decodes bytes of others.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, ioctl};

/// SIOCOUTQ of x86-64, arm64 and RISC-V. On other machines the call fails.
const SIOCOUTQ: Opcode = 0x5411;

/// Bytes that a process has given to a stream socket and that the peer has not taken yet. A TCP
/// peer's kernel takes them when it acknowledges them; the process behind a Unix socket when it
/// reads them. A Unix socket also counts what the kernel's buffers add.
///
/// # Errors
/// The system's, where it is no socket.
pub fn unsent_bytes(socket: BorrowedFd<'_>) -> Result<usize, Errno> {
    // SAFETY: the number has this form: the kernel writes one int.
    #[expect(unsafe_code, reason = "no safe wrapper exists for SIOCOUTQ")]
    let getter = unsafe { Getter::<SIOCOUTQ, c_int>::new() };
    // SAFETY: the call changes nothing but the getter's int, whatever descriptor it is given.
    #[expect(unsafe_code, reason = "no safe wrapper exists for SIOCOUTQ")]
    let unsent = unsafe { ioctl(socket, getter) }?;
    Ok(usize::try_from(unsent).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn bytes_count_until_the_peer_has_taken_them() {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        assert_eq!(unsent_bytes(near.as_fd()), Ok(0));
        near.write_all(&[7; 1000]).unwrap();
        assert!(unsent_bytes(near.as_fd()).unwrap() >= 1000);
        far.read_exact(&mut [0; 1000]).unwrap();
        assert_eq!(unsent_bytes(near.as_fd()), Ok(0));

        // A peer that reads nothing has its kernel take what its buffer holds, and no more.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        near.set_nonblocking(true).unwrap();
        while near.write(&[7; 65_536]).is_ok() {}
        assert!(unsent_bytes(near.as_fd()).unwrap() > 0);
    }

    #[test]
    fn a_file_is_refused() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert_eq!(unsent_bytes(file.as_fd()), Err(Errno::NOTTY));
    }
}
