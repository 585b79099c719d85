//! Limits on what a folder can do to the user who starts, stops or reads a cell in it.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;

use cell::{code, copy_program, said, zonal};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use zonal_testkit::Scratch;

/// A user id that nobody else has.
const USER: u32 = 64_310;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn set(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn mode_of(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

const SHAPE: [&str; 6] = [
    "--zones",
    "1",
    "--storage-nodes",
    "1",
    "--capacity",
    "1 GiB",
];

fn up(dir: &Path) -> Output {
    let mut command = zonal();
    command.arg("up").args(SHAPE).arg("--dir").arg(dir);
    command.output().unwrap()
}

fn down(dir: &Path) -> Output {
    zonal().arg("down").arg("--dir").arg(dir).output().unwrap()
}

/// A cell that is stopped at the end of the test, even if it should never have started.
struct Stopped(PathBuf);

impl Drop for Stopped {
    fn drop(&mut self) {
        down(&self.0);
    }
}

fn folder(scratch: &Scratch) -> Stopped {
    let dir = scratch.join("cell");
    fs::create_dir(&dir).unwrap();
    set(&dir, 0o700);
    Stopped(dir)
}

#[test]
fn a_lock_that_is_a_link_is_refused_and_what_it_names_stays() {
    let scratch = Scratch::new("lock-link");
    let cell = folder(&scratch);
    let other = scratch.join("other");
    fs::write(&other, "kept").unwrap();
    symlink(&other, cell.0.join("lock")).unwrap();
    let output = up(&cell.0);
    assert_eq!(fs::read_to_string(&other).unwrap(), "kept");
    assert_eq!(code(&output), 5, "{}", said(&output));
    fs::remove_file(cell.0.join("lock")).unwrap();
    let output = up(&cell.0);
    assert_eq!(code(&output), 0, "{}", said(&output));
    fs::remove_file(cell.0.join("lock")).unwrap();
    symlink(&other, cell.0.join("lock")).unwrap();
    let output = down(&cell.0);
    assert_eq!(fs::read_to_string(&other).unwrap(), "kept");
    assert_eq!(code(&output), 5, "{}", said(&output));
    fs::remove_file(cell.0.join("lock")).unwrap();
}

#[test]
fn a_file_of_a_store_that_is_a_link_is_refused_and_what_it_names_stays() {
    let scratch = Scratch::new("store-link");
    let cell = folder(&scratch);
    let output = up(&cell.0);
    assert_eq!(code(&output), 0, "{}", said(&output));
    assert_eq!(code(&down(&cell.0)), 0);
    for name in ["log", "lock", "index.redb"] {
        let (file, other) = (cell.0.join("meta1/shard").join(name), scratch.join("other"));
        fs::rename(&file, &other).unwrap();
        symlink(&other, &file).unwrap();
        let before = fs::read(&other).unwrap();
        let output = up(&cell.0);
        assert_eq!(code(&output), 5, "{name}: {}", said(&output));
        let path = file.display().to_string();
        assert!(said(&output).contains(&path), "{name}: {}", said(&output));
        assert!(fs::read(&other).unwrap() == before, "{name} was written");
        down(&cell.0);
        fs::rename(&other, &file).unwrap();
    }
    let output = up(&cell.0);
    assert_eq!(code(&output), 0, "{}", said(&output));
}

#[test]
fn the_files_of_a_new_cell_are_its_owners_alone() {
    let scratch = Scratch::new("modes");
    let cell = Stopped(scratch.join("new/cell"));
    let output = up(&cell.0);
    assert_eq!(code(&output), 0, "{}", said(&output));
    for dir in ["..", ".", "manager", "storage1-1", "storage1-1/target"] {
        assert_eq!(mode_of(&cell.0.join(dir)), 0o700, "{dir}");
    }
    assert_eq!(mode_of(&cell.0.join("cell.key")), 0o600);
}

/// Every command that opens the folder of a cell.
fn commands(dir: &Path, scratch: &Path) -> Vec<(&'static str, Command)> {
    let (dir, backup) = (dir.to_str().unwrap(), scratch.join("backup"));
    let backup = backup.to_str().unwrap().to_owned();
    let store = format!("{dir}/manager/manager");
    let target = format!("{dir}/storage1-1/target");
    let config = format!("{dir}/manager/node.toml");
    let lines: [(&str, Vec<&str>); 12] = [
        ("up", vec!["up", "--dir", dir]),
        ("down", vec!["down", "--dir", dir]),
        ("status", vec!["status", "--cell", dir]),
        ("mount", vec!["mount", "--cell", dir, "/mnt"]),
        ("fsck", vec!["fsck", "--cell", dir]),
        ("map", vec!["zone-map", "show", "--cell", dir]),
        ("session", vec!["session", "ls", "--cell", dir]),
        (
            "backup",
            vec!["meta", "backup", "--cell", dir, "--to", &backup],
        ),
        ("dump", vec!["dump", &store]),
        (
            "export",
            vec!["target", "export", "--dir", &target, "--to", &backup],
        ),
        ("server", vec!["server", "--config", &config]),
        ("scrub", vec!["scrub", "status", "--cell", dir]),
    ];
    let command = |line: &[&str]| {
        let mut command = zonal();
        command.args(line);
        command
    };
    lines
        .iter()
        .map(|(name, line)| (*name, command(line)))
        .collect()
}

fn refuse_all(dir: &Path, scratch: &Path, hint: &str) {
    for (name, mut command) in commands(dir, scratch) {
        let output = command.output().unwrap();
        let text = said(&output);
        assert_eq!(code(&output), 5, "{name}: {text}");
        assert!(
            text.contains("Hint: ") && text.contains(hint),
            "{name}: {text}"
        );
    }
}

#[test]
fn a_folder_that_others_can_write_is_refused_by_every_command() {
    let scratch = Scratch::new("writable");
    let above = scratch.join("above");
    fs::create_dir(&above).unwrap();
    let cell = Stopped(above.join("cell"));
    let output = up(&cell.0);
    assert_eq!(code(&output), 0, "{}", said(&output));
    assert_eq!(code(&down(&cell.0)), 0);
    for path in [&cell.0, &above] {
        let before = mode_of(path);
        set(path, 0o777);
        let hint = format!("chmod go-w {}", path.display());
        refuse_all(&cell.0, &scratch, &hint);
        set(path, before);
    }
    // Like /tmp: refused for the folder itself.
    set(&cell.0, 0o1777);
    let output = up(&cell.0);
    assert_eq!(code(&output), 5, "{}", said(&output));
    set(&cell.0, 0o700);
    set(&above, 0o1777);
    let output = up(&cell.0);
    assert_eq!(code(&output), 0, "{}", said(&output));
}

#[test]
fn a_folder_of_another_user_is_refused_by_every_command_of_root() {
    if !is_root() {
        eprintln!("skipped: only root can give a folder away");
        return;
    }
    let scratch = Scratch::new("foreign");
    set(&scratch, 0o1777);
    // An empty folder: nothing is written there, least of all the key.
    let empty = scratch.join("empty");
    fs::create_dir(&empty).unwrap();
    chown(&empty, Some(USER), Some(USER)).unwrap();
    let refused = up(&empty);
    let _stopped = Stopped(empty.clone());
    assert_eq!(fs::read_dir(&empty).unwrap().count(), 0);
    assert_eq!(code(&refused), 5, "{}", said(&refused));
    // A cell that a user made.
    let program = scratch.join("zonal");
    copy_program(zonal().get_program(), &program);
    set(&program, 0o755);
    let dir = scratch.join("of-user");
    let of_user = |command: &str| {
        let mut line = Command::new(&program);
        line.arg(command).arg("--dir").arg(&dir);
        if command == "up" {
            line.args(SHAPE);
        }
        line.uid(USER).gid(USER).env_remove("ZONAL_CELL");
        line.output().unwrap()
    };
    let output = of_user("up");
    assert_eq!(code(&output), 0, "{}", said(&output));
    let backup = scratch.join("backup-of-user");
    let mut command = Command::new(&program);
    command.args(["meta", "backup", "--cell"]).arg(&dir);
    command.arg("--to").arg(&backup).uid(USER).gid(USER);
    let output = command.output().unwrap();
    assert_eq!(code(&output), 0, "{}", said(&output));
    let output = of_user("down");
    assert_eq!(code(&output), 0, "{}", said(&output));
    // A folder that a restore would take for the rest of an earlier one.
    let rest = dir.join("manager/manager.restoring");
    fs::create_dir(&rest).unwrap();
    fs::write(rest.join("file"), "kept").unwrap();
    let mut command = zonal();
    command.args(["meta", "restore", "--force", "--config"]);
    command.arg(dir.join("manager/node.toml"));
    let output = command.arg("--from").arg(&backup).output().unwrap();
    assert!(rest.join("file").exists(), "{}", said(&output));
    assert_eq!(code(&output), 5, "{}", said(&output));
    refuse_all(&dir, &scratch, &format!("as user {USER}"));
    // The same behind a link of that user.
    let link = scratch.join("link");
    let cell = Stopped(scratch.join("cell"));
    let output = up(&cell.0);
    assert_eq!(code(&output), 0, "{}", said(&output));
    symlink(&cell.0, &link).unwrap();
    std::os::unix::fs::lchown(&link, Some(USER), Some(USER)).unwrap();
    let output = zonal().args(["status", "--cell"]).arg(&link).output();
    let output = output.unwrap();
    assert_eq!(code(&output), 5, "{}", said(&output));
}

#[test]
fn a_backup_is_its_owners_alone() {
    let scratch = Scratch::new("backup-mode");
    let cell = Stopped(scratch.join("cell"));
    let output = up(&cell.0);
    assert_eq!(code(&output), 0, "{}", said(&output));
    let backup = scratch.join("backup");
    let mut command = zonal();
    command.args(["meta", "backup", "--cell"]).arg(&cell.0);
    let output = command.arg("--to").arg(&backup).output().unwrap();
    assert_eq!(code(&output), 0, "{}", said(&output));
    assert_eq!(mode_of(&backup), 0o600);
    let left = fs::read_dir(&*scratch).unwrap().count();
    assert_eq!(left, 2, "the cell and the backup");
}

#[test]
fn names_in_a_cells_file_stay_in_its_folder() {
    let scratch = Scratch::new("names");
    let cell = Stopped(scratch.join("cell"));
    let output = up(&cell.0);
    assert_eq!(code(&output), 0, "{}", said(&output));
    assert_eq!(code(&down(&cell.0)), 0);
    let file = cell.0.join("cell.toml");
    let text = fs::read_to_string(&file).unwrap();
    for (old, new) in [
        ("\"meta1\"", "\"../meta1\""),
        ("\"meta1\"", "\"a/meta1\""),
        ("\"meta1\"", "\"/etc\""),
        ("\"meta1\"", "\"..\""),
        ("\"meta1\"", "\"\""),
        ("\"cell.key\"", "\"../cell.key\""),
        ("\"cell.key\"", "\"/etc/shadow\""),
    ] {
        let changed = text.replace(old, new);
        assert_ne!(changed, text);
        fs::write(&file, changed).unwrap();
        for command in ["up", "down"] {
            let mut line = zonal();
            let output = line
                .arg(command)
                .arg("--dir")
                .arg(&cell.0)
                .output()
                .unwrap();
            assert_eq!(code(&output), 3, "{new}: {}", said(&output));
            assert!(
                said(&output).contains("single plain name"),
                "{}",
                said(&output)
            );
        }
    }
    fs::write(&file, text).unwrap();
}

#[test]
fn a_key_that_others_can_read_is_refused() {
    let scratch = Scratch::new("key-mode");
    let cell = Stopped(scratch.join("cell"));
    let output = up(&cell.0);
    assert_eq!(code(&output), 0, "{}", said(&output));
    let key = cell.0.join("cell.key");
    let nodes = cell.0.join("manager/node.key");
    set(&key, 0o644);
    set(&nodes, 0o644);
    let config = cell.0.join("manager/node.toml");
    for mut command in [
        {
            let mut command = zonal();
            command.args(["status", "--cell"]).arg(&cell.0);
            command
        },
        {
            let mut command = zonal();
            command.args(["server", "--config"]).arg(&config);
            command
        },
    ] {
        let output = command.output().unwrap();
        assert_eq!(code(&output), 5, "{}", said(&output));
        assert!(said(&output).contains("chmod go-rwx"), "{}", said(&output));
    }
    set(&key, 0o600);
    set(&nodes, 0o600);
}
