//! An endpoint, as a service describes it.

use super::{Header, MAX_LONG_LEN};
use crate::acm::ADDRESS_LEN;
use crate::layout::{Text, layout};
use crate::{Guid, Pkey};

layout! {
    /// An endpoint, but for its addresses.
    EndpointInfo("endpoint", 80) {
        /// The device's node GUID.
        dev_guid: Guid = 0;
        /// The port, from 1 on.
        port_num: u8 = 8;
        /// How many ports the device has.
        phys_port_cnt: u8 = 9;
        /// Reserved.
        reserved10: u16 = 10;
        /// The partition.
        pkey: Pkey = 12;
        /// How many addresses follow.
        addr_cnt: u16 = 14;
        /// Who resolves for it: `ibacmp`, of ibacm.
        prov_name: Text<64> = 16;
    }
}

/// The most addresses that an answer has room for.
pub const MAX_ENDPOINT_ADDRESSES: usize =
    (MAX_LONG_LEN - Header::LEN - EndpointInfo::LEN) / ADDRESS_LEN;

/// An endpoint. The number of its addresses counts, not [`EndpointInfo::addr_cnt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint<'a> {
    /// What it is.
    pub info: EndpointInfo,
    /// Its names and addresses as text; see [`Self::addresses`].
    pub fields: &'a [[u8; ADDRESS_LEN]],
}

impl<'a> Endpoint<'a> {
    /// Its names and addresses as text.
    pub fn addresses(&self) -> impl ExactSizeIterator<Item = Text<ADDRESS_LEN>> + 'a {
        self.fields.iter().map(|field| Text(*field))
    }

    /// Those that a message has room for.
    pub(super) fn that_fit(&self) -> &'a [[u8; ADDRESS_LEN]] {
        &self.fields[..self.fields.len().min(MAX_ENDPOINT_ADDRESSES)]
    }
}
