//! Compares three pages with the code.
//!
//! docs/limits.md names each bound of `limits.rs` with its value and unit. docs/error-codes.md
//! names each error code with its number and errno. docs/semantics-details.md names each check of a
//! mount.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use zonal_types::limits::TABLE;
use zonal_types::{ErrorCode, error::errno};

fn page(name: &str) -> String {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(root.join("../../docs").join(name)).unwrap()
}

/// Cells of the table rows whose first cell is in backquotes.
fn rows(page: &str) -> Vec<Vec<String>> {
    let lines = page.lines().filter(|line| line.starts_with("| `"));
    lines
        .map(|line| {
            let cells = line.trim_matches('|').split('|');
            cells
                .map(|cell| cell.trim().trim_matches('`').to_owned())
                .collect()
        })
        .collect()
}

fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[test]
fn the_page_of_limits_has_every_bound_with_its_value() {
    let page = page("limits.md");
    let rows = rows(&page);
    let mut found = BTreeSet::new();
    for (name, value, unit) in TABLE {
        let row = rows.iter().find(|row| row[0] == *name);
        let row = row.unwrap_or_else(|| panic!("docs/limits.md has no row for {name}"));
        assert_eq!(row[1], grouped(*value), "value of {name} in docs/limits.md");
        assert_eq!(row[2], *unit, "unit of {name} in docs/limits.md");
        found.insert(row[0].clone());
    }
    for row in rows
        .iter()
        .filter(|row| row[0].chars().all(|c| c.is_ascii_uppercase() || c == '_'))
    {
        assert!(
            found.contains(&row[0]),
            "docs/limits.md has {}, limits.rs has not",
            row[0]
        );
    }
}

/// Collects the constants `..._MAX` with literal values from the files below a folder of crates/:
/// (file, name, value).
fn constants(of: &str, found: &mut BTreeSet<(String, String, String)>) {
    let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folder = match of.strip_prefix("zonal/") {
        Some(_) => crates.join(of),
        None => crates.join(format!("zonal-{of}")),
    };
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{of}/{}", entry.file_name().to_string_lossy());
        if entry.file_type().unwrap().is_dir() {
            constants(&path, found);
            continue;
        }
        let text = std::fs::read_to_string(entry.path()).unwrap();
        for line in text.lines() {
            // Constants of tests are indented.
            let openings = ["pub(crate) ", "pub(super) ", "pub "];
            let mut inner = openings.iter().filter_map(|word| line.strip_prefix(word));
            let line = inner.next().unwrap_or(line);
            let Some((name, rest)) = line.strip_prefix("const ").and_then(|l| l.split_once(": "))
            else {
                continue;
            };
            let value = rest.split_once(" = ").map_or("", |(_, value)| value);
            let value = number(value.trim_end_matches(';'));
            if let (true, Some(value)) = (name.ends_with("_MAX"), value) {
                found.insert((path.clone(), name.to_owned(), grouped(value)));
            }
        }
    }
}

/// Parses `65_536`, `8 << 20`, `24 * 3600`, or one of these in `Duration::from_millis(...)`.
fn number(text: &str) -> Option<u64> {
    let digits = |text: &str| text.replace('_', "").parse::<u64>().ok();
    let inside = text.strip_prefix("Duration::from_");
    let inside = inside.and_then(|rest| rest.split_once('('));
    let text = inside.map_or(text, |(_, rest)| rest.trim_end_matches(')'));
    if let Some((value, by)) = text.split_once(" << ") {
        return Some(digits(value)? << digits(by)?);
    }
    text.split(" * ").map(digits).product()
}

#[test]
fn the_page_of_limits_has_every_bound_of_all_crates_by_name() {
    let mut code = BTreeSet::new();
    let crates = "types wire layout placement zonemap meta object client fsck driver flow wait region net disk grpc server fuse mount offline";
    for of in crates.split(' ') {
        constants(&format!("{of}/src"), &mut code);
    }
    constants("zonal/src", &mut code);
    assert!(code.len() > 60, "only {} constants found", code.len());
    let named = rows(&page("limits.md"))
        .into_iter()
        .filter(|row| row[0].ends_with(".rs"))
        .map(|row| (row[0].clone(), row[1].clone(), row[2].clone()));
    let named: BTreeSet<_> = named.collect();
    let missing: Vec<_> = code.difference(&named).collect();
    let wrong: Vec<_> = named.difference(&code).collect();
    assert!(
        missing.is_empty() && wrong.is_empty(),
        "docs/limits.md lacks {missing:#?} and has {wrong:#?}"
    );
}

#[test]
fn the_page_of_error_codes_has_every_error_code() {
    let page = page("error-codes.md");
    let rows = rows(&page);
    for code in ErrorCode::ALL {
        let name = format!("{code:?}");
        let row = rows.iter().find(|row| row[0] == name);
        let row = row.unwrap_or_else(|| panic!("docs/error-codes.md has no row for {name}"));
        assert_eq!(row[1], code.number().to_string(), "number of {name}");
        assert_eq!(row[2], errno_name(code.errno()), "errno of {name}");
        assert_eq!(row[3], code.text(), "text of {name}");
    }
}

/// First string arguments of calls such as `@check("...` in a file of tests/posix.
fn idents(file: &str, call: &str) -> Vec<String> {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(root.join("../../tests/posix").join(file)).unwrap();
    let starts = text.lines().filter_map(|line| line.strip_prefix(call));
    let found = starts.filter_map(|rest| rest.split('"').next());
    found.map(str::to_owned).collect()
}

#[test]
fn the_page_of_semantics_names_every_check_of_a_mount() {
    let page = page("semantics-details.md");
    let areas = "attributes content directories mapped names permissions space special";
    let mut all = Vec::new();
    for area in areas.split(' ') {
        all.extend(idents(&format!("areas/{area}.py"), "@check(\""));
    }
    for area in ["appends", "data", "inside", "locks", "names"] {
        all.extend(idents(&format!("between/{area}.py"), "@check(\""));
    }
    for ident in idents("between/locks.py", "@for_kinds(\"") {
        all.extend(["flock", "fcntl", "ofd"].map(|kind| format!("{kind}-{ident}")));
    }
    assert!(all.len() > 100, "only {} checks found", all.len());
    for ident in all {
        let cell = format!("`{ident}` |");
        assert!(
            page.contains(&cell),
            "docs/semantics-details.md does not name {ident}"
        );
    }
}

macro_rules! names {
    ($number:expr, $($name:ident)*) => {
        match $number { $(errno::$name => stringify!($name),)* other => panic!("errno {other}") }
    };
}

fn errno_name(number: i32) -> &'static str {
    names!(number, EPERM ENOENT EINTR EIO ENXIO E2BIG EBADF EAGAIN ENOMEM EACCES EBUSY EEXIST EXDEV ENOTDIR
        EISDIR EINVAL ENFILE ETXTBSY EFBIG ENOSPC EROFS EMLINK ERANGE EDEADLK ENAMETOOLONG ENOLCK ENOSYS
        ENOTEMPTY ELOOP ENODATA EOVERFLOW EOPNOTSUPP ETIMEDOUT ESTALE EDQUOT)
}
