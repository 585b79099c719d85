//! State of the server's process that a command must not inherit: descriptors, limits, priority,
//! ignored signals.
//!
//! *Invariants*:
//! 1. A command has no descriptor above 2.
//! 2. Its priority is not above that of a process that a login starts: a server's may be, so that
//!    the kernel spares it.
//! 3. It ignores no signal, but for two of the C library, which has no call that resets them.
//! 4. Its soft limit of descriptors is that of a login, too.

use rustix::process::{
    Resource, Rlimit, getpriority_process, getrlimit, setpriority_process, setrlimit,
};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Soft limit of open descriptors with which the kernel starts a machine. Programs that use
/// select(2) fail with more; others raise it up to the hard limit.
const DESCRIPTORS: u64 = 1024;
/// How ready the kernel is to end this process when memory is short, compared with others.
const OOM_ADJUSTMENT: &str = "/proc/self/oom_score_adj";

/// Largest number of a signal.
const LAST_SIGNAL: i32 = 64;

/// Has signals their default action in the command: the kernel gives it to those with a handler
/// when a process becomes another program. The handlers here do nothing.
fn reset_signals() {
    let unused = Arc::new(AtomicBool::new(false));
    for signal in 1..=LAST_SIGNAL {
        if !signal_hook::consts::FORBIDDEN.contains(&signal) {
            // Numbers that the C library keeps for itself are refused.
            let _ = signal_hook::flag::register(signal, Arc::clone(&unused));
        }
    }
}

/// Replaces the server's state by that of an ordinary process. Needs the agent's rights, so it is
/// done before the user is changed.
pub(super) fn drop_inherited_state() -> io::Result<()> {
    close_fds::set_fds_cloexec(3, &[]);
    reset_signals();
    let descriptors = getrlimit(Resource::Nofile);
    let current = descriptors
        .current
        .map_or(DESCRIPTORS, |now| now.min(DESCRIPTORS));
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(current),
            ..descriptors
        },
    )?;
    if getpriority_process(None)? < 0 {
        setpriority_process(None, 0)?;
    }
    let adjustment = std::fs::read_to_string(OOM_ADJUSTMENT)?;
    if adjustment
        .trim()
        .parse::<i32>()
        .is_ok_and(|value| value < 0)
    {
        std::fs::write(OOM_ADJUSTMENT, "0")?;
    }
    Ok(())
}
