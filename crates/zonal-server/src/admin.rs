//! Admin pages over HTTP: `/metrics`, `/health` and `/status`; at the manager those below `/v1/`.
//!
//! One thread gathers the heads of requests ([`request_heads`]), a few answer them. A silent client
//! holds none of these threads; one that reads slowly holds one, for a bounded time. Requests that
//! wait for a change hold none ([`watchers`]).
//!
//! `/health` is for supervisors: 200 where every role serves, else 503. At the manager it has lines
//! about nodes of the cell that are not up, too. With a token configured, every request without it
//! gets 401.

mod http;
mod request_heads;
mod token;
mod watchers;

use crate::metrics::Metrics;
use crate::placement_pages::{PageOutcome, PlacementPages};
use crate::rate_limited_log::RateLimit;
use http::{PageAnswer, PageRequest};
use request_heads::{CompleteHead, RequestHeads};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use watchers::{Watcher, Watchers};

pub use token::{Token, TokenError};

/// Source of `/status`, as JSON.
pub type StatusSource = Box<dyn Fn() -> serde_json::Value + Send + Sync>;

/// Source of `/health`: true where every role serves.
pub type HealthSource = Box<dyn Fn() -> bool + Send + Sync>;

/// Source of lines about the cell for `/health`; empty: all is well.
pub type CellHealthSource = Box<dyn Fn() -> String + Send + Sync>;

/// Threads that answer requests.
const THREADS: usize = 4;
/// Requests that wait for a thread.
const QUEUE: usize = 64;

/// Time limit of the connection to the server's own port that wakes its thread.
const WAKE: Duration = Duration::from_millis(100);

/// The admin server. Dropping it ends its threads.
pub struct Admin {
    pages: Arc<Pages>,
    address: SocketAddr,
    threads: Vec<JoinHandle<()>>,
}

impl Admin {
    /// Starts answering.
    ///
    /// # Errors
    /// Where a thread cannot be started.
    pub fn start(
        listener: TcpListener,
        token: Option<Token>,
        metrics: Arc<Metrics>,
        status: StatusSource,
        is_healthy: HealthSource,
    ) -> std::io::Result<Self> {
        let address = listener.local_addr()?;
        // A client may be gone before it is accepted: do not block for it.
        listener.set_nonblocking(true)?;
        let pages = Arc::new(Pages {
            listener,
            is_ending: AtomicBool::new(false),
            token,
            metrics,
            status,
            is_healthy,
            placement: OnceLock::new(),
            cell_health: OnceLock::new(),
            refused: RateLimit::default(),
            watchers: Watchers::default(),
        });
        let mut admin = Self {
            pages: Arc::clone(&pages),
            address,
            threads: Vec::new(),
        };
        let (give, take) = sync_channel(QUEUE);
        let take = Arc::new(Mutex::new(take));
        for _ in 0..THREADS {
            let (pages, take) = (Arc::clone(&pages), Arc::clone(&take));
            let thread = std::thread::Builder::new().name("admin".into());
            admin
                .threads
                .push(thread.spawn(move || pages.serve(&take))?);
        }
        let watching = (Arc::clone(&pages), give.clone());
        let thread = std::thread::Builder::new().name("admin-watch".into());
        admin
            .threads
            .push(thread.spawn(move || watching.0.watch(&watching.1))?);
        let thread = std::thread::Builder::new().name("admin-heads".into());
        admin
            .threads
            .push(thread.spawn(move || pages.gather(&give))?);
        Ok(admin)
    }

    /// Adds the pages below `/v1/`.
    pub fn add_placement(&self, pages: PlacementPages) {
        let watching = Arc::downgrade(&self.pages);
        pages.service().set_waker(Box::new(move || {
            if let Some(pages) = watching.upgrade() {
                pages.watchers.wake();
            }
        }));
        // There is one call, at the start.
        let _ = self.pages.placement.set(pages);
    }

    /// Adds the cell to `/health`.
    pub fn add_cell_health(&self, source: CellHealthSource) {
        // There is one call, at the start.
        let _ = self.pages.cell_health.set(source);
    }

    /// The address that it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.pages.is_ending.store(true, Ordering::Release);
        let mut here = self.address;
        if here.ip().is_unspecified() {
            here.set_ip(if here.is_ipv4() {
                Ipv4Addr::LOCALHOST.into()
            } else {
                Ipv6Addr::LOCALHOST.into()
            });
        }
        self.pages.watchers.wake();
        // Wakes the gathering thread; the others end with its queue.
        drop(TcpStream::connect_timeout(&here, WAKE));
        for thread in self.threads.drain(..) {
            // The hook has logged a panic already.
            let _ = thread.join();
        }
    }
}

struct Pages {
    listener: TcpListener,
    is_ending: AtomicBool,
    token: Option<Token>,
    metrics: Arc<Metrics>,
    status: StatusSource,
    is_healthy: HealthSource,
    placement: OnceLock<PlacementPages>,
    /// Lines about the cell for `/health`.
    cell_health: OnceLock<CellHealthSource>,
    refused: RateLimit,
    watchers: Watchers,
}

impl Pages {
    /// Gathers heads until the server ends.
    fn gather(&self, give: &SyncSender<CompleteHead>) {
        let mut heads = RequestHeads::default();
        while !self.is_ending.load(Ordering::Acquire) {
            for arrived in heads.wait(&self.listener) {
                // Where all threads are busy and the queue is full, the request goes unanswered and
                // its connection is closed.
                if let Err(TrySendError::Disconnected(_)) = give.try_send(arrived) {
                    return;
                }
            }
        }
    }

    /// Hands requests that wait for a change over until the server ends.
    fn watch(&self, give: &SyncSender<CompleteHead>) {
        let is_ending = || self.is_ending.load(Ordering::Acquire);
        let version = || Some(self.placement.get()?.service().version());
        self.watchers.run(give, is_ending, version);
    }

    /// Answers requests until the gathering thread ends.
    fn serve(&self, take: &Mutex<Receiver<CompleteHead>>) {
        loop {
            let next = take.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(arrived) = next else {
                return;
            };
            let peer = arrived.peer;
            if let Err(error) = self.one(arrived) {
                tracing::debug!(%error, %peer, "an admin request went away");
            }
        }
    }

    fn one(&self, mut arrived: CompleteHead) -> std::io::Result<()> {
        let asked = match &arrived.asked {
            Ok(asked) => asked,
            Err(code) => return http::refuse(&mut arrived.stream, *code),
        };
        let answered = match (arrived.waited_since, self.placement.get()) {
            (Some(since), Some(pages)) => {
                let (code, text) = pages.after_wait(since);
                Ok((code, JSON, text))
            }
            _ => self.answer(asked, arrived.peer),
        };
        let (code, headers, text) = match answered {
            Ok(answer) => answer,
            Err(WaitFor { since, wait_ms }) => {
                let watcher = Watcher {
                    head: arrived,
                    since,
                    until: Instant::now() + Duration::from_millis(wait_ms),
                };
                let Some(refused) = self.watchers.add(watcher) else {
                    return Ok(());
                };
                arrived = refused.head;
                let text = "{\"error\": \"too many requests wait for a change\"}\n";
                (503, JSON, text.to_owned())
            }
        };
        let Ok(asked) = &arrived.asked else {
            return Ok(());
        };
        let answer = PageAnswer {
            code,
            headers,
            text,
        };
        http::write(&mut arrived.stream, asked, &answer)
    }

    /// The answer; `Err` where the request waits for it.
    fn answer(
        &self,
        asked: &PageRequest,
        peer: SocketAddr,
    ) -> Result<(u16, Headers, String), WaitFor> {
        if !self.may_see(asked) {
            if self.refused.is_due() {
                tracing::warn!(%peer, "an admin request without the token is refused");
            }
            return Ok((401, ASKS, "the admin pages ask for a token\n".to_owned()));
        }
        if let Some(pages) = self
            .placement
            .get()
            .filter(|_| asked.path.starts_with("/v1/"))
        {
            return match pages.answer(asked.method, &asked.path, &asked.query) {
                PageOutcome::Answer(code, text) => Ok((code, JSON, text)),
                PageOutcome::Wait { since, wait_ms } => Err(WaitFor { since, wait_ms }),
            };
        }
        Ok(match asked.path.as_str() {
            "/metrics" => (200, PROMETHEUS, self.metrics.prometheus()),
            "/health" if (self.is_healthy)() => {
                let cell = self.cell_health.get().map(|source| source());
                (200, PLAIN, format!("ok\n{}", cell.unwrap_or_default()))
            }
            "/health" => (
                503,
                PLAIN,
                "a role does not serve: /status and the log tell why\n".to_owned(),
            ),
            "/status" => (200, JSON, format!("{:#}\n", (self.status)())),
            _ => (
                404,
                PLAIN,
                "there are /metrics, /health and /status\n".to_owned(),
            ),
        })
    }

    fn may_see(&self, asked: &PageRequest) -> bool {
        let Some(token) = &self.token else {
            return true;
        };
        let said = asked.authorization.as_deref();
        said.is_some_and(|said| token.is_in(said))
    }
}

/// A wait for a change behind a version.
struct WaitFor {
    since: u64,
    wait_ms: u64,
}

type Headers = &'static [(&'static str, &'static str)];
const PLAIN: Headers = &[("Content-Type", "text/plain")];
const PROMETHEUS: Headers = &[("Content-Type", "text/plain; version=0.0.4")];
const JSON: Headers = &[("Content-Type", "application/json")];
const ASKS: Headers = &[
    ("Content-Type", "text/plain"),
    ("WWW-Authenticate", "Bearer realm=\"zonal\""),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::sync::atomic::{AtomicBool, Ordering};

    fn get(address: SocketAddr, path: &str) -> String {
        get_with(address, path, "")
    }

    fn get_with(address: SocketAddr, path: &str, headers: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\n{headers}\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn the_three_pages_answer() {
        let metrics = Arc::new(Metrics::default());
        metrics.add_gauges(Box::new(|| vec![("locks".to_owned(), 3)]));
        let status = Box::new(|| serde_json::json!({"node": 4}));
        let serves = Arc::new(AtomicBool::new(true));
        let asked = Arc::clone(&serves);
        let is_healthy = Box::new(move || asked.load(Ordering::Relaxed));
        let listen = TcpListener::bind("127.0.0.1:0").unwrap();
        let admin = Admin::start(listen, None, metrics, status, is_healthy).unwrap();
        assert!(get(admin.address(), "/metrics").contains("zonal_locks 3"));
        assert!(get(admin.address(), "/health").ends_with("ok\n"));
        serves.store(false, Ordering::Relaxed);
        assert!(get(admin.address(), "/health").starts_with("HTTP/1.0 503"));
        assert!(get(admin.address(), "/status").contains("\"node\": 4"));
        assert!(get(admin.address(), "/other").starts_with("HTTP/1.0 404"));
    }

    #[test]
    fn half_sent_requests_hold_up_nobody() {
        let listen = TcpListener::bind("127.0.0.1:0").unwrap();
        let (metrics, status) = (Arc::default(), Box::new(|| serde_json::json!({})));
        let admin = Admin::start(listen, None, metrics, status, Box::new(|| true)).unwrap();
        let address = admin.address();
        let half: Vec<TcpStream> = (0..200)
            .map(|index| {
                let mut stream = TcpStream::connect(address).unwrap();
                // Some clients send nothing at all.
                let said: &[u8] = if index % 2 == 0 { b"GET /heal" } else { b"" };
                stream.write_all(said).unwrap();
                stream
            })
            .collect();
        let start = Instant::now();
        assert!(get(address, "/health").ends_with("ok\n"));
        // One half-sent request is given 2 s.
        assert!(
            start.elapsed() < Duration::from_secs(2),
            "{:?}",
            start.elapsed()
        );
        // A request may arrive byte by byte.
        let mut slow = TcpStream::connect(address).unwrap();
        for byte in b"GET /health HTTP/1.0\r\n\r\n" {
            slow.write_all(&[*byte]).unwrap();
        }
        let mut text = String::new();
        slow.read_to_string(&mut text).unwrap();
        assert!(text.ends_with("ok\n"), "{text}");
        drop(half);
    }

    #[test]
    fn with_a_token_every_page_requires_it() {
        let metrics = Arc::new(Metrics::default());
        metrics.add_gauges(Box::new(|| vec![("locks".to_owned(), 3)]));
        let status = Box::new(|| serde_json::json!({"node": 4}));
        let token = Token::new(b"0123456789abcdef\n").unwrap();
        let listen = TcpListener::bind("127.0.0.1:0").unwrap();
        let admin = Admin::start(listen, Some(token), metrics, status, Box::new(|| true)).unwrap();
        for (path, shows) in [
            ("/metrics", "zonal_locks 3"),
            ("/status", "\"node\": 4"),
            ("/health", "\r\n\r\nok\n"),
            ("/other", "HTTP/1.0 404"),
        ] {
            for headers in [
                "",
                "Authorization: Bearer 0123456789abcdee\r\n",
                "Authorization: Bearer 0123456789abcdef0\r\n",
                "Authorization: 0123456789abcdef\r\n",
                "X-Authorization: Bearer 0123456789abcdef\r\n",
            ] {
                let said = get_with(admin.address(), path, headers);
                assert!(said.starts_with("HTTP/1.0 401"), "{path} {headers}: {said}");
                assert!(said.contains("WWW-Authenticate: Bearer"), "{said}");
                assert!(!said.contains(shows), "{path} {headers}: {said}");
            }
            let right = "authorization: Bearer 0123456789abcdef\r\n";
            let said = get_with(admin.address(), path, right);
            assert!(said.contains(shows), "{path}: {said}");
        }
    }
}
