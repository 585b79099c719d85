//! Fences: a target refuses every request of a client incarnation that is over.
//!
//! A shard fences a client before it gives what the client held to others. For each client and
//! holder the store keeps the lowest incarnation that is served. The target checks it at the
//! admission of a request, and again at the plan and the commit of each change. A fence may arrive
//! in between.
//!
//! *Invariants*:
//!
//! 1. The lowest incarnation of a fence never falls.
//! 2. Memory and store hold the same fences, except for records that are not durable yet and
//!    therefore not acknowledged.
//!
//! *Bound*: `FENCES_MAX`; the fence that was raised longest ago is dropped.

use crate::ids::Sender;
use crate::index_value;
use crate::key;
use crate::note::{EffectRecord, Note};
use crate::target::StorageTarget;
use std::collections::BTreeMap;
use zonal_types::limits::FENCES_MAX;
use zonal_types::{ClientId, ErrorCode, Fence, HolderNumber, Incarnation, KvChange, codec_struct};

codec_struct! {
    /// A fence as stored.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct StoredFence {
        /// The lowest incarnation that is served.
        lowest: Incarnation,
        /// When it was last raised, as a count of raises.
        raised: u64,
    }
}

type Name = (ClientId, HolderNumber);

/// All fences of a target.
#[derive(Debug, Default)]
pub(crate) struct Fences {
    known: BTreeMap<Name, StoredFence>,
    order: BTreeMap<u64, Name>,
}

impl Fences {
    /// Loads a stored fence.
    pub(crate) fn load(&mut self, name: Name, record: StoredFence) {
        if let Some(before) = self.known.insert(name, record) {
            assert!(
                before.lowest <= record.lowest,
                "the lowest incarnation of a fence never falls"
            );
            self.order.remove(&before.raised);
        }
        self.order.insert(record.raised, name);
    }

    /// Number of fences.
    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }

    /// Admits a request of `sender`, unless its incarnation is over.
    ///
    /// # Errors
    /// `Fenced`.
    pub(crate) fn admit(&self, sender: Sender) -> Result<(), ErrorCode> {
        let Sender { identity, holder } = sender;
        if self.known.is_empty() || identity.client == ClientId(0) {
            return Ok(());
        }
        let nobody = HolderNumber(0);
        let is_over = |of: HolderNumber| {
            let known = self.known.get(&(identity.client, of));
            known.is_some_and(|known| identity.incarnation < known.lowest)
        };
        let over = if holder == nobody {
            // A sender without proof may be any holder of the client: every fence of the client
            // applies.
            let all = (identity.client, nobody)..=(identity.client, HolderNumber(u64::MAX));
            let mut fences = self.known.range(all);
            fences.any(|(_, known)| identity.incarnation < known.lowest)
        } else {
            is_over(holder) || is_over(nobody)
        };
        if over {
            zonal_types::mark!(FencedRefused);
            return Err(ErrorCode::Fenced);
        }
        Ok(())
    }

    /// Raises fences; returns the changes of the store.
    fn raise(&mut self, fences: &[Fence]) -> Vec<KvChange> {
        let mut changes = Vec::new();
        for fence in fences {
            let name = (fence.client, fence.holder);
            let known = self.known.get(&name);
            if known.is_some_and(|known| known.lowest >= fence.lowest) {
                continue;
            }
            let last = self.order.last_key_value().map_or(0, |(raised, _)| *raised);
            let record = StoredFence {
                lowest: fence.lowest,
                raised: last + 1,
            };
            self.load(name, record);
            let at = key::fence(fence.client, fence.holder);
            changes.push(KvChange::put(at.clone(), index_value::encode(&at, &record)));
            if self.known.len() > FENCES_MAX
                && let Some((_raised, oldest)) = self.order.pop_first()
            {
                self.known.remove(&oldest);
                changes.push(KvChange::remove(key::fence(oldest.0, oldest.1)));
            }
        }
        changes
    }
}

impl StorageTarget {
    /// Admits a request, unless its sender's incarnation is over.
    ///
    /// # Errors
    /// `Fenced`.
    pub fn admit(&self, sender: Sender) -> Result<(), ErrorCode> {
        self.fences.admit(sender)
    }

    /// Fences clients; returns the record to append. The caller acknowledges once it is durable.
    pub fn fence(&mut self, fences: &[Fence]) -> EffectRecord {
        EffectRecord {
            changes: self.fences.raise(fences),
            note: Note::default().encode(),
        }
    }

    /// Number of fences that the target keeps.
    #[must_use]
    pub fn fence_count(&self) -> usize {
        self.fences.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_types::ClientIdentity;

    fn fence(client: u64, holder: u64, lowest: u32) -> Fence {
        Fence {
            client: ClientId(client),
            holder: HolderNumber(holder),
            lowest: Incarnation(lowest),
        }
    }

    fn is_served(fences: &Fences, client: u64, holder: u64, incarnation: u32) -> bool {
        let identity = ClientIdentity {
            client: ClientId(client),
            incarnation: Incarnation(incarnation),
        };
        let holder = HolderNumber(holder);
        fences.admit(Sender { identity, holder }).is_ok()
    }

    #[test]
    fn lower_incarnations_are_refused_and_a_fence_never_falls() {
        let mut fences = Fences::default();
        assert!(is_served(&fences, 7, 0, 1));
        assert_eq!(fences.raise(&[fence(7, 0, 3)]).len(), 1);
        assert_eq!(fences.raise(&[fence(7, 0, 2), fence(7, 0, 3)]).len(), 0);
        assert!(!is_served(&fences, 7, 0, 2));
        assert!(is_served(&fences, 7, 0, 3));
        assert!(is_served(&fences, 8, 0, 1));
        // A fence of a session that needed no proof applies to every sender that names the client.
        assert!(!is_served(&fences, 7, 5, 2));
        // Servers and commands.
        assert!(fences.admit(Sender::default()).is_ok());
    }

    #[test]
    #[should_panic(expected = "the lowest incarnation of a fence never falls")]
    fn a_fence_that_falls_is_refused() {
        let mut fences = Fences::default();
        let record = |lowest| StoredFence {
            lowest: Incarnation(lowest),
            raised: 1,
        };
        fences.load((ClientId(7), HolderNumber(0)), record(3));
        fences.load((ClientId(7), HolderNumber(0)), record(2));
    }

    #[test]
    fn a_fence_of_a_subject_affects_no_other_subject() {
        let mut fences = Fences::default();
        fences.raise(&[fence(7, 5, u32::MAX)]);
        assert!(!is_served(&fences, 7, 5, 1));
        assert!(is_served(&fences, 7, 6, 1));
        // A sender that proved nothing may be that subject.
        assert!(!is_served(&fences, 7, 0, 1));
    }

    #[test]
    fn the_fence_raised_longest_ago_is_dropped() {
        let mut fences = Fences::default();
        for client in 1..=FENCES_MAX as u64 {
            fences.raise(&[fence(client, 0, 2)]);
        }
        fences.raise(&[fence(1, 0, 3)]);
        let changes = fences.raise(&[fence(u64::MAX, 0, 2)]);
        assert_eq!(changes.len(), 2);
        assert_eq!(
            changes[1],
            KvChange::remove(key::fence(ClientId(2), HolderNumber(0)))
        );
        assert_eq!(fences.len(), FENCES_MAX);
        assert!(!is_served(&fences, 1, 0, 2));
        assert!(is_served(&fences, 2, 0, 1));
    }
}
