//! The log's file from start to end: every valid header with its record.

use super::{entry, printer::Printer};
use anyhow::Context;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use zonal_basics::to_hex;
use zonal_disk::StoreKind;
use zonal_disk::identity::Stored;
use zonal_disk::log::{ALIGN, HEADER, RecordHeader, RecordKind};
use zonal_disk::record;
use zonal_types::describe::{Described, Field};

const PART: &str = "log";
/// Bytes in one read.
const WINDOW: usize = 1 << 20;

/// Shows the log's file, which may be in use.
pub fn show(path: &Path, stored: Option<&Stored>, printer: &mut Printer) -> anyhow::Result<()> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            printer.damage(PART, None, "the file is missing");
            return Ok(());
        }
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    };
    let length = file.metadata().context("log")?.len();
    if let Some(stored) = stored.filter(|stored| stored.log_bytes != length) {
        let text = format!("{length} bytes long, not {}", stored.log_bytes);
        printer.damage(PART, None, &text);
    }
    let mut at = 0;
    let mut window = vec![0; WINDOW];
    while at + HEADER as u64 <= length && printer.wants(PART) {
        let size = usize::try_from(length - at)
            .unwrap_or(usize::MAX)
            .min(WINDOW);
        let part = &mut window[..size];
        if let Err(error) = file.read_exact_at(part, at) {
            printer.damage(PART, Some(place(at)), &error.to_string());
            at += size.next_multiple_of(ALIGN) as u64;
            continue;
        }
        let mut skip = size;
        for step in (0..size.saturating_sub(HEADER - 1)).step_by(ALIGN) {
            let bytes = part.get(step..step + HEADER).unwrap_or_default();
            let Some(header) = RecordHeader::decode(bytes) else {
                continue;
            };
            let position = at + step as u64;
            if header.lsn % length != position {
                continue;
            }
            let taken = one(&file, position, length, &header, stored, printer);
            skip = step + taken;
            break;
        }
        at += skip.max(ALIGN) as u64;
    }
    Ok(())
}

fn place(offset: u64) -> String {
    format!("@{offset}")
}

/// Shows the record of a header; returns the bytes that it takes in the file.
fn one(
    file: &File,
    position: u64,
    length: u64,
    header: &RecordHeader,
    stored: Option<&Stored>,
    printer: &mut Printer,
) -> usize {
    let is_pad = header.kind == RecordKind::Pad;
    let mut shown = Described::new(if is_pad { "pad" } else { "record" })
        .with("lsn", header.lsn)
        .with("synced", header.synced)
        .with("epoch", header.epoch)
        .with("payload_bytes", header.payload_len);
    if header.dropped {
        shown = shown.with("dropped", true);
    }
    if stored.is_some_and(|stored| stored.tag() != header.store) {
        shown = shown.with("of_another_store", true);
    }
    let size = (HEADER + header.payload_len as usize).next_multiple_of(ALIGN);
    if is_pad {
        printer.entry(PART, Some(place(position)), &shown);
        return size;
    }
    if position + size as u64 > length {
        printer.damage(
            PART,
            Some(place(position)),
            "a record past the end of the file",
        );
        return ALIGN;
    }
    let mut payload = vec![0; header.payload_len as usize];
    if let Err(error) = file.read_exact_at(&mut payload, position + HEADER as u64) {
        printer.damage(PART, Some(place(position)), &error.to_string());
        return ALIGN;
    }
    if crc_fast::crc32_iscsi(&payload) != header.payload_crc {
        // No damage: after the log wrapped, a record of an earlier lap may be partly overwritten.
        shown = shown.with("contents", "overwritten or damaged");
        printer.entry(PART, Some(place(position)), &shown);
        return ALIGN;
    }
    let Some(record) = record::decode(&payload) else {
        printer.damage(
            PART,
            Some(place(position)),
            "its contents cannot be decoded",
        );
        return size;
    };
    let kind = stored.map(|stored| stored.identity.kind);
    let changes = record.changes.iter().map(|change| {
        let key = ("key", Field::from(to_hex(&change.key)));
        let Some(value) = &change.value else {
            return vec![("change", Field::from("remove")), key];
        };
        let put = ("change", Field::from("put"));
        match entry(kind, &change.key, value) {
            Some(what) => vec![put, key, (what.what, Field::Group(what.fields))],
            None => vec![put, key, ("value", Field::from(value.as_slice()))],
        }
    });
    shown = shown.with("changes", changes.collect::<Field>());
    if !record.note.is_empty() {
        let note = zonal_object::describe::note(&record.note);
        shown = match note {
            Ok(note) if kind == Some(StoreKind::Target) => shown.with("note", note.fields),
            _ => shown.with("note", record.note.as_slice()),
        };
    }
    printer.entry(PART, Some(place(position)), &shown);
    size
}
