//! The byte codec of messages and stored records: explicit, little-endian, bounded.
//!
//! * Integers are fixed width, little-endian. `bool` is 0 or 1. `Option<T>` is 0, or 1 then T.
//! * `Vec<T>` and byte strings are a `u32` count, then the elements.
//! * A count larger than the bytes that are left is refused before anything is allocated.
//! * Enums are a `u8` tag, then the fields.
//!
//! Decoding never panics.

/// Why bytes could not be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodecError {
    /// The input ends inside a field.
    Truncated,
    /// Bytes are left over behind the value.
    Trailing,
    /// A tag, flag or count has no meaning.
    BadValue,
    /// A count or length is past its bound.
    TooLong,
}

impl std::fmt::Display for CodecError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Truncated => "the bytes end inside a field",
            Self::Trailing => "bytes are left over",
            Self::BadValue => "a field has no valid meaning",
            Self::TooLong => "a length is past its bound",
        })
    }
}

impl std::error::Error for CodecError {}

/// A cursor over the bytes that are left to decode.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Starts at the first of `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Number of bytes left.
    #[must_use]
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// Takes the next `count` bytes.
    ///
    /// # Errors
    /// `Truncated` where fewer are left.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], CodecError> {
        if count > self.rest.len() {
            return Err(CodecError::Truncated);
        }
        let (head, tail) = self.rest.split_at(count);
        self.rest = tail;
        Ok(head)
    }

    /// Takes a length-prefixed byte string without copying it.
    ///
    /// # Errors
    /// `Truncated` where the length is past the end.
    pub fn bytes(&mut self) -> Result<&'a [u8], CodecError> {
        let count = u32::get(self)? as usize;
        self.take(count)
    }
}

/// A value with an exact byte form.
pub trait Codec: Sized {
    /// Appends the byte form.
    fn put(&self, out: &mut Vec<u8>);

    /// Reads one value.
    ///
    /// # Errors
    /// Any [`CodecError`] but `Trailing`.
    fn get(from: &mut Reader<'_>) -> Result<Self, CodecError>;

    /// The byte form of this value alone.
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.put(&mut out);
        out
    }

    /// Decodes a value that must fill `bytes`.
    ///
    /// # Errors
    /// Any [`CodecError`].
    fn from_bytes(bytes: &[u8]) -> Result<Self, CodecError> {
        let mut reader = Reader::new(bytes);
        let value = Self::get(&mut reader)?;
        if reader.left() > 0 {
            return Err(CodecError::Trailing);
        }
        Ok(value)
    }
}

macro_rules! integers {
    ($($int:ty),*) => {$(
        impl Codec for $int {
            fn put(&self, out: &mut Vec<u8>) { out.extend_from_slice(&self.to_le_bytes()); }
            fn get(from: &mut Reader<'_>) -> Result<Self, CodecError> {
                let bytes = from.take(size_of::<$int>())?;
                let array = bytes.try_into().map_err(|_error| CodecError::Truncated)?;
                Ok(<$int>::from_le_bytes(array))
            }
        }
    )*};
}
integers!(u8, u16, u32, u64, i32, i64);

impl Codec for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, CodecError> {
        match u8::get(from)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(CodecError::BadValue),
        }
    }
}

impl<const N: usize> Codec for [u8; N] {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, CodecError> {
        from.take(N)?
            .try_into()
            .map_err(|_error| CodecError::Truncated)
    }
}

impl<T: Codec> Codec for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            None => out.push(0),
            Some(value) => {
                out.push(1);
                value.put(out);
            }
        }
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, CodecError> {
        Ok(if bool::get(from)? {
            Some(T::get(from)?)
        } else {
            None
        })
    }
}

impl<T: Codec> Codec for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        put_count(self.len(), out);
        for item in self {
            item.put(out);
        }
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, CodecError> {
        let count = u32::get(from)? as usize;
        if count > from.left() {
            return Err(CodecError::TooLong);
        }
        // Each element takes at least one byte, so the capacity grows with the bytes that are
        // there.
        let mut items = Self::with_capacity(count.min(4096));
        for _ in 0..count {
            items.push(T::get(from)?);
        }
        Ok(items)
    }
}

impl<A: Codec, B: Codec, C: Codec, D: Codec> Codec for (A, B, C, D) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
        self.2.put(out);
        self.3.put(out);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, CodecError> {
        Ok((A::get(from)?, B::get(from)?, C::get(from)?, D::get(from)?))
    }
}

impl<A: Codec, B: Codec> Codec for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, CodecError> {
        Ok((A::get(from)?, B::get(from)?))
    }
}

impl Codec for String {
    fn put(&self, out: &mut Vec<u8>) {
        put_count(self.len(), out);
        out.extend_from_slice(self.as_bytes());
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, CodecError> {
        let bytes = from.bytes()?;
        std::str::from_utf8(bytes)
            .map(Into::into)
            .map_err(|_error| CodecError::BadValue)
    }
}

/// A byte string. A plain `Vec<u8>` has the same form but decodes slower, byte by byte.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Blob(pub Vec<u8>);

impl Codec for Blob {
    fn put(&self, out: &mut Vec<u8>) {
        put_count(self.0.len(), out);
        out.extend_from_slice(&self.0);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, CodecError> {
        Ok(Self(from.bytes()?.to_vec()))
    }
}

fn put_count(count: usize, out: &mut Vec<u8>) {
    // Lists and strings are bounded far below 4 Gi by the frame limit; a longer one cannot be
    // built.
    u32::try_from(count).unwrap_or(u32::MAX).put(out);
}

/// Defines a struct with its byte form: the fields in order.
#[macro_export]
macro_rules! codec_struct {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($(#[$fmeta:meta])* $field:ident : $ty:ty),* $(,)? }) => {
        $(#[$meta])*
        $vis struct $name { $($(#[$fmeta])* pub $field: $ty),* }
        impl $crate::codec::Codec for $name {
            fn put(&self, out: &mut Vec<u8>) {
                let _ = &out;
                $($crate::codec::Codec::put(&self.$field, out);)*
            }
            fn get(from: &mut $crate::codec::Reader<'_>) -> Result<Self, $crate::codec::CodecError> {
                let _ = &from;
                Ok(Self { $($field: $crate::codec::Codec::get(from)?),* })
            }
        }
    };
}

/// Defines an enum with its byte form: a `u8` tag, then the fields in order.
#[macro_export]
macro_rules! codec_enum {
    ($(#[$meta:meta])* $vis:vis enum $name:ident {
        $($(#[$vmeta:meta])* $variant:ident = $tag:literal $({ $($(#[$fmeta:meta])* $field:ident : $ty:ty),* $(,)? })?),* $(,)?
    }) => {
        $(#[$meta])*
        $vis enum $name { $($(#[$vmeta])* $variant $({ $($(#[$fmeta])* $field: $ty),* })?),* }
        impl $name {
            /// The tag in the byte form.
            #[must_use]
            pub fn tag(&self) -> u8 {
                match self { $(Self::$variant $({ $($field: _),* })? => $tag),* }
            }
            /// The variant's name, for logs and metrics.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self { $(Self::$variant $({ $($field: _),* })? => stringify!($variant)),* }
            }
        }
        impl $crate::codec::Codec for $name {
            fn put(&self, out: &mut Vec<u8>) {
                out.push(self.tag());
                match self { $(Self::$variant $({ $($field),* })? => { $($($crate::codec::Codec::put($field, out);)*)? }),* }
            }
            fn get(from: &mut $crate::codec::Reader<'_>) -> Result<Self, $crate::codec::CodecError> {
                match <u8 as $crate::codec::Codec>::get(from)? {
                    $($tag => Ok(Self::$variant $({ $($field: $crate::codec::Codec::get(from)?),* })?),)*
                    _ => Err($crate::codec::CodecError::BadValue),
                }
            }
        }
    };
}

/// Implements the byte form of an enum that [`codec_enum`] cannot express (variants with unnamed
/// fields): a tag, then the fields in order. A variant that is left out does not compile.
#[macro_export]
macro_rules! codec_of {
    ($name:ident { $($tag:literal = $variant:ident $({ $($field:ident),* $(,)? })? $(( $item:ident ))?),* $(,)? }) => {
        impl $crate::codec::Codec for $name {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant $({ $($field),* })? $(( $item ))? => {
                        out.push($tag);
                        $($($crate::codec::Codec::put($field, out);)*)?
                        $($crate::codec::Codec::put($item, out);)?
                    })*
                }
            }
            fn get(from: &mut $crate::codec::Reader<'_>) -> Result<Self, $crate::codec::CodecError> {
                match <u8 as $crate::codec::Codec>::get(from)? {
                    $($tag => {
                        $($(let $field = $crate::codec::Codec::get(from)?;)*)?
                        $(let $item = $crate::codec::Codec::get(from)?;)?
                        Ok(Self::$variant $({ $($field),* })? $(( $item ))?)
                    })*
                    _ => Err($crate::codec::CodecError::BadValue),
                }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    codec_struct! {
        #[derive(Debug, PartialEq, Clone)]
        struct Pair { a: u16, b: Vec<Option<u64>> }
    }
    codec_enum! {
        #[derive(Debug, PartialEq, Clone)]
        enum Shape { Point = 1, Line = 2 { from: Pair, name: String } }
    }

    #[test]
    fn structs_and_enums_round_trip() {
        let line = Shape::Line {
            from: Pair {
                a: 7,
                b: vec![None, Some(9)],
            },
            name: "x".into(),
        };
        assert_eq!(Shape::from_bytes(&line.to_bytes()), Ok(line.clone()));
        assert_eq!(
            Shape::from_bytes(&Shape::Point.to_bytes()),
            Ok(Shape::Point)
        );
        assert_eq!((line.tag(), line.name()), (2, "Line"));
    }

    #[test]
    fn decoding_refuses_every_prefix() {
        let bytes = Shape::Line {
            from: Pair {
                a: 7,
                b: vec![Some(9)],
            },
            name: "xyz".into(),
        }
        .to_bytes();
        for end in 0..bytes.len() {
            assert!(Shape::from_bytes(&bytes[..end]).is_err(), "prefix {end}");
        }
        let mut longer = bytes;
        longer.push(0);
        assert_eq!(Shape::from_bytes(&longer), Err(CodecError::Trailing));
    }

    #[test]
    fn a_hostile_count_allocates_nothing() {
        assert_eq!(
            Vec::<u64>::from_bytes(&[255, 255, 255, 255, 1]),
            Err(CodecError::TooLong)
        );
        assert_eq!(
            Blob::from_bytes(&[255, 255, 255, 255, 1]),
            Err(CodecError::Truncated)
        );
    }
}
