//! A request with its requester.

use rdmux_wire::Lid;
use rdmux_wire::mad::{Method, status};
use rdmux_wire::sa::{self, Components, Pattern, SaMad};

use super::access::share_partition;
use super::{Config, Status};
use crate::manager::Model;
use crate::manager::model::Port;
use crate::topology::PortRef;
use crate::umad::UserMad;

/// A request that may be answered.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    /// The message as it was received.
    pub(super) mad: &'a UserMad,
    /// The parsed message.
    pub(super) sa: SaMad<'a>,
    /// The requesting port.
    pub(super) requester: &'a Port,
    /// The requesting port's place in the model.
    pub(super) place: PortRef,
    /// Whether the request presents the SA key.
    pub(super) trusted: bool,
}

impl<'a> Request<'a> {
    /// Parses a request. Returns none for messages that get no answer: malformed, a response, a wrong key, or an unknown port.
    pub(super) fn new(model: &'a Model, config: &Config, mad: &'a UserMad) -> Option<Self> {
        let sa = SaMad::parse(&mad.data).ok()?;
        let key = sa.sa.sm_key;
        let trusted = key == config.sa_key && key.0 != 0;
        let is_question = mad.status == 0
            && sa.header.class_version == sa::CLASS_VERSION
            && !sa.header.method.is_response()
            && (trusted || key.0 == 0);
        let place = model.by_lid(mad.address.lid).filter(|_| is_question)?;
        Some(Self { mad, sa, requester: model.port(place)?, place, trusted })
    }

    pub(super) fn method(&self) -> Method {
        self.sa.header.method
    }

    /// Returns the component mask.
    pub(super) fn mask(&self) -> u64 {
        self.sa.sa.component_mask
    }

    /// Returns whether the component mask has all bits of `mask`.
    pub(super) fn has(&self, mask: u64) -> bool {
        self.mask() & mask == mask
    }

    /// Parses the record of the request.
    pub(super) fn record<R: Components>(&self) -> Result<R, Status> {
        self.sa.record().map_err(|_| status::SA_REQUEST_INVALID)
    }

    /// Returns the pattern that records must match, without the components in `but`, which the caller checks itself.
    pub(super) fn pattern<R: Components>(&self, but: u64) -> Result<Pattern, Status> {
        Ok(Pattern::new(self.mask() & !but, &self.record::<R>()?))
    }

    /// Returns whether the requester may see a port.
    pub(super) fn may_see(&self, port: &Port) -> bool {
        share_partition(self.requester, port)
    }

    /// Returns the LID of the request, if the component mask has it.
    pub(super) fn lid(&self, mask: u64, lid: Lid) -> Option<Lid> {
        self.has(mask).then_some(lid)
    }
}
