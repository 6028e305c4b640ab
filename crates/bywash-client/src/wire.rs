//! The encoding of messages: integers in little endian, texts and lists behind their length in 32 bits, a byte for the variant of an
//! enum or the presence of an option.
//!
//! [`Wire`] is implemented for structs and enums by the macros at the end, field by field in the order of their declaration. The bytes
//! are specified in `docs/formats.md`.

use std::fmt;

/// Bytes that are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WireError {
    /// They end inside a field.
    Truncated,
    /// Bytes follow the last field.
    Trailing,
    /// A text is not UTF-8.
    Text,
    /// A variant that this version does not have.
    Variant,
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "the message ends inside a field",
            Self::Trailing => "bytes follow the last field of the message",
            Self::Text => "a text of the message is not UTF-8",
            Self::Variant => "the message has a variant that this version does not know",
        })
    }
}

impl std::error::Error for WireError {}

/// Bytes of a message that were not decoded yet.
#[derive(Debug)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], WireError> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(WireError::Truncated)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(WireError::Truncated)?;
        self.0 = rest;
        Ok(*taken)
    }

    /// Decodes the number of elements of a list, each of at least one byte.
    fn count(&mut self) -> Result<usize, WireError> {
        let count = u32::take(self)? as usize;
        if count > self.0.len() {
            return Err(WireError::Truncated);
        }
        Ok(count)
    }
}

/// A value with an encoding of at least one byte.
pub trait Wire: Sized {
    /// Appends the encoding.
    fn put(&self, out: &mut Vec<u8>);
    /// Decodes a value from the front of `input`.
    ///
    /// # Errors
    /// [`WireError`] if the bytes are not the encoding of a value.
    fn take(input: &mut Input<'_>) -> Result<Self, WireError>;

    /// Decodes a whole message.
    ///
    /// # Errors
    /// [`WireError`] if `bytes` is anything but one value.
    fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut input = Input(bytes);
        let value = Self::take(&mut input)?;
        if input.0.is_empty() {
            Ok(value)
        } else {
            Err(WireError::Trailing)
        }
    }
}

macro_rules! integers {
    ($($integer:ty),*) => {$(
        impl Wire for $integer {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn take(input: &mut Input<'_>) -> Result<Self, WireError> {
                Ok(Self::from_le_bytes(input.array()?))
            }
        }
    )*};
}

integers!(u8, u16, u32, u64, i64);

impl Wire for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn take(input: &mut Input<'_>) -> Result<Self, WireError> {
        match u8::take(input)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(WireError::Variant),
        }
    }
}

/// No value, of an enum's variant. Never an element of a list.
impl Wire for () {
    fn put(&self, _: &mut Vec<u8>) {}

    fn take(_: &mut Input<'_>) -> Result<Self, WireError> {
        Ok(())
    }
}

/// Appends a length. Encoders keep messages below [`crate::limits::MAX_MESSAGE_BYTES`], so it fits.
fn put_len(len: usize, out: &mut Vec<u8>) {
    u32::try_from(len).unwrap_or(u32::MAX).put(out);
}

impl Wire for String {
    fn put(&self, out: &mut Vec<u8>) {
        put_len(self.len(), out);
        out.extend_from_slice(self.as_bytes());
    }

    fn take(input: &mut Input<'_>) -> Result<Self, WireError> {
        let len = input.count()?;
        let text = std::str::from_utf8(input.take(len)?);
        text.map(str::to_owned).map_err(|_| WireError::Text)
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        put_len(self.len(), out);
        for element in self {
            element.put(out);
        }
    }

    fn take(input: &mut Input<'_>) -> Result<Self, WireError> {
        let count = input.count()?;
        let mut list = Self::with_capacity(count);
        for _ in 0..count {
            list.push(T::take(input)?);
        }
        Ok(list)
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn take(input: &mut Input<'_>) -> Result<Self, WireError> {
        bool::take(input)?.then(|| T::take(input)).transpose()
    }
}

/// Declares structs with their [`Wire`] encoding.
macro_rules! wire_structs {
    ($($(#[$doc:meta])* pub struct $name:ident { $($(#[$field_doc:meta])* pub $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $crate::wire::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)*
            }

            fn take(input: &mut $crate::wire::Input<'_>) -> Result<Self, $crate::wire::WireError> {
                Ok(Self { $($field: $crate::wire::Wire::take(input)?,)* })
            }
        }
    )*};
}

/// Declares enums of variants with one value each, with their [`Wire`] encoding: the number of the variant, then the value.
macro_rules! wire_enums {
    ($($(#[$doc:meta])* pub enum $name:ident { $($(#[$variant_doc:meta])* $variant:ident($value:ty) = $number:literal,)* })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_doc])* $variant($value),)*
        }

        impl $crate::wire::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant(value) => {
                        out.push($number);
                        value.put(out);
                    })*
                }
            }

            fn take(input: &mut $crate::wire::Input<'_>) -> Result<Self, $crate::wire::WireError> {
                match u8::take(input)? {
                    $($number => $crate::wire::Wire::take(input).map(Self::$variant),)*
                    _ => Err($crate::wire::WireError::Variant),
                }
            }
        }
    )*};
}

pub(crate) use {wire_enums, wire_structs};
