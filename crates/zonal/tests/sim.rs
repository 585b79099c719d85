//! `zonal sim`: its output depends on the seeds alone, and the command that it prints for a broken
//! seed reproduces the failure.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;

use cell::{code, said, zonal};

fn sim(arguments: &[&str]) -> (i32, String) {
    let output = zonal().arg("sim").args(arguments).output().unwrap();
    (code(&output), said(&output))
}

#[test]
fn the_same_seeds_give_the_same_output_on_any_number_of_threads() {
    for more in [&["--verbose"][..], &["--verbose", "--json"]] {
        let run = |threads: &str| {
            let seeds = ["--seeds", "5", "--seed", "5", "--threads", threads];
            sim(&[&seeds[..], more].concat())
        };
        let (status, text) = run("1");
        assert_eq!(status, 0, "{text}");
        assert!(text.lines().count() > 5, "{text}");
        for threads in ["1", "4"] {
            assert!(run(threads) == (status, text.clone()), "{threads} threads");
        }
    }
    let (one, two) = (
        sim(&["--seeds", "3"]),
        sim(&["--seeds", "3", "--seed", "9"]),
    );
    assert_ne!(one, two, "other seeds say the same");
}

#[test]
fn a_planted_bug_fails_and_its_command_reproduces_it() {
    let planted = ["--plant", "sync-nothing", "--scenario", "power"];
    let (status, text) = sim(&[
        &planted[..],
        &["--seeds", "200", "--first", "--steps", "50"],
    ]
    .concat());
    assert_eq!(status, 1, "{text}");
    assert!(
        text.contains("invariant 3") && text.contains("are broken"),
        "{text}"
    );
    let lines: Vec<&str> = text.lines().collect();
    let at = lines
        .iter()
        .position(|line| line.contains("again: "))
        .unwrap();
    let (_, again) = lines[at].split_once("again: zonal sim ").unwrap();
    let report = lines[..at].join("\n");
    assert!(report.contains("invariant 3"), "{text}");
    // The printed command also logs every message.
    let again = again.strip_suffix(" --log").unwrap();
    let words: Vec<&str> = again.split(' ').collect();
    let (status, text) = sim(&words);
    assert_eq!(status, 1, "{text}");
    assert!(text.starts_with(&report), "{report}\nand again\n{text}");
    let printed = sim(&[&words[..], &["--log"]].concat());
    assert!(
        printed.0 == 1 && printed.1.contains(&report),
        "with --log it is another run"
    );
    // Without the bug the same seed is good.
    let at = words.iter().position(|word| *word == "--plant").unwrap();
    let (status, text) = sim(&[&words[..at], &words[at + 2..]].concat());
    assert_eq!(status, 0, "{text}");
}

#[test]
fn the_time_limit_ends_a_run_with_seeds_left() {
    let (status, text) = sim(&["--seeds", "1000000", "--minutes", "0", "--threads", "2"]);
    assert_eq!(status, 0, "{text}");
    let last = text.lines().last().unwrap_or_default();
    let words: Vec<&str> = last.split(' ').collect();
    let [good, "of", all, "seeds", "good"] = words[..] else {
        panic!("{text}");
    };
    let all: u64 = all.parse().unwrap();
    assert!(good == words[2] && (1..1_000).contains(&all), "{text}");
}
