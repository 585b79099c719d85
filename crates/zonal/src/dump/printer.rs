//! Output of a dump's lines, for people and as JSON.

use crate::console;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use zonal_basics::to_hex;
use zonal_types::describe::{Described, Field, Fields};

/// Prints lines of a dump and counts damage.
pub struct Printer {
    json: bool,
    limit: u64,
    lines: BTreeMap<&'static str, u64>,
    damaged: u64,
}

impl Printer {
    /// Makes a printer that prints at most `limit` lines of each part.
    pub fn new(json: bool, limit: Option<u64>) -> Self {
        Self {
            json,
            limit: limit.unwrap_or(u64::MAX),
            lines: BTreeMap::new(),
            damaged: 0,
        }
    }

    /// The number of damaged items.
    pub fn damaged(&self) -> u64 {
        self.damaged
    }

    /// Whether more lines of this part may be printed.
    pub fn wants(&self, part: &'static str) -> bool {
        self.lines.get(part).copied().unwrap_or(0) < self.limit
    }

    fn count(&mut self, part: &'static str) -> bool {
        let wants = self.wants(part);
        *self.lines.entry(part).or_default() += 1;
        wants
    }

    /// Prints one item of a part; `at` is its place: a key or an offset.
    pub fn entry(&mut self, part: &'static str, at: Option<String>, described: &Described) {
        if !self.count(part) {
            return;
        }
        if self.json {
            let mut object = Map::new();
            object.insert("part".into(), part.into());
            if let Some(at) = at {
                object.insert("at".into(), at.into());
            }
            object.insert("what".into(), described.what.into());
            object.insert("fields".into(), to_json(&described.fields));
            console::json(Value::Object(object));
        } else {
            let at = at.map_or(String::new(), |at| format!(" {at}"));
            let fields = to_text(&described.fields);
            console::line(format_args!("{part}{at} {}: {fields}", described.what));
        }
    }

    /// Prints an item that cannot be decoded, even past the limit.
    pub fn damage(&mut self, part: &'static str, at: Option<String>, error: &str) {
        self.damaged += 1;
        if self.json {
            console::json(json!({ "part": part, "at": at, "damage": error }));
        } else {
            let at = at.map_or(String::new(), |at| format!(" {at}"));
            console::line(format_args!("{part}{at} DAMAGED: {error}"));
        }
    }
}

fn to_json(fields: &Fields) -> Value {
    let pairs = fields
        .iter()
        .map(|(name, field)| ((*name).to_owned(), one_to_json(field)));
    Value::Object(pairs.collect())
}

fn one_to_json(field: &Field) -> Value {
    match field {
        Field::Number(value) => json!(value),
        Field::Signed(value) => json!(value),
        Field::Flag(value) => json!(value),
        Field::Text(value) => json!(value),
        Field::Bytes(value) => match printable(value) {
            Some(text) => json!(text),
            None => json!({ "hex": to_hex(value) }),
        },
        Field::List(values) => values.iter().map(one_to_json).collect(),
        Field::Group(fields) => to_json(fields),
    }
}

fn to_text(fields: &Fields) -> String {
    let parts: Vec<String> = fields
        .iter()
        .map(|(name, field)| format!("{name}={}", one_to_text(field)))
        .collect();
    parts.join(" ")
}

fn one_to_text(field: &Field) -> String {
    match field {
        Field::Number(value) => value.to_string(),
        Field::Signed(value) => value.to_string(),
        Field::Flag(value) => value.to_string(),
        Field::Text(value) => value.clone(),
        Field::Bytes(value) => match printable(value) {
            Some(text) => format!("{text:?}"),
            None => to_hex(value),
        },
        Field::List(values) => {
            let shown: Vec<String> = values.iter().map(one_to_text).collect();
            format!("[{}]", shown.join(", "))
        }
        Field::Group(fields) => format!("{{{}}}", to_text(fields)),
    }
}

/// Text without control characters.
fn printable(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?;
    (!text.chars().any(char::is_control)).then_some(text)
}
