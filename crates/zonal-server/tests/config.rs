//! Samples of node.toml: those in deploy/ must be valid, and each bad one must lead to the right
//! error.
#![allow(
    clippy::too_many_lines,
    reason = "a test tells one story from its start to its end"
)]
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

use std::path::{Path, PathBuf};
use zonal_server::config::{ConfigError, NodeConfig, StoreConfig};
use zonal_server::units::{ByteSize, Millis};

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

/// Each bad sample begins with `# wants: TEXT`, which the error must contain. A line `# hint: TEXT`
/// may follow.
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
    let nodes = NodeConfig::parse(file, &named).unwrap();
    assert_eq!(nodes[0].managers, ["127.0.0.1:7100".parse().unwrap()]);
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
    assert_eq!(second.managers, [first.listen]);
    let admin = |node: &NodeConfig| node.admin.as_ref().unwrap().listen.to_string();
    assert_eq!(admin(first), "127.0.0.1:7190");
    assert_eq!(admin(second), "127.0.0.1:7191");
    assert_eq!((&first.zone, &first.dir), (&second.zone, &second.dir));
    assert_eq!(first.key_file, second.key_file);
}

#[test]
fn an_agent_has_its_defaults_and_is_a_role() {
    let text = std::fs::read_to_string("../../deploy/agent.toml").unwrap();
    let nodes = NodeConfig::parse(Path::new("agent.toml"), &text).unwrap();
    assert_eq!(nodes[0].roles(), ["agent"]);
    let agent = nodes[0].agent_role.as_ref().unwrap();
    assert_eq!((agent.ranks, agent.user_min), (256, 1000));
    assert!(!agent.is_standby && !agent.no_new_privs);
}

#[test]
fn keys_of_a_table_apply_to_its_node_only() {
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
    assert_eq!(first.managers, second.managers);
    assert_eq!(
        (first.admin.is_some(), second.admin.is_some()),
        (true, false)
    );
    let cache = |store: &Option<StoreConfig>| store.as_ref().unwrap().cache;
    assert_eq!(cache(&first.manager_role), 48 << 20);
    assert_eq!(cache(&second.meta_role), 1 << 20);
}

/// A config with this line in this table.
fn with(table: &str, line: &str) -> String {
    let head = "cell = \"00112233445566778899aabbccddeeff\"\nnode = 2\nlisten = \"127.0.0.1:7101\"\nmanager_address = \"127.0.0.1:7100\"\n[zone]\nid = 1\n";
    let mut text = head.to_owned();
    for (name, lines) in [
        ("meta", ""),
        ("storage", "target = 1\ncapacity = \"10 GiB\"\n"),
        ("limits", ""),
    ] {
        let own = lines
            .lines()
            .filter(|own| own.split(' ').next() != line.split(' ').next());
        let own: Vec<&str> = own.collect();
        text += &format!("[{name}]\n{}\n", own.join("\n"));
        if name == table {
            text += &format!("{line}\n");
        }
    }
    text
}

fn amount(text: &str) -> u64 {
    let text = text.replace(',', "");
    let size = text.parse::<ByteSize>().map(|size| size.0);
    let time = || text.parse::<Millis>().map(|time| time.0);
    let plain = |_error| text.parse::<u64>();
    let value = size.or_else(|_error| time()).or_else(plain);
    value.unwrap_or_else(|_error| panic!("\"{text}\" is no size, time or count"))
}

/// Parses `A to B`, with more behind it.
fn range(text: &str) -> (u64, u64) {
    let (from, to) = text.split_once(" to ").unwrap_or_else(|| panic!("{text}"));
    let to = to.split([';', '(']).next().unwrap();
    let to = to.split(", a ").next().unwrap();
    // "0 s (only when told)"
    let from = from.split(" (").next().unwrap();
    (amount(from), amount(to.trim()))
}

#[test]
fn the_page_of_limits_has_the_defaults_and_ranges_of_the_keys() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/limits.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, table) = page.split_once("## Configuration (node.toml)").unwrap();
    let (table, _) = table.split_once("\n## ").unwrap();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .filter(|line| line.starts_with("| "))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let nodes = NodeConfig::parse(Path::new("node.toml"), &with("", "")).unwrap();
    let config = nodes.into_iter().next().unwrap();
    let (meta, storage) = (config.meta_role.unwrap(), config.storage_role.unwrap());
    let limits = config.limits;
    let keys = [
        ("log", "meta", "9000 TiB", meta.log),
        ("overlay", "storage", "9000 TiB", storage.store.overlay),
        ("cache", "meta", "9000 TiB", meta.cache),
        ("inline", "meta", "9000 TiB", config.inline_bytes.into()),
        ("storage.segment", "storage", "9000 TiB", storage.segment),
        ("storage.pending", "storage", "9000 TiB", storage.pending),
        (
            "storage.scrub_rate",
            "storage",
            "9000 TiB",
            storage.scrub_rate,
        ),
        (
            "storage.scrub_period",
            "storage",
            "90000 h",
            storage.scrub_period.0,
        ),
        (
            "limits.request_deadline",
            "limits",
            "90000 h",
            limits.request_deadline.0,
        ),
        (
            "limits.connections",
            "limits",
            "",
            limits.connections as u64,
        ),
        (
            "limits.slow_operation",
            "limits",
            "90000 h",
            limits.slow_operation.0,
        ),
    ];
    for (key, table, too_large, default) in keys {
        let row = rows
            .iter()
            .find(|row| row[0].split(' ').next() == Some(key));
        let row = row.unwrap_or_else(|| panic!("docs/limits.md has no row for {key}"));
        let said = row[1]
            .split([' ', ','])
            .take(2)
            .collect::<Vec<_>>()
            .join(" ");
        assert_eq!(
            amount(said.trim()),
            default,
            "default of {key} in docs/limits.md"
        );
        let name = key.rsplit('.').next().unwrap();
        let line = match too_large {
            "" => format!("{name} = 0"),
            text => format!("{name} = \"{text}\""),
        };
        let error = NodeConfig::parse(Path::new("node.toml"), &with(table, &line)).unwrap_err();
        let ConfigError::Range { allowed, .. } = &error else {
            panic!("{key}: {error}");
        };
        assert_eq!(
            range(row[2]),
            range(allowed),
            "range of {key} in docs/limits.md"
        );
    }
}
