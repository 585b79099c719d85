//! The command of a job as its asker has it: arguments, environment, folder, user.

use anyhow::Context;
use rustix::process::{Gid, getegid, geteuid, getgroups, umask};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;
use zonal_types::{Blob, Credentials};
use zonal_wire::JobCommand;

/// Makes a command of this process's user with variables of the environment.
pub fn command(
    arguments: &[OsString],
    environment: impl Iterator<Item = (OsString, OsString)>,
    directory: &Path,
) -> anyhow::Result<JobCommand> {
    // The umask can only be read by setting it; no other thread runs here.
    let mask = umask(rustix::fs::Mode::empty());
    umask(mask);
    let groups = getgroups().context("groups")?;
    let blob = |text: &OsStr| Blob(text.as_bytes().to_vec());
    let variable = |(name, value): (OsString, OsString)| {
        let text = [name.into_vec(), b"=".to_vec(), value.into_vec()];
        Blob(text.concat())
    };
    Ok(JobCommand {
        arguments: arguments.iter().map(|word| blob(word)).collect(),
        environment: environment.map(variable).collect(),
        directory: blob(directory.as_os_str()),
        umask: mask.as_raw_mode(),
        user: Credentials {
            uid: geteuid().as_raw(),
            gid: getegid().as_raw(),
            groups: groups.into_iter().map(Gid::as_raw).collect(),
        },
    })
}

/// A random number for a job.
pub fn job_number() -> anyhow::Result<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| anyhow::anyhow!("random bytes: {error}"))?;
    Ok(u64::from_le_bytes(bytes))
}
