//! `/metrics`, `/health` and `/status` over HTTP, on one thread that sleeps in accept. `/health` is for supervisors: 200
//! where every role serves, else 503. With a token they are for those who send it: 401 else, whatever was asked.

mod token;

use crate::metrics::Metrics;
use crate::seldom::Seldom;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use tiny_http::{Header, Request, Response, Server};

pub use token::{Token, TokenError};

/// What `/status` shows, as JSON.
pub type StatusSource = Box<dyn Fn() -> serde_json::Value + Send + Sync>;

/// Whether every role serves, for `/health`.
pub type HealthSource = Box<dyn Fn() -> bool + Send + Sync>;

/// The admin server. Dropping it ends its thread.
pub struct Admin {
    server: Arc<Server>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl Admin {
    /// Listens and answers.
    ///
    /// # Errors
    /// Where the address is in use or a thread cannot be started.
    pub fn start(
        listen: SocketAddr,
        token: Option<Token>,
        metrics: Arc<Metrics>,
        status: StatusSource,
        is_healthy: HealthSource,
    ) -> std::io::Result<Self> {
        let listener = std::net::TcpListener::bind(listen)?;
        let address = listener.local_addr()?;
        let server = Server::from_listener(listener, None).map_err(std::io::Error::other)?;
        let server = Arc::new(server);
        let pages = Pages {
            token,
            metrics,
            status,
            is_healthy,
            refused: Seldom::default(),
        };
        let thread = std::thread::Builder::new().name("admin".into()).spawn({
            let server = Arc::clone(&server);
            move || pages.serve(&server)
        })?;
        Ok(Self {
            server,
            address,
            thread: Some(thread),
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.server.unblock();
        if let Some(thread) = self.thread.take() {
            // A panic was logged where it happened.
            let _ = thread.join();
        }
    }
}

struct Pages {
    token: Option<Token>,
    metrics: Arc<Metrics>,
    status: StatusSource,
    is_healthy: HealthSource,
    refused: Seldom,
}

impl Pages {
    fn serve(&self, server: &Server) {
        for request in server.incoming_requests() {
            let (code, headers, text) = self.answer(&request);
            let mut response = Response::from_string(text).with_status_code(code);
            for (name, value) in headers {
                if let Ok(header) = Header::from_bytes(*name, *value) {
                    response = response.with_header(header);
                }
            }
            if let Err(error) = request.respond(response) {
                tracing::debug!(%error, "an admin request went away");
            }
        }
    }

    fn answer(&self, request: &Request) -> (u16, Headers, String) {
        if !self.may_see(request) {
            if self.refused.is_due() {
                let peer = request.remote_addr().map(ToString::to_string);
                tracing::warn!(peer, "an admin request without the token is refused");
            }
            return (401, ASKS, "the admin pages ask for a token\n".to_owned());
        }
        match request.url().split('?').next().unwrap_or_default() {
            "/metrics" => (200, PROMETHEUS, self.metrics.prometheus()),
            "/health" if (self.is_healthy)() => (200, PLAIN, "ok\n".to_owned()),
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
        }
    }

    fn may_see(&self, request: &Request) -> bool {
        let Some(token) = &self.token else {
            return true;
        };
        let mut said = request.headers().iter();
        let said = said.find(|header| header.field.equiv("Authorization"));
        said.is_some_and(|header| token.is_in(header.value.as_str()))
    }
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
        let mut stream = std::net::TcpStream::connect(address).unwrap();
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
        let listen = "127.0.0.1:0".parse().unwrap();
        let admin = Admin::start(listen, None, metrics, status, is_healthy).unwrap();
        assert!(get(admin.address(), "/metrics").contains("zonal_locks 3"));
        assert!(get(admin.address(), "/health").ends_with("ok\n"));
        serves.store(false, Ordering::Relaxed);
        assert!(get(admin.address(), "/health").starts_with("HTTP/1.0 503"));
        assert!(get(admin.address(), "/status").contains("\"node\": 4"));
        assert!(get(admin.address(), "/other").starts_with("HTTP/1.0 404"));
    }
    #[test]
    fn with_a_token_every_page_asks_for_it() {
        let metrics = Arc::new(Metrics::default());
        metrics.add_gauges(Box::new(|| vec![("locks".to_owned(), 3)]));
        let status = Box::new(|| serde_json::json!({"node": 4}));
        let token = Token::new(b"0123456789abcdef\n").unwrap();
        let listen = "127.0.0.1:0".parse().unwrap();
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
