//! `zonal key` without a cell: it makes, lists and refuses credentials.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;

use cell::{code, said, zonal};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;
use zonal_testkit::Scratch;

fn key(folder: &Path, words: &[&str]) -> Output {
    let mut command = zonal();
    command.arg("key").args(words).current_dir(folder);
    command.output().unwrap()
}

fn made(folder: &Path, words: &[&str]) -> String {
    let output = key(folder, words);
    assert_eq!(code(&output), 0, "{words:?}: {}", said(&output));
    said(&output)
}

fn create<'a>(words: &[&'a str]) -> Vec<&'a str> {
    let mut all = vec![
        "create",
        "--authority",
        "a/authority.pem",
        "--to",
        "new.key",
    ];
    all.extend(words);
    all
}

#[test]
fn keys_are_made_shown_and_listed() {
    let scratch = Scratch::new("keys");
    made(&scratch, &["init", "--to", "a"]);
    let words = [
        "--client",
        "ci",
        "--path",
        "/projects/a b",
        "--read-only",
        "--uid-range",
        "1000-1999",
    ];
    let text = made(&scratch, &create(&words));
    let subject = "client/ci?path=/projects/a%20b&read-only&uids=1000-1999";
    assert!(text.contains(subject), "{text}");
    let mode = fs::metadata(scratch.join("new.key"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o600);
    assert!(made(&scratch, &["show", "new.key"]).contains(subject));
    let listed = made(
        &scratch,
        &["ls", "--authority", "a/authority.pem", "--json"],
    );
    let start = listed.find('{').unwrap();
    let end = listed.rfind('}').unwrap();
    let list: serde_json::Value = serde_json::from_str(&listed[start..=end]).unwrap();
    let first = &list["credentials"][0];
    assert!(
        first["subject"].as_str().unwrap().ends_with(subject),
        "{first}"
    );
}

#[test]
fn ignored_options_and_existing_files_are_refused() {
    let scratch = Scratch::new("keys-refused");
    made(&scratch, &["init", "--to", "a"]);
    assert_eq!(code(&key(&scratch, &["init", "--to", "a"])), 6);
    for words in [
        &["--admin", "x", "--path", "/p"][..],
        &["--admin", "x", "--read-only"],
        &["--admin", "x", "--uid-range", "5-6", "--squash-root"],
        &["--node", "1", "--roles", "meta", "--path", "/a"],
        &["--node", "1", "--roles", "root"],
        &["--node", "1"],
        &["--node", "0", "--roles", "meta"],
        &["--client", "x", "--roles", "meta"],
        &["--client", "x", "--admin", "y"],
        &["--client", "a b"],
        &["--client", "x", "--path", "p"],
        &["--client", "x", "--path", "/a/../b"],
        &["--client", "x", "--uid-range", "+1-2"],
        &["--client", "x", "--uid-range", "2-1"],
        &["--client", "x", "--days", "0"],
        &[],
    ] {
        let output = key(&scratch, &create(words));
        assert_eq!(code(&output), 2, "{words:?}: {}", said(&output));
        assert!(!scratch.join("new.key").exists(), "{words:?}");
    }
    made(&scratch, &create(&["--admin", "x"]));
    let before = fs::read(scratch.join("new.key")).unwrap();
    assert_eq!(code(&key(&scratch, &create(&["--admin", "x"]))), 6);
    assert_eq!(fs::read(scratch.join("new.key")).unwrap(), before);
}

#[test]
fn names_that_could_be_taken_for_others_are_refused() {
    let scratch = Scratch::new("keys-names");
    made(&scratch, &["init", "--to", "a"]);
    made(&scratch, &create(&["--admin", "operator"]));
    fs::remove_file(scratch.join("new.key")).unwrap();
    made(&scratch, &create(&["--client", "ci"]));
    fs::remove_file(scratch.join("new.key")).unwrap();
    for (words, why) in [
        (
            ["--client", "deadbeefdeadbeef"],
            "looks like a serial number",
        ),
        (
            ["--admin", "DEADBEEF00000001"],
            "looks like a serial number",
        ),
        (["--client", "commands"], "the name of an administrator"),
        (["--client", "operator"], "the name of an administrator"),
        (["--admin", "ci"], "the name of a client"),
    ] {
        let output = key(&scratch, &create(&words));
        assert_eq!(code(&output), 2, "{words:?}: {}", said(&output));
        assert!(said(&output).contains(why), "{words:?}: {}", said(&output));
        assert!(!scratch.join("new.key").exists(), "{words:?}");
    }
    // A renewal.
    made(&scratch, &create(&["--client", "ci"]));
    let list = fs::read_to_string(scratch.join("a/issued.jsonl")).unwrap();
    assert_eq!(list.lines().count(), 3);
}

#[test]
fn only_what_is_meant_is_revoked() {
    let cell = cell::Cell::with_key("revoke");
    let revoke = |words: &[&str]| {
        let mut command = zonal();
        command
            .args(["key", "revoke", "--cell"])
            .arg(cell.dir())
            .args(words);
        command.output().unwrap()
    };
    for (words, status, part) in [
        (&["commands"][..], 5, "--force"),
        (&["node 1"], 5, "nobody reaches that server"),
        (&["ffffffffffffffff"], 7, "nothing was revoked"),
        (&["nobody"], 7, "no credential of the name"),
        (&["commands", "--serial"], 2, "no serial number"),
        (&["ffffffffffffffff", "--but-newest"], 2, "goes with a name"),
    ] {
        let output = revoke(words);
        assert_eq!(code(&output), status, "{words:?}: {}", said(&output));
        assert!(said(&output).contains(part), "{words:?}: {}", said(&output));
        assert!(
            said(&output).contains("Hint:"),
            "{words:?}: {}",
            said(&output)
        );
    }
    let output = revoke(&["ffffffffffffffff", "--force"]);
    assert_eq!(code(&output), 0, "{}", said(&output));
    let mut list = zonal();
    let listed = list
        .args(["key", "ls", "--cell"])
        .arg(cell.dir())
        .output()
        .unwrap();
    assert!(!said(&listed).contains("revoked"), "{}", said(&listed));
}
