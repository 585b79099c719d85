//! Selection of a command's cell: a folder, the manager's address, ZONAL_CELL, or the default
//! place. Command lines of a cell's processes name it.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;

use cell::{Cell, NODES, code, copy_program, said, zonal};
use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use zonal_testkit::Scratch;

fn asked(arguments: &[&str], cell: &str) -> Output {
    let mut command = zonal();
    command.args(arguments).args(["--cell", cell]);
    command.output().unwrap()
}

/// Output without parts that change over time.
fn stable(output: &Output) -> String {
    let text = said(output);
    let moving = ["free_bytes", "idle_ms", "elapsed", "seconds", "resident"];
    let kept = text
        .lines()
        .filter(|line| !moving.iter().any(|word| line.contains(word)));
    kept.collect::<Vec<_>>().join("\n")
}

#[test]
fn every_command_takes_the_managers_address() {
    let cell = Cell::up("address");
    let folder = cell.dir().to_str().unwrap().to_owned();
    let address = cell.address("manager", false).to_string();
    for arguments in [
        &["status", "--json"][..],
        &["zone-map", "show"],
        &["zone-map", "show", "--json"],
        &["session", "ls"],
        &["session", "ls", "--json"],
        &["scrub", "status", "--json"],
        &["target", "ls", "--target", "1"],
        &["target", "ls", "--target", "1", "--json", "--paths"],
    ] {
        let (by_folder, by_address) = (asked(arguments, &folder), asked(arguments, &address));
        assert_eq!(code(&by_folder), 0, "{arguments:?}: {}", said(&by_folder));
        assert_eq!(code(&by_address), 0, "{arguments:?}: {}", said(&by_address));
        assert_eq!(stable(&by_folder), stable(&by_address), "{arguments:?}");
    }
    let to = |name: &str| cell.dir().join(name).to_str().unwrap().to_owned();
    let (backup, objects) = (to("meta.backup"), to("objects"));
    for arguments in [
        &["scrub", "start", "--rate", "1 GiB"][..],
        &["scrub", "stop", "--target", "1"],
        &["meta", "backup", "--to", &backup],
        &["target", "export", "--target", "1", "--to", &objects],
        &["target", "import", "--target", "1", "--from", &objects],
        &["fsck"],
    ] {
        let output = asked(arguments, &address);
        assert_eq!(code(&output), 0, "{arguments:?}: {}", said(&output));
    }
    assert!(fs::metadata(backup).unwrap().len() > 0 && fs::metadata(objects).is_ok());
    // The servers report an unknown client, so the cell was found.
    for named in [&folder, &address] {
        let output = asked(&["session", "end", "123456789"], named);
        assert_eq!(code(&output), 7, "{}", said(&output));
    }
}

#[test]
fn command_lines_of_processes_name_folder_and_roles() {
    let cell = Cell::up("lines");
    for (node, roles) in NODES.iter().zip(["manager", "meta", "storage"]) {
        let line = fs::read(format!("/proc/{}/cmdline", cell.pid(node))).unwrap();
        let words: Vec<_> = line.split(|byte| *byte == 0).collect();
        let words: Vec<_> = words
            .iter()
            .map(|word| String::from_utf8_lossy(word))
            .collect();
        let behind = |option: &str| {
            let at = words.iter().position(|word| word == option);
            words[at.unwrap_or_else(|| panic!("{node}: {words:?}")) + 1].clone()
        };
        assert_eq!(behind("--roles"), roles, "{node}: {words:?}");
        let config = PathBuf::from(behind("--config").as_ref());
        assert!(config.is_absolute(), "{node}: {words:?}");
        assert_eq!(config, cell.config(node), "{node}: {words:?}");
    }
}

const SHAPE: [&str; 6] = [
    "--zones",
    "1",
    "--storage-nodes",
    "1",
    "--capacity",
    "1 GiB",
];

#[test]
fn zonal_cell_names_the_cell_where_the_command_line_does_not() {
    let (one, two) = (Cell::up("env-one"), Scratch::new("env-two"));
    let with = |value: &Path, arguments: &[&str]| {
        let mut command = zonal();
        command.env("ZONAL_CELL", value).args(arguments);
        command.output().unwrap()
    };
    let made = with(&two, &[&["up"][..], &SHAPE].concat());
    assert_eq!(code(&made), 0, "{}", said(&made));
    // Stopped even if an assertion fails.
    let two = Cell { scratch: two };
    let id = |output: &Output| {
        assert_eq!(code(output), 0, "{}", said(output));
        let text = said(output);
        let line = text.lines().find(|line| line.contains("\"cell\"")).unwrap();
        line.to_owned()
    };
    let of = |cell: &Cell| id(&cell.status());
    assert_ne!(of(&one), of(&two));
    let json = ["status", "--json"];
    assert_eq!(id(&with(one.dir(), &json)), of(&one));
    assert_eq!(id(&with(two.dir(), &json)), of(&two));
    // ZONAL_CELL may be an address; the command line takes precedence.
    let manager = one.address("manager", false).to_string();
    assert_eq!(id(&with(Path::new(&manager), &json)), of(&one));
    let other = [&json[..], &["--cell", two.dir().to_str().unwrap()]].concat();
    assert_eq!(id(&with(one.dir(), &other)), of(&two));
    let output = with(two.dir(), &["down"]);
    assert_eq!(code(&output), 0, "{}", said(&output));
    assert!(
        said(&output).contains("stopped 3 of 3"),
        "{}",
        said(&output)
    );
    assert_eq!(code(&two.status()), 4);
    assert_eq!(code(&one.status()), 0, "{}", said(&one.status()));
    // A cell named by an address is elsewhere: there is nothing to start or stop here.
    for command in ["up", "down"] {
        let mut command = Command::new(command_in(&one, command));
        let output = command.env("ZONAL_CELL", &manager).output().unwrap();
        assert_ne!(code(&output), 0, "{}", said(&output));
        assert!(said(&output).contains("Hint:"), "{}", said(&output));
    }
    assert!(!one.dir().join(&manager).exists());
}

/// A script that runs a command of zonal in a cell's folder, so that files it makes are made there.
fn command_in(cell: &Cell, command: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let script = cell.dir().join(format!("{command}.sh"));
    let program = zonal().get_program().to_str().unwrap().to_owned();
    let text = format!(
        "#!/bin/sh\ncd '{}' && exec '{program}' {command}\n",
        cell.dir().display()
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    script
}

/// The program, run as an ordinary user with a home folder.
struct User {
    home: Scratch,
    uid: Option<u32>,
    program: PathBuf,
}

impl User {
    fn new() -> Self {
        let home = Scratch::new("home");
        let is_root = fs::metadata(&*home).unwrap().uid() == 0;
        let mut program = PathBuf::from(zonal().get_program());
        let uid = is_root.then_some(64_321);
        if let Some(uid) = uid {
            // The user may have no access to the build folder.
            copy_program(&program, &home.join("zonal"));
            program = home.join("zonal");
            chown(&*home, Some(uid), Some(uid)).unwrap();
        }
        Self { home, uid, program }
    }

    fn run(&self, arguments: &[&str], cell: Option<&str>) -> Output {
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .env("HOME", &*self.home)
            .env_remove("ZONAL_CELL");
        command
            .env_remove("ZONAL_KEY_FILE")
            .current_dir(&*self.home);
        if let Some(cell) = cell {
            command.env("ZONAL_CELL", cell);
        }
        if let Some(uid) = self.uid {
            command.uid(uid).gid(uid);
        }
        command.output().unwrap()
    }
}

impl Drop for User {
    fn drop(&mut self) {
        self.run(&["down"], None);
    }
}

#[test]
fn without_a_name_commands_use_the_cell_at_home() {
    let user = User::new();
    let output = user.run(&["status"], None);
    assert_eq!(code(&output), 7, "{}", said(&output));
    assert!(
        said(&output).contains(".zonal/default"),
        "{}",
        said(&output)
    );
    let output = user.run(&[&["up"][..], &SHAPE].concat(), None);
    assert_eq!(code(&output), 0, "{}", said(&output));
    assert!(user.home.join(".zonal/default/cell.toml").exists());
    // Empty counts as unset.
    for cell in [None, Some("")] {
        let output = user.run(&["status"], cell);
        assert_eq!(code(&output), 0, "{cell:?}: {}", said(&output));
    }
    let output = user.run(&["down"], Some(""));
    assert_eq!(code(&output), 0, "{}", said(&output));
    assert!(
        said(&output).contains("stopped 3 of 3"),
        "{}",
        said(&output)
    );
}
