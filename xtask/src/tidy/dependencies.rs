//! Directions of dependencies between crates: basics <- types <- wire, layout, placement <-
//! zonemap, meta, object, client <- driver <- wait, net, native, disk, server, fuse, mount <-
//! zonal.
//!
//! Cores never depend on shells or on crates that do I/O; the simulator depends on cores only. Test
//! support is a dependency of tests only.

use serde_json::Value;

use super::{CORES, Offence};

/// The workspace's crates by tier. A crate depends on its own tier and on those before it.
const TIERS: [&[&str]; 7] = [
    &[BASICS, TESTKIT],
    &["zonal-types"],
    &[
        "zonal-wire",
        "zonal-layout",
        "zonal-placement",
        "zonal-consensus",
    ],
    &[
        "zonal-zonemap",
        "zonal-meta",
        "zonal-object",
        "zonal-client",
        "zonal-fsck",
    ],
    &["zonal-driver", "zonal-flow"],
    &[
        "zonal-wait",
        "zonal-region",
        "zonal-net",
        "zonal-disk",
        "zonal-grpc",
        "zonal-server",
        "zonal-fuse",
        "zonal-native",
        "zonal-mount",
        "zonal-faultfs",
        "zonal-offline",
        "zonal-sim",
    ],
    &["zonal"],
];

/// Tools that know nothing of a file system. They depend on the standard library only.
const BASICS: &str = "zonal-basics";

/// Test support: for the tests of every crate, cores too, and for tools that only tests start.
const TESTKIT: &str = "zonal-testkit";
const TEST_TOOLS: [&str; 1] = ["zonal-faultfs"];

/// External crates that do I/O, read clocks, draw randomness or log: not for cores.
const NOT_FOR_CORES: [&str; 14] = [
    "tokio",
    "mio",
    "socket2",
    "rustix",
    "libc",
    "nix",
    "rand",
    "getrandom",
    "tracing",
    "log",
    "redb",
    "tiny_http",
    "chrono",
    "anyhow",
];

/// The tier of one of the workspace's crates.
fn tier(name: &str) -> Option<usize> {
    TIERS.iter().position(|t| t.contains(&name))
}

/// Checks the dependencies of every package that `cargo metadata` lists.
pub fn check(metadata: &str) -> Result<Vec<Offence>, String> {
    let value: Value =
        serde_json::from_str(metadata).map_err(|e| format!("reading cargo metadata: {e}"))?;
    let packages = value["packages"]
        .as_array()
        .ok_or("cargo metadata lists no packages")?;
    let mut offences = Vec::new();
    for package in packages {
        let name = package["name"].as_str().unwrap_or_default();
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let on = dependency["name"].as_str().unwrap_or_default();
            let for_tests = dependency["kind"].as_str() == Some("dev");
            if let Some(text) = refusal(name, on, for_tests) {
                offences.push(Offence {
                    path: format!("crates/{name}/Cargo.toml"),
                    line: 0,
                    rule: "dependency",
                    text,
                });
            }
        }
    }
    Ok(offences)
}

/// The reason why `name` must not depend on `on`; `None` where it may.
fn refusal(name: &str, on: &str, for_tests: bool) -> Option<String> {
    let core = CORES.contains(&name);
    if on == TESTKIT && name != "xtask" {
        return (!for_tests && !TEST_TOOLS.contains(&name))
            .then(|| format!("{on} is for tests: {name} may have it as a dev-dependency"));
    }
    if name == "zonal-sim" {
        let ours = on.starts_with("zonal");
        return (ours && !CORES.contains(&on))
            .then(|| format!("the simulator depends on cores only, not on {on}"));
    }
    if name == BASICS && !for_tests {
        return Some(format!(
            "{name} depends on the standard library only, not on {on}"
        ));
    }
    if core && NOT_FOR_CORES.contains(&on) && !for_tests {
        return Some(format!("{name} is a core: it has no use for {on}"));
    }
    if name == TESTKIT && on != BASICS {
        return Some(format!("{name} depends on {BASICS} alone, not on {on}"));
    }
    let ours = on == "zonal" || on.starts_with("zonal-");
    if !ours {
        return None;
    }
    if core && !CORES.contains(&on) {
        return Some(format!("{name} is a core and {on} is a shell"));
    }
    match (tier(name), tier(on)) {
        (Some(from), Some(to)) if to > from && !for_tests => {
            Some(format!("{name} lies below {on}"))
        }
        (None, _) if name == "xtask" => Some(format!("xtask stands apart from {on}")),
        (None, _) => Some(format!("{name} has no tier: add it to TIERS")),
        (_, None) => Some(format!("{name} depends on {on}, which has no tier")),
        _ => None,
    }
}
