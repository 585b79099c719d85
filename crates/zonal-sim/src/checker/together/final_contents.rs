//! What is there when nothing is under way any more must make sense as a whole.

use super::operation::{Kind, Operation};
use super::{FileHistory, Look, MARK, UNIT};
use std::collections::BTreeSet;

/// Ends of what shards keep themselves.
const INLINE_ENDS: [u64; 1] = [4_096];

impl FileHistory {
    /// What is there when nothing is under way any more, as [`Self::seen`] found it, makes sense as
    /// a whole: the end is where an operation put it, with bytes there; a piece of a write that a
    /// truncation met is there or was cut; an append is at an end that the file had.
    ///
    /// # Errors
    /// What makes none.
    pub fn settled(&self, look: Look, content: &[u8]) -> Result<(), String> {
        let length = content.len() as u64;
        let strays = self.strays(content);
        let mut known = self.operations.iter().chain(&strays);
        let is_hole = content.last() == Some(&0);
        // Zeros at the end are where somebody set it; bytes are where somebody's end.
        let put = |of: &Operation| {
            let is_cut = matches!(of.kind, Kind::Cut(_));
            is_cut && of.end() == Some(length) || !is_hole && is_edge(of, length)
        };
        if length != 0 && length != self.before.len() as u64 && !known.any(put) {
            let what = format!("the file ends at {length}, where nobody put its end");
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

    /// A piece of the operation that is neither there nor cut.
    fn torn(&self, of: &Operation, content: &[u8]) -> Option<String> {
        let (at, end) = (of.at?, of.at? + of.bytes.len() as u64);
        let units = (at / UNIT..=end / UNIT).map(|unit| unit * UNIT);
        let ends = units
            .chain(INLINE_ENDS)
            .filter(|edge| (at..end).contains(edge));
        let mut pieces: BTreeSet<u64> = ends.chain([at, end]).collect();
        // Before its client cut the file what lay before the new end was flushed; the rest was
        // gathered on, as the cut did not succeed.
        let splits = |cut: &&Operation| cut.is_unknown && cut.client == of.client;
        let cuts = self.operations.iter().filter(splits);
        pieces.extend(
            cuts.filter_map(Operation::end)
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
        let mut is_cut = false;
        for edges in edges.windows(2) {
            let (from, to) = (edges[0], edges[1]);
            is_cut &= !pieces.contains(&from);
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
                is_cut = true;
            } else if is_cut {
                return Some(format!("#{} has a hole before {from}", of.id));
            }
        }
        None
    }

    /// An append that is there, at a place where the file did not end.
    fn misplaced(&self, of: &Operation, content: &[u8]) -> Option<String> {
        let (at, ended) = (of.at?, of.ended?);
        let front = of.bytes.get(..MARK.min(of.bytes.len()))?;
        let is_there = content
            .get(at as usize..)
            .is_some_and(|there| there.starts_with(front));
        if self.is_loose || of.kind != Kind::Append || !is_there {
            return None;
        }
        // A truncation that cut the file to less, before the append since it is there, leaves no
        // end that was there before.
        let is_gone = |end: Option<&Operation>| {
            self.operations.iter().any(|cut| {
                matches!(cut.kind, Kind::Cut(size) if size < at)
                    && cut.begun < ended
                    && end.is_none_or(|end| end.is_before(cut.client, cut.begun))
            })
        };
        let ends_here = |end: &Operation| {
            let is_cut = matches!(end.kind, Kind::Cut(size) if size == at);
            end.id != of.id && (is_cut || is_edge(end, at))
        };
        let mut ends = self.operations.iter().filter(|end| ends_here(end));
        let is_known = ends.any(|end| !is_gone(Some(end)))
            || (self.before.len() as u64 == at && !is_gone(None))
            || at == 0;
        (!is_known).then(|| format!("#{} is at {at}, where the file did not end", of.id))
    }
}

/// The bytes of an operation, or a piece of them that the shard was told of by itself, end here.
fn is_edge(of: &Operation, place: u64) -> bool {
    let is_inner = place.is_multiple_of(UNIT) || INLINE_ENDS.contains(&place);
    let end = of.at.map(|at| at + of.bytes.len() as u64);
    end == Some(place) || (is_inner && of.covers(place))
}
