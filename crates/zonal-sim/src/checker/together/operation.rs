//! One operation on a file that several clients use at the same time, with bytes that name the
//! operation and their place in it.

use std::rc::Rc;

/// Bytes of a mark: the operation's number and the mark's own number.
pub const MARK: usize = 8;
/// Bits of a mark in each byte; the two others distinguish the first byte from the rest.
const BITS: u32 = 6;
/// Bits of a mark's number.
const INDEX_BITS: u32 = 28;
fn mark(id: u64, index: u64) -> [u8; MARK] {
    let value = (id << INDEX_BITS) | index;
    std::array::from_fn(|byte| {
        let bits = (value >> (BITS * (MARK - 1 - byte) as u32)) as u8 & 0x3f;
        bits | if byte == 0 { 0xc0 } else { 0x80 }
    })
}

/// The operation and the place in it that the mark at the front of `bytes` names.
pub(super) fn named(bytes: &[u8]) -> Option<(u64, u64)> {
    let bytes = bytes.get(..MARK)?;
    let is_mark = bytes[0] >= 0xc0 && bytes[1..].iter().all(|byte| byte & 0xc0 == 0x80);
    let value = bytes
        .iter()
        .fold(0, |value, byte| (value << BITS) | u64::from(byte & 0x3f));
    let (id, index) = (value >> INDEX_BITS, value & ((1 << INDEX_BITS) - 1));
    is_mark.then_some((id, index * MARK as u64))
}

pub(super) fn content(id: u64, length: usize) -> Vec<u8> {
    let marks = (0..length.div_ceil(MARK) as u64).flat_map(|index| mark(id, index));
    marks.take(length).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Bytes at a place that the client chose.
    Write,
    /// Bytes at a place that the shard chose.
    Append,
    /// A truncation to this size.
    Truncate(u64),
    /// Bytes that an append may have left at a place where it was tried and not done. They show
    /// where there would be a hole.
    Stray,
}

/// The number of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Number(pub(super) u64);

#[derive(Debug, Clone)]
pub(super) struct Operation {
    pub(super) id: u64,
    pub(super) client: usize,
    pub(super) kind: Kind,
    pub(super) at: Option<u64>,
    pub(super) bytes: Rc<Vec<u8>>,
    pub(super) begun: u64,
    pub(super) ended: Option<u64>,
    pub(super) is_unknown: bool,
}

impl Operation {
    pub(super) fn covers(&self, place: u64) -> bool {
        self.at
            .is_some_and(|at| (at..at + self.bytes.len() as u64).contains(&place))
    }

    /// Whether the operation gives this byte a value.
    pub(super) fn changes(&self, place: u64) -> bool {
        match self.kind {
            Kind::Write | Kind::Append => self.covers(place),
            Kind::Truncate(size) => size <= place,
            Kind::Stray => false,
        }
    }

    /// The end of the file that the operation makes, if it makes one.
    pub(super) fn end(&self) -> Option<u64> {
        match self.kind {
            Kind::Write | Kind::Append => Some(self.at? + self.bytes.len() as u64),
            Kind::Truncate(size) => Some(size),
            Kind::Stray => None,
        }
    }

    /// Whether the operation makes this byte exist (or, without `is_there`, not exist).
    pub(super) fn moves_end(&self, place: u64, is_there: bool) -> bool {
        let is_truncation = matches!(self.kind, Kind::Truncate(_));
        self.end()
            .is_some_and(|end| (end > place) == is_there && (is_there || is_truncation))
    }

    pub(super) fn is_before(&self, client: usize, begun: u64) -> bool {
        let is_own = self.client == client && self.begun < begun;
        !self.is_unknown && (is_own || self.ended.is_some_and(|ended| ended < begun))
    }

    pub(super) fn slice(&self, from: u64, to: u64) -> Option<&[u8]> {
        let at = self.at?;
        self.bytes.get((from - at) as usize..(to - at) as usize)
    }
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { id, client, .. } = self;
        let length = self.bytes.len();
        match (self.kind, self.at) {
            (Kind::Truncate(size), _) => write!(f, "#{id}: client {client} truncates to {size}")?,
            (Kind::Write, Some(at)) => write!(f, "#{id}: client {client} writes {at}+{length}")?,
            (_, Some(at)) => write!(f, "#{id}: client {client} appends {at}+{length}")?,
            (_, None) => write!(f, "#{id}: client {client} appends {length}")?,
        }
        let fate = match self.ended {
            _ if self.is_unknown => "unknown".to_owned(),
            Some(ended) => ended.to_string(),
            None => "..".to_owned(),
        };
        write!(f, " [{}-{fate}]", self.begun)
    }
}
