//! `mount.zonal`: this program under another name, which mount(8) runs for `mount -t zonal SOURCE
//! PATH -o OPTIONS` and for fstab.
//!
//! Install it with `ln -s /usr/local/bin/zonal /sbin/mount.zonal`. As `mount.fuse.zonal`, mount(8)
//! runs it for a mounted file system, `mount -o remount`. Its exit codes are mount(8)'s.

use super::command;
use super::options::{MountSettings, OptionError};
use crate::console;
use crate::exit::Failure;
use anyhow::Context;
use rustix::thread::LinkNameSpaceType;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "usage: mount.zonal [-sfnv] [-N NAMESPACE] DIR|ADDRESS PATH [-o OPTIONS]";

/// Exit code of this program for wrong usage.
const WRONG_USAGE: u8 = 2;
/// Exit code for mount(8): wrong usage.
const MOUNT_USAGE: u8 = 1;
/// Exit code for mount(8): the mount failed.
const MOUNT_FAILED: u8 = 32;

/// A parsed call by mount(8).
#[derive(Debug)]
struct Call {
    options: MountSettings,
    /// Only check whether the mount is possible.
    is_fake: bool,
    /// Print the actions.
    is_verbose: bool,
    /// The mount name space to mount in.
    namespace: Option<PathBuf>,
}

/// Whether the program was called as `mount.zonal`.
pub fn is_called(arguments: &[OsString]) -> bool {
    let name = arguments
        .first()
        .and_then(|first| Path::new(first).file_name());
    name.is_some_and(|name| name == "mount.zonal" || name == "mount.fuse.zonal")
}

/// Maps an exit code of this program to mount(8)'s.
pub fn exit_code(code: u8) -> ExitCode {
    ExitCode::from(if code == WRONG_USAGE {
        MOUNT_USAGE
    } else {
        MOUNT_FAILED
    })
}

/// Mounts as mount(8) requests.
pub fn run(arguments: &[OsString]) -> anyhow::Result<()> {
    let call = read(&arguments[1..])?;
    if let Some(path) = &call.namespace {
        let file = std::fs::File::open(path).with_context(|| path.display().to_string())?;
        rustix::thread::move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Mount))
            .with_context(|| format!("enter the name space {}", path.display()))?;
    }
    if call.is_fake {
        command::check_point(&call.options.path)?;
    } else {
        command::run(&call.options)?;
    }
    if call.is_verbose {
        let (cell, path) = (&call.options.cell, call.options.path.display());
        let done = if call.is_fake { "could be" } else { "is" };
        console::line(format_args!("mount.zonal: {cell} {done} mounted on {path}"));
    }
    Ok(())
}

/// `SOURCE PATH [-sfnv] [-N namespace] [-t type] [-o options]`, in any order.
fn read(arguments: &[OsString]) -> Result<Call, Failure> {
    let usage = |text: String| Failure::new(WRONG_USAGE, text).hint(USAGE);
    let mut places = Vec::new();
    let mut words = Vec::new();
    let (mut is_sloppy, mut is_fake, mut is_verbose) = (false, false, false);
    let mut namespace = None;
    let mut list = arguments.iter().map(|argument| argument.to_string_lossy());
    while let Some(argument) = list.next() {
        let mut value = || {
            let next = list.next();
            next.ok_or_else(|| usage(format!("{argument} lacks its value")))
        };
        match argument.as_ref() {
            "-o" => words.push(value()?),
            "-t" => drop(value()?),
            "-N" => namespace = Some(PathBuf::from(value()?.into_owned())),
            flags if flags.starts_with('-') && flags.len() > 1 => {
                for flag in flags.chars().skip(1) {
                    match flag {
                        's' => is_sloppy = true,
                        'f' => is_fake = true,
                        'v' => is_verbose = true,
                        // No /etc/mtab is written anyway.
                        'n' => {}
                        'r' => words.push("ro".into()),
                        'w' => words.push("rw".into()),
                        other => return Err(usage(format!("-{other} is unknown"))),
                    }
                }
            }
            place => places.push(place.to_owned()),
        }
    }
    let [source, path] = places.as_slice() else {
        return Err(usage("a source and a mount point are needed".to_owned()));
    };
    let cell = source.strip_prefix("zonal:").unwrap_or(source);
    let mut options = MountSettings::new(cell.to_owned(), path.into());
    options.source = Some(source.clone());
    for word in words.iter().flat_map(|words| separate(words)) {
        match options.apply(&word) {
            Err(OptionError::Unknown(_)) if is_sloppy => {}
            applied => applied?,
        }
    }
    Ok(Call {
        options,
        is_fake,
        is_verbose,
        namespace,
    })
}

/// Splits a list of options. Text in double quotes may contain commas, as in fstab and mount(8).
fn separate(words: &str) -> Vec<String> {
    let mut options = vec![String::new()];
    let mut is_quoted = false;
    for letter in words.chars() {
        match letter {
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => options.push(String::new()),
            other => options
                .last_mut()
                .into_iter()
                .for_each(|word| word.push(other)),
        }
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn the_program_name_selects_the_mount_helper() {
        assert!(!is_called(&words("/usr/bin/zonal status")));
        assert!(is_called(&words("/sbin/mount.zonal a /b")));
    }

    #[test]
    fn arguments_of_mount_are_parsed() {
        let call = read(&words(
            "10.0.0.1:7100 /mnt -n -v -o rw,zone=2 -N /proc/7/ns/mnt",
        ))
        .unwrap();
        let options = &call.options;
        assert_eq!(
            (options.cell.as_str(), options.zone),
            ("10.0.0.1:7100", Some(2))
        );
        assert_eq!(options.path, Path::new("/mnt"));
        assert!(call.is_verbose && !call.is_fake);
        assert_eq!(call.namespace, Some("/proc/7/ns/mnt".into()));
        let call = read(&words("-sf zonal:10.0.0.1:7100 /mnt -o odd=1,ro")).unwrap();
        assert!(call.is_fake && call.options.flags.is_read_only());
        assert_eq!(call.options.cell, "10.0.0.1:7100");
        assert_eq!(call.options.source.as_deref(), Some("zonal:10.0.0.1:7100"));
    }

    #[test]
    fn a_comma_in_quotes_is_part_of_its_option() {
        let list = separate("ro,key-file=\"/etc/a,b\",zone=2");
        assert_eq!(list, ["ro", "key-file=/etc/a,b", "zone=2"]);
        assert_eq!(separate("comment=\"a b"), ["comment=a b"]);
    }

    #[test]
    fn wrong_calls_are_refused() {
        for text in [
            "/only-one",
            "a /b c",
            "a /b -o odd=1",
            "a /b -o",
            "a /b -x",
            "a /b -s -o zone=0",
        ] {
            assert!(read(&words(text)).is_err(), "{text}");
        }
    }
}
