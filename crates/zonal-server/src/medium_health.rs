//! What went wrong below a role since its start, for `zonal status`: errors of the medium, and
//! damaged data.
//!
//! A role with trouble may still serve; whoever looks after the cell has to know all the same. The
//! first text is kept, as later ones often follow from it.

use std::sync::{Mutex, PoisonError};

/// Characters kept of a text: it goes into messages and tables.
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

/// Trouble of one role.
#[derive(Debug, Default)]
pub(crate) struct MediumHealth(Mutex<State>);

impl MediumHealth {
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The medium failed a read, a write or a flush.
    pub(crate) fn medium(&self, text: &str) {
        self.change(|state| state.medium.note(text));
    }

    /// Stored data is not what was stored.
    pub(crate) fn damage(&self, text: &str) {
        self.change(|state| state.damage.note(text));
    }

    /// All stored data was found to be as it was stored.
    pub(crate) fn no_damage(&self) {
        self.change(|state| state.damage = Kind::default());
    }

    /// In words; empty where there is none.
    pub(crate) fn text(&self) -> String {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let medium = state.medium.say("the medium failed");
        let damage = state.damage.say("stored data is damaged");
        let said: Vec<String> = medium.into_iter().chain(damage).collect();
        said.join("; ")
    }
}

/// At most [`TEXT_MAX`] characters.
pub(crate) fn shortened(text: &str) -> String {
    text.chars().take(TEXT_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_said_and_the_rest_counted() {
        let trouble = MediumHealth::default();
        assert_eq!(trouble.text(), "");
        trouble.medium("read segment 3");
        trouble.medium("read segment 4");
        trouble.damage("block 5");
        assert_eq!(
            trouble.text(),
            "the medium failed (2 times), first: read segment 3; stored data is damaged: block 5"
        );
        trouble.no_damage();
        assert!(!trouble.text().contains("damaged"));
    }
}
