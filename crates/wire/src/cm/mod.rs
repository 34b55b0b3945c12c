//! Messages of the InfiniBand connection manager (IBTA 12.6), one file each.
//!
//! A message is the 232-byte body of a MAD of the class ComMgt. [`CmMad`] is the whole datagram:
//!
//! ```
//! # use rdmux_wire::cm::{CmMad, Message, Rtu};
//! let rtu = Rtu { local_comm_id: 1, remote_comm_id: 2, private_data: [0; 224] };
//! let mad = CmMad::new(7, Message::Rtu(rtu));
//! let bytes: [u8; 256] = mad.to_bytes();
//! assert_eq!(CmMad::parse(&bytes), Ok(mad));
//! ```

use core::fmt;

use crate::WireError;
use crate::bytes::head;
use crate::mad::{BODY_LEN, MAD_LEN, MadHeader, Method, MgmtClass};

mod apr;
mod drep;
mod dreq;
mod ip_header;
mod lap;
mod mra;
mod path;
mod reason;
mod rej;
mod rep;
mod req;
mod rtu;
mod service_id;
mod sidr_rep;
mod sidr_req;

pub use apr::{Apr, AprStatus};
pub use drep::Drep;
pub use dreq::Dreq;
pub use ip_header::{IpHeader, IpPair};
pub use lap::Lap;
pub use mra::{Mra, MraOf};
pub use path::Path;
pub use reason::RejReason;
pub use rej::{Rej, RejOf};
pub use rep::Rep;
pub use req::{Req, Transport};
pub use rtu::Rtu;
pub use sidr_rep::{SidrRep, SidrStatus};
pub use sidr_req::SidrReq;

/// The class version of communication management.
pub const CLASS_VERSION: u8 = 2;

/// A connection management datagram, 256 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmMad {
    /// Transaction ID. REP, REJ and MRA repeat that of the REQ.
    pub tid: u64,
    /// The attribute modifier; enhanced connection establishment puts its options there.
    pub attr_mod: u32,
    /// The message.
    pub message: Message,
}

impl CmMad {
    /// Creates a datagram without options.
    pub const fn new(tid: u64, message: Message) -> Self {
        Self { tid, attr_mod: 0, message }
    }

    /// Parses a MAD.
    ///
    /// # Errors
    /// If it is shorter than 256 bytes, not of communication management, of another version, not a
    /// Send, or of an unknown attribute; or if a field of the message is invalid.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let bytes = head::<MAD_LEN>(bytes, "MAD")?;
        let header = MadHeader::parse(bytes)?;
        for (what, found, right) in [
            ("management class of a CM message", header.mgmt_class.0, MgmtClass::COMM.0),
            ("class version of a CM message", header.class_version, CLASS_VERSION),
            ("method of a CM message", header.method.0, Method::SEND.0),
        ] {
            if found != right {
                return Err(WireError::Value { what, value: found.into() });
            }
        }
        let message = Message::parse(header.attr_id, &bytes[MadHeader::LEN..])?;
        Ok(Self { tid: header.tid, attr_mod: header.attr_mod, message })
    }

    /// Returns the MAD header.
    pub const fn header(&self) -> MadHeader {
        MadHeader {
            base_version: 1,
            mgmt_class: MgmtClass::COMM,
            class_version: CLASS_VERSION,
            method: Method::SEND,
            status: 0,
            class_specific: 0,
            tid: self.tid,
            attr_id: self.message.attr_id(),
            attr_mod: self.attr_mod,
        }
    }

    /// Returns the datagram in wire format.
    pub fn to_bytes(&self) -> [u8; MAD_LEN] {
        let mut out = [0; MAD_LEN];
        let (header, body) = out.split_at_mut(MadHeader::LEN);
        self.header().emit(header);
        self.message.emit(body);
        out
    }
}

impl fmt::Display for CmMad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CM {} tid {:#x}", self.message, self.tid)
    }
}

macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident = $attr_id:literal, $text:literal;)*) => {
        /// The message of a connection management datagram.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Message {
            $($(#[$doc])* $name($name),)*
        }

        impl Message {
            /// Returns whether an attribute ID is that of a message.
            pub fn is_known(attr_id: u16) -> bool {
                [$($attr_id),*].contains(&attr_id)
            }

            /// Parses the body of a MAD with this attribute ID.
            ///
            /// # Errors
            /// If there is no such message, or the body is too short or a field is invalid.
            #[inline]
            pub fn parse(attr_id: u16, body: &[u8]) -> Result<Self, WireError> {
                match attr_id {
                    $($attr_id => $name::parse(body).map(Self::$name),)*
                    other => Err(WireError::Value { what: "CM attribute", value: other.into() }),
                }
            }

            /// Writes the body of the MAD.
            ///
            /// # Panics
            /// When `out` is shorter than 232 bytes.
            #[inline]
            pub fn emit(&self, out: &mut [u8]) {
                match self { $(Self::$name(message) => message.emit(out),)* }
            }

            /// Returns the attribute ID of the message.
            pub const fn attr_id(&self) -> u16 {
                match self { $(Self::$name(_) => $attr_id,)* }
            }

            /// Returns the specification's name of the message.
            pub const fn name(&self) -> &'static str {
                match self { $(Self::$name(_) => $text,)* }
            }
        }

        impl fmt::Display for Message {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self { $(Self::$name(message) => message.fmt(f),)* }
            }
        }

        $(
            header!($name, BODY_LEN, $text);

            impl $name {
                /// The attribute ID of the message.
                pub const ATTR_ID: u16 = $attr_id;
            }

            impl From<$name> for Message {
                fn from(message: $name) -> Self {
                    Self::$name(message)
                }
            }
        )*
    };
}

messages! {
    /// Request for communication.
    Req = 0x10, "REQ";
    /// Message receipt acknowledgement, which requests more time.
    Mra = 0x11, "MRA";
    /// Reject.
    Rej = 0x12, "REJ";
    /// Reply to a REQ.
    Rep = 0x13, "REP";
    /// Ready to use.
    Rtu = 0x14, "RTU";
    /// Request for disconnection.
    Dreq = 0x15, "DREQ";
    /// Reply to a DREQ.
    Drep = 0x16, "DREP";
    /// Service ID resolution request.
    SidrReq = 0x17, "SIDR_REQ";
    /// Service ID resolution response.
    SidrRep = 0x18, "SIDR_REP";
    /// Load alternate path.
    Lap = 0x19, "LAP";
    /// Alternate path response.
    Apr = 0x1a, "APR";
}

/// Returns `data`, padded with zeros to the size of a private data field. The receiver cannot
/// distinguish the padding from data.
///
/// # Errors
/// If `data` is longer than the field of `N` bytes.
pub fn private_data<const N: usize>(data: &[u8]) -> Result<[u8; N], WireError> {
    let mut out = [0; N];
    let says = data.len();
    let error = WireError::Truncated { what: "private data", says, have: N };
    out.get_mut(..says).ok_or(error)?.copy_from_slice(data);
    Ok(out)
}

/// Returns bits `first` to `first + len - 1` of a byte, counted from the most significant one as in the specification.
const fn bits(byte: u8, first: u32, len: u32) -> u8 {
    byte << first >> (8 - len)
}

/// Returns a byte with `value` in these bits: the inverse of [`bits`].
const fn put_bits(value: u8, first: u32, len: u32) -> u8 {
    value << (8 - len) >> first
}

#[cfg(test)]
mod tests;
