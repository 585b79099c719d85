//! Samples of node.toml, good and bad: the ones in deploy/ must be good, each bad one must say what is wrong.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

use std::path::{Path, PathBuf};
use zonal_server::config::NodeConfig;

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let entries = std::fs::read_dir(&folder).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|ext| ext == "toml"));
    files.sort();
    assert!(!files.is_empty(), "no samples in {}", folder.display());
    files
}

#[test]
fn deployed_samples_are_valid() {
    for file in files("../../deploy") {
        let config = NodeConfig::load(&file).unwrap();
        assert!(!config.roles().is_empty(), "{}", file.display());
    }
}

/// Each bad sample begins with `# wants: TEXT`, which the error must contain, perhaps with `# hint: TEXT` behind it.
#[test]
fn bad_samples_say_what_is_wrong() {
    for file in files("tests/config-bad") {
        let text = std::fs::read_to_string(&file).unwrap();
        let first = text.lines().next().unwrap();
        let wanted = first.strip_prefix("# wants: ").unwrap();
        let name = file.file_name().unwrap().to_str().unwrap();
        let error = NodeConfig::parse(Path::new(name), &text).unwrap_err();
        let shown = error.to_string();
        assert!(
            shown.contains(wanted),
            "{name}: \"{shown}\" lacks \"{wanted}\""
        );
        let second = text.lines().nth(1).unwrap();
        let hint = second.strip_prefix("# hint: ").unwrap_or_default();
        assert!(
            !error.hint().is_empty() && error.hint().contains(hint),
            "{name}: {}",
            error.hint()
        );
    }
}

#[test]
fn a_manager_may_be_named_by_its_host() {
    let file = Path::new("../../deploy/loopback.toml");
    let text = std::fs::read_to_string(file).unwrap();
    let named = text.replace("127.0.0.1:7100", "localhost:7100");
    assert_ne!(named, text);
    let config = NodeConfig::parse(file, &named).unwrap();
    assert_eq!(config.manager, "127.0.0.1:7100".parse().unwrap());
}

#[test]
fn paths_are_relative_to_the_file() {
    let text = std::fs::read_to_string(files("../../deploy").remove(0)).unwrap();
    let config = NodeConfig::parse(Path::new("/etc/zonal/node.toml"), &text).unwrap();
    assert_eq!(config.dir, Path::new("/etc/zonal"));
    assert_eq!(config.roles(), ["meta", "storage"]);
    assert_eq!(config.target_dir(), Path::new("/etc/zonal/target"));
}
