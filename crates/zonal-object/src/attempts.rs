//! Changes that were sent again because their sender had no answer: the first one must not be carried out after what came later.
//!
//! A sender that gave an attempt up numbers the next changes of that object higher. The highest number of each sender and object is
//! remembered, and a lower one is refused, at the plan of a change and at its commit: it may have been on its way through the target
//! for long. Number 0 is not remembered: nothing was given up.
//!
//! In memory only: requests from before a restart died with their connections. Bounded: the oldest are forgotten.

use crate::ids::{Attempt, ObjectId};
use std::collections::{BTreeMap, VecDeque};
use zonal_types::ErrorCode;
use zonal_types::limits::ATTEMPTS_MAX;

type Name = (ObjectId, u64);

/// The highest numbers, in the order in which their objects were first met.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    order: VecDeque<Name>,
    highest: BTreeMap<Name, u32>,
}

impl Attempts {
    /// Lets a change of `object` pass, unless its sender has sent one with a higher number.
    ///
    /// # Errors
    /// `Superseded`.
    pub(crate) fn admit(&mut self, object: ObjectId, attempt: Attempt) -> Result<(), ErrorCode> {
        let Attempt { sender, number } = attempt;
        let name = (object, sender);
        if let Some(highest) = self.highest.get_mut(&name) {
            if number < *highest {
                zonal_types::mark!(LateChange);
                return Err(ErrorCode::Superseded);
            }
            *highest = number;
        } else if sender != 0 && number != 0 {
            self.highest.insert(name, number);
            self.order.push_back(name);
            if self.order.len() > ATTEMPTS_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.highest.remove(&oldest);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_types::{Column, DataId};

    fn object(number: usize) -> ObjectId {
        ObjectId {
            data_id: DataId(number as u64),
            column: Column(0),
        }
    }

    fn attempt(sender: u64, number: u32) -> Attempt {
        Attempt { sender, number }
    }

    #[test]
    fn a_lower_number_of_the_same_sender_and_object_is_refused() {
        let mut attempts = Attempts::default();
        attempts.admit(object(1), attempt(7, 0)).unwrap();
        assert!(attempts.order.is_empty(), "nothing was given up");
        attempts.admit(object(1), attempt(7, 3)).unwrap();
        for number in [0, 2] {
            let late = attempts.admit(object(1), attempt(7, number));
            assert_eq!(late, Err(ErrorCode::Superseded));
        }
        for other in [attempt(7, 3), attempt(8, 0), attempt(0, 0), attempt(7, 4)] {
            attempts.admit(object(1), other).unwrap();
        }
        attempts.admit(object(2), attempt(7, 0)).unwrap();
        assert!(attempts.admit(object(1), attempt(7, 3)).is_err());
    }

    #[test]
    fn the_newest_are_known() {
        let mut attempts = Attempts::default();
        for number in 0..=ATTEMPTS_MAX {
            attempts.admit(object(number), attempt(7, 1)).unwrap();
            attempts.admit(object(number), attempt(7, 1)).unwrap();
        }
        assert!(attempts.admit(object(0), attempt(7, 0)).is_ok());
        assert!(attempts.admit(object(1), attempt(7, 0)).is_err());
        assert_eq!(attempts.order.len(), attempts.highest.len());
    }
}
