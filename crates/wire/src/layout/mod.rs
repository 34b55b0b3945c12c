//! Attributes as tables of fields.
//!
//! Management attributes are sequences of numbers of odd widths. `layout!` turns such a table into a
//! type that parses, writes and prints its fields. `codes!` makes a type for a field whose values
//! have names, `flags!` for one whose bits have. Any bytes are valid: reserved and unknown values are
//! kept, so that bytes that are parsed and written again are the same. Only the length can be wrong.
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

/// A visitor of fields, called with each field's name and its value to print.
pub type Visit<'a> = &'a mut dyn FnMut(&'static str, &dyn fmt::Display);

/// A type made by `layout!`: an attribute, a record or a part of one.
pub trait Layout: Sized + fmt::Display {
    /// The length on the wire, in bytes.
    const LEN: usize;

    /// The specification's name.
    const NAME: &'static str;

    /// Parses the value at the start of `bytes`.
    ///
    /// # Errors
    /// If there are fewer than [`Self::LEN`] bytes.
    fn read(bytes: &[u8]) -> Result<Self, WireError>;

    /// Writes the value at the start of `out`.
    ///
    /// # Panics
    /// When `out` is shorter than [`Self::LEN`].
    fn write(&self, out: &mut [u8]);

    /// Calls `visit` for each field in wire order; for reserved fields only if they are not zero.
    fn visit(&self, visit: Visit<'_>);
}

/// A record with a component mask, which has a bit for each field.
pub trait Components: Layout {
    /// The type of the mask.
    type Mask;

    /// Returns the mask with these bits.
    fn mask(bits: u64) -> Self::Mask;

    /// Copies the components of a mask from one record to another, both in wire format. Bits
    /// without a component are ignored.
    ///
    /// # Panics
    /// If one of them is shorter than [`Self::LEN`](Layout::LEN).
    fn copy_components(mask: u64, value: &[u8], out: &mut [u8]);
}

/// Makes a type from a table of fields:
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
/// A table with a hole, an overlap or another length than declared does not compile. A field whose
/// name starts with `reserved` is printed only if it is not zero.
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

            /// Parses the value at the start of `bytes`.
            ///
            /// # Errors
            /// If there are fewer than [`Self::LEN`] bytes.
            #[inline]
            pub fn parse(bytes: &[u8]) -> Result<Self, crate::WireError> {
                Ok(Self::from_bytes(crate::bytes::head::<{ $len }>(bytes, $what)?))
            }

            /// Returns the value of these bytes, all of which are valid.
            #[inline]
            pub fn from_bytes(b: &[u8; $len]) -> Self {
                Self {
                    $($field: crate::layout::Field::take(b, const {
                        crate::layout::Span::whole($at, <$ty as crate::layout::Field>::BITS)$(.bits($first, $bits))?
                    }),)*
                }
            }

            /// Returns the value in wire format. A value that does not fit into its field is truncated to its low bits.
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

            /// Calls `visit` with name and value of each field, in wire order; for reserved fields
            /// only if they are not zero.
            pub fn fields(&self, visit: crate::layout::Visit<'_>) {
                $(if !stringify!($field).starts_with("reserved") || !crate::layout::Field::is_zero(&self.$field) {
                    crate::layout::Field::visit_as(&self.$field, stringify!($field), visit);
                })*
            }
        }

        /// The default value has all bits zero.
        impl Default for $name {
            fn default() -> Self {
                Self::from_bytes(&[0; $len])
            }
        }

        /// Prints the name, then each field's name and value.
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
