//! Every kind of finding has a text for its consequence and one for its repair.

use super::texts::{consequence, repair};

/// The names that `FindingKind::name` returns, taken from its source text so that none is left out.
fn names() -> Vec<&'static str> {
    let text = include_str!("../finding.rs");
    let (_, body) = text.split_once("pub fn name(&self)").unwrap_or_default();
    let (body, _) = body.split_once("\n    }\n").unwrap_or_default();
    let words = body.split("=> \"").skip(1);
    words.filter_map(|rest| rest.split('"').next()).collect()
}

#[test]
fn each_finding_has_a_consequence_and_a_repair() {
    let names = names();
    assert!(names.len() > 50, "{names:?}");
    for name in names {
        assert_ne!(consequence(name), "unknown", "consequence of {name}");
        assert_ne!(repair(name), "unknown", "repair of {name}");
    }
    assert_eq!((consequence("any"), repair("any")), ("unknown", "unknown"));
}
