//! The bounded map against a list of its entries in the order of insertion. A sequence of calls
//! that fails shrinks to a short one.

use proptest::prelude::*;
use zonal_basics::BoundedMap;

#[derive(Debug, Clone)]
enum Step {
    Insert(u8, u16),
    Change(u8, u16),
    Remove(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (0..8_u8, any::<u16>()).prop_map(|(key, value)| Step::Insert(key, value)),
        1 => (0..8_u8, any::<u16>()).prop_map(|(key, value)| Step::Change(key, value)),
        2 => (0..8_u8).prop_map(Step::Remove),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_map_keeps_the_entries_inserted_last(
        bound in 0..6_usize,
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut map = BoundedMap::new(bound);
        let mut list: Vec<(u8, u16)> = Vec::new();
        for step in steps {
            match step {
                Step::Insert(key, value) => {
                    list.retain(|(other, _)| *other != key);
                    list.push((key, value));
                    let displaced = (list.len() > bound).then(|| list.remove(0));
                    prop_assert_eq!(map.insert(key, value), displaced);
                }
                Step::Change(key, value) => {
                    let entry = list.iter_mut().find(|(other, _)| *other == key);
                    let listed = entry.map(|(_, old)| std::mem::replace(old, value));
                    let held = map.get_mut(&key).map(|old| std::mem::replace(old, value));
                    prop_assert_eq!(held, listed);
                }
                Step::Remove(key) => {
                    let at = list.iter().position(|(other, _)| *other == key);
                    prop_assert_eq!(map.remove(&key), at.map(|at| list.remove(at).1));
                }
            }
            prop_assert_eq!((map.len(), map.is_empty()), (list.len(), list.is_empty()));
            for key in 0..8 {
                let listed = list.iter().find(|(other, _)| *other == key);
                prop_assert_eq!(map.get(&key), listed.map(|(_, value)| value));
                prop_assert_eq!(map.contains_key(&key), listed.is_some());
            }
        }
    }
}
