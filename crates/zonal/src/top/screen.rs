//! State of the view: the chosen table, its first row, and whether it is paused. Keys change it.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// A table of the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScreenTab {
    Nodes,
    Traffic,
    Directories,
    Operations,
    FullTargets,
}

impl ScreenTab {
    /// In the order on the screen.
    pub const ALL: [Self; 5] = [
        Self::Nodes,
        Self::Traffic,
        Self::Directories,
        Self::Operations,
        Self::FullTargets,
    ];

    /// Its place on the screen.
    pub fn index(self) -> usize {
        Self::ALL.iter().position(|tab| *tab == self).unwrap_or(0)
    }

    fn moved(self, by: usize) -> Self {
        Self::ALL[(self.index() + by) % Self::ALL.len()]
    }
}

/// The state.
#[derive(Debug)]
pub struct Screen {
    pub tab: ScreenTab,
    /// Rows of the table that are scrolled away.
    pub scrolled: usize,
    pub is_paused: bool,
    pub is_ended: bool,
}

impl Default for Screen {
    fn default() -> Self {
        Self {
            tab: ScreenTab::Nodes,
            scrolled: 0,
            is_paused: false,
            is_ended: false,
        }
    }
}

impl Screen {
    /// Handles a key. `rows`: of the chosen table.
    pub fn press(&mut self, key: KeyEvent, rows: usize) {
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => self.is_ended = true,
            // Raw terminals send no signal for it.
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                self.is_ended = true;
            }
            KeyCode::Char('p') => self.is_paused = !self.is_paused,
            KeyCode::Tab | KeyCode::Right => self.choose(self.tab.moved(1)),
            KeyCode::BackTab | KeyCode::Left => {
                self.choose(self.tab.moved(ScreenTab::ALL.len() - 1));
            }
            KeyCode::Down => self.scrolled = (self.scrolled + 1).min(rows.saturating_sub(1)),
            KeyCode::Up => self.scrolled = self.scrolled.saturating_sub(1),
            KeyCode::Home => self.scrolled = 0,
            _ => {}
        }
    }

    fn choose(&mut self, tab: ScreenTab) {
        self.tab = tab;
        self.scrolled = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pressed(screen: &mut Screen, code: KeyCode) {
        screen.press(KeyEvent::new(code, KeyModifiers::NONE), 3);
    }

    #[test]
    fn tab_and_arrows_walk_through_all_tables_both_ways() {
        let mut screen = Screen::default();
        for code in [KeyCode::Tab, KeyCode::Right] {
            for tab in [1, 2, 3, 4, 0] {
                pressed(&mut screen, code);
                assert_eq!(screen.tab, ScreenTab::ALL[tab]);
            }
        }
        for code in [KeyCode::BackTab, KeyCode::Left] {
            for tab in [4, 3, 2, 1, 0] {
                pressed(&mut screen, code);
                assert_eq!(screen.tab.index(), tab);
            }
        }
    }

    #[test]
    fn rows_scroll_within_the_table_and_anew_in_another() {
        let mut screen = Screen::default();
        pressed(&mut screen, KeyCode::Up);
        assert_eq!(screen.scrolled, 0);
        for _ in 0..9 {
            pressed(&mut screen, KeyCode::Down);
        }
        assert_eq!(screen.scrolled, 2, "the last row stays");
        pressed(&mut screen, KeyCode::Up);
        assert_eq!(screen.scrolled, 1);
        pressed(&mut screen, KeyCode::Tab);
        assert_eq!(screen.scrolled, 0);
    }

    #[test]
    fn p_pauses_and_q_escape_and_control_c_end() {
        let mut screen = Screen::default();
        pressed(&mut screen, KeyCode::Char('p'));
        assert!(screen.is_paused);
        pressed(&mut screen, KeyCode::Char('p'));
        pressed(&mut screen, KeyCode::Char('c'));
        assert!(!screen.is_paused && !screen.is_ended);
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        for key in [KeyCode::Char('q').into(), KeyCode::Esc.into(), control_c] {
            let mut screen = Screen::default();
            screen.press(key, 0);
            assert!(screen.is_ended);
        }
    }
}
