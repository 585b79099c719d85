//! Measures the rate of each link in each direction, by a stream over this link alone. It runs
//! between a node and its rack's switch, or between a rack's switch and the core's.
//!
//! 1. A stream has at most the bytes of [`STREAM_MS`] at the link's rate, and ends after
//!    [`STREAM_LIMIT`] in any case.
//! 2. The first bytes are not counted: they fill the token bucket's burst and TCP's window.
//!
//! *Units*: rates of the wire. A TCP segment carries 1448 bytes in a frame of 1514.

use super::links::LinkReport;
use super::namespaces;
use super::plan::LinkEnd;
use super::shape::LinkRate;
use crate::exit::{FAILED, Failure};
use anyhow::Context;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Length of a stream at the link's rate, and of its start that is not counted.
const STREAM_MS: u64 = 1_200;
const UNCOUNTED_MS: u64 = 200;
/// Longest stream.
const STREAM_LIMIT: Duration = Duration::from_secs(6);
/// Time to connect, and without any byte.
const SILENCE: Duration = Duration::from_secs(3);
/// Bytes of a frame, and of the program's in it.
const FRAME_BYTES: u64 = 1514;
const SEGMENT_BYTES: u64 = 1448;
/// Sum of the rates of links that are measured at once, in bits a second.
const AT_ONCE: u64 = 800_000_000;
/// A measured rate is right within this part of the asked one.
const TOLERANCE: f64 = 0.1;

/// The measured rates of a link, in bits a second; absent if the link is cut.
#[derive(Debug, Clone, Copy, Default)]
pub struct MeasuredLink {
    /// Towards the core.
    pub up: Option<f64>,
    /// Towards the nodes.
    pub down: Option<f64>,
}

/// Whether a measured rate is the asked one.
pub fn is_right(measured: f64, asked: LinkRate) -> bool {
    (measured / asked.0 as f64 - 1.0).abs() <= TOLERANCE
}

fn bytes_in(rate: LinkRate, ms: u64) -> u64 {
    rate.0 / 8 / 1000 * ms
}

fn accept(listener: &TcpListener) -> anyhow::Result<TcpStream> {
    listener.set_nonblocking(true)?;
    let deadline = Instant::now() + SILENCE;
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                stream.set_read_timeout(Some(SILENCE))?;
                return Ok(stream);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(error).context("nothing arrives"),
        }
    }
}

/// Receives a stream; returns its rate after the first `uncounted` bytes.
fn receive(listener: &TcpListener, uncounted: u64) -> anyhow::Result<f64> {
    let mut stream = accept(listener)?;
    let mut buffer = vec![0; 256 << 10];
    let (mut all, mut begin) = (0_u64, None);
    let mut last = Instant::now();
    loop {
        let length = stream.read(&mut buffer).context("nothing arrives")?;
        if length == 0 {
            break;
        }
        last = Instant::now();
        all += length as u64;
        if all > uncounted && begin.is_none() {
            begin = Some((last, all));
        }
    }
    let (begin, before) = begin.context("too little arrived")?;
    let seconds = last.duration_since(begin).as_secs_f64();
    let wire = (all - before) * 8 * FRAME_BYTES / SEGMENT_BYTES;
    if seconds <= 0.0 {
        return Err(Failure::new(FAILED, "too little arrived").into());
    }
    Ok(wire as f64 / seconds)
}

fn send(to: SocketAddr, bytes: u64) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect_timeout(&to, SILENCE).context("connect")?;
    stream.set_write_timeout(Some(SILENCE))?;
    let piece = vec![0; 64 << 10];
    let deadline = Instant::now() + STREAM_LIMIT;
    let mut left = bytes;
    while left > 0 && Instant::now() < deadline {
        let length = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        stream.write_all(&piece[..length]).context("send")?;
        left -= length as u64;
    }
    Ok(())
}

/// Measures one direction of a link.
fn measure(from: &LinkEnd, to: &LinkEnd, rate: LinkRate) -> anyhow::Result<f64> {
    let (tell, told) = mpsc::channel();
    let uncounted = bytes_in(rate, UNCOUNTED_MS);
    std::thread::scope(|scope| {
        let receiver = scope.spawn(move || {
            namespaces::inside(&to.namespace, || {
                let listener = TcpListener::bind((to.address, 0)).context("listen")?;
                // The sender may have failed meanwhile.
                let _ = tell.send(listener.local_addr()?);
                receive(&listener, uncounted)
            })
        });
        let sent = told
            .recv()
            .context("the receiver did not start")
            .and_then(|address| {
                namespaces::inside(&from.namespace, || send(address, bytes_in(rate, STREAM_MS)))
            });
        let joined = receiver.join();
        let measured =
            joined.unwrap_or_else(|_panic| Err(Failure::new(FAILED, "a receiver panicked").into()));
        sent.and(measured)
    })
}

fn measure_link(report: &LinkReport) -> anyhow::Result<MeasuredLink> {
    if report.is_cut {
        return Ok(MeasuredLink::default());
    }
    let link = &report.link;
    let of = |from: &LinkEnd, to: &LinkEnd, word: &str| {
        measure(from, to, report.asked).with_context(|| format!("link {}, {word}", link.name))
    };
    Ok(MeasuredLink {
        up: Some(of(&link.lower, &link.upper, "up")?),
        down: Some(of(&link.upper, &link.lower, "down")?),
    })
}

/// The first links whose rates together two cores carry; at least one.
fn group(links: &[LinkReport]) -> usize {
    let mut sum = 0;
    let fits = |report: &&LinkReport| {
        sum += report.asked.0;
        sum <= AT_ONCE
    };
    links.iter().take_while(fits).count().max(1)
}

/// Measures all links, a few at a time. `report` is called with the number of those done.
pub fn measure_all(
    links: &[LinkReport],
    report: &dyn Fn(usize),
) -> anyhow::Result<Vec<MeasuredLink>> {
    let mut measured = Vec::with_capacity(links.len());
    while let Some(rest) = links.get(measured.len()..).filter(|rest| !rest.is_empty()) {
        let (now, _later) = rest.split_at(group(rest));
        let results: Vec<anyhow::Result<MeasuredLink>> = std::thread::scope(|scope| {
            let threads: Vec<_> = now
                .iter()
                .map(|link| scope.spawn(|| measure_link(link)))
                .collect();
            let joined = threads.into_iter().map(|thread| {
                let joined = thread.join();
                joined
                    .unwrap_or_else(|_panic| Err(Failure::new(FAILED, "a sender panicked").into()))
            });
            joined.collect()
        });
        for result in results {
            measured.push(result?);
        }
        report(measured.len());
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_over_loopback_is_measured() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| receive(&listener, 1 << 20));
            send(to, 8 << 20).unwrap();
            assert!(receiver.join().unwrap().unwrap() > 1e6);
            let receiver = scope.spawn(|| receive(&listener, 1 << 20));
            send(to, 1 << 10).unwrap();
            assert!(receiver.join().unwrap().is_err(), "too little arrived");
        });
    }

    #[test]
    fn rates_are_right_within_a_tenth() {
        let asked = LinkRate(100_000_000);
        assert!(is_right(91e6, asked) && is_right(109e6, asked));
        assert!(!is_right(89e6, asked) && !is_right(111e6, asked) && !is_right(0.0, asked));
    }
}
