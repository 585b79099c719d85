//! Tests of the orders of ranges: single changes, and properties of many.

use super::*;
use crate::ids::Sender;
use proptest::prelude::*;
use zonal_types::{ClientIdentity, Column, DataId};

/// Bytes of the objects of the model.
const BYTES: usize = 24;

fn object(number: u64) -> ObjectId {
    ObjectId {
        data_id: DataId(number),
        column: Column(0),
    }
}

fn by(client: u64, order: u64) -> ChangeAttempt {
    let sender = Sender {
        identity: ClientIdentity::first(ClientId(client)),
        ..Sender::default()
    };
    ChangeAttempt {
        sender,
        order,
        ..ChangeAttempt::default()
    }
}

fn fill(order: u64) -> ChangeAttempt {
    ChangeAttempt {
        is_fill: true,
        ..by(0, order)
    }
}

fn one_byte(at: u64) -> impl Iterator<Item = Range<u64>> {
    std::iter::once(at..at + 1)
}

/// One object with its header's order.
#[derive(Default)]
struct Copy {
    orders: ChangeOrders,
    stored: u64,
}

impl Copy {
    fn admits(&self, attempt: ChangeAttempt, range: Range<u64>) -> bool {
        let of = (object(1), self.stored);
        self.orders.admit(of, attempt, [range]).is_ok()
    }

    fn change(&mut self, attempt: ChangeAttempt, range: Range<u64>) -> bool {
        let is_admitted = self.admits(attempt, range.clone());
        if is_admitted {
            self.orders.note((object(1), self.stored), attempt, [range]);
            self.stored = self.stored.max(attempt.order);
        }
        is_admitted
    }

    fn highest(&self, range: Range<u64>) -> u64 {
        self.orders.highest((object(1), self.stored), &range)
    }

    /// A restart: memory is lost.
    fn restart(&mut self) {
        self.orders = ChangeOrders::default();
    }
}

#[test]
fn a_change_that_meets_a_higher_order_is_refused() {
    let mut copy = Copy::default();
    assert!(copy.change(by(1, 50), 100..200));
    for (range, is_admitted) in [(0..100, true), (200..300, true), (199..201, false)] {
        assert_eq!(copy.admits(by(2, 40), range), is_admitted);
    }
    assert!(copy.change(by(2, 60), 150..160));
    assert!(copy.admits(by(1, 50), 100..150), "its own repetition");
    assert!(!copy.admits(by(1, 50), 100..151));
    assert!(copy.admits(by(2, 55), 160..200), "the rest keeps its order");
    assert!(!copy.admits(by(2, 45), 160..200));
    assert_eq!((copy.highest(0..160), copy.highest(160..500)), (60, 50));
}

#[test]
fn of_two_clients_with_one_order_the_first_has_it() {
    let mut copy = Copy::default();
    assert!(copy.change(by(1, 50), 0..10));
    assert!(!copy.admits(by(2, 50), 9..20));
    assert!(copy.admits(by(1, 50), 9..20));
}

#[test]
fn changes_without_an_order_are_not_remembered() {
    let mut copy = Copy::default();
    assert!(copy.change(by(1, 0), 0..10));
    assert!(copy.orders.objects.is_empty());
}

#[test]
fn after_a_restart_the_headers_order_counts() {
    let mut copy = Copy::default();
    assert!(copy.change(by(1, 50), 0..10));
    copy.restart();
    assert!(!copy.admits(by(2, 50), 100..110));
    assert!(copy.change(by(2, 51), 100..110));
    assert!(!copy.admits(by(1, 50), 50..60), "its floor is the header's");
    assert!(copy.admits(by(1, 51), 50..60));
}

#[test]
fn filled_bytes_raise_orders_and_lower_none() {
    let mut copy = Copy::default();
    assert!(copy.change(by(1, 50), 10..20));
    assert!(copy.change(fill(30), 0..30));
    assert_eq!((copy.highest(0..10), copy.highest(10..20)), (30, 50));
    assert!(!copy.admits(by(2, 29), 25..26));
    assert!(copy.admits(by(2, 30), 25..26), "the change that it copied");
    assert!(copy.change(fill(70), 15..40));
    assert!(!copy.admits(by(1, 60), 19..20));
}

#[test]
fn the_lowest_order_is_forgotten_first() {
    let mut orders = ChangeOrders::with_bound(3);
    for (number, order) in [(1, 30), (2, 10), (2, 40), (1, 20)] {
        orders.note((object(number), 5), by(1, order), one_byte(order));
    }
    assert_eq!(orders.by_order.len(), 3);
    let admits = |orders: &ChangeOrders, number, stored, order, at| {
        let of = (object(number), stored);
        orders.admit(of, by(2, order), one_byte(at)).is_ok()
    };
    assert!(!admits(&orders, 2, 40, 10, 900), "its floor rose");
    assert!(admits(&orders, 2, 40, 11, 900));
    assert!(
        admits(&orders, 1, 30, 6, 900),
        "another object keeps its floor"
    );
    for order in 50..53 {
        orders.note((object(3), 0), by(1, order), one_byte(order));
    }
    assert_eq!(orders.objects.len(), 1);
}

/// The orders of single bytes, as they should be.
#[derive(Debug, Clone)]
enum Step {
    Change(u64, u64, Range<u64>),
    Fill(u64, Range<u64>),
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let range = (0..BYTES as u64, 1..9_u64).prop_map(|(at, length)| at..at + length);
    let step = prop_oneof![
        9 => (1..4_u64, 1..40_u64, range.clone()).prop_map(|(by, at, of)| Step::Change(by, at, of)),
        2 => (1..40_u64, range).prop_map(|(at, of)| Step::Fill(at, of)),
        1 => Just(Step::Restart),
    ];
    proptest::collection::vec(step, 0..60)
}

proptest! {
    /// No byte's order falls, and ranges stay in order and within their bound.
    #[test]
    fn orders_of_bytes_never_fall(steps in steps(), bound in 1_usize..40) {
        let mut copy = Copy { orders: ChangeOrders::with_bound(bound), stored: 0 };
        let mut model = vec![(0_u64, 0_u64); BYTES + 16];
        for step in steps {
            match step {
                Step::Change(client, order, range) => {
                    if copy.change(by(client, order), range.clone()) {
                        for at in range {
                            let before = model[at as usize];
                            prop_assert!(before.0 <= order);
                            if before.0 == order {
                                prop_assert!(before.1 == client || before.1 == 0);
                            }
                            model[at as usize] = (order, client);
                        }
                    }
                }
                Step::Fill(order, range) => {
                    prop_assert!(copy.change(fill(order), range.clone()));
                    for at in range {
                        if model[at as usize].0 <= order {
                            model[at as usize] = (order, 0);
                        }
                    }
                }
                Step::Restart => copy.orders = ChangeOrders::with_bound(bound),
            }
            prop_assert!(copy.orders.by_order.len() <= bound);
            for (at, (order, _)) in model.iter().enumerate() {
                let at = at as u64;
                prop_assert!(copy.highest(at..at + 1) >= *order);
                prop_assert!(copy.highest(at..at + 1) <= copy.stored);
            }
            for of in copy.orders.objects.values() {
                let ends = of.ranges.iter().map(|(start, known)| (*start, known.end));
                let all: Vec<(u64, u64)> = ends.collect();
                prop_assert!(all.iter().all(|(start, end)| start < end));
                prop_assert!(all.is_sorted_by(|one, other| one.1 <= other.0));
            }
        }
    }

    /// Two copies that take the same changes in any order end with the same bytes. A change that is
    /// refused goes to both again with a higher order.
    #[test]
    fn two_copies_end_alike(
        changes in proptest::collection::vec((0..16_u64, 1..9_u64), 2..8),
        turns in proptest::collection::vec(any::<u16>(), 200),
        start in 1..5_u64,
    ) {
        let mut copies = [Copy::default(), Copy::default()];
        let mut bytes = [[0_usize; 32]; 2];
        // Order, and copies that still have to take it.
        let mut left: Vec<(u64, Vec<usize>)> =
            (0..changes.len() as u64).map(|at| (start + at % 2, vec![0, 1])).collect();
        let mut turns = turns.into_iter().cycle();
        for round in 0..4_000_u64 {
            let turn = usize::from(turns.next().unwrap_or(0)) + (round / 200) as usize;
            let waiting: Vec<usize> = (0..left.len()).filter(|at| !left[*at].1.is_empty()).collect();
            if waiting.is_empty() {
                break;
            }
            let which = waiting[turn % waiting.len()];
            let (order, to) = left[which].clone();
            let to = to[(turn / 7) % to.len()];
            let (at, length) = changes[which];
            if copies[to].change(by(which as u64 + 1, order), at..at + length) {
                left[which].1.retain(|copy| *copy != to);
                for byte in at..at + length {
                    bytes[to][byte as usize] = which + 1;
                }
            } else {
                left[which] = (copies[to].highest(0..64) + 1, vec![0, 1]);
            }
        }
        prop_assert!(left.iter().all(|(_, to)| to.is_empty()), "the changes end");
        prop_assert_eq!(bytes[0], bytes[1]);
    }
}
