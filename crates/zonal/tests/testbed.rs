//! A testbed of two racks on this machine: its nodes, its links, and that nothing is left of it.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]
#![allow(clippy::print_stderr, reason = "what is skipped is said")]

mod cell;
mod testbed_folder;
mod testbed_rights;

use cell::{Cell, code, kill, lives, said, zonal};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use testbed_folder::{Testbed, is_skipped, until};

const MIB: u64 = 1 << 20;

/// Names in the machine's list of network namespaces that belong to testbeds of this id.
fn namespaces(id: &str) -> Vec<String> {
    let entries = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let start = format!("zonal-{id}-");
    names.filter(|name| name.starts_with(&start)).collect()
}

#[test]
fn a_testbed_carries_files_between_racks_and_leaves_nothing() {
    if is_skipped() {
        return;
    }
    let bed = Testbed::new("testbed-files");
    for _round in 0..2 {
        bed.runs("up", &["--racks", "2", "--nodes", "2"]);
        let id = bed.status()["id"].as_str().unwrap().to_owned();
        // Core, two racks, four nodes.
        assert_eq!(namespaces(&id).len(), 7);
        sockets_are_in_the_nodes(&bed);
        traffic_is_counted_on_its_way(&bed);
        commands_have_their_exit_codes(&bed);
        a_cut_rack_is_alone_until_it_is_healed(&bed);
        let (mut sleeping, killed) = kills_are_seen(&bed);
        bed.runs("down", &[]);
        assert!(!sleeping.wait().unwrap().success());
        assert!(killed.iter().all(|pid| !lives(*pid)));
        bed.assert_gone();
        assert_eq!(namespaces(&id), [""; 0]);
    }
}

/// The machine has neither sockets nor records of the testbed.
fn sockets_are_in_the_nodes(bed: &Testbed) {
    let setting = "cat /proc/sys/net/ipv4/tcp_congestion_control";
    for node in ["r1n1", "r2n2"] {
        assert_eq!(bed.shells(node, setting), "reno\n");
    }
    let cell = fs::read_to_string(bed.dir().join("cell/cell.toml")).unwrap();
    let id = cell.lines().find_map(|line| line.strip_prefix("cell = "));
    let sockets = format!("/run/zonal/{}", id.unwrap().trim_matches('"'));
    assert!(!Path::new(&sockets).exists());
    let seen = bed.shells("r1n2", &format!("ls {sockets} /run/zonal/mounts"));
    assert!(seen.contains("7100-10.77.1.2"), "{seen}");
    assert!(!seen.contains("10.77.1.1"), "{seen}");
    for entry in fs::read_dir("/run/zonal/mounts").into_iter().flatten() {
        let record = fs::read_to_string(entry.unwrap().path()).unwrap_or_default();
        assert!(!record.contains(bed.dir().to_str().unwrap()), "{record}");
    }
}

/// A file's bytes stay in its rack until a node of the other rack reads them.
fn traffic_is_counted_on_its_way(bed: &Testbed) {
    let before = bed.bytes();
    bed.shells(
        "r1n1",
        "mkdir $ZONAL_MOUNT/a && head -c 4M /dev/urandom >$ZONAL_MOUNT/a/f && sync $ZONAL_MOUNT/a/f",
    );
    let written = bed.bytes();
    let rose = |from: &BTreeMap<String, (u64, u64)>, to: &BTreeMap<String, (u64, u64)>, link| {
        let (from, to): ((u64, u64), (u64, u64)) = (from[link], to[link]);
        (to.0 - from.0, to.1 - from.1)
    };
    // Half of the stripe units are on the writer's own target.
    assert!(rose(&before, &written, "r1n1").0 > MIB);
    assert!(rose(&before, &written, "r1n2").1 > MIB);
    for link in ["r1", "r2", "r2n1", "r2n2"] {
        let (up, down) = rose(&before, &written, link);
        assert!(up + down < MIB / 2, "{link}: {up} up, {down} down");
    }
    let sum = "sha256sum <$ZONAL_MOUNT/a/f";
    assert_eq!(bed.shells("r1n1", sum), bed.shells("r2n1", sum));
    let read = bed.bytes();
    assert!(rose(&written, &read, "r1").0 > 4 * MIB);
    assert!(rose(&written, &read, "r2").1 > 4 * MIB);
    assert!(rose(&written, &read, "r2n1").1 > 4 * MIB);
    assert!(rose(&written, &read, "r2n2").1 < MIB / 2);
    // Another node's mount, network and address are its own.
    let seen = bed.shells("r2n2", "ip -br addr show eth0; echo $ZONAL_NODE");
    assert!(
        seen.contains("10.77.2.2") && seen.contains("r2n2"),
        "{seen}"
    );
    let mount = bed.dir().join("mnt");
    assert_eq!(
        fs::read_dir(mount).unwrap().count(),
        0,
        "mounted on the machine"
    );
}

fn commands_have_their_exit_codes(bed: &Testbed) {
    assert_eq!(code(&bed.shell("r1n2", "exit 42")), 42);
    assert_eq!(
        code(&bed.run("exec", &["r1n2", "--", "/no/such/program"])),
        7
    );
    let bad = bed.run("exec", &["r3n1", "--", "true"]);
    assert!(
        code(&bad) == 7 && said(&bad).contains("Hint:"),
        "{}",
        said(&bad)
    );
    let mut sleeping = Command::new(env!("CARGO_BIN_EXE_zonal"))
        .args(["testbed", "exec", "--dir"])
        .arg(bed.dir())
        .args(["r2n1", "--", "sleep", "1000"])
        .spawn()
        .unwrap();
    let line = format!("/proc/{}/cmdline", sleeping.id());
    until("the command runs", || {
        fs::read(&line).unwrap().starts_with(b"sleep")
    });
    let sent = Command::new("kill").arg(sleeping.id().to_string()).status();
    assert!(sent.unwrap().success());
    assert_eq!(sleeping.wait().unwrap().signal(), Some(15));
}

/// Waits until the rack's server knows all first-level directories.
fn wait_for_mirror(bed: &Testbed) {
    let ask = "bash -c 'exec 3<>/dev/tcp/127.0.0.1/7190; \
               printf \"GET /metrics HTTP/1.0\\r\\n\\r\\n\" >&3; cat <&3'";
    let names = bed.shells("r2n1", "ls $ZONAL_MOUNT | wc -l");
    let line = format!(" {}", names.trim());
    until("the rack knows the root's names", || {
        let page = bed.shells("r2n1", ask);
        let mut lines = page.lines();
        let name = "zonal_shard_root_mirror_names";
        lines.any(|known| known.starts_with(name) && known.ends_with(&line))
    });
}

/// Nodes of the rack use their own directory by its absolute path, for longer than any lease lasts.
fn a_cut_rack_goes_on_by_absolute_paths(bed: &Testbed) {
    // Standard error has each step with its time, to see which one took long.
    let script = "PS4='+ $EPOCHREALTIME '; set -x; \
                  test \"$(cat $ZONAL_MOUNT/own/kept)\" = kept && ls $ZONAL_MOUNT/own && \
                  date >$ZONAL_MOUNT/own/new && sync $ZONAL_MOUNT/own/new && \
                  ls $ZONAL_MOUNT && rm $ZONAL_MOUNT/own/new";
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(7) {
        for node in ["r2n1", "r2n2"] {
            let since = Instant::now();
            let output = bed.run("exec", &[node, "--", "bash", "-c", script]);
            let took = since.elapsed();
            let listed = String::from_utf8_lossy(&output.stdout);
            assert!(
                code(&output) == 0 && listed.contains("kept") && listed.contains("own"),
                "{node}: {}{}",
                said(&output),
                bed.mount_log(node)
            );
            // The first waits five seconds for the root's shard.
            let is_soon = took < Duration::from_secs(9);
            let log = bed.mount_log(node);
            assert!(is_soon, "{node}: {took:?}, {}{log}", said(&output));
        }
    }
}

fn a_cut_rack_is_alone_until_it_is_healed(bed: &Testbed) {
    bed.shells(
        "r2n1",
        "mkdir $ZONAL_MOUNT/own && echo kept >$ZONAL_MOUNT/own/kept",
    );
    wait_for_mirror(bed);
    bed.runs("cut", &["r2"]);
    let cut = bed.bytes();
    a_cut_rack_goes_on_by_absolute_paths(bed);
    assert!(!bed.is_well("r1n1"));
    bed.shells("r1n2", "echo near >$ZONAL_MOUNT/a/near");
    let status = bed.status();
    let links = status["links"].as_array().unwrap();
    let is_cut = |link: &&Value| link["cut"] == true;
    let names: Vec<_> = links
        .iter()
        .filter(is_cut)
        .map(|link| &link["name"])
        .collect();
    assert_eq!(names, ["r2"]);
    assert_eq!(
        bed.bytes()["r2"],
        cut["r2"],
        "bytes passed a link that is cut"
    );
    bed.runs("heal", &["r2"]);
    until("the rack is back", || bed.is_well("r1n1"));
    until("files are back", || {
        let seen = bed.shell("r2n2", "cat $ZONAL_MOUNT/a/near");
        said(&seen) == "near\n"
    });
}

/// Returns a command that still runs in a node, and the killed processes.
fn kills_are_seen(bed: &Testbed) -> (Child, [u32; 3]) {
    let pids = [("r2n2", "server"), ("r1n2", "mount"), ("r1n1", "keeper")];
    let pids = pids.map(|(node, process)| bed.pid(node, process));
    pids.iter().for_each(|pid| kill(*pid, "KILL"));
    let status = bed.run("status", &[]);
    let text = said(&status);
    assert_eq!(code(&status), 1, "{text}");
    assert!(
        text.contains("r2n2 has no server, r1n2 has no mount") || {
            text.contains("r1n2 has no mount, r2n2 has no server")
        }
    );
    // Other processes of the node keep its mounts.
    bed.shells("r1n1", "cat $ZONAL_MOUNT/a/near");
    // A command that runs ends with the testbed.
    let sleeping = bed
        .command("exec")
        .args(["r1n1", "--", "sleep", "1000"])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    until("the command is counted", || {
        let status = bed.status();
        let mut nodes = status["nodes"].as_array().unwrap().iter();
        nodes.any(|node| node["programs"] == 1)
    });
    (sleeping, pids)
}

#[test]
fn each_link_has_the_rate_that_was_asked_for() {
    if is_skipped() {
        return;
    }
    let bed = Testbed::new("testbed-rates");
    let shape = ["--racks", "2", "--nodes", "2", "--storage-nodes", "1"];
    bed.runs("up", &shape);
    let status = bed.status();
    let nodes = status["nodes"].as_array().unwrap();
    let has = |key: &str| nodes.iter().map(|node| !node[key].is_null()).collect();
    // A node without a target has a server for its agent.
    let servers: Vec<bool> = has("server");
    assert_eq!(servers, [true; 4]);
    bed.runs("rate", &["r1n2", "20mbit"]);
    bed.runs("rate", &["r2", "50mbit"]);
    // Other tests use the same cores, so that a stream may come late.
    let measure = || bed.run("check", &["--json"]);
    let mut tries = (0..3).map(|_| measure());
    let good = tries.find(|output| code(output) == 0);
    let output = good.unwrap_or_else(measure);
    // On a busy machine each try may be slow somewhere; no link is ever faster than asked.
    assert!([0, 1].contains(&code(&output)), "{}", said(&output));
    let value: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut asked = BTreeMap::new();
    for link in value["links"].as_array().unwrap() {
        let rate = link["asked_bits_per_second"].as_u64().unwrap();
        for way in ["up_bits_per_second", "down_bits_per_second"] {
            let measured = link[way].as_u64().unwrap();
            let plausible = rate / 3..=rate * 11 / 10;
            assert!(plausible.contains(&measured), "{link}");
        }
        asked.insert(link["name"].as_str().unwrap().to_owned(), rate / 1_000_000);
    }
    let wanted = [
        ("r1", 100),
        ("r1n1", 200),
        ("r1n2", 20),
        ("r2", 50),
        ("r2n1", 200),
        ("r2n2", 200),
    ];
    assert_eq!(
        asked,
        wanted.map(|(name, rate)| (name.to_owned(), rate)).into()
    );
    // Shaping that somebody removed is an error.
    let id = status["id"].as_str().unwrap();
    let removed = Command::new("tc")
        .args(["-n", &format!("zonal-{id}-r1n1")])
        .args(["qdisc", "delete", "dev", "eth0", "root"])
        .status();
    assert!(removed.unwrap().success());
    let output = bed.run("check", &["r1n2"]);
    assert!(said(&output).contains("eth0 in zonal-") && said(&output).contains("is not shaped"));
    assert_eq!(code(&output), 1, "{}", said(&output));
}

/// Milliseconds that a shell's command takes in a node.
fn ms_of(bed: &Testbed, node: &str, text: &str) -> u128 {
    let begun = Instant::now();
    bed.shells(node, text);
    begun.elapsed().as_millis()
}

#[test]
fn delay_and_loss_of_links_reach_servers_mounts_and_commands() {
    if is_skipped() {
        return;
    }
    let bed = Testbed::new("testbed-delay");
    bed.runs("up", &["--racks", "2", "--nodes", "2"]);
    bed.shells(
        "r1n1",
        "mkdir $ZONAL_MOUNT/a && echo near >$ZONAL_MOUNT/a/f",
    );
    bed.shells("r2n2", "cat $ZONAL_MOUNT/a/f");
    // A delay of an uplink: the first question of a file crosses the core and comes back.
    let said = bed.runs("delay", &["r2", "60ms"]);
    assert_eq!(said, "link r2 adds 60ms to each frame and loses 0%\n");
    let status = bed.status();
    let mut links = status["links"].as_array().unwrap().iter();
    let link = links.find(|link| link["name"] == "r2").unwrap();
    assert_eq!(link["delay_us"], 60_000);
    let mut names = 0..;
    until("the mount holds its frames back", || {
        let stat = format!("stat $ZONAL_MOUNT/a/none{}; true", names.next().unwrap());
        ms_of(&bed, "r2n1", &stat) >= 120
    });
    let zonal = env!("CARGO_BIN_EXE_zonal");
    assert!(ms_of(&bed, "r2n1", &format!("{zonal} status >&2; true")) >= 120);
    // A mount in the other rack asks the shard behind the uplink.
    bed.shells("r2n1", "mkdir $ZONAL_MOUNT/b && echo far >$ZONAL_MOUNT/b/f");
    assert!(ms_of(&bed, "r1n2", "cat $ZONAL_MOUNT/b/f >&2") >= 120);

    bed.runs("delay", &["r2", "1ms", "--loss", "2", "--seed", "7"]);
    bed.runs("delay", &["r2n1", "1ms", "--loss", "2.5"]);
    assert!(bed.runs("status", &[]).contains("1ms, 2.5% lost"));
    let write = "head -c 2M /dev/urandom >$ZONAL_MOUNT/a/lossy && sync $ZONAL_MOUNT/a/lossy";
    bed.shells("r2n1", write);
    bed.shells(
        "r2n2",
        "for i in 1 2 3 4; do echo $i >$ZONAL_MOUNT/a/s$i; done",
    );
    let sum = "cat $ZONAL_MOUNT/a/s? $ZONAL_MOUNT/a/lossy | sha256sum";
    assert_eq!(bed.shells("r1n1", sum), bed.shells("r2n1", sum));

    bed.runs("heal", &["r2"]);
    bed.runs("delay", &["r2n1", "0"]);
    let told = fs::read_to_string(bed.dir().join("cell/r2n1.links")).unwrap();
    assert!(
        told.starts_with("seed ") && told.lines().count() == 1,
        "{told}"
    );
    let status = bed.status();
    let links = status["links"].as_array().unwrap();
    let is_whole = |link: &Value| link["delay_us"] == 0 && link["lost_of_million"] == 0;
    assert!(links.iter().all(is_whole), "{links:?}");
}

#[test]
fn bad_input_is_refused_and_nothing_is_made() {
    if is_skipped() {
        return;
    }
    let bed = Testbed::new("testbed-refusals");
    for (arguments, wanted) in [
        (["--racks", "0"], 2),
        (["--racks", "9"], 2),
        (["--nodes", "33"], 2),
        (["--storage-nodes", "5"], 2),
        (["--node-rate", "0mbit"], 2),
        (["--uplink-rate", "0mbit"], 2),
        (["--uplink-rate", "fast"], 2),
    ] {
        let output = bed.run("up", &arguments);
        let text = said(&output);
        assert_eq!(code(&output), wanted, "{arguments:?}: {text}");
        assert!(
            text.contains("Hint:") || text.contains("examples:"),
            "{text}"
        );
        bed.assert_gone();
    }
    for word in ["status", "down", "check"] {
        let output = bed.run(word, &[]);
        assert_eq!(code(&output), 7, "{word}: {}", said(&output));
        assert!(said(&output).contains("Hint:"), "{}", said(&output));
    }
    fs::create_dir(bed.dir()).unwrap();
    fs::write(bed.dir().join("mine"), "x").unwrap();
    let output = bed.run("up", &[]);
    assert_eq!(code(&output), 5, "{}", said(&output));
    assert!(bed.dir().join("mine").exists());
    fs::remove_dir_all(bed.dir()).unwrap();

    bed.runs("up", &["--racks", "1", "--nodes", "1"]);
    let server = bed.pid("r1n1", "server");
    let output = bed.run("up", &["--racks", "1", "--nodes", "1"]);
    assert_eq!(code(&output), 6, "{}", said(&output));
    assert!(said(&output).contains("Hint:") && lives(server));
    for arguments in [["r1", "0mbit"], ["r1", "2gbit"], ["r2", "10mbit"]] {
        let output = bed.run("rate", &arguments);
        assert!([2, 7].contains(&code(&output)), "{}", said(&output));
        assert!(said(&output).contains("Hint:"), "{}", said(&output));
    }
    assert_eq!(code(&bed.run("cut", &["core"])), 7);
    for (arguments, wanted) in [
        (["r1", "11s", "--loss=0"], 2),
        (["r1", "1ms", "--loss=51"], 2),
        (["r1", "1ms", "--loss=few"], 2),
        (["r1", "fast", "--loss=0"], 2),
        (["r2", "1ms", "--loss=0"], 7),
    ] {
        let output = bed.run("delay", &arguments);
        let text = said(&output);
        assert_eq!(code(&output), wanted, "{arguments:?}: {text}");
        let helps = text.contains("Hint:") || text.contains("examples:");
        assert!(helps, "{text}");
    }
}

/// A folder with a `tc` that takes rules as `does` says, to be the first of PATH.
fn false_tc(scratch: &Path, does: &str) -> String {
    let folder = scratch.join("bin");
    let real = Command::new("sh").args(["-c", "command -v tc"]).output();
    let real = String::from_utf8(real.unwrap().stdout).unwrap();
    let text = format!(
        "#!/bin/sh\ncase \"$*\" in *-batch*) {does};; esac\nexec {} \"$@\"\n",
        real.trim()
    );
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("tc"), text).unwrap();
    fs::set_permissions(folder.join("tc"), fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:{}", folder.display(), std::env::var("PATH").unwrap())
}

#[test]
fn a_failed_or_killed_up_leaves_nothing() {
    if is_skipped() {
        return;
    }
    let bed = Testbed::new("testbed-failed");
    // A rule that the kernel refuses, and one that is lost without an error.
    for does in ["echo 'Error: refused' >&2; exit 1", "exit 0"] {
        let path = false_tc(&bed.scratch, does);
        let output = bed.command("up").env("PATH", path).output().unwrap();
        let text = said(&output);
        assert_eq!(code(&output), 1, "{text}");
        assert!(
            text.contains("refused") || text.contains("is not shaped"),
            "{text}"
        );
        bed.assert_gone();
    }
    // The time decides how far it comes; each is fine.
    for ms in [30, 100, 200, 400] {
        let mut up = Command::new(env!("CARGO_BIN_EXE_zonal"))
            .args(["testbed", "up", "--dir"])
            .arg(bed.dir())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(ms));
        up.kill().unwrap();
        up.wait().unwrap();
        if bed.dir().join("testbed.json").exists() {
            bed.runs("down", &[]);
        } else {
            // Killed before it wrote its state, so it has made a folder at most.
            let _ = fs::remove_file(bed.dir().join("lock"));
            let _ = fs::remove_dir(bed.dir());
        }
        bed.assert_gone();
    }
}

/// A mount of a cell outside of testbeds.
struct MachineMount<'a> {
    cell: &'a Cell,
    path: PathBuf,
}

impl<'a> MachineMount<'a> {
    fn of(cell: &'a Cell) -> Self {
        let path = cell.dir().join("machine mount");
        fs::create_dir(&path).unwrap();
        let mount = Self { cell, path };
        assert_eq!(code(&mount.runs("mount")), 0);
        mount
    }

    fn runs(&self, command: &str) -> Output {
        let mut zonal = zonal();
        zonal.arg(command).arg(&self.path);
        zonal.env("ZONAL_CELL", self.cell.dir());
        zonal.output().unwrap()
    }

    /// A copy of the mount in a node of a testbed would keep its process for 20 s.
    fn ends_at_once(self) {
        let begin = Instant::now();
        let output = self.runs("umount");
        assert_eq!(code(&output), 0, "{}", said(&output));
        assert!(begin.elapsed() < Duration::from_secs(15));
    }
}

impl Drop for MachineMount<'_> {
    fn drop(&mut self) {
        self.runs("umount");
    }
}

#[test]
fn testbeds_and_a_cell_are_beside_one_another() {
    if is_skipped() {
        return;
    }
    let cell = Cell::up("testbed-beside");
    let mount = MachineMount::of(&cell);
    let beds = [Testbed::new("testbed-one"), Testbed::new("testbed-two")];
    for bed in &beds {
        bed.runs("up", &["--racks", "1", "--nodes", "2"]);
    }
    mount.ends_at_once();
    for (bed, word) in beds.iter().zip(["one", "two"]) {
        bed.shells("r1n1", &format!("echo {word} >$ZONAL_MOUNT/word"));
    }
    for (bed, word) in beds.iter().zip(["one\n", "two\n"]) {
        assert_eq!(bed.shells("r1n2", "cat $ZONAL_MOUNT/word"), word);
    }
    beds[0].runs("down", &[]);
    beds[0].assert_gone();
    assert_eq!(beds[1].shells("r1n1", "cat $ZONAL_MOUNT/word"), "two\n");
    assert_eq!(code(&cell.status()), 0);
    // The folder is gone while the testbed is up; its id follows from the path.
    fs::remove_dir_all(beds[1].dir()).unwrap();
    beds[1].runs("down", &[]);
    beds[1].assert_gone();
    assert_eq!(code(&cell.status()), 0);
}

/// Bytes that went up from rack 2 since `before`.
fn left_rack_2(bed: &Testbed, before: &BTreeMap<String, (u64, u64)>) -> u64 {
    bed.bytes()["r2"].0 - before["r2"].0
}

#[test]
fn jobs_run_near_their_files_and_mpi_starts_ranks_through_agents() {
    if is_skipped() {
        return;
    }
    let bed = Testbed::new("testbed-jobs");
    bed.runs("up", &["--racks", "2", "--nodes", "2"]);
    let zonal = env!("CARGO_BIN_EXE_zonal");
    bed.shells(
        "r2n1",
        "mkdir $ZONAL_MOUNT/b && head -c 8M /dev/urandom >$ZONAL_MOUNT/b/f && sync $ZONAL_MOUNT/b/f",
    );
    let job = |how: &str| {
        let script = "cat $ZONAL_MOUNT/b/f | wc -c; echo zone $ZONAL_ZONE";
        let text = format!("{zonal} run {how} -n 2 --no-prefix -- sh -c '{script}'");
        let before = bed.bytes();
        let output = bed.shells("r1n1", &text);
        let mut lines: Vec<String> = output.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        (lines, left_rack_2(&bed, &before))
    };
    let (lines, near) = job("--near /b");
    assert_eq!(lines, ["8388608", "8388608", "zone 2", "zone 2"]);
    assert!(near < MIB, "{near} bytes crossed");
    let (lines, any) = job("--any");
    assert_eq!(lines, ["8388608", "8388608", "zone 1", "zone 2"]);
    assert!(any > 8 * MIB, "{any} bytes crossed");

    // As ssh: the exit code and the words are those of the command line.
    let shell = |words: &str| bed.shell("r1n1", &format!("{zonal} rsh {words}"));
    let output = shell("10.77.2.2 'echo on $ZONAL_NODE; exit 3'");
    assert_eq!((code(&output), output.stdout), (3, b"on 4\n".to_vec()));
    assert_eq!(code(&shell("10.9.9.9 true")), 7);
    assert_eq!(code(&shell("-x 3 true")), 0);
    run_by_open_mpi(&bed);
    run_by_mpich(&bed);
}

/// Whether a launcher of MPI is installed.
fn has_launcher(program: &str, name: &str) -> bool {
    let version = Command::new(program).arg("--version").output();
    let is_there = version.is_ok_and(|output| said(&output).contains(name));
    if !is_there {
        eprintln!("SKIPPED: no {program} of {name}");
    }
    is_there
}

/// Compares the output of four ranks, one a node, each with its number and its address.
fn check_ranks(output: &str) {
    for text in ["rank 0", "rank 3", "10.77.1.2", "10.77.2.1", "10.77.2.2"] {
        assert!(output.contains(text), "{text}: {output}");
    }
}

fn run_by_open_mpi(bed: &Testbed) {
    if !has_launcher("mpirun", "Open MPI") {
        return;
    }
    let zonal = env!("CARGO_BIN_EXE_zonal");
    let hosts = "10.77.1.1:1,10.77.1.2:1,10.77.2.1:1,10.77.2.2:1";
    let mpirun = format!(
        "mpirun --allow-run-as-root --mca plm_rsh_agent '{zonal} rsh' \
         --mca oob_tcp_if_include 10.77.0.0/16 -H {hosts} -n 4 \
         sh -c 'echo rank $OMPI_COMM_WORLD_RANK; ip -4 -o addr show eth0 | grep -o 10.77.[.0-9]*'"
    );
    check_ranks(&bed.shells("r1n1", &mpirun));
}

fn run_by_mpich(bed: &Testbed) {
    if !has_launcher("mpiexec.hydra", "HYDRA") {
        return;
    }
    // The option names a file, not a command line.
    let launcher = bed.scratch.join("rsh");
    let zonal = env!("CARGO_BIN_EXE_zonal");
    fs::write(&launcher, format!("#!/bin/sh\nexec {zonal} rsh \"$@\"\n")).unwrap();
    fs::set_permissions(&launcher, fs::Permissions::from_mode(0o755)).unwrap();
    let hosts = "10.77.1.1,10.77.1.2,10.77.2.1,10.77.2.2";
    let mpiexec = |words: &str| {
        let launcher = launcher.display();
        format!(
            "mpiexec.hydra -launcher ssh -launcher-exec {launcher} -hosts {hosts} -n 4 -ppn 1 {words}"
        )
    };
    let words = "sh -c 'echo rank $PMI_RANK; ip -4 -o addr show eth0 | grep -o 10.77.[.0-9]*'";
    check_ranks(&bed.shells("r1n1", &mpiexec(words)));
    let failing = mpiexec("sh -c 'exit $((PMI_RANK == 2 ? 9 : 0))'");
    assert_eq!(code(&bed.shell("r1n1", &failing)), 9);
}
