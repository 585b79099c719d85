//! The log of a group, as its shard uses it during one reign of this replica. Also the life of a
//! replica between two openings of its disk.

use super::member_host::MemberHost;
use crate::checker::group_history::{GroupHistory, MemberHistory};
use crate::net::Task;
use crate::planted_bugs::Plant;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use zonal_consensus::{LogIndex, PeerMessage, Term};
use zonal_driver::ReplicaDriver;
use zonal_driver::shard::Durability;
use zonal_types::{ErrorCode, KvChange};
use zonal_wire::MetaReply;

/// Entries that may wait for their commit before the shard takes no more requests.
const UNCOMMITTED_MAX: u64 = 4_096;

/// A replica between two openings of its disk. The history sees it after each step.
pub(super) struct ReplicaLife {
    pub(super) driver: ReplicaDriver<MemberHost>,
    shown: RefCell<MemberHistory>,
}

impl ReplicaLife {
    pub(super) fn new(driver: ReplicaDriver<MemberHost>) -> Self {
        let life = Self {
            driver,
            shown: RefCell::default(),
        };
        life.look();
        life
    }

    pub(super) fn host(&self) -> &MemberHost {
        self.driver.host()
    }

    fn history(&self) -> &GroupHistory {
        &self.host().history
    }

    /// Shows the replica to the history.
    pub(super) fn look(&self) {
        if self.driver.end().is_some() {
            // Its disk may lack entries that it knows as committed.
            return;
        }
        let status = self.driver.status();
        let mut shown = self.shown.borrow_mut();
        self.history().look(self.host().own, &status, &mut shown);
    }

    pub(super) fn tick(&self) {
        self.driver.tick();
        self.look();
    }

    /// Takes messages in; those that are refused are dropped.
    pub(super) fn take_in(&self, messages: &[PeerMessage]) {
        let (host, history) = (self.host(), self.history());
        for message in messages {
            if message.released == host.disk.openings() {
                history.tells_release(host.own);
            }
            // Refused: of one that left, or of before a loss.
            let _refused = self.driver.receive(std::slice::from_ref(message));
            self.look();
        }
    }
}

/// A group's log during one reign.
#[derive(Clone)]
pub struct ReignLog {
    life: Rc<ReplicaLife>,
    reign: Term,
    /// Everything up to here must be durable before a reply leaves.
    at_once: Rc<Cell<u64>>,
}

impl ReignLog {
    pub(super) fn new(life: Rc<ReplicaLife>, reign: Term) -> Self {
        Self {
            life,
            reign,
            at_once: Rc::default(),
        }
    }

    fn driver(&self) -> &ReplicaDriver<MemberHost> {
        &self.life.driver
    }

    /// Appends a record.
    pub(crate) fn append(
        &self,
        changes: &[KvChange],
        durability: Durability,
    ) -> Result<(), ErrorCode> {
        let appended = self.driver().append(self.reign, changes);
        self.life.look();
        let index = appended.inspect_err(|code| {
            if *code != ErrorCode::NotOwner {
                self.driver().fail(*code);
            }
        })?;
        if durability == Durability::AtOnce {
            self.at_once.set(self.at_once.get().max(index.0));
        }
        Ok(())
    }

    pub(crate) fn position(&self) -> LogIndex {
        self.driver().position()
    }

    /// Waits until replies that depend on the records up to here may leave.
    pub(crate) async fn settled(&self, upto: LogIndex) -> Result<(), ErrorCode> {
        let host = self.life.host();
        match host.plant {
            Plant::RepliesBeforeCommit => return Ok(()),
            Plant::LeasesAreIgnored if self.driver().status().committed >= upto => {}
            _ => {
                let at_once = LogIndex(self.at_once.get());
                if at_once > LogIndex(0) {
                    self.driver().durable(self.reign, at_once).await?;
                }
                self.driver().settled(self.reign, upto).await?;
            }
        }
        self.life.history().settles(host.own, self.reign);
        Ok(())
    }

    /// Waits until a majority has flushed everything so far.
    pub(crate) async fn durable(&self) -> Result<(), ErrorCode> {
        let last = self.driver().position();
        self.driver().durable(self.reign, last).await
    }

    pub(crate) fn is_congested(&self) -> bool {
        self.driver().uncommitted() > UNCOMMITTED_MAX
    }

    /// Runs a request, and shows its reply to the history. `appended` counts the records of the
    /// process.
    pub(crate) fn watch(
        self,
        mut task: Task<MetaReply>,
        name: &'static str,
        appended: Rc<Cell<u64>>,
    ) -> Task<MetaReply> {
        Box::pin(async move {
            // A reply depends on everything before its decision, which is not before this.
            let mut upto = self.position();
            let reply = poll_fn(|context| {
                let before = appended.get();
                let polled = task.as_mut().poll(context);
                if appended.get() > before {
                    upto = self.position();
                }
                polled
            })
            .await;
            if !matches!(
                reply,
                MetaReply::Failed { .. } | MetaReply::NotLeader { .. }
            ) {
                let (host, status) = (self.life.host(), self.driver().status());
                let is_sync = matches!(reply, MetaReply::Synced { .. });
                let asked = (host.own, name);
                host.history.replies(asked, upto, &status, is_sync);
            }
            reply
        })
    }
}
