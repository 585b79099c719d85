//! The small files beside a store's identity: `starts` and `power` (its notes about power loss).

use super::printer::Printer;
use std::path::Path;
use zonal_basics::to_hex;
use zonal_disk::power_loss;
use zonal_disk::start_marks::{self, Starts};
use zonal_types::describe::{Described, Field};

const PART: &str = "identity";

/// Shows the files that exist.
pub fn show(dir: &Path, printer: &mut Printer) {
    one(dir, start_marks::FILE_NAME, printer, |bytes| {
        let starts = Starts::decode(bytes)?;
        let proposed = starts.proposed.iter().map(|mark| mark.number);
        let shown = Described::new("starts")
            .with("taken", starts.taken.number)
            .with("tag", starts.taken.tag)
            .with("proposed", proposed.collect::<Field>());
        Some(shown)
    });
    one(dir, power_loss::FILE_NAME, printer, |bytes| {
        let note = power_loss::PowerNote::decode(bytes)?;
        let shown = Described::new("power")
            .with("kernel_boot", to_hex(&note.boot))
            .with("doubt", note.doubt)
            .with("verifier", note.verifier);
        Some(shown)
    });
}

fn one(dir: &Path, name: &str, printer: &mut Printer, decode: impl Fn(&[u8]) -> Option<Described>) {
    let bytes = match std::fs::read(dir.join(name)) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
        Err(error) => return printer.damage(PART, Some(name.to_owned()), &error.to_string()),
    };
    match decode(&bytes) {
        Some(described) => printer.entry(PART, None, &described),
        None => printer.damage(PART, Some(name.to_owned()), "cannot be decoded"),
    }
}
