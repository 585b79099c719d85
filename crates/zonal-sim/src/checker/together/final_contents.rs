//! Checks the final contents of a file, when no operation is under way any more: they must make
//! sense as a whole.

use super::operation::{Kind, Operation};
use super::{FileHistory, FileRead, MARK, UNIT};
use std::collections::BTreeSet;

/// Ends of the bytes that shards keep themselves.
const INLINE_ENDS: [u64; 1] = [4_096];

impl FileHistory {
    /// Checks the final contents, which [`Self::seen`] accepted, as a whole:
    ///
    /// * The end is where an operation put it, with bytes before it.
    /// * A truncation that met a piece of a write removed it as a whole, or not at all.
    /// * An append is at an end that the file had.
    ///
    /// # Errors
    /// A rule that the contents break.
    pub fn settled(&self, look: FileRead, content: &[u8]) -> Result<(), String> {
        let length = content.len() as u64;
        let strays = self.strays(content);
        let mut known = self.operations.iter().chain(&strays);
        let is_hole = content.last() == Some(&0);
        // Zeros at the end need an operation that set this size; bytes need one that ends there.
        let put = |of: &Operation| {
            let is_truncation = matches!(of.kind, Kind::Truncate(_));
            is_truncation && of.end() == Some(length) || !is_hole && is_edge(of, length)
        };
        if length != 0 && length != self.before.len() as u64 && !known.any(put) {
            let what = format!("the file ends at {length}, where no operation put its end");
            return Err(self.explain(look, &what, None));
        }
        for of in &self.operations {
            let what = if of.is_unknown || of.kind == Kind::Stray {
                None
            } else {
                self.torn(of, content)
                    .or_else(|| self.misplaced(of, content))
            };
            if let Some(what) = what {
                return Err(self.explain(look, &what, None));
            }
        }
        Ok(())
    }

    /// A piece of the operation that is there in part.
    fn torn(&self, of: &Operation, content: &[u8]) -> Option<String> {
        let (at, end) = (of.at?, of.at? + of.bytes.len() as u64);
        let units = (at / UNIT..=end / UNIT).map(|unit| unit * UNIT);
        let ends = units
            .chain(INLINE_ENDS)
            .filter(|edge| (at..end).contains(edge));
        let mut pieces: BTreeSet<u64> = ends.chain([at, end]).collect();
        // Before its client's truncation, the bytes before the new end were flushed. The rest was
        // gathered further, since the truncation failed.
        let splits =
            |truncation: &&Operation| truncation.is_unknown && truncation.client == of.client;
        let truncations = self.operations.iter().filter(splits);
        pieces.extend(
            truncations
                .filter_map(Operation::end)
                .filter(|edge| (at..end).contains(edge)),
        );
        let mut edges: BTreeSet<u64> = self.edges(&[], u64::MAX).into_iter().collect();
        edges.extend(&pieces);
        edges.insert(content.len() as u64);
        let edges: Vec<u64> = edges
            .into_iter()
            .filter(|edge| (at..=end).contains(edge))
            .collect();
        let is_append = |of: &Operation| matches!(of.kind, Kind::Append | Kind::Stray);
        let mut appends = self.operations.iter().filter(|of| is_append(of));
        let may_be_left = appends.any(|of| self.may_leave(of));
        let mut is_truncation = false;
        for edges in edges.windows(2) {
            let (from, to) = (edges[0], edges[1]);
            is_truncation &= !pieces.contains(&from);
            let hides = |other: &Operation| {
                other.id != of.id && other.covers(from) && !other.is_before(of.client, of.begun)
            };
            if self.operations.iter().any(hides) {
                continue;
            }
            let seen = content.get(from as usize..to as usize).unwrap_or_default();
            if Some(seen) != of.slice(from, to) {
                if seen.iter().any(|byte| *byte != 0) {
                    if may_be_left {
                        continue;
                    }
                    return Some(format!("#{} is there in part from {from} to {to}", of.id));
                }
                is_truncation = true;
            } else if is_truncation {
                return Some(format!("#{} has a hole before {from}", of.id));
            }
        }
        None
    }

    /// An append at a place where the file did not end.
    fn misplaced(&self, of: &Operation, content: &[u8]) -> Option<String> {
        let (at, ended) = (of.at?, of.ended?);
        let front = of.bytes.get(..MARK.min(of.bytes.len()))?;
        let is_there = content
            .get(at as usize..)
            .is_some_and(|there| there.starts_with(front));
        if self.is_loose || of.kind != Kind::Append || !is_there {
            return None;
        }
        // A truncation to a smaller size, before the append, leaves no end that was there before.
        let is_gone = |end: Option<&Operation>| {
            self.operations.iter().any(|truncation| {
                matches!(truncation.kind, Kind::Truncate(size) if size < at)
                    && truncation.begun < ended
                    && end.is_none_or(|end| end.is_before(truncation.client, truncation.begun))
            })
        };
        let ends_here = |end: &Operation| {
            let is_truncation = matches!(end.kind, Kind::Truncate(size) if size == at);
            end.id != of.id && (is_truncation || is_edge(end, at))
        };
        let mut ends = self.operations.iter().filter(|end| ends_here(end));
        let is_known = ends.any(|end| !is_gone(Some(end)))
            || (self.before.len() as u64 == at && !is_gone(None))
            || at == 0;
        (!is_known).then(|| format!("#{} is at {at}, where the file did not end", of.id))
    }
}

/// Whether the operation's bytes end here, or a piece of them that the shard learned of by itself.
fn is_edge(of: &Operation, place: u64) -> bool {
    let is_inner = place.is_multiple_of(UNIT) || INLINE_ENDS.contains(&place);
    let end = of.at.map(|at| at + of.bytes.len() as u64);
    end == Some(place) || (is_inner && of.covers(place))
}
