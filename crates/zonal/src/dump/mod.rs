//! Stored structures in readable form, for `zonal dump`. On any input bytes it terminates and shows
//! as much as it can.

mod block_checksums;
mod index;
mod index_copy;
mod log;
mod printer;
mod segments;
mod starts_and_power;
mod stream;

pub use printer::Printer;

use crate::exit::{Failure, NOT_FOUND, REFUSED};
use anyhow::Context;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use zonal_basics::to_hex;
use zonal_basics::{HexError, from_hex};
use zonal_disk::identity::{self, FORMAT_VERSION, Stored};
use zonal_disk::{DiskError, StoreKind, trusted_paths};
use zonal_types::CellId;
use zonal_types::describe::Described;

/// A part of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum StorePart {
    /// The store's owner, its starts, and its notes about power loss.
    Identity,
    /// Every record in the log's file, old laps included.
    Log,
    /// The ordered store as it is now: index and log together.
    Index,
    /// The used part of each segment.
    Segments,
    /// The zone map (manager).
    Map,
}

/// A prefix of keys.
#[derive(Debug, Clone)]
pub struct Prefix(pub Vec<u8>);

impl std::str::FromStr for Prefix {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        parse_hex(text).map(Self)
    }
}

fn parse_hex(text: &str) -> Result<Vec<u8>, String> {
    from_hex(&text.replace(' ', "")).map_err(|error| match error {
        HexError::OddLength => "an even number of hexadecimal digits".to_owned(),
        HexError::NotADigit => "hexadecimal digits".to_owned(),
    })
}

/// Shows the stored structure at `path`.
pub fn path(
    path: &Path,
    part: Option<StorePart>,
    prefix: &[u8],
    printer: &mut Printer,
) -> anyhow::Result<()> {
    if path.is_dir() {
        return store(path, part, prefix, printer);
    }
    if !path.exists() {
        return Err(Failure::new(NOT_FOUND, format!("{} is not there", path.display())).into());
    }
    let folder = path.parent().unwrap_or(Path::new("."));
    let folder = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    let name = path.file_name().and_then(|name| name.to_str());
    if let Some(segment) = name.and_then(segments::number_of) {
        return index::segment(&folder.join(".."), segment, printer);
    }
    let part = match name {
        Some("identity" | "starts" | "power") => StorePart::Identity,
        Some("log") => StorePart::Log,
        Some("index.redb") => StorePart::Index,
        Some("index.sums") => return block_checksums::show(folder, printer),
        Some("copy.0" | "copy.1") => return index_copy::show(folder, path, prefix, printer),
        _ if is_stream(path)? => return stream::show(path, printer),
        _ => {
            let text = format!("{} is nothing that can be shown", path.display());
            return Err(Failure::new(REFUSED, text)
                .hint("name a store's folder, one of its files, or a stream")
                .into());
        }
    };
    store(folder, Some(part), prefix, printer)
}

fn is_stream(path: &Path) -> anyhow::Result<bool> {
    let mut magic = [0; 8];
    let mut file = File::open(path).with_context(|| path.display().to_string())?;
    Ok(file.read_exact(&mut magic).is_ok() && &magic == b"ZONALSTR")
}

fn store(
    dir: &Path,
    part: Option<StorePart>,
    prefix: &[u8],
    printer: &mut Printer,
) -> anyhow::Result<()> {
    trusted_paths::open(dir)?;
    let stored = match identity::load(dir) {
        Ok(stored) => stored,
        Err(error @ DiskError::Corrupt(_)) => {
            printer.damage("identity", None, &error.to_string());
            None
        }
        Err(error) => return Err(error).with_context(|| dir.display().to_string()),
    };
    let holds_something = ["identity", "log", "index.redb"]
        .iter()
        .any(|name| dir.join(name).exists());
    if !holds_something {
        let text = format!("{} holds no store", dir.display());
        return Err(Failure::new(NOT_FOUND, text).into());
    }
    let wants = |wanted: StorePart| part.is_none_or(|part| part == wanted);
    if wants(StorePart::Identity)
        && let Some(stored) = &stored
    {
        printer.entry("identity", None, &identity_of(stored));
    }
    if wants(StorePart::Identity) {
        starts_and_power::show(dir, printer);
    }
    if wants(StorePart::Log) {
        log::show(&dir.join("log"), stored.as_ref(), printer)?;
    }
    let of_index = [StorePart::Index, StorePart::Segments, StorePart::Map];
    if of_index.into_iter().any(wants) {
        index::show(dir, stored.as_ref(), part, prefix, printer)?;
    }
    Ok(())
}

fn identity_of(stored: &Stored) -> Described {
    Described::new("identity")
        .with("format", FORMAT_VERSION)
        .with("kind", stored.identity.kind.to_string())
        .with("cell", CellId(stored.identity.cell).to_string())
        .with("number", stored.identity.id)
        .with("uuid", to_hex(&stored.uuid))
        .with("log_bytes", stored.log_bytes)
}

/// Describes an entry of a store; if the store's kind is unknown, by the first kind that fits.
pub fn entry(kind: Option<StoreKind>, key: &[u8], value: &[u8]) -> Option<Described> {
    let of_shard = || {
        if key == zonal_server::SHARD_SCRUB_KEY {
            return zonal_server::describe_scrub(value);
        }
        zonal_zonemap::map_records::describe(key, value)
            .or_else(|| zonal_zonemap::junctions::describe(key, value))
            .or_else(|| zonal_server::describe_start(key, value))
            .or_else(|| zonal_server::describe_revoked(key, value))
            .or_else(|| zonal_server::describe_event(key, value))
            .or_else(|| zonal_server::describe_join_token(key, value))
            .or_else(|| zonal_server::describe_wanted_shards(key, value))
            .or_else(|| zonal_meta::describe::entry(key, value).ok())
    };
    let of_target = || {
        if key == zonal_server::SCRUB_KEY {
            zonal_server::describe_scrub(value)
        } else {
            zonal_object::describe::entry(key, value).ok()
        }
    };
    match kind {
        Some(StoreKind::Target) => of_target(),
        Some(StoreKind::Shard | StoreKind::Manager) => of_shard(),
        None => of_target().or_else(of_shard),
    }
}
