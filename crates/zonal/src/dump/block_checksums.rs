//! The checksums of an index's blocks, compared with the blocks.

use super::printer::Printer;
use anyhow::Context;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::Path;
use zonal_basics::to_usize;
use zonal_types::describe::Described;

const PART: &str = "sums";
const BLOCK: u64 = 4096;

/// Shows how many blocks have a checksum, and each block that does not match its own.
pub fn show(dir: &Path, printer: &mut Printer) -> anyhow::Result<()> {
    let open = |name: &str| File::open(dir.join(name)).with_context(|| name.to_owned());
    let (mut sums, mut index) = (BufReader::new(open("index.sums")?), open("index.redb")?);
    let blocks = index.metadata().context("index.redb")?.len() / BLOCK;
    let (mut known, mut bad, mut block) = (0_u64, 0_u64, vec![0; to_usize(BLOCK)]);
    for number in 0..blocks {
        let mut sum = [0; 4];
        match sums.read_exact(&mut sum) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error).context("index.sums"),
        }
        index.read_exact(&mut block).context("index.redb")?;
        let sum = u32::from_le_bytes(sum);
        known += u64::from(sum != 0);
        if sum != 0 && number > 0 && sum != zonal_disk::index_checksums::sum(&block) {
            bad += 1;
            let at = Some(format!("@{}", number * BLOCK));
            printer.damage(PART, at, "the block of the index does not fit its checksum");
        }
    }
    let shown = Described::new("checksums of the index")
        .with("blocks", blocks)
        .with("known", known)
        .with("bad", bad);
    printer.entry(PART, None, &shown);
    Ok(())
}
