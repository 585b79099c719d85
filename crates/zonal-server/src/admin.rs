//! `/metrics`, `/health` and `/status` over HTTP, on one thread that sleeps in accept. `/health` is for supervisors: 200
//! where every role serves, else 503.

use crate::metrics::Metrics;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

/// What `/status` shows, as JSON.
pub type StatusSource = Box<dyn Fn() -> serde_json::Value + Send + Sync>;

/// Whether every role serves, for `/health`.
pub type HealthSource = Box<dyn Fn() -> bool + Send + Sync>;

/// The admin server. Dropping it ends its thread.
pub struct Admin {
    server: Arc<tiny_http::Server>,
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
        metrics: Arc<Metrics>,
        status: StatusSource,
        is_healthy: HealthSource,
    ) -> std::io::Result<Self> {
        let listener = std::net::TcpListener::bind(listen)?;
        let address = listener.local_addr()?;
        let server =
            tiny_http::Server::from_listener(listener, None).map_err(std::io::Error::other)?;
        let server = Arc::new(server);
        let thread = std::thread::Builder::new().name("admin".into()).spawn({
            let server = Arc::clone(&server);
            move || serve(&server, &metrics, &status, &is_healthy)
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

fn serve(
    server: &tiny_http::Server,
    metrics: &Metrics,
    status: &StatusSource,
    is_healthy: &HealthSource,
) {
    for request in server.incoming_requests() {
        let path = request.url().split('?').next().unwrap_or_default();
        let (code, kind, text) = match path {
            "/metrics" => (200, "text/plain; version=0.0.4", metrics.prometheus()),
            "/health" if is_healthy() => (200, "text/plain", "ok\n".to_owned()),
            "/health" => (
                503,
                "text/plain",
                "a role does not serve: /status and the log tell why\n".to_owned(),
            ),
            "/status" => (200, "application/json", format!("{:#}\n", status())),
            _ => (
                404,
                "text/plain",
                "there are /metrics, /health and /status\n".to_owned(),
            ),
        };
        let mut response = tiny_http::Response::from_string(text).with_status_code(code);
        if let Ok(header) = tiny_http::Header::from_bytes("Content-Type", kind) {
            response = response.with_header(header);
        }
        if let Err(error) = request.respond(response) {
            tracing::debug!(%error, "an admin request went away");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::sync::atomic::{AtomicBool, Ordering};

    fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
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
        let admin = Admin::start(listen, metrics, status, is_healthy).unwrap();
        assert!(get(admin.address(), "/metrics").contains("zonal_locks 3"));
        assert!(get(admin.address(), "/health").ends_with("ok\n"));
        serves.store(false, Ordering::Relaxed);
        assert!(get(admin.address(), "/health").starts_with("HTTP/1.0 503"));
        assert!(get(admin.address(), "/status").contains("\"node\": 4"));
        assert!(get(admin.address(), "/other").starts_with("HTTP/1.0 404"));
    }
}
