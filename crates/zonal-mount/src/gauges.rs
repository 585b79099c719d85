//! Gauges of the mount process's memory, each with its bound: the value of the extended attribute
//! `zonal.gauges`.
//!
//! Every gauge `x`, except counts, has a companion `x_max`; docs/metrics.md lists them. A value
//! above its bound is a defect.

use crate::attribute_hints::HINTS_MAX;
use crate::background::JOBS_MAX;
use crate::fs::ZonalFs;
use crate::name_cache::NAMES_MAX;
use crate::ops_open::TOUCH_DUE_MAX;
use std::fmt::Write;
use std::sync::PoisonError;
use zonal_fuse::Context;
use zonal_types::limits::{LOCK_WAITERS_MAX, LOCKS_MAX, OPENS_MAX};

/// The largest write of the kernel: besides the gathered writes, each worker may hold one until it
/// is sent.
const WRITE_BYTES_MAX: u64 = 1 << 20;

impl ZonalFs {
    /// Name, value, bound.
    fn gauge_list(&self, ctx: &Context<'_>) -> Vec<(&'static str, u64, u64)> {
        let client = &self.client;
        let pool = client.net().pool();
        let shards = client.map().shards.len() as u64;
        let workers = self.workers as u64;
        let parked = u64::from(ctx.parked_workers());
        let gathered = client.options().write_behind_bytes as u64;
        let touch_due = {
            let due = self.touch_due.lock();
            due.unwrap_or_else(PoisonError::into_inner).len()
        };
        let shared = pool.shared_bytes();
        let owners = self.handle_locks.len();
        let mut list = vec![
            (
                "dirty_bytes",
                client.dirty_bytes() as u64,
                gathered + workers * WRITE_BYTES_MAX,
            ),
            ("hints", self.hints.len() as u64, HINTS_MAX as u64),
            ("names", self.names.len() as u64, NAMES_MAX as u64),
            ("touch_due", touch_due as u64, TOUCH_DUE_MAX as u64),
            (
                "tails",
                self.page_tails.len() as u64,
                shards * OPENS_MAX as u64 + workers,
            ),
            ("lock_owners", owners as u64, shards * LOCKS_MAX as u64),
            (
                "told_handles",
                self.handle_errors.len() as u64,
                shards * OPENS_MAX as u64,
            ),
            (
                "writers",
                self.write_handles.len() as u64,
                shards * OPENS_MAX as u64,
            ),
            (
                "waiting_locks",
                self.waiters.len() as u64,
                shards * LOCK_WAITERS_MAX as u64,
            ),
            ("queued_jobs", self.signal.queued() as u64, JOBS_MAX as u64),
            (
                "idle_connections",
                pool.idle_count() as u64,
                pool.idle_limit_count() as u64,
            ),
            ("shared_bytes", shared.0 as u64, shared.1 as u64),
            ("workers_active", workers.saturating_sub(parked), workers),
        ];
        list.extend(client.gauges());
        list
    }

    /// All gauges as one line of JSON.
    pub(crate) fn gauges(&self, ctx: &Context<'_>) -> String {
        let mut out = String::from("{");
        for (index, (name, value, max)) in self.gauge_list(ctx).into_iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            // Writing to a String cannot fail.
            let _ = write!(out, "{comma}\"{name}\":{value},\"{name}_max\":{max}");
        }
        let counts = self.expiries.counts().into_iter();
        for (name, count) in counts.chain(self.client.traffic_totals()) {
            let _ = write!(out, ",\"{name}\":{count}");
        }
        out.push_str(",\"directories\":[");
        for (index, entry) in self.client.directory_traffic().into_iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let (dir, bytes) = (entry.dir, entry.traffic);
            let _ = write!(
                out,
                "{comma}{{\"inode\":{},\"read_in_zone_bytes\":{},\"read_cross_zone_bytes\":{},\
                 \"written_in_zone_bytes\":{},\"written_cross_zone_bytes\":{}}}",
                dir.0,
                bytes.read_in_zone,
                bytes.read_cross_zone,
                bytes.written_in_zone,
                bytes.written_cross_zone,
            );
        }
        out.push_str("]}");
        out
    }
}
