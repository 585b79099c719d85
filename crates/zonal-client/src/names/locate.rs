//! Locations of an inode's data, for schedulers.

use crate::client::ClientCall;
use crate::file::inline_bytes::end_of_inline;
use crate::transport::net::Net;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use zonal_types::{ErrorCode, FileKind, Ino, TargetId, ZoneId};

/// Where the data of an inode lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// Inode number.
    pub ino: Ino,
    /// The home zone.
    pub home: ZoneId,
    /// Bytes by zone.
    pub zones: BTreeMap<ZoneId, u64>,
    /// Bytes by target.
    pub targets: BTreeMap<TargetId, u64>,
    /// Version of the map that this was computed with.
    pub map_version: u64,
}

impl Located {
    /// One line of JSON (numbers only, so nothing needs quoting).
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut out = format!(
            "{{\"ino\":{},\"home_zone\":{},\"zones\":{{",
            self.ino.0, self.home
        );
        join(
            &mut out,
            self.zones
                .iter()
                .map(|(zone, bytes)| (u64::from(zone.0), *bytes)),
        );
        out.push_str("},\"targets\":{");
        join(
            &mut out,
            self.targets
                .iter()
                .map(|(target, bytes)| (u64::from(target.0), *bytes)),
        );
        // Writing to a string cannot fail.
        let _ = write!(out, "}},\"map_version\":{}}}", self.map_version);
        out
    }
}

fn join(out: &mut String, pairs: impl Iterator<Item = (u64, u64)>) {
    for (index, (key, value)) in pairs.enumerate() {
        let comma = if index > 0 { "," } else { "" };
        let _ = write!(out, "{comma}\"{key}\":{value}");
    }
}

impl<N: Net> ClientCall<'_, N> {
    /// Computes where an inode's data lies.
    ///
    /// # Errors
    /// `Stale` where the inode is gone.
    pub async fn locate(&self, ino: Ino) -> Result<Located, ErrorCode> {
        let (attr, data) = self.file_data(ino).await?;
        // Without the map's set the targets would be missing.
        if let (FileKind::File, Some(data)) = (attr.kind, &data) {
            self.known_pieces(data, 0, attr.size.max(1)).await?;
        }
        let map = self.map();
        let mut located = Located {
            ino,
            home: map.zone_of(ino).unwrap_or_default(),
            zones: BTreeMap::new(),
            targets: BTreeMap::new(),
            map_version: map.version.0,
        };
        if let (FileKind::File, Some(data)) = (attr.kind, data) {
            // Files of the root have the home that their client asked for.
            if let Some(component) = data.layout.components.first()
                && ino.partition() == Ino::ROOT.partition()
                && component.zone != ZoneId::CELL
            {
                located.home = component.zone;
            }
            let inline = end_of_inline(&data).min(attr.size);
            if inline > 0 {
                located.zones.insert(located.home, inline);
            }
            located.targets = self.bytes_by_target(&data, attr.size);
            for (target, bytes) in &located.targets {
                let zone = map
                    .target(*target)
                    .and_then(|target| map.node(target.node))
                    .map(|node| node.zone);
                *located.zones.entry(zone.unwrap_or_default()).or_default() += bytes;
            }
        }
        Ok(located)
    }
}
