//! Options of a mount, from the command line, from mount(8) and from fstab.

use crate::exit::Failure;
use std::path::PathBuf;
use zonal_fuse::Flags;
use zonal_net::Transport;
use zonal_server::units::{ByteSize, Millis};
use zonal_types::limits::SECOND_COPY_MS_MAX;

/// All options of a mount.
#[derive(Debug, Clone)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent options of mount(8)"
)]
pub struct MountSettings {
    /// Folder or address of the cell.
    pub cell: String,
    /// Source in the mount table, if not [`MountSettings::cell`].
    pub source: Option<String>,
    /// Mount point.
    pub path: PathBuf,
    /// This machine's zone, if given.
    pub zone: Option<u16>,
    /// This machine's node, if given.
    pub node: Option<u32>,
    /// Credential file, if not the folder's.
    pub key_file: Option<PathBuf>,
    /// Protection of TCP connections.
    pub transport: Transport,
    /// Stay in the foreground.
    pub foreground: bool,
    /// Keep the kernel from caching names and attributes.
    pub no_cache: bool,
    /// Time for which cached names and attributes are used without asking, if nobody else writes.
    pub cache_time: Option<Millis>,
    /// Most bytes of gathered writes.
    pub write_behind: Option<ByteSize>,
    /// Deadline of a request.
    pub deadline: Option<Millis>,
    /// Wait for servers past the deadline.
    pub wait: bool,
    /// Time after which a read asks a second copy, ms.
    pub second_copy_ms: Option<u64>,
    /// Log file of the background process.
    pub log: Option<PathBuf>,
    /// Threads that serve the kernel.
    pub workers: Option<u16>,
    /// Report readiness on standard output.
    pub ready_on_stdout: bool,
    /// Mount flags: read only, no set-id bits, and others.
    pub flags: Flags,
    /// Other users than the owner of the mount may use it.
    pub allow_other: bool,
}

/// The reason why an option is refused.
#[derive(Debug)]
pub enum OptionError {
    /// Unknown option.
    Unknown(String),
    /// Bad value.
    Value(String),
    /// A mount cannot be changed.
    Remount,
}

impl From<OptionError> for Failure {
    fn from(error: OptionError) -> Self {
        let listed = "`zonal mount --help` lists options";
        let (text, hint) = match error {
            OptionError::Unknown(option) => (format!("mount option {option} is unknown"), listed),
            OptionError::Value(option) => (format!("mount option {option}: bad value"), listed),
            OptionError::Remount => (
                "a mounted cell cannot be remounted".to_owned(),
                "unmount it, and mount it with other options",
            ),
        };
        Self::new(2, text).hint(hint)
    }
}

/// Options for mount(8) and systemd only, and options that are always in effect.
const PASSED_OVER: &[&str] = &[
    "",
    "defaults",
    "auto",
    "noauto",
    "nouser",
    "nousers",
    "noowner",
    "nogroup",
    "_netdev",
    "nofail",
    "silent",
    "loud",
    "nomand",
    "iversion",
    "noiversion",
    "comment",
];

/// Parses a transport.
pub fn transport(word: &str) -> Option<Transport> {
    match word {
        "tls" => Some(Transport::Tls),
        "plain" => Some(Transport::Plain),
        _ => None,
    }
}

impl MountSettings {
    /// Default options.
    pub fn new(cell: String, path: PathBuf) -> Self {
        Self {
            cell,
            source: None,
            path,
            zone: None,
            node: None,
            key_file: None,
            transport: Transport::Tls,
            foreground: false,
            no_cache: false,
            cache_time: None,
            write_behind: None,
            deadline: None,
            wait: false,
            second_copy_ms: None,
            log: None,
            workers: None,
            ready_on_stdout: false,
            // A holder of the key can make files of any owner and kind: see docs/security.md.
            flags: Flags::SAFE,
            // fusermount refuses it to ordinary users, unless /etc/fuse.conf allows it.
            allow_other: rustix::process::geteuid().is_root(),
        }
    }

    /// Applies one `-o` option.
    pub fn apply(&mut self, option: &str) -> Result<(), OptionError> {
        if self.flags.apply(option) {
            return Ok(());
        }
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let bad = || OptionError::Value(option.to_owned());
        match name {
            "allow_other" => self.allow_other = true,
            "noallow_other" => self.allow_other = false,
            // mount(8) does not pass on suid and dev, which it considers the default.
            "allow_suid" => self.apply_all(&["suid"]),
            "allow_dev" => self.apply_all(&["dev"]),
            "no-cache" | "no_cache" => self.no_cache = true,
            "wait" => self.wait = true,
            "nowait" => self.wait = false,
            "zone" => {
                let zone = value.parse().ok().filter(|zone| *zone > 0);
                self.zone = Some(zone.ok_or_else(bad)?);
            }
            "node" => {
                let node = value.parse().ok().filter(|node| *node > 0);
                self.node = Some(node.ok_or_else(bad)?);
            }
            "key-file" | "key_file" => self.key_file = Some(value.into()),
            "transport" => self.transport = transport(value).ok_or_else(bad)?,
            "log" => self.log = Some(value.into()),
            "workers" => {
                let workers = value.parse().ok();
                let workers = workers.filter(|workers| (1..=256).contains(workers));
                self.workers = Some(workers.ok_or_else(bad)?);
            }
            "write-behind" | "write_behind" => {
                self.write_behind = Some(value.parse().map_err(|_error| bad())?);
            }
            "cache-time" | "cache_time" => {
                self.cache_time = Some(value.parse().map_err(|_error| bad())?);
            }
            "second-copy-ms" | "second_copy_ms" => {
                let ms = value.parse().ok();
                let ms = ms.filter(|ms| (0..=SECOND_COPY_MS_MAX).contains(ms));
                self.second_copy_ms = Some(ms.ok_or_else(bad)?);
            }
            "deadline" => self.deadline = Some(value.parse().map_err(|_error| bad())?),
            // As in mount(8): mounts by ordinary users are safe, unless a later word changes that.
            "user" | "users" => self.apply_all(&["noexec", "nosuid", "nodev"]),
            "owner" | "group" => self.apply_all(&["nosuid", "nodev"]),
            "remount" => return Err(OptionError::Remount),
            name if PASSED_OVER.contains(&name) => {}
            name if name.starts_with("x-") || name.starts_with("X-") => {}
            _ => return Err(OptionError::Unknown(option.to_owned())),
        }
        Ok(())
    }

    fn apply_all(&mut self, words: &[&str]) {
        for word in words {
            self.flags.apply(word);
        }
    }

    /// The command line of the background process.
    pub fn arguments(&self) -> Vec<String> {
        let mut list = vec![
            "mount".to_owned(),
            "--cell".to_owned(),
            self.cell.clone(),
            self.path.display().to_string(),
            "--foreground".to_owned(),
            "--ready-on-stdout".to_owned(),
        ];
        let mut option = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                list.extend([name.to_owned(), value]);
            }
        };
        option("--source", self.source.clone());
        option("--zone", self.zone.map(|zone| zone.to_string()));
        option("--node", self.node.map(|node| node.to_string()));
        option(
            "--key-file",
            self.key_file
                .as_ref()
                .map(|file| file.display().to_string()),
        );
        let plain = (self.transport == Transport::Plain).then(|| "plain".to_owned());
        option("--transport", plain);
        option(
            "--write-behind",
            self.write_behind.map(|size| size.to_string()),
        );
        option("--deadline", self.deadline.map(|time| time.to_string()));
        option(
            "--second-copy-ms",
            self.second_copy_ms.map(|ms| ms.to_string()),
        );
        option("--cache-time", self.cache_time.map(|time| time.to_string()));
        option("--workers", self.workers.map(|workers| workers.to_string()));
        let mut words: Vec<&str> = self.flags.words().collect();
        words.extend(self.flags.raised());
        words.extend(self.no_cache.then_some("no-cache"));
        words.extend(self.wait.then_some("wait"));
        words.push(if self.allow_other {
            "allow_other"
        } else {
            "noallow_other"
        });
        option("-o", Some(words.join(",")));
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(text: &str) -> MountSettings {
        let mut options = MountSettings::new("/cell".into(), "/mnt".into());
        for option in text.split(',') {
            options.apply(option).unwrap();
        }
        options
    }

    #[test]
    fn options_of_fstab_are_understood() {
        let mut options = given(
            "rw,nosuid,zone=2,workers=3,write-behind=1MiB,deadline=3s,_netdev,x-systemd.automount,noallow_other",
        );
        assert_eq!((options.zone, options.workers), (Some(2), Some(3)));
        assert!(matches!(
            options.apply("zone=0"),
            Err(OptionError::Value(_))
        ));
        assert!(matches!(
            options.apply("sync-everything"),
            Err(OptionError::Unknown(_))
        ));
        assert!(matches!(
            options.apply("remount"),
            Err(OptionError::Remount)
        ));
        let line = options.arguments().join(" ");
        assert!(
            line.contains("--zone 2") && line.ends_with("-o nosuid,nodev,noallow_other"),
            "{line}"
        );
    }

    #[test]
    fn every_option_of_mount_is_accepted() {
        let all = "defaults,auto,noauto,user=someone,nouser,users,owner,group,nofail,_netdev,silent,loud,nomand,iversion,noiversion,\
                   atime,noatime,diratime,nodiratime,relatime,norelatime,strictatime,nostrictatime,lazytime,nolazytime,sync,async,dirsync,\
                   comment=a b,x-systemd.requires=network-online.target,X-mount.mkdir,exec,noexec,suid,nosuid,dev,nodev,ro,rw";
        given(all);
    }

    #[test]
    fn user_mounts_are_safe_unless_a_later_option_changes_that() {
        let words = |text| given(text).flags.words().collect::<Vec<_>>();
        assert_eq!(words("users"), ["nosuid", "nodev", "noexec"]);
        assert_eq!(words("rw,user=someone,exec"), ["nosuid", "nodev"]);
        assert_eq!(words("owner"), ["nosuid", "nodev"]);
    }

    #[test]
    fn set_id_bits_and_devices_are_asked_for_and_passed_on() {
        for (text, words) in [
            ("rw,defaults", "nosuid,nodev"),
            ("suid", "nodev,suid"),
            ("dev", "nosuid,dev"),
            ("suid,dev", "suid,dev"),
            ("suid,dev,nosuid", "nosuid,dev"),
            ("allow_suid,users,allow_dev", "nosuid,noexec,dev"),
            ("allow_suid,allow_dev", "suid,dev"),
        ] {
            let line = given(text).arguments().join(" ");
            let (_, words_given) = line.split_once("-o ").unwrap();
            assert!(
                words_given.starts_with(&format!("{words},")),
                "{text}: {line}"
            );
            // The background process gets the same flags.
            assert_eq!(given(words_given).flags, given(text).flags, "{text}");
        }
    }

    #[test]
    fn only_roots_mounts_are_open_to_others() {
        let is_root = rustix::process::geteuid().is_root();
        assert_eq!(given("rw").allow_other, is_root);
        assert!(given("allow_other").allow_other);
    }
}
