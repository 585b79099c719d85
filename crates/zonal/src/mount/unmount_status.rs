//! Status of a mount for `zonal umount`: files open, bytes not yet sent and their servers, bytes
//! lost.
//!
//! The mount process listens on an abstract Unix socket named by its process id. A line is `open
//! COUNT`, `unsent BYTES SERVERS`, `lost BYTES SERVERS` or `done`, and is sent again when it
//! changes. One connection is served at a time. Anybody on the machine may connect, or take the
//! socket's name. So a line is only shown to people, without control characters.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use zonal_mount::ZonalFs;

/// Interval of checks for a change while a command listens.
const LOOK: Duration = Duration::from_millis(200);
/// Time that the end of the process waits for the last line to be sent.
const LAST_LINE: Duration = Duration::from_secs(1);
/// Longest line that is read, in bytes.
const LINE_MAX: u64 = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Mounted,
    /// The file system is unmounted.
    Ending,
    /// The process is about to end.
    Over,
}

struct Shared {
    phase: Mutex<(Phase, bool)>,
    change: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, (Phase, bool)> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The socket in the mount process.
pub struct UnmountStatusServer(Arc<Shared>);

fn address(pid: i32) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("zonal-mount-{pid}"))
}

fn line(fs: &ZonalFs, phase: Phase) -> String {
    let client = fs.client();
    let bytes = client.dirty_bytes();
    let servers = || client.net().unanswered().join(", ");
    match phase {
        // Even while mounted: a close may wait for the same servers.
        Phase::Mounted if bytes > 0 && !servers().is_empty() => {
            format!("unsent {bytes} {}\n", servers())
        }
        Phase::Mounted => format!("open {}\n", client.open_files()),
        Phase::Ending => format!("unsent {bytes} {}\n", servers()),
        Phase::Over if bytes > 0 => format!("lost {bytes} {}\n", servers()),
        Phase::Over => "done\n".to_owned(),
    }
}

fn serve(listener: &UnixListener, fs: &ZonalFs, shared: &Shared) {
    for stream in listener.incoming().map_while(Result::ok) {
        shared.lock().1 = true;
        talk(stream, fs, shared);
        let mut phase = shared.lock();
        phase.1 = false;
        shared.change.notify_all();
        if phase.0 == Phase::Over {
            return;
        }
    }
}

/// Sends lines until the mount ends or the peer disconnects.
fn talk(mut stream: UnixStream, fs: &ZonalFs, shared: &Shared) {
    // A peer that does not read is disconnected.
    if stream.set_write_timeout(Some(LAST_LINE)).is_err() {
        return;
    }
    let mut told = String::new();
    loop {
        let phase = shared.lock().0;
        let text = line(fs, phase);
        if text != told && stream.write_all(text.as_bytes()).is_err() {
            return;
        }
        told = text;
        if phase == Phase::Over || is_gone(&stream) {
            return;
        }
        let guard = shared.lock();
        if guard.0 == phase {
            drop(shared.change.wait_timeout(guard, LOOK));
        }
    }
}

fn is_gone(stream: &UnixStream) -> bool {
    let mut byte = [0];
    let read = stream
        .set_nonblocking(true)
        .and_then(|()| (&*stream).read(&mut byte));
    let is_there = matches!(&read, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock);
    !is_there || stream.set_nonblocking(false).is_err()
}

impl UnmountStatusServer {
    /// Listens. A failure does not prevent the mount: its status is then unknown.
    pub fn start(fs: &Arc<ZonalFs>) -> Self {
        let shared = Arc::new(Shared {
            phase: Mutex::new((Phase::Mounted, false)),
            change: Condvar::new(),
        });
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let listener = address(own).and_then(|address| UnixListener::bind_addr(&address));
        if let Ok(listener) = listener {
            let (fs, shared) = (Arc::clone(fs), Arc::clone(&shared));
            let thread = std::thread::Builder::new().name("farewell".to_owned());
            // Without a thread there is no status.
            drop(thread.spawn(move || serve(&listener, &fs, &shared)));
        }
        Self(shared)
    }

    /// The file system was unmounted; unsent data is being sent.
    pub fn ending(&self) {
        self.0.lock().0 = Phase::Ending;
        self.0.change.notify_all();
    }

    /// All data that could be sent was sent. When this returns, a connected peer has the last line,
    /// or [`LAST_LINE`] is over.
    pub fn over(self) {
        let mut phase = self.0.lock();
        phase.0 = Phase::Over;
        self.0.change.notify_all();
        let is_heard = |phase: &mut (Phase, bool)| phase.1;
        drop(self.0.change.wait_timeout_while(phase, LAST_LINE, is_heard));
    }
}

/// The last status of a mount process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UnmountStatus {
    /// Number of open files.
    Open(u64),
    /// Bytes not sent yet, and servers that do not answer.
    Unsent(u64, String),
    /// Bytes given up, and their servers.
    Lost(u64, String),
    /// All data was sent.
    Done,
}

fn parse(line: &str) -> Option<UnmountStatus> {
    let line = line.trim_end();
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    let (count, servers) = rest.split_once(' ').unwrap_or((rest, ""));
    let servers: String = servers
        .chars()
        .filter(|letter| !letter.is_control())
        .collect();
    let servers = servers.trim().to_owned();
    Some(match word {
        "open" => UnmountStatus::Open(count.parse().ok()?),
        "unsent" => UnmountStatus::Unsent(count.parse().ok()?, servers),
        "lost" => UnmountStatus::Lost(count.parse().ok()?, servers),
        "done" => UnmountStatus::Done,
        _ => return None,
    })
}

/// The lines of a mount process, as they arrive.
pub struct UnmountStatusListener {
    last: Arc<Mutex<Option<UnmountStatus>>>,
    reader: Option<JoinHandle<()>>,
}

impl UnmountStatusListener {
    /// The last status.
    pub fn last(&self) -> Option<UnmountStatus> {
        let last = self.last.lock();
        last.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The last status of a process that has ended; waits for lines still in the socket.
    pub fn at_the_end(&self) -> Option<UnmountStatus> {
        let end = Instant::now() + LAST_LINE;
        let is_reading = |reader: &JoinHandle<()>| !reader.is_finished();
        while self.reader.as_ref().is_some_and(is_reading) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.last()
    }
}

/// Reads the status of a mount process in a thread of its own.
pub fn listen(pid: i32) -> UnmountStatusListener {
    let last = Arc::new(Mutex::new(None));
    let mut reader = None;
    if let Ok(stream) = address(pid).and_then(|address| UnixStream::connect_addr(&address)) {
        let last = Arc::clone(&last);
        let thread = std::thread::Builder::new().name("farewell".to_owned());
        let read = move || {
            let mut lines = BufReader::new(stream);
            let mut text = String::new();
            while let Ok(1..) = (&mut lines).take(LINE_MAX).read_line(&mut text) {
                *last.lock().unwrap_or_else(PoisonError::into_inner) = parse(&text);
                text.clear();
            }
        };
        // Without a thread the status is unknown.
        reader = thread.spawn(read).ok();
    }
    UnmountStatusListener { last, reader }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_valid_status_lines_are_parsed() {
        assert_eq!(parse("open 3\n"), Some(UnmountStatus::Open(3)));
        assert_eq!(parse("done\n"), Some(UnmountStatus::Done));
        let servers = "target 3 at 127.0.0.1:7000".to_owned();
        let said = parse("unsent 12 target 3 at 127.0.0.1:7000\u{1b}\n");
        assert_eq!(said, Some(UnmountStatus::Unsent(12, servers)));
        assert_eq!(
            parse("lost 7 \n"),
            Some(UnmountStatus::Lost(7, String::new()))
        );
        for odd in ["", "open", "open x", "lost", "sudo"] {
            assert_eq!(parse(odd), None, "{odd}");
        }
    }
}
