//! The command line without a cell: reference, exit codes, hints, completions, manual pages.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;

use cell::{code, said, zonal};
use std::fs;
use std::path::Path;
use zonal_testkit::Scratch;

fn run(arguments: &[&str]) -> (i32, String) {
    let output = zonal().args(arguments).output().unwrap();
    (code(&output), said(&output))
}

#[test]
fn the_reference_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli-reference.md");
    let (code, text) = run(&["cli-reference"]);
    assert_eq!(code, 0);
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == text,
        "run: zonal cli-reference > docs/cli-reference.md"
    );
}

#[test]
fn errors_have_codes_and_hints() {
    let scratch = Scratch::new("codes");
    let dir = scratch.to_str().unwrap();
    let bad = scratch.join("node.toml");
    fs::write(&bad, "node = 1\nnonsense = 2\n").unwrap();
    let bad = bad.to_str().unwrap();
    let cases: [(&[&str], i32, &str); 15] = [
        (&["frobnicate"], 2, "unrecognized subcommand"),
        (&["up", "--zones", "0"], 2, "not in 1..=64"),
        (&["up", "--capacity", "10"], 2, "needs a unit"),
        (
            &["layout", "set", "--stripe-count", "some", dir],
            2,
            "or `all`",
        ),
        (
            &["config", "check", bad],
            3,
            "node.toml:2: unknown field `nonsense`",
        ),
        (&["server", "--config", bad], 3, "Hint: samples"),
        (&["config", "check", "/does/not/exist"], 3, "cannot read"),
        (
            &["status", "--cell", "127.0.0.1:1"],
            4,
            "Hint: is the server running",
        ),
        (&["up", "--dir", dir], 5, "nothing was touched"),
        (&["up", "--dir", bad], 5, "name a folder with --dir"),
        (&["status", "--cell", bad], 7, "no cell in"),
        (
            &["status", "--cell", dir],
            7,
            "Hint: make one with `zonal up`",
        ),
        (&["down", "--dir", dir], 7, "no cell in"),
        (&["umount", dir], 7, "no cell is mounted"),
        (&["locate", dir], 7, "is not in a mounted cell"),
    ];
    for (arguments, wanted, hint) in cases {
        let (code, text) = run(arguments);
        assert_eq!(code, wanted, "{arguments:?}: {text}");
        assert!(
            text.contains(hint),
            "{arguments:?}: \"{text}\" lacks \"{hint}\""
        );
    }
    assert_eq!(fs::read_dir(&scratch).unwrap().count(), 1);
}

/// Paths that must not be replaced by a file, each with a name.
fn odd_places(scratch: &Scratch) -> Vec<(std::path::PathBuf, &'static str)> {
    let place = |name: &str| scratch.join(name);
    std::os::unix::fs::symlink(place("nowhere"), place("dangling")).unwrap();
    fs::write(place("plain"), "kept").unwrap();
    std::os::unix::fs::symlink(place("plain"), place("link")).unwrap();
    fs::create_dir(place("folder")).unwrap();
    drop(std::os::unix::net::UnixListener::bind(place("socket")).unwrap());
    let made = std::process::Command::new("mkfifo")
        .arg(place("pipe"))
        .status();
    assert!(made.unwrap().success());
    vec![
        (place("dangling"), "a symbolic link"),
        (place("link"), "a symbolic link"),
        (place("folder"), "a folder"),
        (place("socket"), "a socket"),
        (place("pipe"), "a pipe"),
    ]
}

#[test]
fn only_regular_files_are_replaced() {
    let scratch = Scratch::new("replaced");
    let mut places = odd_places(&scratch);
    // A device node like /dev/null, if this user can make one.
    let device = scratch.join("device");
    let made = std::process::Command::new("mknod")
        .arg(&device)
        .args(["c", "1", "3"])
        .output();
    if made.is_ok_and(|output| output.status.success()) {
        places.push((device, "a device"));
    }
    for (place, what) in &places {
        let before = fs::symlink_metadata(place).unwrap().file_type();
        let to = place.to_str().unwrap();
        for force in [&[][..], &["--force"]] {
            for command in [
                &["meta", "backup"][..],
                &["target", "export", "--target", "1"],
            ] {
                let known = [command, &["--cell", "127.0.0.1:1", "--to", to], force].concat();
                let (code, text) = run(&known);
                assert_eq!(code, 5, "{known:?}: {text}");
                assert!(
                    text.contains(what) && text.contains("Hint:"),
                    "{known:?}: {text}"
                );
            }
        }
        let after = fs::symlink_metadata(place).unwrap().file_type();
        assert_eq!(before, after, "{to}");
    }
    assert_eq!(fs::read(scratch.join("plain")).unwrap(), b"kept");
}

#[test]
fn a_path_that_is_not_utf8_is_refused_before_anything_is_made() {
    use std::os::unix::ffi::OsStrExt;
    let scratch = Scratch::new("bytes");
    let odd = scratch.join(std::ffi::OsStr::from_bytes(b"\xff\xfe"));
    let plain = scratch.join("plain");
    for (dir, mount) in [(&odd, &plain), (&plain, &odd)] {
        let mut command = zonal();
        command
            .arg("up")
            .arg("--dir")
            .arg(dir)
            .arg("--mount")
            .arg(mount);
        let output = command.output().unwrap();
        assert_eq!(code(&output), 5, "{}", said(&output));
        assert!(said(&output).contains("not UTF-8"), "{}", said(&output));
        assert_eq!(fs::read_dir(&scratch).unwrap().count(), 0);
    }
}

#[test]
fn only_regular_files_are_read() {
    let scratch = Scratch::new("pipes");
    let cell = scratch.join("cell");
    fs::create_dir(&cell).unwrap();
    let file =
        "cell = \"00000000000000000000000000000001\"\nmanager = \"127.0.0.1:1\"\nnodes = []\n";
    fs::write(cell.join("cell.toml"), file).unwrap();
    let cell = cell.to_str().unwrap().to_owned();
    for (place, _what) in odd_places(&scratch).into_iter().skip(2) {
        let from = place.to_str().unwrap();
        let mut command = zonal();
        command.args(["meta", "restore", "--cell", &cell, "--from", from]);
        command.stdout(std::process::Stdio::piped());
        command.stderr(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while child.try_wait().unwrap().is_none() {
            if std::time::Instant::now() > end {
                child.kill().unwrap();
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let output = child.wait_with_output().unwrap();
        // A socket cannot be opened at all.
        assert!([5, 7].contains(&code(&output)), "{from}: {}", said(&output));
    }
}

#[test]
fn fsck_of_an_unreadable_cell_file_does_not_exit_as_clean() {
    let scratch = Scratch::new("fsck-code");
    fs::write(scratch.join("cell.toml"), b"\xff\xff").unwrap();
    let (code, text) = run(&["fsck", "--cell", scratch.to_str().unwrap()]);
    // The code must not mean clean, repaired, or findings left.
    assert_eq!(code, 3, "{text}");
}

#[test]
fn failed_output_is_an_error_but_a_closed_pipe_is_not() {
    let scratch = Scratch::new("printed");
    let bad = scratch.join("node.toml");
    fs::write(&bad, "nonsense = 2\n").unwrap();
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/meta.toml");
    let commands: [(&[&str], i32, i32); 7] = [
        (&["--help"], 1, 0),
        (&["--version"], 1, 0),
        (&["help", "up"], 1, 0),
        (&["completions", "bash"], 1, 0),
        (&["completions", "zsh"], 1, 0),
        (&["cli-reference"], 1, 0),
        (&["config", "check", deploy.to_str().unwrap()], 1, 0),
    ];
    for (arguments, full, closed) in commands {
        let sink = fs::OpenOptions::new()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let output = zonal().args(arguments).stdout(sink).output().unwrap();
        let text = said(&output);
        assert_eq!(code(&output), full, "{arguments:?}: {text}");
        assert!(
            text.contains("standard output: No space left"),
            "{arguments:?}: {text}"
        );
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = zonal().args(arguments).stdout(writer).output().unwrap();
        assert_eq!(code(&output), closed, "{arguments:?}: {}", said(&output));
        assert_eq!(said(&output), "", "{arguments:?}");
    }
}

#[test]
fn completions_and_manual_pages_are_made() {
    let (code, text) = run(&["completions", "bash"]);
    assert!(code == 0 && text.contains("_zonal"));
    let scratch = Scratch::new("man");
    let (code, text) = run(&["man", scratch.to_str().unwrap()]);
    assert_eq!(code, 0, "{text}");
    assert!(scratch.join("zonal-up.1").exists());
}

#[test]
fn deployed_samples_pass_the_check() {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    let output = zonal()
        .args(["config", "check"])
        .args(
            [
                "manager.toml",
                "meta.toml",
                "storage.toml",
                "loopback.toml",
                "all.toml",
            ]
            .map(|name| deploy.join(name)),
        )
        .output()
        .unwrap();
    assert_eq!(code(&output), 0, "{}", said(&output));
    assert_eq!(said(&output).lines().count(), 6, "a line a node");
}
