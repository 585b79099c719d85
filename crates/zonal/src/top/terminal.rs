//! The terminal: raw, on its second screen, without a cursor, until the guard is dropped.
//!
//! *Invariant*: the terminal is given back at the end of the command, after an error, a panic,
//! SIGTERM, SIGINT and SIGHUP.

use crate::exit::{FAILED, Failure, USAGE};
use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::{IsTerminal, Stdout, stdin, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a signal waits for the view to end.
const PATIENCE: Duration = Duration::from_secs(2);

/// A terminal that the view draws on.
pub struct ScreenTerminal {
    pub terminal: Terminal<CrosstermBackend<Stdout>>,
    is_ended: Arc<AtomicBool>,
}

/// Checks that both ends of the view are a terminal.
///
/// # Errors
/// One is not.
pub fn require() -> anyhow::Result<()> {
    let name = match (stdout().is_terminal(), stdin().is_terminal()) {
        (true, true) => return Ok(()),
        (false, _) => "standard output",
        (true, false) => "standard input",
    };
    let text = format!("{name} is no terminal");
    let failure = Failure::new(USAGE, text);
    Err(failure
        .hint("--json prints one document for scripts")
        .into())
}

/// Has signals end the view, and the process where the view does not end: it may stand still in a
/// write to a terminal.
fn end_at_signals(is_ended: Arc<AtomicBool>) -> std::io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let thread = std::thread::Builder::new().name("signals".into());
    thread.spawn(move || {
        if signals.forever().next().is_some() {
            is_ended.store(true, Ordering::Relaxed);
            std::thread::sleep(PATIENCE);
            give_back();
            std::process::exit(FAILED.into());
        }
    })?;
    Ok(())
}

fn give_back() {
    // Best effort: nothing is left to do where it fails.
    let _ = disable_raw_mode();
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
}

impl ScreenTerminal {
    /// Takes the terminal.
    ///
    /// # Errors
    /// The terminal refuses it.
    pub fn take() -> anyhow::Result<Self> {
        let is_ended = Arc::new(AtomicBool::new(false));
        end_at_signals(Arc::clone(&is_ended))?;
        // The text of a panic belongs on the usual screen. Panics of other threads are told by the
        // view, which goes on.
        let view = std::thread::current().id();
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if std::thread::current().id() == view {
                give_back();
                usual(info);
            }
        }));
        let refused = |error| Failure::new(FAILED, format!("the terminal: {error}"));
        enable_raw_mode().map_err(refused)?;
        let begun = execute!(stdout(), EnterAlternateScreen, Hide)
            .and_then(|()| Terminal::new(CrosstermBackend::new(stdout())));
        match begun {
            Ok(terminal) => Ok(Self { terminal, is_ended }),
            Err(error) => {
                give_back();
                Err(refused(error).into())
            }
        }
    }

    /// True after a signal that ends the process.
    pub fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::Relaxed)
    }

    /// Waits for input, up to a time. The library must not wait itself: it would read a terminal
    /// that hung up again and again.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn wait_for_input(&self, wait: Duration) -> anyhow::Result<()> {
        let stdin = stdin();
        let mut polled = [PollFd::new(&stdin, PollFlags::IN)];
        let wait = Timespec::try_from(wait)?;
        match rustix::event::poll(&mut polled, Some(&wait)) {
            Ok(_count) => {}
            Err(Errno::INTR) => return Ok(()),
            Err(error) => return Err(std::io::Error::from(error).into()),
        }
        let events = polled[0].revents();
        if events.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            return Err(Failure::new(FAILED, "the terminal is gone").into());
        }
        Ok(())
    }
}

impl Drop for ScreenTerminal {
    fn drop(&mut self) {
        give_back();
    }
}
