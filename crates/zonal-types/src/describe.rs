//! Stored values in printable form, for `zonal dump`: a name and named fields.

/// The value of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Field {
    /// A number.
    Number(u64),
    /// A number that may be negative.
    Signed(i64),
    /// True or false.
    Flag(bool),
    /// Words.
    Text(String),
    /// Bytes, which may be printable text.
    Bytes(Vec<u8>),
    /// Several values.
    List(Vec<Field>),
    /// A value with fields of its own.
    Group(Fields),
}

/// Fields with their names, in order.
pub type Fields = Vec<(&'static str, Field)>;

/// A printed key with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    /// The kind of record, such as `inode` or `chunk`.
    pub what: &'static str,
    /// The record's fields.
    pub fields: Fields,
}

impl Described {
    /// A record without fields.
    #[must_use]
    pub fn new(what: &'static str) -> Self {
        Self {
            what,
            fields: Vec::new(),
        }
    }

    /// Adds a field.
    #[must_use]
    pub fn with(mut self, name: &'static str, field: impl Into<Field>) -> Self {
        self.fields.push((name, field.into()));
        self
    }
}

macro_rules! from_numbers {
    ($($int:ty)*) => {$(
        impl From<$int> for Field {
            fn from(value: $int) -> Self { Self::Number(u64::from(value)) }
        }
    )*};
}
from_numbers!(u8 u16 u32 u64);

impl From<i64> for Field {
    fn from(value: i64) -> Self {
        Self::Signed(value)
    }
}

impl From<bool> for Field {
    fn from(value: bool) -> Self {
        Self::Flag(value)
    }
}

impl From<String> for Field {
    fn from(value: String) -> Self {
        Self::Text(value)
    }
}

impl From<&str> for Field {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

impl From<&[u8]> for Field {
    fn from(value: &[u8]) -> Self {
        Self::Bytes(value.to_vec())
    }
}

impl From<crate::Timestamp> for Field {
    fn from(time: crate::Timestamp) -> Self {
        Self::Text(format!("{}.{:09}", time.seconds, time.nanos))
    }
}

impl<T: Into<Field>> FromIterator<T> for Field {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        Self::List(values.into_iter().map(Into::into).collect())
    }
}

impl From<Fields> for Field {
    fn from(fields: Fields) -> Self {
        Self::Group(fields)
    }
}
