//! Remote calls: a request that needs another shard's answer ends with a question, and runs again
//! from its start with the answer.

use super::{MetaShard, Waiting};
use crate::config::Now;
use crate::outcome::{Outcome, PendingCall, Question};
use zonal_types::{ErrorCode, Ino, KvRead, ShardId};
use zonal_wire::storage::ErrorNumber;
use zonal_wire::{MetaReply, MetaRequest};

impl MetaShard {
    pub(super) fn ask(&mut self, shard: ShardId, ask: MetaRequest, call: PendingCall) -> Outcome {
        for ino in call.directories() {
            *self.asking.entry(ino).or_default() += 1;
        }
        let wake = std::mem::take(&mut self.woken).into_iter().collect();
        let request = ask;
        Outcome::Call {
            shard,
            request,
            call,
            wake,
        }
    }

    /// Resumes a request with another shard's answer to an [`Outcome::Call`] (`Failed` where there
    /// was none).
    pub fn resume(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        call: PendingCall,
        reply: MetaReply,
    ) -> Outcome {
        for ino in call.directories() {
            let left = self.asking.get(&ino).map_or(0, |count| count - 1);
            if left == 0 {
                self.asking.remove(&ino);
            } else {
                self.asking.insert(ino, left);
            }
        }
        let PendingCall {
            caller,
            from,
            request,
            asked,
            facts,
        } = call;
        let mut waited = Waiting {
            facts,
            ..Waiting::default()
        };
        let gone = MetaReply::Failed {
            code: ErrorNumber(ErrorCode::Stale),
        };
        match (asked, reply) {
            (Question::Make(shard), MetaReply::Detached { ino }) => {
                waited.facts.made = Some((shard, ino));
            }
            (Question::Detach(shard, ino), MetaReply::Done) => {
                waited.facts.detached = Some((shard, ino));
            }
            (Question::Detach(shard, ino), reply) if reply == gone => {
                waited.facts.detached = Some((shard, ino));
            }
            (Question::Attr(ino), MetaReply::Attr { attr, .. }) => {
                waited.facts.attrs.push((ino, Some(attr)));
            }
            (Question::Attr(ino), reply) if reply == gone => waited.facts.attrs.push((ino, None)),
            // A zone without targets cannot store a byte.
            (Question::Open(_), MetaReply::Sets { sets, .. }) if sets.is_empty() => {
                return self.fail(caller, &request, ErrorCode::NoSpace, &waited);
            }
            (Question::Open(zone), MetaReply::Sets { map_version, sets }) => {
                self.sets.opened(zone, map_version, sets);
            }
            // A set that is open already will do.
            (Question::Open(_), _) => self.sets.unanswered(now.instant),
            (Question::FirstLevel(name), MetaReply::Child { ino }) => {
                self.scopes.note_first(&name, ino, now.instant);
                waited.facts.has_asked_first = true;
            }
            (Question::FirstLevel(name), _) if self.scopes.keep_first(&name, now.instant) => {
                waited.facts.has_asked_first = true;
            }
            (Question::FirstLevel(_), _) => {
                return self.fail(caller, &request, ErrorCode::NotReady, &waited);
            }
            (_, MetaReply::Failed { code }) => return self.fail(caller, &request, code.0, &waited),
            _ => return self.fail(caller, &request, ErrorCode::Protocol, &waited),
        }
        self.handle_waited(kv, now, caller, from.as_ref(), &request, waited)
    }

    /// True where an unfinished request is about to make or remove the entry of this first-level
    /// directory.
    pub(crate) fn is_being_settled(&self, ino: Ino) -> bool {
        let mut waiting = self.waiting.values();
        waiting.any(|waiting| waiting.facts.directories().any(|of| of == ino))
            || self.asking.contains_key(&ino)
    }
}
