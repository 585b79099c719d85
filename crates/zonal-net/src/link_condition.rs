//! Added delay and loss of a testbed's links: how late a frame is, and the file that says so.
//!
//! A testbed names the file in [`CONDITION_VARIABLE`] for the processes of a node, and writes it
//! anew while they run. Without the variable no connection has a delay line, so a send costs one
//! branch more and no system call.
//!
//! ```text
//! seed 7                      of the random numbers
//! 10.77.2.1 20000 10000       address, delay in microseconds, lost frames in a million
//! ```
//!
//! *Invariant*: the delay of a frame follows from the condition, the seed and the number of draws
//! before it; no clock decides it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::Metadata;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use zonal_basics::splitmix::SplitMix64;

/// Environment variable that names the file with the conditions of a node's links.
pub const CONDITION_VARIABLE: &str = "ZONAL_LINK_CONDITION";
/// How often the file is looked at, at most.
const LOOK: Duration = Duration::from_millis(100);
/// Largest file that is read, in bytes: 32 nodes have 2 KiB.
const FILE_BYTES_MAX: u64 = 64 << 10;
/// Least time after which TCP sends a lost segment again, beside its round trip (Linux).
const RETRANSMISSION: Duration = Duration::from_millis(200);
/// Losses of one frame in a row; the next attempt arrives.
const LOSSES_MAX: u32 = 6;
/// Loss is counted in frames of a million.
const MILLION: u32 = 1_000_000;

/// Added delay and loss of a link in each direction, or of several links one after the other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkCondition {
    /// Added to the time of each frame, one way.
    pub delay: Duration,
    /// Frames of a million that are lost.
    pub lost_of_million: u32,
}

impl LinkCondition {
    /// The condition of this link with another one behind it.
    #[must_use]
    pub fn and_then(self, behind: Self) -> Self {
        let million = u64::from(MILLION);
        let kept = |condition: Self| million.saturating_sub(u64::from(condition.lost_of_million));
        let lost = million - kept(self) * kept(behind) / million;
        Self {
            delay: self.delay.saturating_add(behind.delay),
            lost_of_million: u32::try_from(lost).unwrap_or(MILLION),
        }
    }

    /// The time that a frame takes longer. TCP hides a loss: it sends the frame again after a round
    /// trip and 200 ms, then after twice as long. Linux does so at the end of a burst.
    fn delay_of_frame(self, mut draw: impl FnMut() -> u64) -> Duration {
        let mut delay = self.delay;
        let mut pause = RETRANSMISSION + 2 * self.delay;
        for _loss in 0..LOSSES_MAX {
            let is_lost = self.lost_of_million > 0
                && draw() % u64::from(MILLION) < u64::from(self.lost_of_million);
            if !is_lost {
                break;
            }
            delay += pause;
            pause *= 2;
        }
        delay
    }
}

/// The conditions between one node and others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConditionTable {
    /// Seed of the random numbers.
    pub seed: u64,
    /// By the other node's address; others have no condition.
    pub by_address: BTreeMap<IpAddr, LinkCondition>,
}

impl ConditionTable {
    /// Reads a file's text; `None` where it is not one.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let mut table = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let first = words.next()?;
            if first == "seed" {
                table.seed = words.next()?.parse().ok()?;
            } else {
                let delay = Duration::from_micros(words.next()?.parse().ok()?);
                let condition = LinkCondition {
                    delay,
                    lost_of_million: words.next()?.parse().ok()?,
                };
                table.by_address.insert(first.parse().ok()?, condition);
            }
            if words.next().is_some() {
                return None;
            }
        }
        Some(table)
    }

    /// The text of a file.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = format!("seed {}\n", self.seed);
        for (address, condition) in &self.by_address {
            let (delay, lost) = (condition.delay.as_micros(), condition.lost_of_million);
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{address} {delay} {lost}");
        }
        text
    }
}

/// The file of this process, with the conditions that it had when it was last looked at.
#[derive(Debug)]
pub(crate) struct ConditionFile {
    path: PathBuf,
    seen: Mutex<Seen>,
    draws: AtomicU64,
}

#[derive(Debug, Default)]
struct Seen {
    looked: Option<Instant>,
    /// Inode, length and time of the last change: a new file replaces the old one.
    version: Option<(u64, u64, i64)>,
    table: ConditionTable,
}

impl ConditionFile {
    /// The file that the environment names, read at the first connection.
    pub(crate) fn of_process() -> Option<&'static Self> {
        static FILE: OnceLock<Option<ConditionFile>> = OnceLock::new();
        let named = || std::env::var_os(CONDITION_VARIABLE).filter(|path| !path.is_empty());
        FILE.get_or_init(|| named().map(|path| Self::at(path.into())))
            .as_ref()
    }

    pub(crate) fn at(path: PathBuf) -> Self {
        Self {
            path,
            seen: Mutex::default(),
            draws: AtomicU64::new(0),
        }
    }

    /// The time that the next frame to `address` takes longer.
    pub(crate) fn delay_to(&self, address: IpAddr) -> Duration {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.looked.is_none_or(|looked| looked.elapsed() >= LOOK) {
            self.look(&mut seen);
        }
        let Some(condition) = seen.table.by_address.get(&address.to_canonical()).copied() else {
            return Duration::ZERO;
        };
        let seed = seen.table.seed;
        drop(seen);
        condition.delay_of_frame(|| {
            let draw = self.draws.fetch_add(1, Ordering::Relaxed);
            SplitMix64(seed.wrapping_add(draw.wrapping_mul(0x9e37_79b9_7f4a_7c15))).bits()
        })
    }

    fn look(&self, seen: &mut Seen) {
        seen.looked = Some(Instant::now());
        let version = |found: &Metadata| (found.ino(), found.size(), found.mtime_nsec());
        let found = std::fs::metadata(&self.path).ok();
        let found = found.filter(|found| found.len() <= FILE_BYTES_MAX);
        let version = found.as_ref().map(version);
        if version == seen.version {
            return;
        }
        seen.version = version;
        let text = std::fs::read_to_string(&self.path).unwrap_or_default();
        seen.table = ConditionTable::from_text(&text).unwrap_or_else(|| {
            let path = self.path.display();
            tracing::warn!(%path, "no conditions of links; frames go without delay");
            ConditionTable::default()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_testkit::Scratch;

    const MS: Duration = Duration::from_millis(1);

    fn condition(delay: Duration, lost_of_million: u32) -> LinkCondition {
        LinkCondition {
            delay,
            lost_of_million,
        }
    }

    #[test]
    fn a_frame_is_as_late_as_its_link_and_its_losses_say() {
        let link = condition(20 * MS, 100_000);
        let delay = |draws: &[u64]| {
            let mut draws = draws.iter().copied();
            link.delay_of_frame(|| draws.next().unwrap())
        };
        assert_eq!(delay(&[100_000]), 20 * MS);
        assert_eq!(delay(&[99_999, 500_000]), (20 + 240) * MS);
        assert_eq!(delay(&[1_000_000, 0, 999_999]), (20 + 240 + 480) * MS);
        // The seventh attempt arrives, whatever is drawn.
        assert_eq!(delay(&[0; 6]), (20 + 240 * 63) * MS);
        // Where nothing is lost nothing is drawn.
        let whole = condition(20 * MS, 0);
        assert_eq!(whole.delay_of_frame(|| unreachable!()), 20 * MS);
    }

    #[test]
    fn links_in_a_row_add_their_delays_and_lose_in_turn() {
        let both = condition(MS, 500_000).and_then(condition(3 * MS, 500_000));
        assert_eq!(both, condition(4 * MS, 750_000));
        assert_eq!(both.and_then(LinkCondition::default()), both);
    }

    #[test]
    fn the_text_of_a_table_is_read_as_it_was_written() {
        let mut table = ConditionTable {
            seed: 7,
            ..ConditionTable::default()
        };
        let addresses: [IpAddr; 2] = [[10, 77, 2, 1].into(), [10, 77, 1, 2].into()];
        for address in addresses {
            let link = condition(20 * MS, 10_000);
            table.by_address.insert(address, link);
        }
        assert!(table.to_text().contains("10.77.2.1 20000 10000\n"));
        assert_eq!(ConditionTable::from_text(&table.to_text()), Some(table));
        for text in ["x", "seed", "10.0.0.1 1", "10.0.0.1 1 2 3", "\n", "seed -1"] {
            assert_eq!(ConditionTable::from_text(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_file_that_is_replaced_counts_from_the_next_look_on() {
        let scratch = Scratch::new("link-conditions");
        let path = scratch.join("node");
        let file = ConditionFile::at(path.clone());
        let address = IpAddr::from([10, 77, 2, 1]);
        let delay = || {
            file.seen.lock().unwrap().looked = None;
            file.delay_to(address)
        };
        assert_eq!(delay(), Duration::ZERO);
        std::fs::write(&path, "seed 1\n10.77.2.1 5000 0\n").unwrap();
        assert_eq!(delay(), 5 * MS);
        assert_eq!(file.delay_to(IpAddr::from([10, 77, 2, 2])), Duration::ZERO);
        let new = scratch.join("new");
        std::fs::write(&new, "seed 1\n10.77.2.1 6000 0\n").unwrap();
        std::fs::rename(&new, &path).unwrap();
        assert_eq!(delay(), 6 * MS);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(delay(), Duration::ZERO);
    }

    #[test]
    fn losses_repeat_with_the_seed_and_are_as_many_as_asked_for() {
        let scratch = Scratch::new("link-losses");
        let path = scratch.join("node");
        std::fs::write(&path, "seed 3\n10.77.2.1 1000 100000\n").unwrap();
        let run = || {
            let file = ConditionFile::at(path.clone());
            let delay = |_frame| file.delay_to(IpAddr::from([10, 77, 2, 1]));
            (0..10_000).map(delay).collect::<Vec<_>>()
        };
        let delays = run();
        assert_eq!(delays, run());
        let lost = delays.iter().filter(|delay| **delay > MS).count();
        assert!((800..1_200).contains(&lost), "{lost} of 10000");
    }
}
