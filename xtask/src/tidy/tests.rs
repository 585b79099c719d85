//! Tests of each rule: an offence planted in a small repository must be the only one reported.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Offence, check};

/// A repository in a temporary folder; removed at the end.
struct Repository {
    root: PathBuf,
    metadata: String,
}

impl Repository {
    /// A repository without offences: two crates and a page of documentation.
    fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let unique = format!(
            "tidy-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let mut repository = Self {
            root: std::env::temp_dir().join(unique),
            metadata: String::new(),
        };
        repository.depends(&[
            ("zonal-meta", "zonal-types", "null"),
            ("zonal", "zonal-net", "null"),
        ]);
        repository.plant("crates/zonal-meta/src/lib.rs", "//! Shards.\n");
        repository.plant(
            "crates/zonal-net/src/lib.rs",
            "//! Sockets.\nuse std::net::TcpStream;\n",
        );
        repository.plant(
            "docs/glossary.md",
            "# Glossary\n\n| word | meaning |\n| --- | --- |\n| place | where it is |\n",
        );
        repository.plant("docs/page.md", "A cell has zones. The track is tracked.\n");
        repository
    }

    fn plant(&self, path: &str, text: &str) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Sets the output of cargo metadata: (package, dependency, kind).
    fn depends(&mut self, edges: &[(&str, &str, &str)]) {
        let packages: Vec<String> = edges
            .iter()
            .map(|(name, on, kind)| {
                format!(r#"{{"name":"{name}","dependencies":[{{"name":"{on}","kind":{kind}}}]}}"#)
            })
            .collect();
        self.metadata = format!(r#"{{"packages":[{}]}}"#, packages.join(","));
    }

    fn check(&self) -> Vec<Offence> {
        check(&self.root, &self.metadata).unwrap()
    }

    /// Plants a core file and returns the reported rules and lines.
    fn core(&self, text: &str) -> Vec<(&'static str, usize)> {
        self.plant(
            "crates/zonal-meta/src/planted.rs",
            &format!("//! Planted.\n{text}"),
        );
        self.check().into_iter().map(|o| (o.rule, o.line)).collect()
    }
}

impl Drop for Repository {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn rules(offences: &[Offence]) -> Vec<&str> {
    offences.iter().map(|o| o.rule).collect()
}

#[test]
fn a_clean_repository_has_nothing_to_report() {
    assert_eq!(Repository::new().check(), []);
}

#[test]
fn a_core_that_depends_on_a_shell_is_reported() {
    let mut r = Repository::new();
    r.depends(&[("zonal-meta", "zonal-disk", "null")]);
    assert_eq!(rules(&r.check()), ["dependency"]);
    r.depends(&[("zonal-object", "zonal-net", "\"dev\"")]);
    assert_eq!(rules(&r.check()), ["dependency"]);
}

#[test]
fn a_dependency_upwards_is_reported() {
    let mut r = Repository::new();
    r.depends(&[("zonal-types", "zonal-wire", "null")]);
    assert_eq!(rules(&r.check()), ["dependency"]);
    r.depends(&[("zonal-server", "zonal", "null")]);
    assert_eq!(rules(&r.check()), ["dependency"]);
    r.depends(&[("zonal-new", "zonal-types", "null")]);
    assert_eq!(rules(&r.check()), ["dependency"]);
}

#[test]
fn a_dependency_of_the_basics_is_reported() {
    let mut r = Repository::new();
    r.depends(&[("zonal-basics", "thiserror", "null")]);
    assert_eq!(rules(&r.check()), ["dependency"]);
    r.depends(&[("zonal-types", "zonal-basics", "null")]);
    assert_eq!(r.check(), []);
}

#[test]
fn a_simulator_that_depends_on_a_shell_is_reported() {
    let mut r = Repository::new();
    r.depends(&[("zonal-sim", "zonal-fuse", "null")]);
    assert_eq!(rules(&r.check()), ["dependency"]);
    r.depends(&[("zonal-sim", "zonal-client", "null")]);
    assert_eq!(r.check(), []);
}

#[test]
fn test_support_is_for_tests_only() {
    let mut r = Repository::new();
    r.depends(&[("zonal-server", "zonal-testkit", "null")]);
    assert_eq!(rules(&r.check()), ["dependency"]);
    r.depends(&[("zonal-testkit", "zonal-wire", "null")]);
    assert_eq!(rules(&r.check()), ["dependency"]);
    r.depends(&[("zonal-testkit", "zonal-basics", "null")]);
    assert_eq!(r.check(), []);
    r.depends(&[
        ("zonal-meta", "zonal-testkit", "\"dev\""),
        ("zonal-faultfs", "zonal-testkit", "null"),
    ]);
    assert_eq!(r.check(), []);
}

#[test]
fn a_core_with_a_crate_that_does_io_is_reported() {
    let mut r = Repository::new();
    r.depends(&[("zonal-client", "tokio", "null")]);
    assert_eq!(rules(&r.check()), ["dependency"]);
    r.depends(&[("zonal-server", "rustix", "null")]);
    assert_eq!(r.check(), []);
}

#[test]
fn a_long_file_is_reported_its_tests_included() {
    let r = Repository::new();
    let many = "const A: u8 = 1;\n".repeat(800);
    let module = format!("//! Long.\n#[cfg(test)]\nmod tests {{\n{many}}}\n");
    for path in ["src/long.rs", "src/long/tests.rs", "tests/long.rs"] {
        let path = format!("crates/zonal-net/{path}");
        for text in [&format!("//! Long.\n{many}"), &module] {
            r.plant(&path, text);
            assert_eq!(rules(&r.check()), ["length"], "{path}");
        }
        r.plant(&path, "//! Short.\n");
        assert_eq!(r.check(), []);
    }
}

#[test]
fn a_file_without_a_heading_is_reported() {
    let r = Repository::new();
    r.plant("crates/zonal-net/src/bare.rs", "fn f() {}\n");
    assert_eq!(rules(&r.check()), ["heading"]);
}

#[test]
fn clocks_files_sockets_and_threads_in_a_core_are_reported() {
    for line in [
        "let t = Instant::now();",
        "let t = SystemTime::now();",
        "use std::time::Instant;",
        "use std::fs::File;",
        "use std::net::TcpStream;",
        "use std::os::unix::net::UnixStream;",
        "use std::thread;",
        "std::process::exit(1);",
        "let v = std::env::var(\"X\");",
    ] {
        let found = Repository::new().core(&format!("fn a() {{}}\n{line}\n"));
        assert_eq!(found, [("core", 3)], "{line}");
    }
}

#[test]
fn grouped_imports_in_a_core_are_reported() {
    let found = Repository::new().core("use std::{\n    fmt,\n    fs,\n};\nlet env = 1;\n");
    assert_eq!(found, [("core", 4)]);
    assert_eq!(
        Repository::new().core("use std::{collections::BTreeMap, net, fmt};\n"),
        [("core", 2)]
    );
}

#[test]
fn a_core_may_mention_them_in_comments_and_use_them_in_tests() {
    let text = "/// Never std::fs.\nfn a() {} // no Instant::now here\n#[cfg(test)]\nmod tests {\n    use std::fs;\n}\n";
    assert_eq!(Repository::new().core(text), []);
    assert_eq!(
        Repository::new().core("use zonal_types::Instant;\nlet my_std::fsx = 1;\n"),
        []
    );
}

#[test]
fn code_after_a_test_module_is_checked() {
    let text = "#[cfg(test)]\nmod tests;\nuse std::fs;\n#[cfg(test)]\n#[expect(x, reason = \"y\")]\nmod more {\n    fn f() {\n    }\n}\nuse std::net;\n";
    assert_eq!(Repository::new().core(text), [("core", 4), ("core", 11)]);
}

#[test]
fn hash_maps_in_cores_are_reported() {
    let import = "use std::collections::{BTreeMap, HashMap};\n";
    assert_eq!(Repository::new().core(import), [("hash-map", 2)]);
    for line in [
        "let m = std::collections::HashMap::new();",
        "let m: HashSet<u8> = all.collect(); // point look-ups only",
        "use std::collections::{\n    HashMap as Map};",
        "use std::collections::hash_map::Entry;",
        "for key in map_of::<HashMap<u8, u8>>().keys() {}",
    ] {
        let rules: Vec<_> = Repository::new()
            .core(line)
            .into_iter()
            .map(|o| o.0)
            .collect();
        assert_eq!(rules, ["hash-map"], "{line}");
    }
    for line in [
        "// Unlike a HashMap, it has an order.",
        "struct MyHashMaps;",
    ] {
        assert_eq!(Repository::new().core(line), [], "{line}");
    }
    let repository = Repository::new();
    repository.plant(
        "crates/zonal-net/src/pool.rs",
        &format!("//! Pools.\n{import}"),
    );
    assert_eq!(repository.check(), [], "a shell may");
}

#[test]
fn rejected_words_are_reported_in_code_and_in_documentation() {
    for line in [
        "fn cluster_size() {}",
        "struct StorageVolume;",
        "let bricks = 1;",
        "// a RACK",
    ] {
        let r = Repository::new();
        r.plant(
            "crates/zonal-net/src/words.rs",
            &format!("//! Words.\n{line}\n"),
        );
        let found = r.check();
        assert_eq!(rules(&found), ["word"], "{line}");
        assert_eq!(found[0].line, 2);
    }
    let r = Repository::new();
    r.plant("docs/other.md", "One cluster.\n");
    assert_eq!(rules(&r.check()), ["word"]);
    r.plant(
        "xtask/allowed-words.txt",
        "docs/other.md cluster # the word of others\n",
    );
    assert_eq!(r.check().len(), 1, "the list itself is a file of words");
    r.plant(
        "xtask/allowed-words.txt",
        "docs/ cluster # others' word\nxtask/ * # the list\n",
    );
    assert_eq!(r.check(), []);
}

#[test]
fn an_allowed_word_needs_a_reason() {
    let r = Repository::new();
    r.plant("xtask/allowed-words.txt", "docs/ cell\n");
    assert!(check(&r.root, &r.metadata).is_err());
}

#[test]
fn notes_to_ourselves_are_reported() {
    for note in [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("XX", "X"),
    ] {
        let r = Repository::new();
        r.plant(
            "tests/script",
            &format!("# {note}: later\nmktemp a.{}\n", "X".repeat(6)),
        );
        assert_eq!(rules(&r.check()), ["note"], "{note}");
    }
}

#[test]
fn paths_of_a_machine_are_reported() {
    let r = Repository::new();
    r.plant("docs/other.md", concat!("See /wo", "rk/main.\n"));
    assert_eq!(rules(&r.check()), ["machine-path"]);
}

#[test]
fn files_of_others_are_skipped() {
    let r = Repository::new();
    r.plant("target/debug/x.rs", "cluster\n");
    r.plant("LICENSE", "cluster\n");
    r.plant("crates/zonal-wire/corpus/frame", "");
    fs::write(
        r.root.join("crates/zonal-wire/corpus/frame"),
        b"cluster \xff\xfe",
    )
    .unwrap();
    assert_eq!(r.check(), []);
}

/// Makes a repository with tests and checks; returns the reported lines of a page that names them.
fn named(page: &str, text: &str) -> Vec<usize> {
    let r = Repository::new();
    r.plant(
        "crates/zonal-meta/tests/names.rs",
        "//! Names.\n#[test]\nfn a_name_is_kept() {}\nfn no_test() {}\n",
    );
    r.plant(
        "tests/posix/areas/names.py",
        "@check(\"rename-file\", \"...\")\n",
    );
    r.plant(
        "tests/posix/two_mounts.py",
        "@for_kinds(\"counter\", \"...\")\n@check(\"create-seen\", \"...\")\n",
    );
    r.plant("tests/cell/checks.py", "@check(\"idle-cost\", \"...\")\n");
    r.plant(page, text);
    let found = r.check();
    assert!(found.iter().all(|o| o.rule == "named"), "{found:?}");
    found.into_iter().map(|o| o.line).collect()
}

#[test]
fn a_test_that_a_page_names_must_be_there() {
    let right = "`crate::test` names are Rust tests; cell: `idle-cost`, and `no-check-meant`.\n\
                 | a | `zonal-meta::names::a_name_is_kept`, `zonal-meta::names` |\n\
                 | b | `rename-file` |\n| c | two mounts: `flock-counter`, `create-seen` |\n";
    assert_eq!(named("docs/semantics.md", right), [0; 0]);
    for wrong in [
        "`zonal-meta::other::a_name_is_kept`",
        "`zonal-meta::names::a_name_is_lost`",
        "`zonal-meta::names::no_test`",
        "`zonal-mata::names`",
        "| a | `rename-dir` |",
        "| a | two mounts: `rename-file` |",
        "| a | two mounts: `create-seen`, `create-sen` |",
        "Test: cell: `rename-file`.",
    ] {
        let page = format!("Right: cell: `idle-cost`.\n{wrong}\n");
        assert_eq!(named("docs/semantics.md", &page), [2], "{wrong}");
        assert_eq!(named("docs/semantics-details.md", &page), [2], "{wrong}");
        assert_eq!(
            named("docs/rfcs/2026-11-21-old.md", &page),
            [0; 0],
            "what was is left"
        );
    }
}

#[test]
fn a_command_of_a_page_must_select_a_test() {
    let right = "`cargo test -p zonal-meta --test names a_name`,\n`cargo test -p zonal-meta kept`, `cargo test -p CRATE`\n\
                 `tests/posix/two_mounts.py A B --only counter,create`,\n`tests/posix/semantics.py DIR --only ID`\n";
    assert_eq!(named("docs/status.md", right), [0; 0]);
    for wrong in [
        "`cargo test -p zonal-meta --test name`",
        "`cargo test -p zonal-meta --test names no_test`",
        "`N=1 cargo test -p zonal-meta lost`",
        "`cargo test -p zonal-mata`",
        "`tests/cell/checks.py ... --only idle-cost,lost`",
        "`tests/cell/check.py --only idle-cost`",
    ] {
        let page = format!("Right: `cargo test -p zonal-meta`.\n{wrong}\n");
        assert_eq!(named("docs/status.md", &page), [2], "{wrong}");
    }
}

/// Returns the rules of prose that a comment of a crate breaks.
fn prose(comment: &str) -> Vec<&'static str> {
    let r = Repository::new();
    let lines = comment.lines().map(|line| format!("/// {line}\n"));
    let text: String = lines.collect();
    r.plant(
        "crates/zonal-net/src/planted.rs",
        &format!("//! Planted.\n{text}fn nothing() {{}}\n"),
    );
    r.check().into_iter().map(|offence| offence.rule).collect()
}

#[test]
fn comments_follow_the_rules_of_prose() {
    assert_eq!(prose("Sends Sync to several targets in parallel."), [""; 0]);
    assert_eq!(prose("A list:\n* `What` is code\n* such as this"), [""; 0]);
    let long = "one two three four five ".repeat(5);
    assert_eq!(prose(&format!("Counts {long}.")), ["columns", "sentence"]);
    assert_eq!(
        prose(
            "Counts one two three four five six seven eight nine ten eleven\ntwelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty\na b c d e f g."
        ),
        ["sentence"]
    );
    assert_eq!(prose("First.\nWhat it has is kept."), ["subject"]);
    assert_eq!(prose("Who asks is told."), ["subject"]);
    assert_eq!(prose("Keeps such a file."), ["vague"]);
    assert_eq!(
        prose("Ends that one, whoever holds it."),
        ["vague", "vague"]
    );
}

#[test]
fn paths_of_the_list_are_not_held_to_the_rules_of_prose() {
    let r = Repository::new();
    r.plant("crates/zonal-net/src/lib.rs", "//! What is there.\n");
    r.plant("docs/page.md", "What is there.\n");
    assert_eq!(rules(&r.check()), ["subject", "subject"]);
    r.plant("xtask/prose-left.txt", "# why\ncrates/zonal-net/\n");
    assert_eq!(rules(&r.check()), ["subject"]);
}

#[test]
fn pages_have_short_sentences() {
    let r = Repository::new();
    let long = "one two three four five\n".repeat(6);
    r.plant("docs/rfcs/2026-11-21-old.md", &format!("{long}.\n"));
    assert_eq!(rules(&r.check()), [""; 0]);
    r.plant("docs/long.md", &format!("{long}.\n"));
    assert_eq!(rules(&r.check()), ["sentences"]);
}

#[test]
fn a_public_type_has_a_name_of_its_own() {
    let r = Repository::new();
    r.plant("crates/zonal-net/src/a.rs", "//! A.\npub struct Place;\n");
    r.plant(
        "crates/zonal-meta/src/b.rs",
        "//! B.\npub(crate) struct Place;\n",
    );
    assert_eq!(rules(&r.check()), [""; 0]);
    r.plant("crates/zonal-meta/src/c.rs", "//! C.\npub enum Place {}\n");
    assert_eq!(rules(&r.check()), ["type-name"]);
    r.plant("xtask/shared-names.txt", "Place  # two worlds\n");
    assert_eq!(rules(&r.check()), [""; 0]);
}

#[test]
fn a_layer_that_uses_a_later_one_is_reported() {
    let r = Repository::new();
    let head =
        "//! Sockets.\n//!\n//! Layers, each of which uses only itself and those above:\n//!\n";
    let lib = format!("{head}//! 1. `stream`: bytes.\n//! 2. `pool`: connections.\n");
    r.plant("crates/zonal-net/src/lib.rs", &lib);
    r.plant(
        "crates/zonal-net/src/pool/idle.rs",
        "//! Idle.\nuse crate::stream::open;\n",
    );
    r.plant("crates/zonal-net/src/stream/open.rs", "//! Open.\n");
    assert_eq!(r.check(), []);
    r.plant(
        "crates/zonal-net/src/stream/open.rs",
        "//! Open.\nuse crate::pool::idle;\n",
    );
    assert_eq!(rules(&r.check()), ["layer"]);
}

#[test]
fn a_word_of_a_public_type_is_in_the_glossary() {
    let r = Repository::new();
    r.plant("crates/zonal-net/src/a.rs", "//! A.\npub struct Riddle;\n");
    assert_eq!(rules(&r.check()), ["type-word"]);
    r.plant("xtask/plain-words.txt", "# Plain.\nRiddle\n");
    assert_eq!(rules(&r.check()), [""; 0]);
}
