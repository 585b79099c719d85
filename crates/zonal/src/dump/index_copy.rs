//! One file of the copy of an index: its records, and the entries in them.

use super::{entry, printer::Printer};
use anyhow::Context;
use std::path::Path;
use zonal_basics::to_hex;
use zonal_disk::{CopyItem, StoreKind, identity, walk_copy};
use zonal_types::describe::Described;

const PART: &str = "copy";

/// Shows the file at `path` in the store's `folder`: all records, and entries whose keys begin with
/// `prefix`.
pub fn show(
    folder: &Path,
    path: &Path,
    prefix: &[u8],
    printer: &mut Printer,
) -> anyhow::Result<()> {
    let stored = identity::load(folder).ok().flatten();
    let kind = stored.map(|stored| stored.identity.kind);
    let mut place = String::new();
    walk_copy(path, &mut |found| {
        match found {
            CopyItem::Record {
                at,
                cycle,
                sequence,
                applied,
                epoch,
                slice,
                is_whole,
            } => {
                place = format!("@{at}");
                let shown = Described::new("record")
                    .with("cycle", cycle)
                    .with("sequence", sequence)
                    .with("applied", applied)
                    .with("epoch", epoch)
                    .with("slice_entries", slice)
                    .with("ends_cycle", is_whole);
                printer.entry(PART, Some(place.clone()), &shown);
            }
            CopyItem::Entry {
                of_slice,
                key,
                value,
            } => {
                if key.starts_with(prefix) {
                    one(kind, (of_slice, key, value), printer);
                }
            }
            CopyItem::Damaged => {
                printer.damage(PART, Some(place.clone()), "the record fails its checksum");
            }
            CopyItem::Rest { at, bytes } => {
                let text = format!("{bytes} bytes that are no record");
                printer.damage(PART, Some(format!("@{at}")), &text);
            }
        }
        printer.wants(PART)
    })
    .with_context(|| path.display().to_string())
}

fn one(
    kind: Option<StoreKind>,
    (of_slice, key, value): (bool, &[u8], Option<&[u8]>),
    printer: &mut Printer,
) {
    let from = if of_slice { "slice" } else { "changes" };
    let shown = match value {
        None => Described::new("removed"),
        Some(value) => match entry(kind, key, value) {
            Some(shown) => shown,
            None => return printer.damage(PART, Some(to_hex(key)), "the entry is none of ours"),
        },
    };
    printer.entry(PART, Some(to_hex(key)), &shown.with("from", from));
}
