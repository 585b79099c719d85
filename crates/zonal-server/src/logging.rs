//! Where log lines go: standard error, one line each. `zonal up` leads it to the node's `log` file.

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Sets up logging for the process. `ZONAL_LOG` (such as `debug` or `zonal_net=trace,info`) overrides the config.
pub fn start(level: &str) {
    let filter = std::env::var("ZONAL_LOG")
        .ok()
        .and_then(|text| text.parse::<Targets>().ok())
        .or_else(|| level.parse().ok())
        .unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        // A line that cannot be written (disk full, reader gone) is lost. Telling so on the same standard error
        // would panic, and again in the panic hook, which ends the process.
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
        tracing::error!(%panic, %backtrace, "a thread panicked");
    }));
}
