//! `zonal run` on a cell of two zones: output, exit codes, signals, rights, and nothing left over.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;

use cell::{Cell, code, kill, lives, said, zonal};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Brings up a cell of two zones with two storage nodes each, which have agents.
fn bring_up(name: &str, more: &[&str]) -> Cell {
    Cell::with_shape(name, (2, 2), &[&["--agent"], more].concat())
}

fn command(cell: &Cell, words: &[&str]) -> Command {
    // No job may hang the tests.
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "100", env!("CARGO_BIN_EXE_zonal"), "run"]);
    command
        .env_remove("ZONAL_CELL")
        .env_remove("ZONAL_KEY_FILE");
    command.arg("--cell").arg(cell.dir()).args(words);
    command.stdin(Stdio::null());
    command
}

fn run(cell: &Cell, words: &[&str]) -> Output {
    command(cell, words).output().unwrap()
}

#[track_caller]
fn runs(cell: &Cell, words: &[&str]) -> String {
    let output = run(cell, words);
    assert_eq!(code(&output), 0, "{words:?}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn ends(cell: &Cell, words: &[&str], number: i32, texts: &[&str]) {
    let output = run(cell, words);
    assert_eq!(code(&output), number, "{words:?}: {}", said(&output));
    for text in texts {
        assert!(said(&output).contains(text), "{text}: {}", said(&output));
    }
}

/// Words of a job that runs a script of a shell; its output comes as it is.
fn script<'a>(options: &[&'a str], text: &'a str) -> Vec<&'a str> {
    [options, &["--no-prefix", "--", "sh", "-c", text]].concat()
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(40);
    while !holds() {
        assert!(Instant::now() < deadline, "not within 40 s: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Starts a job whose ranks each print the number of a process that would run for long.
fn sleepers(cell: &Cell, words: &[&str], script: &str, ranks: usize) -> (Child, Vec<u32>) {
    let mut job = command(cell, &self::script(words, script));
    let mut child = job.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let pids = lines
        .take(ranks)
        .map(|line| line.unwrap().trim().parse().unwrap());
    let pids = pids.collect();
    (child, pids)
}

/// The process below `timeout`.
fn own_child(pid: u32) -> u32 {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    list.trim().parse().unwrap()
}

#[test]
fn ranks_run_in_one_zone_and_their_output_and_codes_come_back() {
    let cell = bring_up("run-codes", &[]);
    let text = "echo $ZONAL_RANK of $ZONAL_SIZE; exit $ZONAL_RANK";
    let output = run(&cell, &["-n", "3", "--", "sh", "-c", text]);
    assert_eq!(code(&output), 2, "{}", said(&output));
    let out = String::from_utf8(output.stdout).unwrap();
    assert_eq!(sorted(&out), ["[0] 0 of 3", "[1] 1 of 3", "[2] 2 of 3"]);
    let zones = |options| runs(&cell, &script(options, "echo $ZONAL_ZONE"));
    assert_eq!(sorted(&zones(&["-n", "4"])), ["1"; 4]);
    let any = zones(&["--any", "-n", "4"]);
    assert_eq!(sorted(&any), ["1", "1", "2", "2"]);
    // The service knows them, with their nodes and their ends.
    let mut list = zonal();
    list.args(["jobs", "--json", "--cell"]).arg(cell.dir());
    let listed = list.output().unwrap();
    assert_eq!(code(&listed), 0, "{}", said(&listed));
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    let states = listed["jobs"].as_array().unwrap().iter();
    let states: Vec<&str> = states.map(|job| job["state"].as_str().unwrap()).collect();
    assert_eq!(states.iter().filter(|state| **state == "failed").count(), 1);
    assert_eq!(states.iter().filter(|state| **state == "done").count(), 2);
    // Nodes 6 and 7 are those of zone 2.
    let nodes = script(&["--nodes", "7,6"], "echo $ZONAL_RANK $ZONAL_NODE");
    assert_eq!(sorted(&runs(&cell, &nodes)), ["0 7", "1 6"]);
    check_streams_and_environment(&cell);
}

fn check_streams_and_environment(cell: &Cell) {
    // Both streams, whole lines, and a last line without an end.
    let output = run(cell, &["--", "sh", "-c", "printf 'a\\nb'; echo wrong >&2"]);
    assert_eq!(output.stdout, b"[0] a\n[0] b\n");
    assert_eq!(output.stderr, b"[0] wrong\n");
    ends(cell, &["--", "sh", "-c", "kill -9 $$"], 128 + 9, &[]);
    ends(
        cell,
        &["--", "/no/such/command"],
        127,
        &["rank 0", "/no/such/command", "No such file"],
    );
    ends(cell, &["--", "/etc/passwd"], 126, &["ermission denied"]);
    ends(
        cell,
        &["--chdir", "/no/such/place", "--", "true"],
        126,
        &["working directory"],
    );

    // The environment and the folder are the asker's.
    let mut job = command(cell, &script(&[], "echo $COLOUR; pwd; umask"));
    let output = job
        .env("COLOUR", "blue")
        .current_dir("/tmp")
        .output()
        .unwrap();
    assert!(
        output.stdout.starts_with(b"blue\n/tmp\n0"),
        "{}",
        said(&output)
    );
    let huge = "x".repeat(100_000);
    let mut job = command(cell, &["--", "true"]);
    job.env("A", &huge).env("B", &huge).env("C", &huge);
    let output = job.output().unwrap();
    assert_eq!(code(&output), 1, "{}", said(&output));
    assert!(
        said(&output).contains("longer than an agent takes"),
        "{}",
        said(&output)
    );
}

#[test]
fn a_plan_that_cannot_be_met_says_why() {
    let cell = bring_up("run-plans", &[]);
    let shown = runs(&cell, &["-n", "3", "--dry-run", "--json", "--", "true"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["nodes"][0]["ranks"], serde_json::json!([0]));
    assert_eq!(shown["nodes"][1]["ranks"], serde_json::json!([1, 2]));
    let text = runs(&cell, &["--dry-run", "--", "true"]);
    assert!(
        text.starts_with("zone 1 (zone1), node 4 at 127.0.0.1:"),
        "{text}"
    );
    ends(
        &cell,
        &["--per-node", "1", "-n", "3", "--", "true"],
        1,
        &["no zone has 3 nodes", "Hint:"],
    );
    ends(
        &cell,
        &["--nodes", "99", "--", "true"],
        4,
        &["node 99 has no agent", "Hint:"],
    );
    ends(
        &cell,
        &["-n", "600", "--", "true"],
        1,
        &["600 ranks are asked for, and zone 1 has room for 512"],
    );
    ends(&cell, &["--near", "/none", "--", "true"], 7, &["/none"]);
    ends(
        &cell,
        &["--near", "none", "--", "true"],
        2,
        &["does not start with /"],
    );
    ends(&cell, &["-n", "0", "--", "true"], 2, &[]);
    ends(&cell, &[], 2, &[]);
    check_standby_nodes(&cell);
}

/// A standby node is used where nothing else is left, and the plan says so.
fn check_standby_nodes(cell: &Cell) {
    for node in ["storage1-1", "storage2-1", "storage2-2"] {
        zonal_down_one(cell, node);
        let text = fs::read_to_string(cell.config(node)).unwrap();
        fs::write(
            cell.config(node),
            text.replace("[agent]", "[agent]\nstandby = true"),
        )
        .unwrap();
    }
    let mut up = zonal();
    let output = up.arg("up").arg("--dir").arg(cell.dir()).output().unwrap();
    assert_eq!(code(&output), 0, "{}", said(&output));
    let nodes = script(&["-n", "4"], "echo $ZONAL_NODE");
    assert_eq!(sorted(&runs(cell, &nodes)), ["5"; 4]);
    let output = run(
        cell,
        &[
            "-n",
            "2",
            "--per-node",
            "1",
            "--",
            "sh",
            "-c",
            "echo $ZONAL_NODE",
        ],
    );
    assert_eq!(code(&output), 0, "{}", said(&output));
    assert!(
        said(&output).contains("zonal: standby node 4: "),
        "{}",
        said(&output)
    );
    assert_eq!(output.stdout.len(), "[0] 5\n[1] 4\n".len());
}

/// Stops one server of a cell.
fn zonal_down_one(cell: &Cell, node: &str) {
    kill(cell.pid(node), "TERM");
}

#[test]
fn input_goes_to_the_first_rank_and_a_flood_is_bounded() {
    let cell = bring_up("run-input", &[]);
    let mut job = command(&cell, &script(&["-n", "2"], "wc -c"));
    let mut child = job
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let written = std::thread::spawn(move || input.write_all(&vec![b'x'; 3 << 20]));
    let output = child.wait_with_output().unwrap();
    written.join().unwrap().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(sorted(&text), ["0", "3145728"]);
    // A rank that reads nothing ends all the same.
    let mut job = command(&cell, &["--", "true"]);
    let mut child = job.stdin(Stdio::piped()).spawn().unwrap();
    assert!(child.wait().unwrap().success());

    // Nobody reads the output for a while: the agent holds a bounded part of it.
    let (mut child, pids) = {
        let mut job = command(&cell, &script(&[], "echo $$; exec yes"));
        let mut child = job.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut reader = BufReader::with_capacity(16, child.stdout.take().unwrap());
        reader.read_line(&mut line).unwrap();
        ((child, reader), [line.trim().parse::<u32>().unwrap()])
    };
    // `yes` never sleeps but in a write while all buffers are full.
    let state = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.contains(" S ")
    };
    let waits = |pid: u32| {
        (0..10).all(|_| {
            std::thread::sleep(Duration::from_millis(20));
            state(pid)
        })
    };
    until("the flood waits", || waits(pids[0]));
    let before = resident(cell.pid("storage1-1"));
    assert!(before < 300 << 20, "the agent has {before} bytes");
    let mut some = vec![0; 1 << 20];
    child.1.read_exact(&mut some).unwrap();
    // A reader that goes away ends the job.
    drop(child.1);
    child.0.wait().unwrap();
    until("the flood ends", || !lives(pids[0]));
}

fn resident(pid: u32) -> u64 {
    let pages = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn signals_are_forwarded_and_nothing_is_left_running() {
    let cell = bring_up("run-signals", &[]);
    // A signal reaches each rank, which decides.
    let script = "trap 'exit 7' TERM; echo $$; while :; do sleep 0.05; done";
    let (mut job, pids) = sleepers(&cell, &["-n", "2"], script, 2);
    kill(own_child(job.id()), "TERM");
    assert_eq!(job.wait().unwrap().code(), Some(7));
    assert!(pids.iter().all(|pid| !lives(*pid)));
    // The second kills.
    let script = "trap '' TERM INT; echo $$; while :; do sleep 0.05; done";
    let (mut job, pids) = sleepers(&cell, &["-n", "2"], script, 2);
    let asker = own_child(job.id()).to_string();
    for signal in ["-INT", "-TERM"] {
        assert!(
            Command::new("kill")
                .args([signal, &asker])
                .status()
                .unwrap()
                .success()
        );
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(job.wait().unwrap().code(), Some(128 + 9));
    until("killed ranks end", || pids.iter().all(|pid| !lives(*pid)));

    // Processes that a command leaves behind end with it, also in a session of its own.
    let script = "setsid sleep 600 & echo $!";
    let (mut job, pids) = sleepers(&cell, &[], script, 1);
    assert!(job.wait().unwrap().success());
    assert!(!lives(pids[0]));

    // A killed asker.
    let script = "setsid sleep 600 & echo $!; wait";
    let (mut job, pids) = sleepers(&cell, &["-n", "2"], script, 2);
    let killed = Instant::now();
    kill(own_child(job.id()), "KILL");
    job.wait().unwrap();
    until("ranks of a killed asker end", || {
        pids.iter().all(|pid| !lives(*pid))
    });
    // The term is 10 s; a loaded machine may take longer to look.
    assert!(killed.elapsed() > Duration::from_secs(5));

    // An agent that stops, and one that is killed.
    for signal in ["TERM", "KILL"] {
        let (mut job, pids) = sleepers(&cell, &["--nodes", "6"], script, 1);
        // A process that execs has no command line for a moment.
        until("the rank's process lives", || lives(pids[0]));
        kill(cell.pid("storage2-1"), signal);
        until("ranks end with their agent", || !lives(pids[0]));
        assert_eq!(job.wait().unwrap().code(), Some(128 + 9), "{signal}");
        let mut up = zonal();
        let output = up.arg("up").arg("--dir").arg(cell.dir()).output().unwrap();
        assert_eq!(code(&output), 0, "{}", said(&output));
    }
}

#[test]
fn signals_during_the_start_reach_all_ranks() {
    let cell = bring_up("run-early-signals", &[]);
    // With the first line of output, most ranks are not started yet.
    let words = ["--nodes", "4,5", "-n", "60"];
    // Two signals that are pending at once are one to the kernel.
    let (once, twice) = (128 + 2, 128 + 9);
    for (signals, codes) in [
        (&["TERM"][..], &[128 + 15][..]),
        (&["INT", "INT"], &[once, twice]),
    ] {
        let script = "[ $ZONAL_RANK != 0 ] || echo $$; exec sleep 600";
        let (mut job, pids) = sleepers(&cell, &words, script, 1);
        let asker = own_child(job.id());
        for signal in signals {
            signal_one(asker, signal);
        }
        let code = job.wait().unwrap().code().unwrap();
        assert!(codes.contains(&code), "{signals:?}: {code}");
        until("ranks end", || !lives(pids[0]));
        until("the agents have no rank", || {
            ["storage1-1", "storage1-2"]
                .iter()
                .all(|node| children(cell.pid(node)).is_empty())
        });
    }
}

fn signal_one(pid: u32, signal: &str) {
    let pid = pid.to_string();
    let mut kill = Command::new("kill");
    let status = kill.arg(format!("-{signal}")).arg(pid).status();
    assert!(status.unwrap().success());
}

/// Numbers of the processes that all threads of a process have started.
fn children(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let lists = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("children")));
    let lists: Vec<String> = lists.map(Result::unwrap_or_default).collect();
    let numbers = lists.iter().flat_map(|list| list.split_whitespace());
    numbers.map(str::to_owned).collect()
}

#[test]
fn a_command_inherits_nothing_of_the_servers_process() {
    // A server with a descriptor, limits and a priority that a service manager could give it.
    let text = "exec 9</etc/passwd; ulimit -n 4000
        { echo -500 >/proc/self/oom_score_adj; } 2>/dev/null
        trap '' INT QUIT HUP USR1
        exec nice -n -5 \"$@\"";
    let mut up = Command::new("sh");
    up.args(["-c", text, "sh"]).arg(zonal().get_program());
    let cell = Cell::made_by(up, "run-inherited", (2, 2), &["--agent"]);
    let server = Path::new("/proc").join(cell.pid("storage1-1").to_string());
    let file = fs::read_link(server.join("fd/9")).unwrap();
    assert_eq!(file, Path::new("/etc/passwd"));
    let limits = fs::read_to_string(server.join("limits")).unwrap();
    assert!(limits.contains("4000"), "{limits}");

    // The C library keeps two signals for itself, which it may ignore.
    let ignored = runs(
        &cell,
        &script(&["--nodes", "4"], "grep SigIgn /proc/$$/status"),
    );
    let ignored = ignored.trim().trim_start_matches("SigIgn:").trim();
    let ignored = u64::from_str_radix(ignored, 16).unwrap();
    assert_eq!(ignored & !(0b11 << 31), 0, "{ignored:x}");

    let text = "ls /proc/$$/fd; ulimit -Sn; nice; cat /proc/$$/oom_score_adj";
    assert_eq!(
        runs(&cell, &script(&["--nodes", "4"], text)),
        "0\n1\n2\n1024\n0\n0\n"
    );
}

#[test]
fn a_dead_node_is_reported_and_its_ranks_move() {
    let cell = bring_up("run-retry", &[]);
    let mark = cell.dir().join("mark");
    let text = format!(
        "echo $$; if [ $ZONAL_NODE = 6 ]; then sleep 600; fi; echo on $ZONAL_NODE >{}",
        mark.display()
    );
    let mut job = command(&cell, &script(&["--nodes", "6", "--retry"], &text));
    let mut child = job
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    kill(cell.pid("storage2-1"), "KILL");
    let output = child.wait_with_output().unwrap();
    let text = said(&output);
    assert_eq!(code(&output), 0, "{text}");
    assert!(text.contains("zonal: node 6 at 127.0.0.1:"), "{text}");
    assert!(
        text.contains("lost with it: rank 0") && text.contains("moves to node 7"),
        "{text}"
    );
    assert_eq!(fs::read_to_string(&mark).unwrap(), "on 7\n");
}

#[test]
fn a_job_keeps_its_start_where_the_manager_is_started_anew() {
    let cell = bring_up("run-recorded-anew", &[]);
    let (mut job, _) = sleepers(&cell, &["--nodes", "4"], "echo $$; exec sleep 600", 1);
    let begun = Instant::now();
    kill(cell.pid("manager"), "TERM");
    let mut up = zonal();
    let output = up.arg("up").arg("--dir").arg(cell.dir()).output().unwrap();
    assert_eq!(code(&output), 0, "{}", said(&output));
    let least = u64::try_from(begun.elapsed().as_millis()).unwrap();
    signal_one(own_child(job.id()), "TERM");
    assert_eq!(job.wait().unwrap().code(), Some(128 + 15));
    let mut list = zonal();
    let listed = list.args(["jobs", "--json", "--cell"]).arg(cell.dir());
    let listed = listed.output().unwrap();
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    let job = &listed["jobs"][0];
    let time = |name: &str| job[name].as_u64().unwrap();
    assert_eq!(job["state"], "failed");
    assert!(time("ended_ms") - time("started_ms") >= least, "{job}");
}

#[test]
fn output_that_cannot_be_written_is_reported() {
    let cell = bring_up("run-full-output", &[]);
    let mut shell = zonal();
    shell.args(["rsh", "--cell"]).arg(cell.dir());
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    shell.args(["4", "echo hi; exec sleep 600"]).stdout(full);
    let output = shell.output().unwrap();
    assert_eq!(code(&output), 128 + 9);
    assert!(
        said(&output).contains("zonal: standard output: No space"),
        "{}",
        said(&output)
    );
}

#[test]
fn a_rank_of_a_stopped_server_is_gone_before_its_copy_starts() {
    let cell = bring_up("run-stopped-server", &[]);
    let first = cell.dir().join("first");
    // The copy looks for the process that has the rank on the other node.
    let text = format!(
        "if [ $ZONAL_NODE = 6 ]; then echo $$ >{0}; echo $$; exec sleep 600; fi
         if kill -0 $(cat {0}) 2>/dev/null; then echo both; else echo alone; fi",
        first.display()
    );
    let mut job = command(&cell, &script(&["--nodes", "6", "--retry"], &text));
    let mut child = job.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let pid: u32 = lines.next().unwrap().unwrap().parse().unwrap();
    let server = cell.pid("storage2-1");
    signal_one(server, "STOP");
    let copy = lines.next().unwrap().unwrap();
    signal_one(server, "CONT");
    assert_eq!(copy, "alone");
    assert!(child.wait().unwrap().success());
    assert!(!lives(pid));
}

#[test]
fn agents_serve_holders_of_a_credential_within_its_scope() {
    let cell = bring_up("run-rights", &[]);
    let manager = cell.address("manager", false).to_string();
    let node = cell.address("storage1-1", false);
    // Without a credential nothing is answered at all.
    let mut job = zonal();
    job.args(["run", "--cell", &manager, "--", "id"]);
    let output = as_nobody(&mut job, &cell);
    assert_eq!(code(&output), 4, "{}", said(&output));
    assert!(said(&output).contains("credential"), "{}", said(&output));

    if !is_root() {
        return;
    }
    let key = |name: &str, scope: &[&str]| {
        let path = cell.dir().join(name);
        let mut create = zonal();
        create
            .args(["key", "create", "--authority"])
            .arg(cell.dir().join("authority.pem"));
        create
            .args(["--client", name])
            .args(scope)
            .arg("--to")
            .arg(&path);
        let output = create.output().unwrap();
        assert_eq!(code(&output), 0, "{}", said(&output));
        std::os::unix::fs::chown(&path, Some(65_534), Some(65_534)).unwrap();
        path
    };
    let with = |key: &Path, words: &[&str]| {
        let mut job = zonal();
        job.args(["run", "--zone", "1", "--cell", &manager, "--key-file"])
            .arg(key);
        as_nobody(job.args(words), &cell)
    };
    let own = key("own", &["--uid-range", "65534-65534"]);
    let output = with(&own, &["--chdir", "/", "--no-prefix", "--", "id"]);
    assert_eq!(code(&output), 0, "{}", said(&output));
    let text = said(&output);
    assert!(
        text.starts_with("uid=65534(nobody) gid=65534(nogroup) groups=65534"),
        "{text}"
    );
    // Servers without an agent are named as what they are.
    let output = with(&own, &["--chdir", "/", "--dry-run", "--", "id"]);
    let text = said(&output);
    assert!(text.contains("it has no agent: its credential"), "{text}");
    // Its streams are its own, and can be opened again.
    let text = "id -G; echo again >/dev/stdout; echo wrong >/dev/stderr; cat /dev/stdin";
    let output = with(&own, &script(&["--chdir", "/"], text));
    assert_eq!(code(&output), 0, "{}", said(&output));
    assert_eq!(said(&output), "65534\nagain\nwrong\n");
    let other = key("other", &["--uid-range", "1000-1999"]);
    let output = with(&other, &["--chdir", "/", "--", "id"]);
    assert_eq!(code(&output), 1, "{}", said(&output));
    assert!(
        said(&output).contains("user ids 1000 to 1999"),
        "{}",
        said(&output)
    );
    let reader = key("reader", &["--read-only"]);
    let output = with(&reader, &["--chdir", "/", "--", "id"]);
    assert!(
        said(&output).contains("runs no commands"),
        "{}",
        said(&output)
    );

    // The first process has changed its user for good.
    let words = script(&["--chdir", "/"], "cat /proc/self/status");
    let output = with(&own, &words);
    let text = said(&output);
    assert!(text.contains("Uid:\t65534\t65534\t65534\t65534"), "{text}");
    assert!(text.contains("Gid:\t65534\t65534\t65534\t65534"), "{text}");
    assert!(text.contains("CapEff:\t0000000000000000"), "{text}");
    let _ = node;
}

/// Runs a command as nobody, with a copy of the program where the cell's folder is closed to it.
fn as_nobody(job: &mut Command, cell: &Cell) -> Output {
    if !is_root() {
        return job.output().unwrap();
    }
    let program = cell.dir().join("zonal");
    if !program.exists() {
        cell::copy_program(env!("CARGO_BIN_EXE_zonal"), &program);
        fs::set_permissions(cell.dir(), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = Command::new("timeout");
    command.args([
        "60",
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
    ]);
    command.arg(&program).args(job.get_args());
    command
        .env_remove("ZONAL_CELL")
        .env_remove("ZONAL_KEY_FILE");
    command
        .current_dir("/")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn a_cell_without_keys_runs_commands_for_its_own_user_alone() {
    let cell = bring_up("run-no-key", &["--no-key"]);
    assert_eq!(runs(&cell, &["--", "echo", "mine"]), "[0] mine\n");
    if !is_root() {
        return;
    }
    let manager = cell.address("manager", false).to_string();
    let mut job = zonal();
    job.args(["run", "--cell", &manager, "--", "id"]);
    let output = as_nobody(&mut job, &cell);
    assert_eq!(code(&output), 4, "{}", said(&output));
    assert!(
        said(&output).contains("credentials only"),
        "{}",
        said(&output)
    );
}
