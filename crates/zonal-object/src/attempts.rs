//! Retries of changes: a target refuses an earlier attempt that arrives after a later one.
//!
//! A sender (a client together with the identity it has proved) that gets no answer gives the
//! attempt up. It numbers its next changes of that object higher. The target remembers the highest
//! number of each sender and object, and refuses lower ones. It checks at the plan of a change and
//! again at its commit, because a change may be under way in the target for long. Number 0 is not
//! remembered: its sender has given nothing up.
//!
//! In memory only: requests from before a restart died with their connections. Bounded by
//! `ATTEMPTS_MAX`: the entry that was raised longest ago is forgotten.

use crate::ids::{ChangeAttempt, ObjectId};
use zonal_basics::BoundedMap;
use zonal_types::limits::ATTEMPTS_MAX;
use zonal_types::{ClientId, ErrorCode, HolderNumber};

/// A client's numbers go on over all its incarnations.
type Name = (ObjectId, ClientId, HolderNumber);

/// The highest number of each sender and object.
#[derive(Debug)]
pub(crate) struct Attempts(BoundedMap<Name, u32>);

impl Default for Attempts {
    fn default() -> Self {
        Self(BoundedMap::new(ATTEMPTS_MAX))
    }
}

impl Attempts {
    /// Admits a change of `object`, unless its sender has sent one with a higher number.
    ///
    /// # Errors
    /// `Superseded`.
    pub(crate) fn admit(
        &mut self,
        object: ObjectId,
        attempt: ChangeAttempt,
    ) -> Result<(), ErrorCode> {
        let ChangeAttempt { sender, number, .. } = attempt;
        let client = sender.identity.client;
        let name = (object, client, sender.holder);
        let known = self.0.get(&name).copied();
        let is_raise = match known {
            Some(known) if number < known => {
                zonal_types::mark!(LateChange);
                return Err(ErrorCode::Superseded);
            }
            Some(known) => number > known,
            None => client != ClientId(0) && number != 0,
        };
        if is_raise {
            self.0.insert(name, number);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Sender;
    use zonal_types::{ClientIdentity, Column, DataId, Incarnation};

    fn object(number: usize) -> ObjectId {
        ObjectId {
            data_id: DataId(number as u64),
            column: Column(0),
        }
    }

    fn attempt(client: u64, number: u32) -> ChangeAttempt {
        let sender = Sender {
            identity: ClientIdentity::first(ClientId(client)),
            ..Sender::default()
        };
        ChangeAttempt {
            sender,
            number,
            ..ChangeAttempt::default()
        }
    }

    #[test]
    fn a_lower_number_of_the_same_sender_and_object_is_refused() {
        let mut attempts = Attempts::default();
        attempts.admit(object(1), attempt(7, 0)).unwrap();
        assert!(attempts.0.is_empty(), "nothing was given up");
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
    fn attempts_carry_over_incarnations_but_not_to_another_holder() {
        let mut attempts = Attempts::default();
        attempts.admit(object(1), attempt(7, 3)).unwrap();
        let mut late = attempt(7, 2);
        late.sender.identity.incarnation = Incarnation(2);
        assert_eq!(attempts.admit(object(1), late), Err(ErrorCode::Superseded));
        late.sender.holder = HolderNumber(9);
        assert_eq!(attempts.admit(object(1), late), Ok(()));
    }

    #[test]
    fn the_attempts_raised_last_are_remembered() {
        let mut attempts = Attempts::default();
        for number in 0..ATTEMPTS_MAX {
            attempts.admit(object(number), attempt(7, 1)).unwrap();
        }
        // Added first, raised last.
        attempts.admit(object(0), attempt(7, 2)).unwrap();
        attempts.admit(object(ATTEMPTS_MAX), attempt(7, 1)).unwrap();
        assert!(attempts.admit(object(0), attempt(7, 1)).is_err());
        assert!(attempts.admit(object(1), attempt(7, 0)).is_ok());
        assert!(attempts.admit(object(2), attempt(7, 0)).is_err());
        assert_eq!(attempts.0.len(), ATTEMPTS_MAX);
    }
}
