//! The manager of a group's map during one reign: the core of `zonal-zonemap` on the group's log,
//! in the steps of a server's manager role.
//!
//! The group's map is not the map of the simulated cell, which has one manager
//! ([`crate::meta_node`]).

use super::reign_log::ReignLog;
use crate::disk::VirtualDisk;
use crate::planted_bugs::Plant;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use zonal_driver::shard::Durability;
use zonal_types::{CellId, Codec, ErrorCode, MapVersion};
use zonal_wire::{ErrorNumber, ManagerReply, ManagerRequest};
use zonal_zonemap::{Manager, MapEdit, ZoneMap};

/// The cell of the group's map.
pub const GROUP_MAP: CellId = CellId([8; 16]);

/// The manager of one reign.
pub(super) struct MapReign {
    manager: RefCell<Manager>,
    disk: Rc<VirtualDisk>,
    log: ReignLog,
    plant: Plant,
}

impl MapReign {
    /// Loads the map from the state of the replica.
    pub(super) fn open(
        disk: Rc<VirtualDisk>,
        log: ReignLog,
        plant: Plant,
    ) -> Result<Self, ErrorCode> {
        Ok(Self {
            manager: RefCell::new(Manager::load(&*disk, GROUP_MAP)?),
            disk,
            log,
            plant,
        })
    }

    /// Answers a request.
    pub(super) async fn answer(&self, request: ManagerRequest) -> ManagerReply {
        let answered = self.answer_of_leader(request).await;
        answered.unwrap_or_else(|code| ManagerReply::Failed {
            code: ErrorNumber(code),
            detail: String::new(),
        })
    }

    async fn answer_of_leader(&self, request: ManagerRequest) -> Result<ManagerReply, ErrorCode> {
        let is_early = self.plant == Plant::MapsBeforeCommit;
        if !is_early {
            // A map that was loaded may not be durable yet.
            self.log.durable().await?;
        }
        let reply = match request {
            ManagerRequest::Edit { expected, edits } => {
                let map = self.edit(expected, &edits.0)?;
                if !is_early {
                    self.log.durable().await?;
                }
                self.manager.borrow_mut().flushed(&map);
                ManagerReply::At {
                    version: map.version,
                }
            }
            request => {
                let answered = self.manager.borrow_mut().answer_of_map(&request);
                answered.ok_or(ErrorCode::NotSupported)?
            }
        };
        if !is_early {
            self.log.settled(self.log.position()).await?;
        }
        Ok(reply)
    }

    fn edit(&self, expected: MapVersion, edits: &[u8]) -> Result<Arc<ZoneMap>, ErrorCode> {
        let edits = Vec::<MapEdit>::from_bytes(edits).map_err(|_garbled| ErrorCode::Protocol)?;
        let mut manager = self.manager.borrow_mut();
        let planned = manager.plan(&*self.disk, &edits, Vec::new(), Some(expected));
        let planned = planned.map_err(|_refused| ErrorCode::StaleEpoch)?;
        self.log.append(&planned.changes, Durability::Later)?;
        manager.logged(planned);
        Ok(Arc::clone(manager.newest()))
    }
}
