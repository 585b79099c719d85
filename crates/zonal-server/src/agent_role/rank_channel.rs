//! The channel of a rank: a Unix socket, which is standard input at first. By it the agent hands a
//! command with its three standard streams to the guard, and the guard to the first process.
//!
//! First comes the command: its length, with the descriptors, then its bytes. Afterwards the agent
//! sends orders, and the guard one status: its length, then its bytes.

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use zonal_types::limits::BODY_BYTES_MAX;
use zonal_types::{Codec as _, codec_struct};
use zonal_wire::{JobCommand, RankStatus};

/// Bytes of an encoded status.
const STATUS_BYTES_MAX: usize = 4096;

codec_struct! {
    /// A command to be run.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub(super) struct RankCommand {
        /// The command; its environment is complete.
        command: JobCommand,
        /// The rank ends with its last process, not with its first.
        awaits_all: bool,
        /// The agent is root: the process changes its user.
        changes_user: bool,
        /// The process and its children get no rights by running set-id programs.
        no_new_privs: bool,
        /// Milliseconds from the guard's start on in which it must get a renewal.
        term_ms: u64,
    }
}

/// Descriptors of standard input, output and error.
pub(super) type StandardStreams = [OwnedFd; 3];

fn bad(text: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, text)
}

/// The socket that this process has as its standard input.
pub(super) fn own_channel() -> io::Result<UnixStream> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    Ok(UnixStream::from(socket))
}

/// Sends a command with its streams.
pub(super) fn send(
    mut channel: &UnixStream,
    command: &RankCommand,
    streams: [BorrowedFd<'_>; 3],
) -> io::Result<()> {
    let bytes = command.to_bytes();
    let length = u32::try_from(bytes.len()).map_err(|_error| bad("too long"))?;
    let length = length.to_le_bytes();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&streams)) {
        return Err(bad("no room for descriptors"));
    }
    // Four bytes always fit into an empty socket.
    let sent = sendmsg(
        channel,
        &[IoSlice::new(&length)],
        &mut control,
        SendFlags::NOSIGNAL,
    )?;
    if sent != length.len() {
        return Err(bad("a short message"));
    }
    channel.write_all(&bytes)
}

/// Receives a command with its streams.
pub(super) fn receive(mut channel: &UnixStream) -> io::Result<(RankCommand, StandardStreams)> {
    let mut length = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(
        channel,
        &mut [IoSliceMut::new(&mut length)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL,
    )?;
    let mut streams = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = message {
            streams.extend(came);
        }
    }
    let streams = StandardStreams::try_from(streams);
    let streams = streams.map_err(|_streams| bad("not three descriptors"))?;
    let bytes = u32::from_le_bytes(length) as usize;
    if received.bytes != length.len() || bytes > BODY_BYTES_MAX {
        return Err(bad("no command"));
    }
    let mut body = vec![0; bytes];
    channel.read_exact(&mut body)?;
    let command = RankCommand::from_bytes(&body);
    let command = command.map_err(|_error| bad("the command cannot be decoded"))?;
    Ok((command, streams))
}

/// Sends the status of a rank.
pub(super) fn send_status(mut channel: &UnixStream, status: &RankStatus) -> io::Result<()> {
    let bytes = status.to_bytes();
    let length = u32::try_from(bytes.len()).map_err(|_error| bad("too long"))?;
    channel.write_all(&[&length.to_le_bytes(), bytes.as_slice()].concat())
}

/// Decodes a status from all bytes that came; `None` where it is not complete.
pub(super) fn status(bytes: &[u8]) -> Option<RankStatus> {
    let (length, rest) = bytes.split_first_chunk()?;
    let length = u32::from_le_bytes(*length) as usize;
    let body = rest.get(..length)?;
    RankStatus::from_bytes(body).ok()
}

/// Whether more bytes than any status has have come.
pub(super) fn is_too_long(bytes: &[u8]) -> bool {
    bytes.len() > STATUS_BYTES_MAX
}

/// The order to send a signal to the rank, and to kill all of it.
pub(super) const SIGNAL: u8 = b's';
/// Word that the asker polls, from which the guard's term begins anew.
pub(super) const RENEW: u8 = b'r';
/// The order to kill all processes of the rank.
pub(super) const KILL: u8 = b'k';

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_types::{Blob, Credentials};

    #[test]
    fn a_command_arrives_with_its_streams_and_a_status_goes_back() {
        let command = RankCommand {
            command: JobCommand {
                arguments: vec![Blob(b"true".to_vec())],
                environment: vec![Blob([b"X=".as_slice(), &[7; 200_000]].concat())],
                directory: Blob(b"/".to_vec()),
                umask: 0o22,
                user: Credentials::default(),
            },
            awaits_all: false,
            changes_user: true,
            no_new_privs: false,
            term_ms: 1,
        };
        let (here, there) = UnixStream::pair().unwrap();
        let (reads, writes) = rustix::pipe::pipe().unwrap();
        let sent = command.clone();
        std::thread::spawn(move || {
            let streams = [reads.as_fd(), writes.as_fd(), writes.as_fd()];
            send(&here, &sent, streams).unwrap();
            send_status(&here, &RankStatus::Exited { code: 9 }).unwrap();
        });
        let (received, streams) = receive(&there).unwrap();
        assert_eq!(received, command);
        rustix::io::write(&streams[1], b"x").unwrap();
        let mut byte = [0];
        rustix::io::read(&streams[0], &mut byte).unwrap();
        assert_eq!(byte, *b"x");
        let mut bytes = Vec::new();
        (&there).read_to_end(&mut bytes).unwrap();
        assert_eq!(status(&bytes), Some(RankStatus::Exited { code: 9 }));
        assert_eq!(status(&bytes[..bytes.len() - 1]), None);
        assert!(receive(&there).is_err());
    }
}
