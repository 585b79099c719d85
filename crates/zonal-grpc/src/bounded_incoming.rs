//! Connections of a listener, at most [`CONNECTIONS_MAX`] at once. Further ones wait in the
//! kernel's queue until one ends.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

/// Connections at once.
pub(crate) const CONNECTIONS_MAX: usize = 64;

/// Pause before the next attempt where the system has no descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// A connection that counts until it is dropped.
pub(crate) struct CountedStream {
    stream: TcpStream,
    _permit: OwnedSemaphorePermit,
}

/// The connections of a listener, as a stream that never ends.
pub(crate) fn incoming(listener: TcpListener) -> ReceiverStream<io::Result<CountedStream>> {
    let (give, take) = mpsc::channel(1);
    tokio::spawn(async move {
        let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        while let Ok(permit) = Arc::clone(&permits).acquire_owned().await {
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            // Without it small replies may wait; the call works all the same.
            let _ = stream.set_nodelay(true);
            let counted = CountedStream {
                stream,
                _permit: permit,
            };
            if give.send(Ok(counted)).await.is_err() {
                return;
            }
        }
    });
    ReceiverStream::new(take)
}

impl Connected for CountedStream {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for CountedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for CountedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
