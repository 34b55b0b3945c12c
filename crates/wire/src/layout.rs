//! Attributes as tables of fields.
//!
//! Management attributes are rows of numbers of odd widths. `layout!` takes such a row as a table and makes a
//! type of it, which reads and writes itself and names its fields; `codes!` makes a type of a field whose values
//! have names, `flags!` of one whose bits have. All bytes are a value: what is reserved or unknown is kept, so
//! that bytes that are read and written again are the same. Only the length can be wrong.
//!
//! ```
//! # use rdmux_wire::sm::NodeInfo;
//! # let bytes = [1; 40];
//! let info = NodeInfo::parse(&bytes)?;
//! assert_eq!(info.to_bytes(), bytes);
//! info.fields(&mut |name, value| println!("{name} {value}"));
//! # Ok::<(), rdmux_wire::WireError>(())
//! ```

use core::fmt;

use crate::bytes::{get, put};
use crate::{Gid, Guid, Lid, Mkey, Pkey, Qkey, Qpn, ServiceId, SmKey, WireError};

/// What a visitor of fields is called with: the field's name, and its value to print.
pub type Visit<'a> = &'a mut dyn FnMut(&'static str, &dyn fmt::Display);

/// A type made by a table of fields: an attribute, a record or a part of one.
pub trait Layout: Sized + fmt::Display {
    /// The length on the wire, in bytes.
    const LEN: usize;

    /// The specification's name.
    const NAME: &'static str;

    /// Reads the value that `bytes` start with.
    ///
    /// # Errors
    /// When they are fewer than [`Self::LEN`].
    fn read(bytes: &[u8]) -> Result<Self, WireError>;

    /// Writes the value at the start of `out`.
    ///
    /// # Panics
    /// When `out` is shorter than [`Self::LEN`].
    fn write(&self, out: &mut [u8]);

    /// Calls `visit` for each field in the order of the wire; for reserved ones only when they are not zero.
    fn visit(&self, visit: Visit<'_>);
}

/// A run of bits, counted from the most significant one of the first byte, as the specification does.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    first: usize,
    len: usize,
}

impl Span {
    /// `len` bits from byte `at` on.
    pub(crate) const fn whole(at: usize, len: usize) -> Self {
        Self { first: at * 8, len }
    }

    /// `len` bits, of which the first is bit `first` of this span.
    pub(crate) const fn bits(self, first: usize, len: usize) -> Self {
        Self { first: self.first + first, len }
    }

    /// The first byte, of a span that begins with one.
    pub(crate) const fn byte(self) -> usize {
        self.first / 8
    }

    /// The `index`-th of spans of `len` bits.
    const fn nth(self, index: usize, len: usize) -> Self {
        self.bits(index * len, len)
    }

    const fn end(self) -> usize {
        self.first + self.len
    }

    /// Bits of the last byte that are after the span.
    const fn below(self) -> usize {
        (8 - self.end() % 8) % 8
    }
}

/// Fails to compile when a table has a hole, an overlap or another length than it says.
pub(crate) const fn assert_covers(spans: &[Span], len: usize) {
    let mut at = 0;
    let mut i = 0;
    while i < spans.len() {
        assert!(spans[i].first == at, "a field does not start where the one before it ends");
        at = spans[i].end();
        i += 1;
    }
    assert!(at == len * 8, "the fields do not fill the length");
}

/// What a field may be.
pub(crate) trait Field: Sized {
    /// How wide it is when the table does not say.
    const BITS: usize;
    fn take(b: &[u8], span: Span) -> Self;
    fn store(&self, b: &mut [u8], span: Span);
    fn is_zero(&self) -> bool;
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
    /// A layout within a layout shows its own fields.
    fn visit_as(&self, name: &'static str, visit: Visit<'_>) {
        visit(name, &Shown(self));
    }
}

/// A field of at most 64 bits.
pub(crate) trait Code: Copy + fmt::Display {
    const BITS: usize;
    fn from_raw(raw: u64) -> Self;
    fn raw(self) -> u64;
}

struct Shown<'a, T>(&'a T);

impl<T: Field> fmt::Display for Shown<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.show(f)
    }
}

impl<T: Code> Field for T {
    const BITS: usize = T::BITS;
    #[inline]
    fn take(b: &[u8], span: Span) -> Self {
        let bytes = &b[span.byte()..span.end().div_ceil(8)];
        let raw = bytes.iter().fold(0, |raw: u64, &byte| raw << 8 | u64::from(byte));
        Self::from_raw(raw >> span.below() & mask(span))
    }
    #[inline]
    fn store(&self, b: &mut [u8], span: Span) {
        let bytes = &mut b[span.byte()..span.end().div_ceil(8)];
        let raw = bytes.iter().fold(0, |raw: u64, &byte| raw << 8 | u64::from(byte));
        let others = raw & !(mask(span) << span.below());
        let new = others | (self.raw() & mask(span)) << span.below();
        for (byte, value) in bytes.iter_mut().rev().zip(new.to_le_bytes()) {
            *byte = value;
        }
    }
    fn is_zero(&self) -> bool {
        self.raw() == 0
    }
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

const fn mask(span: Span) -> u64 {
    u64::MAX >> (64 - span.len)
}

impl Field for Gid {
    const BITS: usize = 128;
    fn take(b: &[u8], span: Span) -> Self {
        Self(get(b, span.byte()))
    }
    fn store(&self, b: &mut [u8], span: Span) {
        put(b, span.byte(), self.0);
    }
    fn is_zero(&self) -> bool {
        *self == Self::ZERO
    }
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Shown as `[1 2 3]`.
impl<T: Field, const N: usize> Field for [T; N] {
    const BITS: usize = T::BITS * N;
    fn take(b: &[u8], span: Span) -> Self {
        core::array::from_fn(|i| T::take(b, span.nth(i, T::BITS)))
    }
    fn store(&self, b: &mut [u8], span: Span) {
        for (i, item) in self.iter().enumerate() {
            item.store(b, span.nth(i, T::BITS));
        }
    }
    fn is_zero(&self) -> bool {
        self.iter().all(T::is_zero)
    }
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, item) in self.iter().enumerate() {
            if i > 0 {
                f.write_str(" ")?;
            }
            item.show(f)?;
        }
        f.write_str("]")
    }
}

/// Text in a field of fixed length: UTF-8, filled up with zeros, which a text of the full length does not have.
/// Bytes of strangers need not be UTF-8, and what follows the first zero need not be zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Text<const N: usize>(pub [u8; N]);

impl<const N: usize> Text<N> {
    /// The bytes before the first zero.
    pub fn as_bytes(&self) -> &[u8] {
        let end = self.0.iter().position(|&byte| byte == 0);
        &self.0[..end.unwrap_or(N)]
    }
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

/// What is longer than the field is cut off, between two characters.
impl<const N: usize> From<&str> for Text<N> {
    fn from(text: &str) -> Self {
        let text = &text[..text.floor_char_boundary(N)];
        let mut bytes = [0; N];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Self(bytes)
    }
}

/// In quotation marks, with escapes.
impl<const N: usize> fmt::Display for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.as_bytes().escape_ascii())
    }
}

impl<const N: usize> Field for Text<N> {
    const BITS: usize = N * 8;
    fn take(b: &[u8], span: Span) -> Self {
        Self(get(b, span.byte()))
    }
    fn store(&self, b: &mut [u8], span: Span) {
        put(b, span.byte(), self.0);
    }
    fn is_zero(&self) -> bool {
        *self == Self::default()
    }
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

macro_rules! numbers {
    ($($ty:ty, $bits:literal, |$raw:ident| $from:expr, |$value:ident| $to:expr;)*) => {$(
        impl Code for $ty {
            const BITS: usize = $bits;
            #[inline]
            fn from_raw($raw: u64) -> Self {
                $from
            }
            #[inline]
            fn raw(self) -> u64 {
                let $value = self;
                $to
            }
        }
    )*};
}

/// The low 8, 16 or 32 bits: a field is never wider than its type.
pub(crate) const fn low8(raw: u64) -> u8 {
    let [low, ..] = raw.to_le_bytes();
    low
}
pub(crate) const fn low16(raw: u64) -> u16 {
    let [a, b, ..] = raw.to_le_bytes();
    u16::from_le_bytes([a, b])
}
pub(crate) const fn low32(raw: u64) -> u32 {
    let [a, b, c, d, ..] = raw.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

numbers! {
    bool, 1, |raw| raw != 0, |v| v.into();
    u8, 8, |raw| low8(raw), |v| v.into();
    u16, 16, |raw| low16(raw), |v| v.into();
    u32, 32, |raw| low32(raw), |v| v.into();
    u64, 64, |raw| raw, |v| v;
    Lid, 16, |raw| Self(low16(raw)), |v| v.0.into();
    Pkey, 16, |raw| Self(low16(raw)), |v| v.0.into();
    Qkey, 32, |raw| Self(low32(raw)), |v| v.0.into();
    Qpn, 24, |raw| Self::new(low32(raw)), |v| v.get().into();
    Guid, 64, |raw| Self(raw), |v| v.0;
    Mkey, 64, |raw| Self(raw), |v| v.0;
    SmKey, 64, |raw| Self(raw), |v| v.0;
    ServiceId, 64, |raw| Self(raw), |v| v.0;
}

/// Makes a type of a table of fields:
///
/// ```text
/// layout! {
///     /// What it is.
///     Name("NAME", 4) {            // type, the specification's name, length in bytes
///         /// A whole number of bytes, from byte 0 on.
///         lid: Lid = 0;
///         /// From bit 0 of byte 2, the most significant one, 3 bits.
///         lmc: u8 = 2 [0, 3];
///         ...
///     }
/// }
/// ```
///
/// A table with a hole, an overlap or another length than it says does not compile. A field that starts with
/// `reserved` is shown when it is not zero.
macro_rules! layout {
    (
        $(#[$doc:meta])*
        $name:ident($what:literal, $len:literal) {
            $($(#[$about:meta])* $field:ident: $ty:ty = $at:literal $([$first:literal, $bits:literal])?;)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$about])* pub $field: $ty,)*
        }

        const _: () = crate::layout::assert_covers(
            &[$(crate::layout::Span::whole($at, <$ty as crate::layout::Field>::BITS)$(.bits($first, $bits))?),*],
            $len,
        );

        impl $name {
            /// The length on the wire, in bytes.
            pub const LEN: usize = $len;

            /// Reads the value that `bytes` start with.
            ///
            /// # Errors
            /// When they are fewer than [`Self::LEN`].
            #[inline]
            pub fn parse(bytes: &[u8]) -> Result<Self, crate::WireError> {
                Ok(Self::from_bytes(crate::bytes::head::<{ $len }>(bytes, $what)?))
            }

            /// The value of these bytes: all bytes have one.
            #[inline]
            pub fn from_bytes(b: &[u8; $len]) -> Self {
                Self {
                    $($field: crate::layout::Field::take(b, const {
                        crate::layout::Span::whole($at, <$ty as crate::layout::Field>::BITS)$(.bits($first, $bits))?
                    }),)*
                }
            }

            /// The value as it goes on the wire. What does not fit into a field is cut to its low bits.
            #[inline]
            pub fn to_bytes(&self) -> [u8; $len] {
                let mut b = [0; $len];
                $(crate::layout::Field::store(&self.$field, &mut b, const {
                    crate::layout::Span::whole($at, <$ty as crate::layout::Field>::BITS)$(.bits($first, $bits))?
                });)*
                b
            }

            /// Writes the value at the start of `out`.
            ///
            /// # Panics
            /// When `out` is shorter than [`Self::LEN`].
            #[inline]
            pub fn emit(&self, out: &mut [u8]) {
                out[..$len].copy_from_slice(&self.to_bytes());
            }

            /// Calls `visit` with name and value of each field, in the order of the wire; of reserved fields only
            /// when they are not zero.
            pub fn fields(&self, visit: crate::layout::Visit<'_>) {
                $(if !stringify!($field).starts_with("reserved") || !crate::layout::Field::is_zero(&self.$field) {
                    crate::layout::Field::visit_as(&self.$field, stringify!($field), visit);
                })*
            }
        }

        /// All zero.
        impl Default for $name {
            fn default() -> Self {
                Self::from_bytes(&[0; $len])
            }
        }

        /// The name, then each field's name and value.
        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str($what)?;
                crate::layout::show_fields(f, |visit| self.fields(visit))
            }
        }

        impl crate::layout::Layout for $name {
            const LEN: usize = $len;
            const NAME: &'static str = $what;
            fn read(bytes: &[u8]) -> Result<Self, crate::WireError> {
                Self::parse(bytes)
            }
            fn write(&self, out: &mut [u8]) {
                self.emit(out);
            }
            fn visit(&self, visit: crate::layout::Visit<'_>) {
                self.fields(visit);
            }
        }

        impl crate::layout::Field for $name {
            const BITS: usize = $len * 8;
            fn take(b: &[u8], span: crate::layout::Span) -> Self {
                Self::from_bytes(&crate::bytes::get(b, span.byte()))
            }
            fn store(&self, b: &mut [u8], span: crate::layout::Span) {
                crate::bytes::put(b, span.byte(), self.to_bytes());
            }
            fn is_zero(&self) -> bool {
                self.to_bytes() == [0; $len]
            }
            fn show(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                core::fmt::Display::fmt(self, f)
            }
            fn visit_as(&self, _: &'static str, visit: crate::layout::Visit<'_>) {
                self.fields(visit);
            }
        }
    };
}
pub(crate) use layout;

/// Writes ` name value` for each field.
pub(crate) fn show_fields(
    f: &mut fmt::Formatter<'_>,
    fields: impl FnOnce(Visit<'_>),
) -> fmt::Result {
    let mut result = Ok(());
    fields(&mut |name, value| {
        if result.is_ok() {
            result = write!(f, " {name} {value}");
        }
    });
    result
}

/// Makes a type of a number whose values have names; any other value is kept, and shown as a number.
macro_rules! codes {
    (
        $(#[$doc:meta])*
        $name:ident($int:ty, $bits:literal bits) {
            $($(#[$about:meta])* $code:ident = $value:literal, $text:literal;)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $int);

        impl $name {
            $($(#[$about])* pub const $code: Self = Self($value);)*
        }

        impl crate::layout::Code for $name {
            const BITS: usize = $bits;
            #[inline]
            fn from_raw(raw: u64) -> Self {
                Self(crate::layout::Code::from_raw(raw))
            }
            #[inline]
            fn raw(self) -> u64 {
                self.0.into()
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(match *self {
                    $(Self::$code => $text,)*
                    Self(other) => return write!(f, "{other:#x}"),
                })
            }
        }
    };
}
pub(crate) use codes;

/// Makes a type of a number whose bits have names and numbers; other bits are kept.
macro_rules! flags {
    (
        $(#[$($doc:tt)*])*
        $name:ident($int:ty, $bits:literal bits) {
            $($(#[$($about:tt)*])* $flag:ident = $bit:literal;)*
        }
    ) => {
        bitflags::bitflags! {
            $(#[$($doc)*])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
            pub struct $name: $int {
                $($(#[$($about)*])* const $flag = 1 << $bit;)*
            }
        }

        impl crate::layout::Code for $name {
            const BITS: usize = $bits;
            #[inline]
            fn from_raw(raw: u64) -> Self {
                Self::from_bits_retain(crate::layout::Code::from_raw(raw))
            }
            #[inline]
            fn raw(self) -> u64 {
                crate::layout::Code::raw(self.bits())
            }
        }

        /// The number, and the names of its bits.
        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "{:#x}", self.bits())?;
                let mut before = '(';
                for (name, _) in self.iter_names() {
                    write!(f, "{before}{name}")?;
                    before = '|';
                }
                if before == '|' { f.write_str(")") } else { Ok(()) }
            }
        }
    };
}
pub(crate) use flags;

/// Makes an enum of a class's attributes, each a type in a file of its own.
macro_rules! attributes {
    (
        $(#[$doc:meta])*
        $enum:ident {
            $($(#[$about:meta])* $name:ident = $id:literal $(, $shared:ident)?;)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $enum {
            $($(#[$about])* $name($name),)*
        }

        impl $enum {
            /// Reads the attribute with this ID from a datagram's data, or says that there is none.
            ///
            /// # Errors
            /// When the data is too short.
            pub fn parse(attr_id: u16, data: &[u8]) -> Result<Option<Self>, crate::WireError> {
                Ok(Some(match attr_id {
                    $($id => Self::$name($name::parse(data)?),)*
                    _ => return Ok(None),
                }))
            }

            /// Writes the attribute at the start of `out`.
            ///
            /// # Panics
            /// When `out` is too short.
            pub fn emit(&self, out: &mut [u8]) {
                match self { $(Self::$name(value) => value.emit(out),)* }
            }

            /// Its ID.
            pub const fn attr_id(&self) -> u16 {
                match self { $(Self::$name(_) => $id,)* }
            }

            /// The length on the wire, in bytes.
            pub const fn wire_len(&self) -> usize {
                match self { $(Self::$name(_) => $name::LEN,)* }
            }

            /// The name of the attribute with this ID.
            pub const fn name_of(attr_id: u16) -> Option<&'static str> {
                Some(match attr_id {
                    $($id => <$name as crate::layout::Layout>::NAME,)*
                    _ => return None,
                })
            }

            /// Calls `visit` with name and value of each field.
            pub fn fields(&self, visit: crate::layout::Visit<'_>) {
                match self { $(Self::$name(value) => value.fields(visit),)* }
            }
        }

        impl core::fmt::Display for $enum {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self { $(Self::$name(value) => value.fmt(f),)* }
            }
        }

        $(
            crate::layout::attr_id! { $name = $id $(, $shared)? }

            impl From<$name> for $enum {
                fn from(value: $name) -> Self {
                    Self::$name(value)
                }
            }
        )*
    };
}
pub(crate) use attributes;

/// What several classes share says its ID itself.
macro_rules! attr_id {
    ($name:ident = $id:literal) => {
        impl $name {
            /// The attribute ID.
            pub const ATTR_ID: u16 = $id;
        }
    };
    ($name:ident = $id:literal, shared) => {
        const _: () = assert!($name::ATTR_ID == $id);
    };
}
pub(crate) use attr_id;
