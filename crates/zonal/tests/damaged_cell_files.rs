//! Damaged files of a cell. Each command names the file, gives a hint and the documented exit code,
//! and ends at once.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;

use cell::{Cell, code, said, zonal};
use std::fs;
use std::process::Command;

const CONFIG: i32 = 3;
const REFUSED: i32 = 5;

/// A file, its new content, the command that reads it, and the exit code.
type Case = (&'static str, Option<Vec<u8>>, &'static [&'static str], i32);

fn cases() -> Vec<Case> {
    let status: &[&str] = &["status"];
    let list: &[&str] = &["key", "ls"];
    let long = b"# a comment\n".repeat(3 << 17);
    vec![
        ("cell.toml", Some(b"\xff\xfe".to_vec()), status, CONFIG),
        ("cell.toml", Some(b"nonsense".to_vec()), status, CONFIG),
        ("cell.toml", Some(long), status, CONFIG),
        ("cell.key", Some(b"nonsense".to_vec()), status, CONFIG),
        ("cell.key", Some(b"\xff\xfe".to_vec()), status, CONFIG),
        // A pipe that nobody writes to.
        ("cell.key", None, status, REFUSED),
        ("authority.pem", Some(b"nonsense".to_vec()), list, CONFIG),
        ("authority.pem", Some(b"\xff\xfe".to_vec()), list, CONFIG),
        ("authority.pem", None, list, REFUSED),
        ("issued.jsonl", Some(b"nonsense\n".to_vec()), list, CONFIG),
        ("issued.jsonl", Some(b"\xff\xfe".to_vec()), list, CONFIG),
    ]
}

#[test]
fn damaged_files_are_named_with_a_hint_and_exit_code() {
    let cell = Cell::with_key("damaged");
    cell.down();
    let run = |words: &[&str], at: &str| {
        let mut command = Command::new("timeout");
        command.arg("20").arg(zonal().get_program());
        command.args(words).arg("--cell").arg(at);
        command.output().unwrap()
    };
    let dir = cell.dir().display().to_string();
    for (name, bytes, words, expected) in cases() {
        let path = cell.dir().join(name);
        let before = fs::read(&path).unwrap();
        let what = format!("{name}, {} bytes", bytes.as_ref().map_or(0, Vec::len));
        match &bytes {
            Some(bytes) => fs::write(&path, bytes).unwrap(),
            None => {
                fs::rename(&path, path.with_extension("kept")).unwrap();
                let made = Command::new("mkfifo")
                    .args(["-m", "600"])
                    .arg(&path)
                    .status();
                assert!(made.unwrap().success());
            }
        }
        let output = run(words, &dir);
        let text = said(&output);
        match bytes {
            Some(_) => fs::write(&path, before).unwrap(),
            None => fs::rename(path.with_extension("kept"), &path).unwrap(),
        }
        assert_eq!(code(&output), expected, "{what}: {text}");
        assert!(text.contains("Hint:"), "{what}: {text}");
        assert!(text.contains(name), "{what}: {text}");
    }
    let output = run(&["status"], "");
    assert_eq!(code(&output), 2, "{}", said(&output));
    assert!(said(&output).contains("Hint:"), "{}", said(&output));
    let to = cell.dir().join("none").join("new.key");
    let words = [
        "key",
        "create",
        "--client",
        "x",
        "--to",
        to.to_str().unwrap(),
    ];
    let output = run(&words, &dir);
    assert_eq!(code(&output), 7, "{}", said(&output));
    assert!(said(&output).contains("Hint:"), "{}", said(&output));
    // No credential was listed whose file was not written.
    assert!(
        !fs::read_to_string(cell.dir().join("issued.jsonl"))
            .unwrap()
            .contains("client/x")
    );
    // The rest is unchanged.
    assert_eq!(code(&run(&["key", "ls"], &dir)), 0);
}
