//! The description of an endpoint by a service.

use super::{Header, MAX_LONG_LEN};
use crate::acm::ADDRESS_LEN;
use crate::layout::{Text, layout};
use crate::{Guid, Pkey};

layout! {
    /// An endpoint, without its addresses.
    EndpointInfo("endpoint", 80) {
        /// The device's node GUID.
        dev_guid: Guid = 0;
        /// The port, counted from 1.
        port_num: u8 = 8;
        /// The number of ports of the device.
        phys_port_cnt: u8 = 9;
        /// Reserved.
        reserved10: u16 = 10;
        /// The partition.
        pkey: Pkey = 12;
        /// The number of addresses that follow.
        addr_cnt: u16 = 14;
        /// The provider that resolves for the endpoint: `ibacmp`, of ibacm.
        prov_name: Text<64> = 16;
    }
}

/// The maximum number of addresses in a reply.
pub const MAX_ENDPOINT_ADDRESSES: usize =
    (MAX_LONG_LEN - Header::LEN - EndpointInfo::LEN) / ADDRESS_LEN;

/// An endpoint. The number of its addresses is that of `fields`; [`EndpointInfo::addr_cnt`] is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint<'a> {
    /// The endpoint without its addresses.
    pub info: EndpointInfo,
    /// The endpoint's names and addresses as text; see [`Self::addresses`].
    pub fields: &'a [[u8; ADDRESS_LEN]],
}

impl<'a> Endpoint<'a> {
    /// Returns the endpoint's names and addresses as text.
    pub fn addresses(&self) -> impl ExactSizeIterator<Item = Text<ADDRESS_LEN>> + 'a {
        self.fields.iter().map(|field| Text(*field))
    }

    /// Returns the address fields that fit into a message.
    pub(super) fn that_fit(&self) -> &'a [[u8; ADDRESS_LEN]] {
        &self.fields[..self.fields.len().min(MAX_ENDPOINT_ADDRESSES)]
    }
}
