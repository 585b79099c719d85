//! `ip` and `tc` as child processes: each with a time limit, each exit code checked.
//!
//! Netlink by a library would need one more crate, with its own types for bridges, shaping and
//! counters. The two programs read a list of commands at once and print JSON. So there is one run
//! of each for a namespace.

use crate::exit::{FAILED, Failure};
use anyhow::Context;
use serde_json::Value;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// Time for one run.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval of checks whether a run has ended.
const LOOK: Duration = Duration::from_millis(1);

/// Waits for the end of a child, which is killed after [`PATIENCE`].
fn wait(child: &mut Child, what: &str) -> anyhow::Result<std::process::ExitStatus> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().context("wait")? {
            return Ok(status);
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            let text = format!("`{what}` does not end within {} s", PATIENCE.as_secs());
            return Err(Failure::new(FAILED, text).into());
        }
        std::thread::sleep(LOOK);
    }
}

/// All that a pipe gives. A failed run is told by its exit code.
fn text(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

fn run(program: &str, arguments: &[&str], input: &str) -> anyhow::Result<String> {
    let what = format!("{program} {}", arguments.join(" "));
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| {
            let failure = Failure::new(FAILED, format!("{program}: {error}"));
            failure.hint("install iproute2, which has `ip` and `tc`")
        })?;
    // Outputs of many interfaces are longer than a pipe holds, so both are read while it runs.
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    std::thread::scope(|scope| {
        let output = scope.spawn(move || text(stdout));
        let errors = scope.spawn(move || text(stderr));
        if let Some(mut stdin) = stdin {
            // A program that ends before it has read all says why.
            let _ = stdin.write_all(input.as_bytes());
        }
        let status = wait(&mut child, &what)?;
        let said = |thread: ScopedJoinHandle<'_, String>| thread.join().unwrap_or_default();
        let (output, errors) = (said(output), said(errors));
        if status.success() {
            return Ok(output);
        }
        let errors = errors.trim().replace('\n', "; ");
        let mut failure = Failure::new(FAILED, format!("`{what}` failed: {errors}"));
        if errors.contains("Operation not permitted") || errors.contains("Permission denied") {
            failure = failure.hint("a testbed needs root with the right to make namespaces");
        } else if errors.contains("Unknown") || errors.contains("not supported") {
            failure = failure.hint("this kernel lacks veth, bridge or the TBF scheduler");
        }
        Err(failure.into())
    })
}

/// Runs `ip` with arguments.
pub fn ip(arguments: &[&str]) -> anyhow::Result<String> {
    run("ip", arguments, "")
}

/// Runs a list of `ip` commands in a namespace.
pub fn ip_batch(namespace: &str, commands: &str) -> anyhow::Result<()> {
    run("ip", &["-n", namespace, "-batch", "-"], commands).map(drop)
}

/// Runs a list of `tc` commands in a namespace.
pub fn tc_batch(namespace: &str, commands: &str) -> anyhow::Result<()> {
    run("tc", &["-n", namespace, "-batch", "-"], commands).map(drop)
}

/// All schedulers of a namespace with their counters.
pub fn tc_show(namespace: &str) -> anyhow::Result<Vec<Value>> {
    let text = run("tc", &["-n", namespace, "-s", "-j", "qdisc", "show"], "")?;
    list(&text).with_context(|| format!("output of `tc -n {namespace} qdisc show`"))
}

/// All interfaces of a namespace.
pub fn link_show(namespace: &str) -> anyhow::Result<Vec<Value>> {
    let text = run("ip", &["-n", namespace, "-j", "link", "show"], "")?;
    list(&text).with_context(|| format!("output of `ip -n {namespace} link show`"))
}

fn list(text: &str) -> anyhow::Result<Vec<Value>> {
    Ok(serde_json::from_str(text)?)
}
