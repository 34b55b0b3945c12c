//! Macros for the field types of tables, numbers whose values or bits have names, and for the set
//! of a class's attributes.

/// Makes a type of a number whose values have names. Any other value is kept, and printed as a number.
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

/// Makes a type of a number whose bits have names and positions. Other bits are kept.
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

        /// Prints the number, and the names of its bits.
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

/// Makes the component mask of a record: the names and positions of its bits, and the field of each.
macro_rules! components {
    (
        $(#[$($doc:tt)*])*
        $mask:ident($record:ident) {
            $($flag:ident = $bit:literal, $path:literal;)*
        }
    ) => {
        crate::layout::flags! {
            $(#[$($doc)*])*
            $mask(u64, 64 bits) {
                $(#[doc = concat!("`", $path, "`.")] $flag = $bit;)*
            }
        }

        impl crate::layout::Components for $record {
            type Mask = $mask;
            fn mask(bits: u64) -> $mask {
                $mask::from_bits_retain(bits)
            }
            fn copy_components(bits: u64, value: &[u8], out: &mut [u8]) {
                $(if bits & (1 << $bit) != 0 {
                    const {
                        crate::layout::span_of(<$record as crate::layout::Field>::PARTS, $path)
                    }
                    .copy(value, out);
                })*
            }
        }
    };
}
pub(crate) use components;

/// Makes an enum of a class's attributes, each a type in a separate file.
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
            /// Parses the attribute with this ID from a datagram's data, or returns none if there is no such attribute.
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

            /// Returns the attribute ID.
            pub const fn attr_id(&self) -> u16 {
                match self { $(Self::$name(_) => $id,)* }
            }

            /// Returns the length on the wire, in bytes.
            pub const fn wire_len(&self) -> usize {
                match self { $(Self::$name(_) => $name::LEN,)* }
            }

            /// Returns the name of the attribute with this ID.
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

/// Defines the attribute ID, unless several classes share the attribute, which then defines it itself.
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
