//! Clients whose sessions expired, until the node's watch tells the manager.

use std::sync::{Mutex, PoisonError};
use zonal_meta::LostClient;

/// Clients kept; of more the newest are left out.
const LOST_MAX: usize = 64;

/// The list.
#[derive(Default)]
pub(super) struct LostClients(Mutex<Vec<LostClient>>);

impl LostClients {
    pub(super) fn add(&self, client: LostClient) {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if list.len() < LOST_MAX {
            list.push(client);
        }
    }

    pub(super) fn take(&self) -> Vec<LostClient> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
