//! `mount.zonal`, which mount(8) runs for `mount -t zonal SOURCE PATH -o OPTIONS` and fstab: this program under another
//! name. Install it with: `ln -s /usr/local/bin/zonal /sbin/mount.zonal`.

use super::command::Options;
use crate::exit::Failure;
use std::ffi::OsString;
use std::path::Path;

/// The options of a mount, where the program was called as `mount.zonal`.
pub fn parse(arguments: &[OsString]) -> Option<anyhow::Result<Options>> {
    let name = Path::new(arguments.first()?).file_name()?.to_str()?;
    matches!(name, "mount.zonal" | "mount.fuse.zonal").then(|| read(&arguments[1..]))
}

/// `SOURCE PATH [-sfnv] [-N ns] [-t type] [-o options]`, in any order.
fn read(arguments: &[OsString]) -> anyhow::Result<Options> {
    let mut places = Vec::new();
    let mut words = Vec::new();
    let mut list = arguments.iter().map(|argument| argument.to_string_lossy());
    while let Some(argument) = list.next() {
        match argument.as_ref() {
            "-o" => words.extend(list.next()),
            "-t" | "-N" => drop(list.next()),
            flag if flag.starts_with('-') && flag.len() > 1 => {}
            place => places.push(place.to_owned()),
        }
    }
    let [source, path] = places.as_slice() else {
        let usage = "usage: mount.zonal DIR|ADDRESS PATH [-o OPTIONS]";
        return Err(Failure::new(2, usage).into());
    };
    let source = source.strip_prefix("zonal:").unwrap_or(source);
    let mut options = Options::new(source.to_owned(), path.into());
    for word in words.iter().flat_map(|words| words.split(',')) {
        options.apply(word)?;
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(text: &str) -> Option<anyhow::Result<Options>> {
        let words: Vec<OsString> = text.split(' ').map(OsString::from).collect();
        parse(&words)
    }

    #[test]
    fn the_name_decides() {
        assert!(call("/usr/bin/zonal status").is_none());
        let options = call("/sbin/mount.zonal 10.0.0.1:7100 /mnt -n -o rw,zone=2")
            .unwrap()
            .unwrap();
        assert_eq!((options.cell.as_str(), options.zone), ("10.0.0.1:7100", 2));
        assert_eq!(options.path, Path::new("/mnt"));
        assert!(call("mount.zonal /only-one").unwrap().is_err());
    }
}
