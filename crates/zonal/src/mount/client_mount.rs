//! The mount itself: the client core joined with the kernel's FUSE protocol.

use super::command::ReadyNotice;
use super::options::MountSettings;
use super::unmount_status::UnmountStatusServer;
use crate::cell::CellHandle;
use crate::exit::{FAILED, Failure, UNREACHABLE, with_causes};
use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::mpsc;
use zonal_fuse::{MountOptions, SessionConfig};
use zonal_mount::{MountConfig, MountStartError, Mounted};
use zonal_net::{Identity, PoolConfig, Role};
use zonal_types::limits::NAME_BYTES_MAX;
use zonal_types::{ClientId, ErrorCode, EscapedName, NodeId, OneLine, ZoneId};

/// Reason for the end of a mount.
enum End {
    Gone,
    Signal,
}

/// Mounts `cell` with `options` and calls [`ReadyNotice::mounted`] when the mount answers.
///
/// Returns after the unmount, or after SIGTERM or SIGINT, when all written data is flushed.
#[expect(
    clippy::needless_pass_by_value,
    reason = "the mount owns what it runs with"
)]
pub fn run(
    options: &MountSettings,
    cell: CellHandle,
    me: (ZoneId, NodeId, u64),
    ready: ReadyNotice,
) -> anyhow::Result<()> {
    zonal_server::logging::start("info");
    let config = config(options, &cell, me)?;
    let mounted = Mounted::start(&options.path, config).map_err(|error| failure(&error, &cell))?;
    let (tell, ended) = mpsc::channel();
    let tell_gone = tell.clone();
    // The receiver lives as long as this function; afterwards nobody needs the message.
    mounted
        .fs()
        .when_gone(move || drop(tell_gone.send(End::Gone)));
    if mounted.is_ended() {
        drop(tell.send(End::Gone));
    }
    let mut signals =
        signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP]).context("signals")?;
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            if signals.forever().next().is_some() {
                drop(tell.send(End::Signal));
            }
        })?;
    // Before the mount is announced: if its process is killed from then on, the guard is there.
    if let Err(error) = super::guard::start(&options.path) {
        ready.tell(&format!(
            "no process guards the mount; if it is killed, it may have to be unmounted by force: {error}"
        ));
    }
    let farewell = UnmountStatusServer::start(mounted.fs());
    ready.mounted()?;
    let end = ended.recv();
    farewell.ending();
    let outcome = match end {
        Ok(End::Signal) => mounted.unmount().context("unmounting"),
        Ok(End::Gone) | Err(_) => {
            mounted.wait();
            Ok(())
        }
    };
    farewell.over();
    outcome
}

fn config(
    options: &MountSettings,
    cell: &CellHandle,
    (zone, node, client): (ZoneId, NodeId, u64),
) -> anyhow::Result<MountConfig> {
    let managers = cell.manager_list();
    let mut core = zonal_client::ClientOptions::of_managers(managers, zone, ClientId(client));
    core.cell = cell.id;
    core.node = node;
    core.cache = !options.no_cache;
    let credential = cell.credential.as_ref();
    if let Some(scope) = credential.and_then(|credential| credential.subject().scope()) {
        core.lists_as_root = scope.uids.is_none() && !scope.squashes_root;
    }
    if let Some(time) = options.cache_time {
        let ms = u32::try_from(time.0).ok().filter(|ms| *ms <= 3_600_000);
        core.exclusive_ms = ms.ok_or_else(|| {
            let text = format!("--cache-time {time} is not between 0 s and 1 h");
            Failure::new(2, text)
        })?;
    }
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    core.name = name(&options.path, &host);
    if let Some(size) = options.write_behind {
        core.write_behind_bytes = usize::try_from(size.0).unwrap_or(usize::MAX);
        core.write_behind_file_bytes = core.write_behind_file_bytes.min(core.write_behind_bytes);
    }
    if let Some(deadline) = options.deadline {
        if !(1_000..=60_000).contains(&deadline.0) {
            let text = format!("--deadline {deadline} is not between 1 s and 60 s");
            return Err(Failure::new(2, text).into());
        }
        core.deadline_ms = deadline.0;
        core.attempt_ms = deadline.0;
    }
    core.waits = options.wait;
    core.second_copy_ms = options.second_copy_ms.unwrap_or(core.second_copy_ms);
    let mut session = SessionConfig {
        check_permissions: true,
        ..SessionConfig::default()
    };
    if let Some(workers) = options.workers {
        session.workers = workers.into();
    }
    Ok(MountConfig {
        client: core,
        identity: Identity::new(cell.id, Role::Client, NodeId(0), cell.credential.clone())
            .with_transport(options.transport),
        pool: PoolConfig::default(),
        mount: MountOptions {
            source: options.source.clone().unwrap_or(options.cell.clone()),
            subtype: "zonal".to_owned(),
            allow_other: options.allow_other,
            flags: options.flags,
            ..MountOptions::default()
        },
        session,
    })
}

/// The name that a mount's sessions show to people. A shard accepts a limited length, so the start
/// of the path is cut off.
fn name(path: &Path, host: &str) -> String {
    // A shard also refuses names with unprintable letters.
    let (path, host) = (
        EscapedName(path.as_os_str().as_bytes()).to_string(),
        OneLine(host).to_string(),
    );
    let name = format!("mount {path} on {host}");
    if name.len() <= NAME_BYTES_MAX {
        return name;
    }
    // A host name has at most 64 bytes.
    let kept = NAME_BYTES_MAX.saturating_sub("mount ... on ".len() + host.len());
    let start = path.len().saturating_sub(kept);
    let end = (start..path.len()).find_map(|start| path.get(start..));
    format!("mount ...{} on {host}", end.unwrap_or_default())
}

fn failure(error: &MountStartError, cell: &CellHandle) -> Failure {
    match error {
        MountStartError::Connect(code) => Failure::new(
            UNREACHABLE,
            format!(
                "the manager at {} does not give the zone map: {code}",
                cell.managers_text()
            ),
        )
        .hint(match code {
            ErrorCode::Unauthenticated => {
                "name this machine's credential with --key-file; `zonal key create` makes one"
            }
            ErrorCode::WrongCell => "another cell answers at that address: check --cell",
            _ => crate::exit::down_hint(),
        }),
        MountStartError::NoZone(_) => {
            Failure::new(2, error.to_string()).hint("`zonal zone-map show` lists the zones")
        }
        MountStartError::Mount(error) => {
            let failure = Failure::new(FAILED, with_causes(error));
            match error.hint() {
                Some(hint) => failure.hint(hint),
                None => failure,
            }
        }
        _ => Failure::new(FAILED, with_causes(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_names_are_accepted_by_shards() {
        assert_eq!(name(Path::new("/mnt"), "host"), "mount /mnt on host");
        assert_eq!(
            name(Path::new("/a\tb\n"), "h\x1b"),
            r"mount /a\x09b\x0a on h\x1b"
        );
        for letter in ["x", "\u{e4}", "\u{20ac}", "\u{1f600}"] {
            for length in [230, 240, 241, 242, 243, 244, 4096] {
                let path = format!("/{}/end", letter.repeat(length / letter.len()));
                let name = name(Path::new(&path), "host");
                assert!(name.len() <= NAME_BYTES_MAX, "{}: {name}", name.len());
                assert!(name.len() > NAME_BYTES_MAX - 4 || name.contains(&path));
                assert!(name.ends_with("/end on host"), "{name}");
            }
        }
    }
}
