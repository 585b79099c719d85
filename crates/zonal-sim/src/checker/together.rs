//! Invariants 4 and 7 for the bytes of one file that several clients write, append to, truncate and
//! read at the same time.
//!
//! An operation lasts from its call until its effect is surely there:
//!
//! | operation | lasts |
//! | --- | --- |
//! | truncation, append | until it returns |
//! | write | until a flush after it returns |
//! | operation with an unknown outcome | for ever |
//!
//! Operations that overlap are concurrent; those of one client follow one another. A read may find
//! the value of any operation, unless another operation that follows it surely came before the
//! read. The same holds for the file's end. When all operations have ended, the contents must make
//! sense ([`FileHistory::settled`]), and are known exactly from then on.
//!
//! Each operation's bytes name the operation and their place in it, so no two can be confused.

mod final_contents;
mod operation;

pub use operation::{MARK, Number};

use operation::{Kind, Operation, content, named};
use std::collections::BTreeSet;
use std::rc::Rc;

/// Stripe unit of the file. A truncation removes a piece of a write within a unit as a whole, or
/// not at all.
pub const UNIT: u64 = 65_536;

/// A read that has begun.
#[derive(Debug, Clone, Copy)]
pub struct FileRead {
    client: usize,
    begun: u64,
}

/// All operations on a file, and its contents before them.
#[derive(Debug, Default)]
pub struct FileHistory {
    now: u64,
    last: u64,
    /// Contents before all operations.
    before: Vec<u8>,
    operations: Vec<Operation>,
    /// Since then appends may have been repeated elsewhere, and places may have been given up.
    is_loose: bool,
}

impl FileHistory {
    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    fn begin(&mut self, client: usize, kind: Kind, at: Option<u64>, length: usize) -> Number {
        self.last += 1;
        let begun = self.tick();
        self.operations.push(Operation {
            id: self.last,
            client,
            kind,
            at,
            bytes: Rc::new(content(self.last, length)),
            begun,
            ended: None,
            is_unknown: false,
        });
        Number(self.last)
    }

    fn of(&mut self, number: Number) -> Option<&mut Operation> {
        self.operations.iter_mut().find(|of| of.id == number.0)
    }

    /// The bytes of an operation.
    #[must_use]
    pub fn bytes(&self, number: Number) -> Rc<Vec<u8>> {
        let found = self.operations.iter().find(|of| of.id == number.0);
        found.map(|of| of.bytes.clone()).unwrap_or_default()
    }

    /// A client begins to write.
    pub fn write(&mut self, client: usize, at: u64, length: usize) -> Number {
        self.begin(client, Kind::Write, Some(at), length)
    }

    /// A client begins to append.
    pub fn append(&mut self, client: usize, length: usize) -> Number {
        self.begin(client, Kind::Append, None, length)
    }

    /// A client begins to truncate the file to `size`.
    pub fn truncate(&mut self, client: usize, size: u64) -> Number {
        self.begin(client, Kind::Truncate(size), None, 0)
    }

    /// A truncation or an append has succeeded; the append at the place `at`.
    pub fn done(&mut self, number: Number, at: Option<u64>) {
        let now = self.tick();
        if let Some(of) = self.of(number) {
            (of.at, of.ended) = (at, Some(now));
        }
    }

    /// The outcome of an operation is unknown: it may be done wholly, in part, later, or never.
    pub fn is_unknown(&mut self, number: Number) {
        self.is_loose = true;
        if let Some(of) = self.of(number) {
            of.is_unknown = true;
        }
    }

    /// The client's writes are flushed.
    pub fn flushed(&mut self, client: usize) {
        let now = self.tick();
        for of in &mut self.operations {
            if of.client == client && of.kind == Kind::Write && of.ended.is_none() {
                of.ended = Some(now);
            }
        }
    }

    /// Servers forgot appends that were under way.
    pub fn may_have_strays(&mut self) {
        self.is_loose = true;
    }

    /// A client begins to read.
    pub fn look(&mut self, client: usize) -> FileRead {
        let begun = self.tick();
        FileRead { client, begun }
    }

    fn is_over(&self, of: &Operation, look: FileRead) -> bool {
        of.is_before(look.client, look.begun)
    }

    /// Whether no operation undoes this one: none that came after it and surely before the read.
    /// `None` stands for the contents before all operations.
    fn stands(
        &self,
        of: Option<&Operation>,
        look: FileRead,
        undoes: impl Fn(&Operation) -> bool,
    ) -> bool {
        !self.operations.iter().any(|other| {
            undoes(other)
                && self.is_over(other, look)
                && of.is_none_or(|of| of.is_before(other.client, other.begun))
        })
    }

    fn may_be_there(&self, place: u64, look: FileRead, is_there: bool) -> bool {
        let undoes = |of: &Operation| of.moves_end(place, !is_there);
        let mut operations = self.operations.iter();
        ((self.before.len() as u64 > place) == is_there && self.stands(None, look, undoes))
            || operations
                .any(|of| of.moves_end(place, is_there) && self.stands(Some(of), look, undoes))
    }

    /// Appends with an unknown place, or with a place at which they were tried and not done.
    fn strays(&self, seen: &[u8]) -> Vec<Operation> {
        let is_unplaced = |of: &Operation| of.kind == Kind::Append && of.at.is_none();
        let mut strays: Vec<Operation> = Vec::new();
        let mut add = |of: &Operation, place: u64| {
            if of.at != Some(place)
                && !strays
                    .iter()
                    .any(|it| it.id == of.id && it.at == Some(place))
            {
                let kind = if of.at.is_none() {
                    of.kind
                } else {
                    Kind::Stray
                };
                let at = Some(place);
                strays.push(Operation {
                    kind,
                    at,
                    ..of.clone()
                });
            }
        };
        let mut at = 0;
        while at < seen.len() {
            let Some((id, index)) = named(&seen[at..]) else {
                at += 1;
                continue;
            };
            let appended =
                |of: &&Operation| of.id == id && matches!(of.kind, Kind::Append | Kind::Stray);
            let found = self.operations.iter().find(appended);
            if let (Some(of), Some(place)) = (found, (at as u64).checked_sub(index)) {
                add(of, place);
            }
            at += MARK;
        }
        // Where an operation was truncated, or others uncovered it, a part of a mark may show: the
        // file ended there.
        for of in self.operations.iter().filter(|of| is_unplaced(of)) {
            let edges = self.edges(&[], seen.len() as u64);
            edges.iter().for_each(|edge| add(of, *edge));
        }
        strays
    }

    fn edges(&self, strays: &[Operation], length: u64) -> Vec<u64> {
        let mut edges = BTreeSet::from([0, length, self.before.len() as u64]);
        for of in self.operations.iter().chain(strays) {
            edges.extend(of.at);
            edges.extend(of.at.map(|at| at + of.bytes.len() as u64));
            edges.extend(of.end());
        }
        edges.into_iter().filter(|edge| *edge <= length).collect()
    }

    /// Checks the bytes that a read found. `is_whole`: the read began with an open and reached the
    /// end.
    ///
    /// # Errors
    /// The read cannot have found these bytes.
    pub fn seen(&mut self, look: FileRead, seen: &[u8], is_whole: bool) -> Result<(), String> {
        self.tick();
        let length = seen.len() as u64;
        let strays = self.strays(seen);
        if is_whole {
            let is_stray = strays.iter().any(|of| of.end() == Some(length));
            let is_long = length > 0 && !self.may_be_there(length - 1, look, true) && !is_stray;
            if is_long || !self.may_be_there(length, look, false) {
                return Err(self.explain(look, &format!("the file ends at {length}"), None));
            }
        }
        for edges in self.edges(&strays, length).windows(2) {
            let (from, to) = (edges[0], edges[1]);
            let (values, may_be_zero) = self.values(&strays, (from, to), look);
            let seen = &seen[from as usize..to as usize];
            if values.contains(&seen) {
                continue;
            }
            let fits = |(index, byte): (usize, &u8)| {
                (may_be_zero && *byte == 0)
                    || values.iter().any(|value| value.get(index) == Some(byte))
            };
            if let Some(index) = seen.iter().enumerate().position(|of| !fits(of)) {
                // Too few bytes to name an operation.
                let rest = seen[index..].iter().take_while(|byte| **byte != 0);
                let is_append = |of: &Operation| matches!(of.kind, Kind::Append | Kind::Stray);
                let mut appends = self.operations.iter().filter(|of| is_append(of));
                let is_short = may_be_zero && rest.count() < 2 * MARK;
                if is_short && appends.any(|of| self.may_leave(of)) {
                    continue;
                }
                let place = from + index as u64;
                let what = match seen[index..].iter().position(|byte| *byte >= 0xc0) {
                    _ if seen[index] == 0 => "0".to_owned(),
                    Some(first) => format!("near {:?}", named(&seen[index + first..])),
                    None => format!("{:#x}", seen[index]),
                };
                let what = format!("byte {place} is {what}");
                return Err(self.explain(look, &what, Some(place)));
            }
        }
        Ok(())
    }

    /// The operations that a range may show, and whether it may be zeros. No edge of an operation
    /// divides the range.
    fn values<'a>(
        &'a self,
        strays: &'a [Operation],
        (from, to): (u64, u64),
        look: FileRead,
    ) -> (Vec<&'a [u8]>, bool) {
        let undoes = |of: &Operation| of.changes(from);
        let mut values = Vec::new();
        let mut is_zero = false;
        if self.stands(None, look, undoes) {
            match self.before.get(from as usize..to as usize) {
                Some(before) => values.push(before),
                None => is_zero = true,
            }
        }
        for of in &self.operations {
            if of.changes(from) && self.stands(Some(of), look, undoes) {
                is_zero |= matches!(of.kind, Kind::Truncate(_));
                values.extend(of.slice(from, to));
            }
        }
        for of in strays {
            // A place that was given up shows behind an end only.
            let shows = of.kind == Kind::Append || (is_zero && self.may_leave(of));
            if shows && of.covers(from) && self.stands(Some(of), look, undoes) {
                values.extend(of.slice(from, to));
            }
        }
        (values, is_zero)
    }

    /// All operations have ended with these contents, which later operations begin with.
    pub fn begin_with(&mut self, content: Vec<u8>) {
        self.before = content;
        let kept = self
            .operations
            .iter()
            .filter(|of| of.kind == Kind::Stray || (of.kind == Kind::Append && self.may_leave(of)));
        let is_left: BTreeSet<u64> = kept.map(|of| of.id).collect();
        self.is_loose = false;
        self.operations.retain_mut(|of| {
            let stays = is_left.contains(&of.id);
            of.kind = Kind::Stray;
            (of.ended, of.is_unknown) = (Some(self.now), false);
            stays
        });
    }

    /// Whether an append may have left bytes at another place: its first place is unknown, or the
    /// file was truncated under it.
    fn may_leave(&self, of: &Operation) -> bool {
        let overlaps = |truncation: &Operation| {
            of.ended.is_none_or(|ended| truncation.begun < ended)
                && truncation.ended.is_none_or(|ended| ended > of.begun)
        };
        let mut truncations = self.operations.iter();
        let was_append = self
            .operations
            .iter()
            .any(|it| it.id == of.id && it.kind == Kind::Append);
        self.is_loose
            || of.at.is_none()
            || !was_append
            || truncations.any(|truncation| {
                matches!(truncation.kind, Kind::Truncate(_)) && overlaps(truncation)
            })
    }

    fn explain(&self, look: FileRead, what: &str, place: Option<u64>) -> String {
        let known = self.operations.iter().filter(|of| {
            of.kind != Kind::Stray && place.is_none_or(|place| of.changes(place) || of.at.is_none())
        });
        let known: Vec<String> = known.map(ToString::to_string).collect();
        format!(
            "invariant 4: client {} read from {} to {}: {what}; before: {} bytes; {}",
            look.client,
            look.begun,
            self.now,
            self.before.len(),
            known.join(", ")
        )
    }
}

#[cfg(test)]
mod tests;
