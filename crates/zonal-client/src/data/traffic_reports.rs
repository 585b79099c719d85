//! Sends reports of traffic to the shards of the files (`cell/traffic_reports.rs`).

use crate::client::ClientCall;
use crate::transport::net::Net;
use crate::transport::retry::is_unsure;
use std::collections::BTreeSet;
use zonal_types::ErrorCode;
use zonal_wire::{MetaReply, MetaRequest};

impl<N: Net> ClientCall<'_, N> {
    /// Reports bytes of files to their shards, each with one attempt; true where some are late.
    ///
    /// It goes before closes: the shard keeps an open file that has lost its name, and so still
    /// knows its directory.
    pub(crate) async fn report_traffic(&self) -> bool {
        let map = self.map();
        let reports = self
            .traffic
            .reports
            .take(|file| map.shard_of(file.partition()).map(|shard| shard.id));
        // A shard that has not answered gets its further reports later, in their order.
        let mut silent = BTreeSet::new();
        for report in reports {
            let link = self.link(report.shard);
            let request = MetaRequest::ReportTraffic {
                number: report.number,
                traffic: report.files.clone(),
            };
            let told = if silent.contains(&report.shard) {
                Err(ErrorCode::Unreachable)
            } else if link.is_open() {
                let call = self.another();
                call.ask(&link, &request, None, self.net.now()).await
            } else {
                // Statistics open no session.
                Err(ErrorCode::UnknownSession)
            };
            match told {
                Ok(MetaReply::TrafficDirs { dirs }) => self.traffic.reports.counted(&report, &dirs),
                Err(code) if is_unsure(code) => {
                    silent.insert(report.shard);
                    self.traffic.reports.is_late(report);
                }
                _refused => self.traffic.reports.counted(&report, &[]),
            }
        }
        !silent.is_empty()
    }
}
