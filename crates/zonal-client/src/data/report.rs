//! Write reports: a flush tells the shard size, times and space, and sends the bytes that the shard
//! keeps.
//!
//! A flush sends one message. With `sync` the shard flushes its log before it replies, so that the
//! fsync of a small file is this one message.

use crate::client::ClientCall;
use crate::file::inline_bytes::InlineRun;
use crate::file::unsynced_writes::ReportedState;
use crate::file::{File, WriteReport};
use crate::transport::mutex::lock;
use crate::transport::net::Net;
use crate::transport::retry::leaves_gathered;
use zonal_types::{Blob, ErrorCode, kept_of};
use zonal_wire::{MetaReply, MetaRequest};

impl<N: Net> ClientCall<'_, N> {
    /// Reports size, times and space to the shard, with the bytes that the shard keeps. The caller
    /// holds the gate.
    pub(crate) async fn send_report(&self, file: &File<N>) -> Result<(), ErrorCode> {
        self.send_reports(file, false).await.map(|_synced| ())
    }

    /// As [`Self::send_report`]. `sync`: the shard also makes acknowledged changes durable. Returns
    /// its boot, if it was the same throughout.
    pub(crate) async fn send_reports(
        &self,
        file: &File<N>,
        sync: bool,
    ) -> Result<Option<u64>, ErrorCode> {
        let mut synced = None;
        // Almost always one report; several where inline bytes were written in several places.
        while let Some(boot) = self.send_report_once(file, sync).await? {
            synced = boot;
        }
        Ok(synced)
    }

    /// Sends one report; `None`: there was none to send.
    async fn send_report_once(
        &self,
        file: &File<N>,
        sync: bool,
    ) -> Result<Option<Option<u64>>, ErrorCode> {
        let (report, inline, truncate_seq) = {
            let mut state = file.state();
            let inline = state.take_inline();
            if inline.is_some() {
                state.report_mut();
            }
            state.reporting = state.report.take();
            (state.reporting, inline, state.data.truncate_seq)
        };
        let Some(report) = report else {
            return Ok(None);
        };
        let known = (report, truncate_seq);
        let outcome = self.report(file, known, inline.as_ref(), sync).await;
        // After a passing error the report is sent again later.
        let is_over = !outcome.is_err_and(leaves_gathered);
        self.inline_ended(file, inline.as_ref(), is_over);
        if is_over && let Err(code) = outcome {
            file.state().failures.note(code);
        }
        outcome.map(Some)
    }

    async fn report(
        &self,
        file: &File<N>,
        (report, truncate_seq): (WriteReport, u64),
        inline: Option<&InlineRun>,
        sync: bool,
    ) -> Result<Option<u64>, ErrorCode> {
        let link = self.reach(file.ino).await?;
        let count = lock(&link.changes).count();
        // If it fails, the repeated report begins with the bytes themselves.
        let size = report.size.max(inline.map_or(0, InlineRun::end));
        let request = MetaRequest::ReportWrite {
            ino: file.ino,
            size,
            truncate_seq,
            mtime: report.mtime,
            allocated_delta: report.allocated_delta,
            kill_suid: report.kill_suid,
            inline: match inline {
                Some(run) => Some(run.to_wire()),
                None if report.allocate > 0 => Some((report.allocate, Blob::default())),
                None => None,
            },
            sync,
        };
        let boot = link.boot();
        let is_forfeited = inline.is_some_and(|run| file.state().is_forfeited(run.batch()));
        let answer = match is_forfeited {
            true => Err(ErrorCode::Io),
            false => self.meta(&link, &request).await,
        };
        match answer {
            Ok(reply) => {
                self.note_own_change(file.ino, &reply);
                let mut state = file.state();
                state.reporting = None;
                let told = ReportedState {
                    size,
                    mtime: report.mtime,
                    truncate_seq,
                };
                state.unsynced.tell(boot, Some(told));
                if let MetaReply::Attr { attr, data, .. } = reply {
                    state.refresh(&attr, data);
                    state.left_of(truncate_seq, size);
                }
                let is_same = self
                    .link_of(file.ino)
                    .is_ok_and(|of| of.shard == link.shard);
                if !sync || link.boot() != boot || !is_same {
                    return Ok(None);
                }
                lock(&link.changes).synced(kept_of(boot), count);
                Ok(Some(boot))
            }
            Err(code) => {
                let mut state = file.state();
                state.reporting = None;
                if code == ErrorCode::Stale {
                    // The file is gone, and with it everything to report.
                    return Err(code);
                }
                let mut merged = state.report.unwrap_or_default();
                let size = state.left_of(truncate_seq, report.size);
                merged.size = merged.size.max(size);
                merged.mtime = merged.mtime.or(report.mtime);
                let allocated = &mut merged.allocated_delta;
                *allocated = allocated.saturating_add(report.allocated_delta);
                merged.kill_suid |= report.kill_suid;
                merged.allocate = merged.allocate.max(report.allocate);
                state.report = Some(merged);
                Err(code)
            }
        }
    }
}
