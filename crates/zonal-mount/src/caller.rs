//! The caller of a kernel request: ids from the request, supplementary groups and pending signals
//! from /proc.
//!
//! The calling thread waits inside the kernel for the answer, so /proc describes it until then.

use zonal_fuse::Context;
use zonal_types::Credentials;
use zonal_types::limits::GROUPS_MAX;

/// Flag of an exiting thread in /proc/TID/stat (`PF_EXITING`), and the number of that field behind
/// the name.
const EXITING: u64 = 4;
const FLAGS_FIELD: usize = 6;

/// Bit of SIGKILL in the masks of /proc/TID/status.
const SIGKILL_BIT: u64 = 1 << 8;

/// The caller's ids. Reads one file where the caller is not the superuser.
#[must_use]
pub fn credentials(ctx: &Context<'_>) -> Credentials {
    let groups = if ctx.uid == 0 || ctx.pid == 0 {
        Vec::new()
    } else {
        groups_of(ctx.pid)
    };
    Credentials {
        uid: ctx.uid,
        gid: ctx.gid,
        groups,
    }
}

fn groups_of(tid: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    line.unwrap_or_default()
        .split_ascii_whitespace()
        .filter_map(|gid| gid.parse().ok())
        .take(GROUPS_MAX)
        .collect()
}

/// True where a thread is about to die, or is gone: its request can be abandoned.
#[must_use]
pub fn is_dying(tid: u32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{tid}/status")) else {
        return true;
    };
    status
        .lines()
        .filter_map(|line| {
            line.strip_prefix("SigPnd:")
                .or(line.strip_prefix("ShdPnd:"))
        })
        .filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .any(|mask| mask & SIGKILL_BIT != 0)
}

/// True where a thread has begun to exit, or is gone.
#[must_use]
pub fn is_exiting(tid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{tid}/stat")) else {
        return true;
    };
    let behind = stat.rsplit_once(") ").map_or("", |(_, behind)| behind);
    let flags = behind.split(' ').nth(FLAGS_FIELD);
    flags
        .and_then(|flags| flags.parse::<u64>().ok())
        .is_some_and(|flags| flags & EXITING != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_thread_lives_and_a_missing_one_does_not() {
        assert!(!is_dying(std::process::id()));
        assert!(is_dying(u32::MAX));
        assert!(!is_exiting(std::process::id()));
        assert!(is_exiting(u32::MAX));
    }
}
