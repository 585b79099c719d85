//! Sizes, times and rates in configs: a number and a unit, `64 MiB`, `500 ms`, `10 gbit`.
//!
//! A number without a unit is refused: a reader should not have to guess whether 10 means seconds.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::str::FromStr;
use std::time::Duration;
use zonal_basics::byte_size::BINARY_UNITS;

/// Why a size or time is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// The text does not begin with a number.
    #[error("\"{0}\" does not begin with a number")]
    NoNumber(String),
    /// The number has a fraction.
    #[error("\"{0}\" is not a whole number: write it in the next smaller unit")]
    NotWhole(String),
    /// The unit is missing or unknown.
    #[error("\"{text}\" needs a unit: {units}")]
    BadUnit {
        /// The text.
        text: String,
        /// The known units.
        units: &'static str,
    },
    /// The value does not fit 64 bits.
    #[error("\"{0}\" is too large")]
    TooLarge(String),
}

const DECIMAL_UNITS: &[(&str, u64)] = &[
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];
const SIZE_NAMES: &str = "B, KiB, MiB, GiB, TiB, PiB (or kB, MB, GB, TB for powers of ten)";
const RATE_UNITS: [(&str, u64); 3] = [
    ("kbit", 1_000),
    ("mbit", 1_000_000),
    ("gbit", 1_000_000_000),
];
const RATE_NAMES: &str = "kbit, mbit, gbit (a second)";
const TIME_UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("min", 60_000), ("h", 3_600_000)];
const TIME_NAMES: &str = "ms, s, min, h";

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// A rate of a link, in bits a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct UplinkRate(pub u64);

/// A time in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(pub u64);

impl Millis {
    /// The time as a `Duration`.
    #[must_use]
    pub fn duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

fn parse(text: &str, units: &[&[(&str, u64)]], names: &'static str) -> Result<u64, UnitError> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(UnitError::NoNumber(text.to_owned()));
    }
    if unit.starts_with(['.', ',']) {
        return Err(UnitError::NotWhole(text.to_owned()));
    }
    let unit = unit.trim();
    let Some((_, factor)) = units
        .iter()
        .copied()
        .flatten()
        .find(|(name, _)| *name == unit)
    else {
        return Err(UnitError::BadUnit {
            text: text.to_owned(),
            units: names,
        });
    };
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(*factor))
        .ok_or_else(|| UnitError::TooLarge(text.to_owned()))
}

fn print(value: u64, units: &[(&str, u64)], f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
    let fitting = units
        .iter()
        .filter(|(_, factor)| value.is_multiple_of(*factor) && value >= *factor);
    let (name, factor) = fitting
        .max_by_key(|(_, factor)| *factor)
        .copied()
        .unwrap_or(units[0]);
    write!(f, "{} {name}", value / factor)
}

impl FromStr for ByteSize {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        parse(text, &[&BINARY_UNITS, DECIMAL_UNITS], SIZE_NAMES).map(Self)
    }
}

impl FromStr for UplinkRate {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        parse(text, &[&RATE_UNITS], RATE_NAMES).map(Self)
    }
}

impl std::fmt::Display for UplinkRate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        print(self.0, &RATE_UNITS, f)
    }
}

impl FromStr for Millis {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        parse(text, &[&TIME_UNITS], TIME_NAMES).map(Self)
    }
}

impl std::fmt::Display for ByteSize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        print(self.0, &BINARY_UNITS, f)
    }
}

impl std::fmt::Display for Millis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        print(self.0, &TIME_UNITS, f)
    }
}

macro_rules! serde_as_text {
    ($($name:ident)*) => {$(
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                String::deserialize(from)?.parse().map_err(de::Error::custom)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }
    )*};
}

serde_as_text!(UplinkRate ByteSize Millis);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_need_their_units() {
        assert_eq!("64 MiB".parse(), Ok(ByteSize(64 << 20)));
        assert_eq!("64MiB".parse(), Ok(ByteSize(64 << 20)));
        assert_eq!("10 GB".parse(), Ok(ByteSize(10_000_000_000)));
        assert_eq!("500 ms".parse(), Ok(Millis(500)));
        assert_eq!("2 min".parse(), Ok(Millis(120_000)));
        assert_eq!("10 gbit".parse(), Ok(UplinkRate(10_000_000_000)));
        assert_eq!(UplinkRate(2_500_000).to_string(), "2500 kbit");
        assert!("10 Gb".parse::<UplinkRate>().is_err());
        assert!(matches!(
            "10".parse::<ByteSize>(),
            Err(UnitError::BadUnit { .. })
        ));
        assert!(matches!(
            "10 s".parse::<ByteSize>(),
            Err(UnitError::BadUnit { .. })
        ));
        assert!(matches!(
            "MiB".parse::<ByteSize>(),
            Err(UnitError::NoNumber(_))
        ));
        for text in ["0.5s", "0,5 s", "1.s"] {
            assert!(matches!(
                text.parse::<Millis>(),
                Err(UnitError::NotWhole(_))
            ));
        }
        assert!(matches!(
            "-1 s".parse::<Millis>(),
            Err(UnitError::NoNumber(_))
        ));
        assert!(matches!(
            "99999999999 TiB".parse::<ByteSize>(),
            Err(UnitError::TooLarge(_))
        ));
    }

    #[test]
    fn printed_units_parse_back() {
        for size in [0, 1, 4096, 1 << 20, 3 << 30, 1_000_000] {
            assert_eq!(ByteSize(size).to_string().parse(), Ok(ByteSize(size)));
        }
        for time in [0, 1, 500, 10_000, 90_000, 7_200_000] {
            assert_eq!(Millis(time).to_string().parse(), Ok(Millis(time)));
        }
        assert_eq!(ByteSize(10 << 30).to_string(), "10 GiB");
    }
}
