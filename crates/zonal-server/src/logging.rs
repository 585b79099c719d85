//! Logging to standard error, one line for each event. `zonal up` redirects it to the node's `log`
//! file.
//!
//! Events contain text from peers and files. This is the one place that makes them safe: an event
//! is one line, whatever its text, and has no effect on a terminal.

use std::io::{self, Write};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use zonal_types::OneLine;

/// Standard error for events; writes each event at once with the end of its line.
struct OneLineEach<W>(W);

impl<W: Write> Write for OneLineEach<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let event = text.strip_suffix('\n').unwrap_or(&text);
        let line = format!("{}\n", OneLine(event));
        self.0.write_all(line.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Sets up logging for the process. `ZONAL_LOG` (such as `debug` or `zonal_net=trace,info`)
/// overrides the config.
pub fn start(level: &str) {
    let filter = std::env::var("ZONAL_LOG")
        .ok()
        .and_then(|text| text.parse::<Targets>().ok())
        .or_else(|| level.parse().ok())
        .unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(|| OneLineEach(io::stderr()))
        .with_ansi(false)
        .with_target(false)
        // A line that cannot be written (disk full, reader gone) is lost. Reporting that on the
        // same standard error would panic, and again in the panic hook, which ends the process.
        .log_internal_errors(false);
    let started = tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .try_init();
    // A second start in one process (tests) keeps the first.
    drop(started);
    std::panic::set_hook(Box::new(|panic| {
        if zonal_disk::is_guarded() {
            tracing::debug!(%panic, "the index's library met damage");
            return;
        }
        let backtrace = std::backtrace::Backtrace::force_capture();
        tracing::error!(%panic, "a thread panicked");
        for line in backtrace.to_string().lines() {
            tracing::error!("{line}");
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_whatever_its_text() {
        let mut out = OneLineEach(Vec::new());
        for event in ["one\n", "two \u{1b}[31m\n2026 INFO forged\r\n", "\u{9b}3\n"] {
            out.write_all(event.as_bytes()).unwrap();
        }
        let text = String::from_utf8(out.0).unwrap();
        assert_eq!(
            text,
            "one\ntwo \\x1b[31m\\n2026 INFO forged\\x0d\n\\xc2\\x9b3\n"
        );
    }
}
