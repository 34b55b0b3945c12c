//! A question: who asks what.

use rdmux_wire::Lid;
use rdmux_wire::mad::{Method, status};
use rdmux_wire::sa::{self, Components, Pattern, SaMad};

use super::access::share_partition;
use super::{Config, Status};
use crate::manager::Model;
use crate::manager::model::Port;
use crate::topology::PortRef;
use crate::umad::UserMad;

/// A question that may be answered.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    /// The message as it was read.
    pub(super) mad: &'a UserMad,
    /// What it says.
    pub(super) sa: SaMad<'a>,
    /// The port that asks.
    pub(super) requester: &'a Port,
    /// Where that is.
    pub(super) place: PortRef,
    /// It knows the key.
    pub(super) trusted: bool,
}

impl<'a> Request<'a> {
    /// None of what gets no answer: malformed, a response, with a wrong key, or from an unknown port.
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

    /// The component mask.
    pub(super) fn mask(&self) -> u64 {
        self.sa.sa.component_mask
    }

    /// Whether all components of `mask` are asked for.
    pub(super) fn has(&self, mask: u64) -> bool {
        self.mask() & mask == mask
    }

    /// The record of the question.
    pub(super) fn record<R: Components>(&self) -> Result<R, Status> {
        self.sa.record().map_err(|_| status::SA_REQUEST_INVALID)
    }

    /// What records are to be like, but for some components that the caller has looked at.
    pub(super) fn pattern<R: Components>(&self, but: u64) -> Result<Pattern, Status> {
        Ok(Pattern::new(self.mask() & !but, &self.record::<R>()?))
    }

    /// Whether the one who asks may know of a port.
    pub(super) fn may_see(&self, port: &Port) -> bool {
        share_partition(self.requester, port)
    }

    /// The LID of the question, if it is one of its components.
    pub(super) fn lid(&self, mask: u64, lid: Lid) -> Option<Lid> {
        self.has(mask).then_some(lid)
    }
}
