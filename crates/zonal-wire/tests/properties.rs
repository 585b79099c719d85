//! Messages with some bytes changed, cut or put in: refused, or read as exactly what they say. A
//! failing message shrinks to the fewest changes.
#![allow(clippy::unwrap_used, reason = "a test may fail so")]

mod samples;

use proptest::prelude::*;
use proptest::sample::Index;
use samples::kinds;

#[derive(Debug, Clone)]
enum Change {
    Set(Index, u8),
    Insert(Index, u8),
    Remove(Index),
}

fn change() -> impl Strategy<Value = Change> {
    let byte = || prop_oneof![Just(0), Just(1), Just(255), any::<u8>()];
    prop_oneof![
        (any::<Index>(), byte()).prop_map(|(at, byte)| Change::Set(at, byte)),
        (any::<Index>(), byte()).prop_map(|(at, byte)| Change::Insert(at, byte)),
        any::<Index>().prop_map(Change::Remove),
    ]
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        match self {
            Self::Set(at, byte) => *at.get_mut(bytes) = *byte,
            Self::Insert(at, byte) => bytes.insert(at.index(bytes.len()), *byte),
            Self::Remove(at) => drop(bytes.remove(at.index(bytes.len()))),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn changed_messages_are_refused_or_read_as_what_they_say(
        kind in any::<Index>(),
        sample in any::<Index>(),
        changes in prop::collection::vec(change(), 0..6),
    ) {
        let kinds = kinds();
        let kind = kind.get(&kinds);
        let (name, _, bytes) = sample.get(&kind.samples);
        let mut bytes = bytes.clone();
        changes.iter().for_each(|change| change.apply(&mut bytes));
        if let Some(back) = (kind.roundtrip)(&bytes) {
            // Unknown error numbers become `Io`: failures have tag 0.
            let is_failure = bytes.first() == Some(&0);
            prop_assert_eq!(back.len(), bytes.len(), "{}", name);
            prop_assert!(is_failure || back == bytes, "{}", name);
        } else {
            prop_assert!(!changes.is_empty(), "{} is refused as it is", name);
        }
    }
}
