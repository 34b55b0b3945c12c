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

use crate::WireError;

mod field;
mod named;

pub use field::Text;
pub(crate) use field::{Code, Field, Part, Span, assert_covers, span_of};
pub(crate) use named::{attr_id, attributes, codes, components, flags};

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

/// A record with a component mask, a bit for each of its fields.
pub trait Components: Layout {
    /// The mask.
    type Mask;

    /// The mask of these bits.
    fn mask(bits: u64) -> Self::Mask;

    /// Copies the components of a mask from one record to another, both in the form of the wire. Bits that stand for no
    /// component count for nothing.
    ///
    /// # Panics
    /// When one of them is shorter than [`Self::LEN`](Layout::LEN).
    fn copy_components(mask: u64, value: &[u8], out: &mut [u8]);
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
            const PARTS: &'static [crate::layout::Part] = &[$(crate::layout::Part {
                name: stringify!($field),
                span: crate::layout::Span::whole($at, <$ty as crate::layout::Field>::BITS)$(.bits($first, $bits))?,
                element: <$ty as crate::layout::Field>::ELEMENT_BITS,
                parts: <$ty as crate::layout::Field>::PARTS,
            }),*];
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
