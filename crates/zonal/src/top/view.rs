//! The loop of the view: keys, samples and signals in, frames out. It waits for none of them longer
//! than [`KEY_WAIT`].

use super::drawing::{draw, row_count};
use super::rates::CellRates;
use super::sample::CellSample;
use super::sampler::Sampler;
use super::screen::Screen;
use super::terminal::ScreenTerminal;
use crate::exit::{FAILED, Failure};
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use std::sync::mpsc::TryRecvError;
use std::time::Duration;

/// How long the loop waits for a key.
const KEY_WAIT: Duration = Duration::from_millis(50);

pub use super::terminal::require as require_terminal;

/// Rates between the last two samples.
#[derive(Default)]
struct Shown {
    last: Option<CellSample>,
    rates: Option<CellRates>,
}

impl Shown {
    fn take(&mut self, sample: CellSample) {
        self.rates = Some(CellRates::between(self.last.as_ref(), &sample));
        self.last = Some(sample);
    }
}

/// Shows the cell until a key or a signal ends it.
///
/// # Errors
/// The terminal fails, or the sampler's thread has ended.
pub fn run(sampler: Sampler, interval: Duration) -> anyhow::Result<()> {
    let samples = sampler.start(interval)?;
    let mut screen = Screen::default();
    let mut shown = Shown::default();
    let mut terminal = ScreenTerminal::take()?;
    let mut is_drawn = false;
    while !screen.is_ended && !terminal.is_ended() {
        match samples.try_recv() {
            // While it is paused, samples pass: the next shown one counts from the last shown.
            Ok(_passed) if screen.is_paused => {}
            Ok(sample) => {
                shown.take(sample);
                is_drawn = false;
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => {
                return Err(Failure::new(FAILED, "the thread that asks the cell has ended").into());
            }
        }
        if !is_drawn {
            let rates = shown.rates.as_ref();
            let frame = &mut terminal.terminal;
            frame.draw(|frame| draw(frame, &screen, rates, interval))?;
            is_drawn = true;
        }
        terminal.wait_for_input(KEY_WAIT)?;
        if event::poll(Duration::ZERO)? {
            is_drawn = false;
            let rates = shown.rates.as_ref();
            let rows = rates.map_or(0, |rates| row_count(rates, screen.tab));
            match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => screen.press(key, rows),
                // A changed size, too, needs a new frame.
                _other => {}
            }
        }
    }
    Ok(())
}
