//! Samples of node.toml, good and bad: the ones in deploy/ must be good, each bad one must say what is wrong.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

use std::path::{Path, PathBuf};
use zonal_server::config::{NodeConfig, StoreConfig};

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
        let nodes = NodeConfig::load(&file).unwrap();
        assert!(nodes.iter().all(|node| !node.roles().is_empty()));
        assert!(!nodes.is_empty(), "{}", file.display());
    }
}

/// Each bad sample begins with `# wants: TEXT`, which the error must contain.
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
        assert!(!error.hint().is_empty());
    }
}

#[test]
fn a_manager_may_be_named_by_its_host() {
    let file = Path::new("../../deploy/loopback.toml");
    let text = std::fs::read_to_string(file).unwrap();
    let named = text.replace("127.0.0.1:7100", "localhost:7100");
    assert_ne!(named, text);
    let nodes = NodeConfig::parse(file, &named).unwrap();
    assert_eq!(nodes[0].manager, "127.0.0.1:7100".parse().unwrap());
}

#[test]
fn paths_are_relative_to_the_file() {
    let text = std::fs::read_to_string("../../deploy/loopback.toml").unwrap();
    let nodes = NodeConfig::parse(Path::new("/etc/zonal/node.toml"), &text).unwrap();
    let [config] = nodes.as_slice() else {
        panic!("{nodes:?}");
    };
    assert_eq!(config.dir, Path::new("/etc/zonal"));
    assert_eq!(config.roles(), ["meta", "storage"]);
    assert_eq!(config.target_dir(), Path::new("/etc/zonal/target"));
}

#[test]
fn a_file_with_every_role_is_two_nodes() {
    let text = std::fs::read_to_string("../../deploy/all.toml").unwrap();
    let nodes = NodeConfig::parse(Path::new("/etc/zonal/all.toml"), &text).unwrap();
    let [first, second] = nodes.as_slice() else {
        panic!("{nodes:?}");
    };
    assert_eq!(first.roles(), ["manager", "storage"]);
    assert_eq!(second.roles(), ["meta"]);
    assert_eq!((first.node.0, second.node.0), (1, 2));
    assert_eq!(first.listen, "10.1.0.10:7100".parse().unwrap());
    assert_eq!(second.listen, "10.1.0.10:7101".parse().unwrap());
    assert_eq!(second.advertise, second.listen);
    assert_eq!(second.manager, first.listen);
    assert_eq!(first.admin, Some("127.0.0.1:7190".parse().unwrap()));
    assert_eq!(second.admin, Some("127.0.0.1:7191".parse().unwrap()));
    assert_eq!((first.zone, &first.dir), (second.zone, &second.dir));
    assert_eq!(first.key_file, second.key_file);
}

#[test]
fn what_a_table_says_is_of_its_node_alone() {
    let text = r#"
cell = "00112233445566778899aabbccddeeff"
node = 1
listen = "127.0.0.1:7100"
manager_address = "127.0.0.1:7200"
[zone]
id = 1
[manager]
inline = "8 KiB"
root_uid = 7
[meta]
node = 2
listen = "127.0.0.1:7101"
advertise = "127.0.0.1:7201"
cache = "1 MiB"
[admin]
listen = "127.0.0.1:7190"
"#;
    let nodes = NodeConfig::parse(Path::new("node.toml"), text).unwrap();
    let [first, second] = nodes.as_slice() else {
        panic!("{nodes:?}");
    };
    assert_eq!((first.inline_bytes, second.inline_bytes), (8192, 4096));
    assert_eq!((first.root_owner, second.root_owner), ((7, 0), (0, 0)));
    assert_eq!(second.advertise, "127.0.0.1:7201".parse().unwrap());
    assert_eq!(first.manager, second.manager);
    assert_eq!((first.admin.is_some(), second.admin), (true, None));
    let cache = |store: &Option<StoreConfig>| store.as_ref().unwrap().cache;
    assert_eq!(cache(&first.manager_role), 48 << 20);
    assert_eq!(cache(&second.meta_role), 1 << 20);
}
