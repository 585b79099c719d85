//! Properties of the byte forms: each value has one, and it reads back as the same value.
#![allow(clippy::unwrap_used, reason = "a test may fail so")]

use proptest::prelude::*;
use std::fmt::Debug;
use zonal_types::{Blob, Codec, CodecError};

fn roundtrip<T: Codec + PartialEq + Debug>(value: &T) -> Result<(), TestCaseError> {
    let bytes = value.to_bytes();
    let back = T::from_bytes(&bytes);
    prop_assert_eq!(back.as_ref(), Ok(value));
    for end in 0..bytes.len() {
        prop_assert!(T::from_bytes(&bytes[..end]).is_err(), "cut at {}", end);
    }
    let longer = [bytes.as_slice(), &[0]].concat();
    prop_assert_eq!(T::from_bytes(&longer).err(), Some(CodecError::Trailing));
    Ok(())
}

/// Any bytes: they are refused, or they are the byte form of what they say.
fn is_canonical<T: Codec>(bytes: &[u8]) -> Result<(), TestCaseError> {
    if let Ok(value) = T::from_bytes(bytes) {
        prop_assert_eq!(value.to_bytes(), bytes);
    }
    Ok(())
}

proptest! {
    #[test]
    fn values_read_back_and_no_part_of_them_does(
        numbers in any::<(u8, u16, u64, i64)>(),
        texts in prop::collection::vec(".{0,20}", 0..5),
        bytes in prop::collection::vec(any::<u8>(), 0..50),
        option in any::<Option<(u32, bool)>>(),
    ) {
        roundtrip(&numbers)?;
        roundtrip(&texts)?;
        roundtrip(&Blob(bytes))?;
        roundtrip(&option)?;
        roundtrip(&(texts, option))?;
    }

    #[test]
    fn bytes_are_refused_or_canonical(bytes in prop::collection::vec(0..4_u8, 0..40)) {
        is_canonical::<Vec<Option<u16>>>(&bytes)?;
        is_canonical::<Vec<String>>(&bytes)?;
        is_canonical::<(bool, Blob)>(&bytes)?;
        is_canonical::<Option<[u8; 3]>>(&bytes)?;
    }
}
