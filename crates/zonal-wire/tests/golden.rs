//! Golden bytes of frames and messages, in `testdata/*.hex`: a change of any of them is a change of
//! the protocol's version. `ZONAL_BLESS=1` rewrites the files (before a release only).
#![allow(clippy::unwrap_used, reason = "tests")]

mod samples;

use samples::{Kind, corpus, corpus_path, headers, kinds};
use std::fmt::Write;
use zonal_testkit::to_hex;
use zonal_wire::{HEADER_BYTES, Header};

/// Compares a file of the corpus with what the program makes now.
fn compare(file: &str, about: &str, now: &[(String, Vec<u8>)]) {
    if std::env::var_os("ZONAL_BLESS").is_some() {
        let mut text = format!("# {about}\n");
        for (name, bytes) in now {
            writeln!(text, "{name} {}", to_hex(bytes)).unwrap();
        }
        std::fs::write(corpus_path(file), text).unwrap();
    }
    let kept = corpus(file);
    for (kept, now) in kept.iter().zip(now) {
        let (kept_hex, now_hex) = (to_hex(&kept.1), to_hex(&now.1));
        assert_eq!((&kept.0, kept_hex), (&now.0, now_hex), "in {file}");
    }
    assert_eq!(kept.len(), now.len(), "lines of {file}");
}

#[test]
fn headers_have_the_bytes_written_down() {
    let now: Vec<(String, Vec<u8>)> = (headers().iter())
        .map(|(name, header)| ((*name).to_owned(), header.encode().to_vec()))
        .collect();
    compare("frame.hex", "frame headers", &now);
    for ((_, bytes), (_, header)) in corpus("frame.hex").iter().zip(headers()) {
        let bytes: [u8; HEADER_BYTES] = bytes.as_slice().try_into().unwrap();
        assert_eq!(Header::decode(&bytes), Ok(header));
    }
}

fn file_of(kind: &Kind) -> String {
    format!("{}.hex", kind.name)
}

#[test]
fn messages_have_the_bytes_written_down() {
    for kind in kinds() {
        let now: Vec<(String, Vec<u8>)> = (kind.samples.iter())
            .map(|(name, _, bytes)| ((*name).to_owned(), bytes.clone()))
            .collect();
        compare(&file_of(&kind), "message and its bytes", &now);
        for (name, bytes) in corpus(&file_of(&kind)) {
            let back = (kind.roundtrip)(&bytes);
            assert_eq!(back, Some(bytes), "{} {name}", kind.name);
        }
    }
}

#[test]
fn no_message_is_without_a_sample() {
    for kind in kinds() {
        for tag in 0..=u8::MAX {
            let has_sample = kind.samples.iter().any(|(_, known, _)| *known == tag);
            assert_eq!((kind.knows)(tag), has_sample, "{} tag {tag}", kind.name);
        }
    }
}

#[test]
fn the_protocol_page_lists_every_message_with_its_tag() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("../../docs/wire-protocol.md")).unwrap();
    for kind in kinds() {
        let heading = format!("### {}", kind.name);
        let section = page.split_once(heading.as_str()).map(|(_, rest)| rest);
        let section = section.unwrap_or_else(|| panic!("{heading} is missing"));
        let section = section.split("\n#").next().unwrap();
        for (name, tag, _) in &kind.samples {
            let row = format!("| {tag} | {name} |");
            assert!(section.contains(&row), "{}: {row} is missing", kind.name);
        }
        let rows = section.lines().filter(|line| {
            let cell = line.trim_start_matches("| ").split(' ').next();
            cell.is_some_and(|cell| cell.parse::<u8>().is_ok())
        });
        let tags: std::collections::BTreeSet<u8> =
            kind.samples.iter().map(|(_, tag, _)| *tag).collect();
        assert_eq!(rows.count(), tags.len(), "{}: rows too many", kind.name);
    }
}
