//! The simulated host of a replica's driver: its disk, its messages and its signals. Bugs of
//! replicas are planted here.

use super::TICK_MS;
use super::peer_queues::PeerQueues;
use crate::checker::group_history::GroupHistory;
use crate::clock::ChangeSignal;
use crate::member_disk::{MemberDisk, MemberLog};
use crate::net::Network;
use crate::planted_bugs::Plant;
use std::rc::Rc;
use zonal_consensus::{LogEntry, LogIndex, Membership, PeerMessage, ReplicaId, Term, Vote};
use zonal_driver::ReplicaHost;
use zonal_types::{Blob, Codec, ErrorCode, Instant, KvChange};

type Changes = Vec<(Blob, Option<Blob>)>;

/// The host of a replica.
pub struct MemberHost {
    pub(super) own: ReplicaId,
    pub(super) disk: Rc<MemberDisk>,
    pub(super) queues: Rc<PeerQueues>,
    pub(super) flush_wanted: ChangeSignal,
    pub(super) changed: ChangeSignal,
    pub(super) history: Rc<GroupHistory>,
    pub(super) plant: Plant,
    pub(super) network: Rc<Network>,
    pub(super) address: String,
    /// The time of its opening, by the process's clock.
    pub(super) opened: Instant,
}

impl ReplicaHost for MemberHost {
    type Log = MemberLog;

    fn log(&self) -> MemberLog {
        MemberLog(self.disk.clone())
    }

    fn ticks(&self) -> u64 {
        let now = self.network.instant(&self.address);
        now.ms_since(self.opened) / TICK_MS
    }

    fn vote(&self) -> Vote {
        self.disk.vote()
    }

    fn applied(&self) -> (LogIndex, Term) {
        self.disk.applied_place()
    }

    fn save_vote(&self, vote: Vote) -> Result<(), ErrorCode> {
        self.disk.save_vote(vote);
        Ok(())
    }

    fn append(&self, entries: &[LogEntry]) -> Result<(), ErrorCode> {
        self.disk.append(entries);
        Ok(())
    }

    fn apply(&self, entry: &LogEntry, changes: Vec<KvChange>) {
        let applied = self.disk.apply(entry, changes);
        assert!(applied.is_ok(), "entries are applied in order");
    }

    fn note_members(&self, since: LogIndex, members: Membership) -> Result<(), ErrorCode> {
        self.disk.note_members(since, members);
        Ok(())
    }

    fn encode(&self, effect: &[KvChange]) -> Result<Vec<u8>, ErrorCode> {
        let pair = |one: &KvChange| (Blob(one.key.clone()), one.value.clone().map(Blob));
        Ok(effect.iter().map(pair).collect::<Changes>().to_bytes())
    }

    fn decode(&self, bytes: &[u8]) -> Result<Vec<KvChange>, ErrorCode> {
        let pairs = Changes::from_bytes(bytes).map_err(|_| ErrorCode::Corrupt)?;
        let change = |(key, value): (Blob, Option<Blob>)| KvChange {
            key: key.0,
            value: value.map(|value| value.0),
        };
        Ok(pairs.into_iter().map(change).collect())
    }

    fn send(&self, messages: Vec<PeerMessage>) {
        self.history.sends(self.own, &messages);
        self.queues.add(messages);
    }

    fn request_flush(&self) {
        self.flush_wanted.raise();
    }

    fn end_quarantine(&self) -> Result<(), ErrorCode> {
        self.history.released(self.own);
        self.disk.end_loss();
        Ok(())
    }

    fn note_change(&self) {
        self.changed.raise();
    }
}
