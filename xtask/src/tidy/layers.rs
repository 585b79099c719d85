//! The rule for layers inside a crate: code of a layer names no layer below it in the list.
//!
//! Notation, in the head of the crate's `lib.rs`. A crate without the list is not held to the rule.
//!
//! ```text
//! //! Layers, each of which uses only itself and those above:
//! //!
//! //! 1. `transport`: messages and their deadlines.
//! //! 2. `cell`: how servers are reached.
//! ```
//!
//! A layer is a folder of `src/`, with the file of its name beside it. Every file but `lib.rs` is
//! in a layer. Tests may name any layer, and so may comments.
//!
//! Invariant: a name that `lib.rs` re-exports counts as the layer it comes from, so a re-export is
//! no way around the order.

use std::collections::BTreeMap;

use super::source::{before_comment, is_test_file, without_tests};
use super::{File, Offence};

/// The line before the list.
const HEADING: &str = "//! Layers, each of which uses only itself and those above:";

/// The name of the rule.
const RULE: &str = "layer";

/// A crate with a list.
struct Layered<'a> {
    /// Path of the folder with `lib.rs`, with `/` at its end.
    folder: &'a str,
    /// Names of layers with their lines in `lib.rs`, lowest first.
    layers: Vec<(usize, &'a str)>,
    /// Names that `lib.rs` re-exports, with their layer's place.
    exports: BTreeMap<String, usize>,
}

impl Layered<'_> {
    fn place(&self, layer: &str) -> Option<usize> {
        self.layers.iter().position(|(_, name)| *name == layer)
    }
}

/// Runs the rule on every crate whose `lib.rs` has a list.
pub fn check(files: &[File], offences: &mut Vec<Offence>) {
    for lib in files {
        let folder = lib.path.strip_suffix("lib.rs").unwrap_or("");
        let is_root = folder.starts_with("crates/") && folder.ends_with("/src/");
        if is_root && let Some(layered) = parse(lib, folder) {
            check_list(lib, &layered, files, offences);
            for file in files {
                check_file(file, &layered, offences);
            }
        }
    }
}

/// Reads the list and the re-exports of a `lib.rs`.
fn parse<'a>(lib: &'a File, folder: &'a str) -> Option<Layered<'a>> {
    let mut lines = lib.text.lines().zip(1..);
    lines.find(|(line, _)| *line == HEADING)?;
    let layers = lines
        .skip_while(|(line, _)| *line == "//!")
        .take_while(|(line, _)| {
            let text = line.strip_prefix("//! ").unwrap_or("");
            text.starts_with(|c: char| c.is_ascii_digit() || c == ' ')
        })
        .filter_map(|(line, number)| {
            let item = line.strip_prefix("//! ")?;
            let item = item.trim_start_matches(|c: char| c.is_ascii_digit());
            let name = item.strip_prefix(". `")?.split('`').next()?;
            Some((number, name))
        })
        .collect();
    let mut layered = Layered {
        folder,
        layers,
        exports: BTreeMap::new(),
    };
    let (code, _) = code_of(lib);
    for statement in code.split(';') {
        let Some(at) = statement.rfind("use ") else {
            continue;
        };
        let path = statement[at + 4..].trim();
        let path = path.strip_prefix("crate::").unwrap_or(path);
        let layer = path.split("::").next().unwrap_or("");
        if let Some(place) = layered.place(layer) {
            for name in last_names(path) {
                layered.exports.insert(name, place);
            }
        }
    }
    Some(layered)
}

/// The names that an import binds.
fn last_names(path: &str) -> Vec<String> {
    let last_word = |part: &str| {
        let mut words = part.rsplit([':', ' ']);
        words.find(|word| !word.is_empty()).map(str::to_owned)
    };
    let mut names = Vec::new();
    let mut group = None; // the name before the brace, which `self` in the braces binds
    for part in path.split(['{', '}', ',']).map(str::trim) {
        if part.ends_with("::") {
            group = last_word(part);
        } else if part == "self" {
            names.extend(group.clone());
        } else {
            names.extend(last_word(part));
        }
    }
    names
}

/// Reports layers that are listed twice or have no folder.
fn check_list(lib: &File, layered: &Layered<'_>, files: &[File], offences: &mut Vec<Offence>) {
    if layered.layers.is_empty() {
        let text = "the list of layers has no item such as ``1. `name`: ...``";
        offences.push(lib.offence(0, RULE, text));
    }
    for (place, (line, name)) in layered.layers.iter().enumerate() {
        let prefix = format!("{}{name}/", layered.folder);
        if !files.iter().any(|file| file.path.starts_with(&prefix)) {
            let text = format!("`{name}` is no folder of src: a layer is one");
            offences.push(lib.offence(*line, RULE, text));
        }
        if layered.place(name) != Some(place) {
            offences.push(lib.offence(*line, RULE, format!("`{name}` is listed twice")));
        }
    }
}

/// Reports what one file of the crate names of later layers.
fn check_file(file: &File, layered: &Layered<'_>, offences: &mut Vec<Offence>) {
    let Some(path) = file.path.strip_prefix(layered.folder) else {
        return;
    };
    let Some(path) = path.strip_suffix(".rs") else {
        return;
    };
    if path == "lib" || is_test_file(&file.path) {
        return;
    }
    let parts: Vec<&str> = path.split('/').filter(|part| *part != "mod").collect();
    let layer = parts.first().copied().unwrap_or("");
    let Some(place) = layered.place(layer) else {
        let text = format!("`{layer}` is not in the list of layers in lib.rs");
        offences.push(file.offence(0, RULE, text));
        return;
    };
    let (code, lines) = code_of(file);
    let line_of = |at: usize| {
        let index = lines.partition_point(|(start, _)| *start <= at);
        lines
            .get(index.wrapping_sub(1))
            .map_or(0, |(_, line)| *line)
    };
    for (at, name) in crate_names(&code) {
        if name == "*" {
            let text = "`crate::*` hides which layers are used: name them";
            offences.push(file.offence(line_of(at), RULE, text));
            continue;
        }
        let other = layered.place(name);
        let Some(other) = other.or_else(|| layered.exports.get(name).copied()) else {
            continue;
        };
        if other > place {
            let later = layered.layers.get(other).map_or("", |(_, name)| *name);
            let text = format!("layer `{layer}` uses `{name}` of the later layer `{later}`");
            offences.push(file.offence(line_of(at), RULE, text));
        }
    }
    let to_root = "super::".repeat(parts.len());
    let mut from = 0;
    while let Some(found) = code.get(from..).and_then(|rest| rest.find(&to_root)) {
        let at = from + found;
        let text = "a path of `super` leaves the layer: begin it with `crate::`";
        offences.push(file.offence(line_of(at), RULE, text));
        from = at + to_root.len();
    }
}

/// The code of a file without tests and comments, and where its lines begin in it.
fn code_of(file: &File) -> (String, Vec<(usize, usize)>) {
    let mut code = String::new();
    let mut lines = Vec::new();
    for (number, line) in without_tests(file) {
        lines.push((code.len(), number));
        code.push_str(before_comment(line));
        code.push('\n');
    }
    (code, lines)
}

/// The first names after each `crate::`, with their places; each of a group's.
fn crate_names(code: &str) -> Vec<(usize, &str)> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (at, start) in code.match_indices("crate::") {
        if code[..at].chars().next_back().is_some_and(is_word) {
            continue;
        }
        let at = at + start.len();
        let rest = &code[at..];
        if !rest.starts_with('{') {
            let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            found.push((at, if end == 0 { &rest[..1] } else { &rest[..end] }));
            continue;
        }
        let mut depth = 0;
        let mut begins = false; // whether a name of the group may begin here
        for (offset, c) in rest.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                break;
            }
            if begins && (is_word(c) || c == '*') {
                let name = &rest[offset..];
                let end = name.find(|c| !is_word(c)).unwrap_or(name.len());
                found.push((at + offset, &name[..end.max(1)]));
                begins = false;
            } else if depth == 1 && matches!(c, '{' | ',') {
                begins = true;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIB: &str = "//! A crate.\n//!\n\
        //! Layers, each of which uses only itself and those above:\n//!\n\
        //! 1. `low`: first, which\n//!    goes on.\n//! 2. `high`: second.\n//!\n//! More.\n\
        mod high;\nmod low;\npub use high::{Client, inner::Option as Choice};\npub use low::Net;\n";

    fn file(path: &str, text: &str) -> File {
        File {
            path: format!("crates/zonal-a/src/{path}"),
            text: text.to_owned(),
        }
    }

    /// Returns line and text of each offence of a crate with `text` in the lower layer.
    fn low(text: &str) -> Vec<(usize, String)> {
        let files = [
            file("lib.rs", LIB),
            file("high.rs", "//! H.\nuse crate::low::Net;\n"),
            file(
                "high/part.rs",
                "//! H.\nuse crate::{Client, low};\nuse super::x;\n",
            ),
            file("low/part.rs", text),
        ];
        let mut offences = Vec::new();
        check(&files, &mut offences);
        let found = offences.into_iter();
        found.map(|o| (o.line, o.text)).collect()
    }

    #[test]
    fn a_list_is_read_with_its_re_exports() {
        let lib = file("lib.rs", LIB);
        let layered = parse(&lib, "crates/zonal-a/src/").unwrap();
        assert_eq!(layered.layers, [(5, "low"), (7, "high")]);
        let exports: Vec<_> = layered
            .exports
            .iter()
            .map(|(n, p)| (n.as_str(), *p))
            .collect();
        assert_eq!(exports, [("Choice", 1), ("Client", 1), ("Net", 0)]);
    }

    #[test]
    fn a_re_exported_module_counts_as_its_layer() {
        assert_eq!(last_names("low::part::{self, Net}"), ["part", "Net"]);
        assert_eq!(last_names("low::{part::{self}, Net}"), ["part", "Net"]);
        let lib = LIB.to_owned() + "pub use high::part::{self};\n";
        let text = "//! L.\nuse crate::part::x;\n";
        let files = [file("lib.rs", &lib), file("low/part.rs", text)];
        let mut offences = Vec::new();
        check(&files, &mut offences);
        let found = offences.iter().filter(|o| o.path.ends_with("low/part.rs"));
        assert_eq!(found.map(|o| o.line).collect::<Vec<_>>(), [2]);
    }

    /// Plants an offence in the lowest layer of each crate that has layers, by its own list.
    #[test]
    fn the_crates_with_layers_are_held_to_their_lists() {
        for (name, text) in [
            (
                "client",
                include_str!("../../../crates/zonal-client/src/lib.rs"),
            ),
            (
                "disk",
                include_str!("../../../crates/zonal-disk/src/lib.rs"),
            ),
        ] {
            let lib = file("lib.rs", text);
            let layered = parse(&lib, "crates/zonal-a/src/").unwrap();
            let (_, first) = layered.layers[0];
            let (_, last) = layered.layers[layered.layers.len() - 1];
            for used in layered.exports.keys().map(String::as_str).chain([last]) {
                let is_later = layered.exports.get(used).is_none_or(|place| *place > 0);
                let planted = file(
                    &format!("{first}/planted.rs"),
                    &format!("//! P.\nuse crate::{used};\n"),
                );
                let mut offences = Vec::new();
                check_file(&planted, &layered, &mut offences);
                assert_eq!(offences.len(), usize::from(is_later), "{name}: {used}");
            }
        }
    }

    #[test]
    fn a_layer_that_uses_a_later_one_is_reported() {
        for line in [
            "use crate::high::Client;",
            "use crate::{low::Net, high::Client};",
            "fn f(c: &crate::high::Client) {}",
            "use crate::Client;",
            "use crate::{Net, Choice};",
            "use crate::{\n    low::{a, b}, high};",
        ] {
            let found = low(&format!("//! L.\nfn a() {{}}\n{line}\n"));
            assert_eq!(found.len(), 1, "{line}: {found:?}");
            assert_eq!(found[0].0, 3 + line.matches('\n').count(), "{line}");
        }
    }

    #[test]
    fn a_layer_may_use_itself_and_earlier_ones_and_tests_any() {
        for text in [
            "use crate::low::{high, Net};",
            "use crate::{low::{high}, Net};",
            "use super::high;",
            "// crate::high\n/// [`crate::Client`]",
            "#[cfg(test)]\nmod tests {\n    use crate::high::Client;\n    use super::super::x;\n}",
            "use other_crate::high;",
        ] {
            assert_eq!(low(&format!("//! L.\n{text}\n")), [], "{text}");
        }
    }

    #[test]
    fn ways_around_the_order_are_reported() {
        assert_eq!(low("//! L.\nuse crate::*;\n").len(), 1);
        assert_eq!(low("//! L.\nuse crate::{*};\n").len(), 1);
        assert_eq!(low("//! L.\nuse super::super::high::Client;\n").len(), 1);
    }

    #[test]
    fn files_and_list_must_agree() {
        let mut offences = Vec::new();
        let lib = LIB.replace("2. `high`", "2. `low`");
        let files = [
            file("lib.rs", &lib),
            file("low.rs", "//! L.\n"),
            file("other.rs", "//! O.\n"),
        ];
        check(&files, &mut offences);
        let found: Vec<_> = offences.iter().map(|o| (o.path.as_str(), o.line)).collect();
        assert_eq!(
            found,
            [
                ("crates/zonal-a/src/lib.rs", 5),
                ("crates/zonal-a/src/lib.rs", 7),
                ("crates/zonal-a/src/lib.rs", 7),
                ("crates/zonal-a/src/other.rs", 0),
            ]
        );
    }

    #[test]
    fn a_crate_without_a_list_is_not_held_to_the_rule() {
        let mut offences = Vec::new();
        let files = [file("lib.rs", "//! A.\nmod a;\n"), file("a.rs", "//! A.\n")];
        check(&files, &mut offences);
        assert_eq!(offences, []);
    }
}
