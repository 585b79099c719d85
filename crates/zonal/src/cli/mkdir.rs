//! `zonal mkdir`: makes a first-level directory in a chosen zone, by an extended attribute that the
//! mount handles on the parent.

use crate::exit::{Failure, NOT_FOUND};
use crate::mount::attributes;
use anyhow::Context;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Make directories homed in a zone
///
/// Only first-level directories of a cell choose their zone; deeper ones inherit it.
#[derive(Debug, clap::Args)]
pub struct MkdirHomed {
    /// The zone that the directory and all below it live in
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    zone: u16,
    /// Mode, in octal, before the umask
    #[arg(long, short, default_value = "777", value_parser = mode)]
    mode: u32,
    /// The directories, in a mounted cell
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

fn mode(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o7777)
        .ok_or_else(|| "an octal number up to 7777".to_owned())
}

impl MkdirHomed {
    pub fn run(self) -> anyhow::Result<()> {
        // The umask can only be read by setting it; no other thread runs here.
        let mask = rustix::process::umask(rustix::fs::Mode::empty());
        let mode = self.mode & !mask.as_raw_mode();
        for path in &self.paths {
            let path = std::path::absolute(path).context("path")?;
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
                return Err(Failure::new(
                    NOT_FOUND,
                    format!("{} names no directory", path.display()),
                )
                .into());
            };
            let mut value = format!("{} {mode:o} ", self.zone).into_bytes();
            value.extend_from_slice(name.as_bytes());
            attributes::set(parent, attributes::MKDIR, &value)
                .with_context(|| format!("make {}", path.display()))
                .map_err(|error| explain(error, self.zone))?;
            // The kernel may cache for a moment that the name is absent. A link(2) makes it look
            // the name up again; a directory cannot be linked, so the call makes nothing.
            let _ = std::fs::hard_link(parent, &path);
        }
        Ok(())
    }
}

/// Explains the errno: a mount returns ENXIO for an unknown zone, and EXDEV for a directory that
/// cannot have a home of its own.
fn explain(error: anyhow::Error, zone: u16) -> anyhow::Error {
    let errno = error
        .root_cause()
        .downcast_ref::<rustix::io::Errno>()
        .copied()
        .or_else(|| {
            let io = error.root_cause().downcast_ref::<std::io::Error>()?;
            rustix::io::Errno::from_io_error(io)
        });
    match errno {
        Some(rustix::io::Errno::NXIO) => {
            Failure::new(2, format!("{error:#}: the cell has no zone {zone}"))
                .hint("`zonal zone-map show` lists the zones")
                .into()
        }
        Some(rustix::io::Errno::XDEV) => Failure::new(
            2,
            format!("{error:#}: only first-level directories have a home of their own"),
        )
        .hint("make it directly below the mount point")
        .into(),
        _ => error,
    }
}
