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
    let cases: [(&[&str], i32, &str); 13] = [
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
            "Hint: is the cell up?",
        ),
        (&["up", "--dir", dir], 5, "nothing was touched"),
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
            ["manager.toml", "meta.toml", "storage.toml", "loopback.toml"]
                .map(|name| deploy.join(name)),
        )
        .output()
        .unwrap();
    assert_eq!(code(&output), 0, "{}", said(&output));
    assert_eq!(said(&output).lines().count(), 4);
}
