//! The server: one thread with a runtime of its own.
//!
//! Everything that a stranger can make it keep is bounded: connections, calls on each, bytes of a
//! request and of its headers. A connection ends after [`CONNECTION_AGE`], so a silent one is no
//! loss for good; callers of `Watch` then ask again with their last version.

use crate::bounded_incoming::incoming;
use crate::calls::{CallsService, PlacementCalls};
use crate::proto::placement_server::PlacementServer;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;
use tonic::transport::Server;
use tonic::{Request, Status};

/// Calls at once on one connection.
const CALLS_MAX: usize = 32;

/// Bytes of a request.
const REQUEST_BYTES_MAX: usize = 256 << 10;

/// Bytes of a call's headers.
const HEADER_BYTES_MAX: u32 = 8 << 10;

/// Age at which a connection ends.
const CONNECTION_AGE: Duration = Duration::from_secs(600);

/// Time after that for calls that are under way.
const AGE_GRACE: Duration = Duration::from_secs(10);

/// Time between two signs of life of a peer, and time for its answer.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(10));

/// Decides by the value of `authorization`, empty where there is none.
pub type TokenCheck = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// A running server. Dropping it ends it, with all calls.
pub struct PlacementCallServer {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl PlacementCallServer {
    /// Starts serving.
    ///
    /// # Errors
    /// Where the thread or its runtime cannot be started.
    pub fn start(
        listener: TcpListener,
        authorize: TokenCheck,
        calls: Arc<dyn PlacementCalls>,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        let listener = {
            let _context = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("grpc".into());
        let thread = thread.spawn(move || {
            runtime.block_on(async {
                tokio::spawn(serve(listener, authorize, calls));
                // The sender is dropped, or it sends: both mean the end.
                let _ = stopped.await;
            });
            // All tasks end with the runtime.
        })?;
        Ok(Self {
            address,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// The address that it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for PlacementCallServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The hook has logged a panic already.
            let _ = thread.join();
        }
    }
}

async fn serve(
    listener: tokio::net::TcpListener,
    authorize: TokenCheck,
    calls: Arc<dyn PlacementCalls>,
) {
    let service =
        PlacementServer::new(CallsService::new(calls)).max_decoding_message_size(REQUEST_BYTES_MAX);
    let check = move |request: Request<()>| {
        let said = request.metadata().get("authorization");
        let said = said.and_then(|said| said.to_str().ok());
        match authorize(said.unwrap_or_default()) {
            true => Ok(request),
            false => Err(Status::unauthenticated("the service asks for a token")),
        }
    };
    let service = tonic::service::interceptor::InterceptedService::new(service, check);
    let server = Server::builder()
        .concurrency_limit_per_connection(CALLS_MAX)
        .max_concurrent_streams(u32::try_from(CALLS_MAX).ok())
        .http2_max_header_list_size(HEADER_BYTES_MAX)
        .http2_keepalive_interval(Some(KEEPALIVE.0))
        .http2_keepalive_timeout(Some(KEEPALIVE.1))
        .max_connection_age(CONNECTION_AGE)
        .max_connection_age_grace(AGE_GRACE);
    // It ends with the runtime; the stream of connections has no end.
    let _ = server
        .serve_with_incoming(service, incoming(listener))
        .await;
}
