//! Health of a role's medium since its start, for `zonal status`: I/O errors, and damaged data.
//!
//! A role with errors may still serve, but the administrator has to know. The first text of each
//! kind is kept, as later errors often follow from it.

use std::sync::{Mutex, PoisonError};

/// Characters kept of a text, as it goes into messages and tables.
const TEXT_MAX: usize = 200;

#[derive(Debug, Default)]
struct Kind {
    count: u64,
    first: String,
}

impl Kind {
    fn note(&mut self, text: &str) {
        if self.count == 0 {
            self.first = shortened(text);
        }
        self.count += 1;
    }

    fn say(&self, what: &str) -> Option<String> {
        match self.count {
            0 => None,
            1 => Some(format!("{what}: {}", self.first)),
            count => Some(format!("{what} ({count} times), first: {}", self.first)),
        }
    }
}

#[derive(Debug, Default)]
struct State {
    medium: Kind,
    damage: Kind,
}

/// I/O errors and damage of one role's medium.
#[derive(Debug, Default)]
pub(crate) struct MediumHealth(Mutex<State>);

impl MediumHealth {
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Notes that the medium failed a read, a write or a flush.
    pub(crate) fn medium(&self, text: &str) {
        self.change(|state| state.medium.note(text));
    }

    /// Notes that stored data fails its checksum.
    pub(crate) fn damage(&self, text: &str) {
        self.change(|state| state.damage.note(text));
    }

    /// Notes that all stored data was verified.
    pub(crate) fn no_damage(&self) {
        self.change(|state| state.damage = Kind::default());
    }

    /// The errors in words; empty where there are none.
    pub(crate) fn text(&self) -> String {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let medium = state.medium.say("the medium failed");
        let damage = state.damage.say("stored data is damaged");
        let said: Vec<String> = medium.into_iter().chain(damage).collect();
        said.join("; ")
    }
}

/// The first [`TEXT_MAX`] characters.
pub(crate) fn shortened(text: &str) -> String {
    text.chars().take(TEXT_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_error_is_shown_and_the_rest_counted() {
        let health = MediumHealth::default();
        assert_eq!(health.text(), "");
        health.medium("read segment 3");
        health.medium("read segment 4");
        health.damage("block 5");
        assert_eq!(
            health.text(),
            "the medium failed (2 times), first: read segment 3; stored data is damaged: block 5"
        );
        health.no_damage();
        assert!(!health.text().contains("damaged"));
    }
}
