//! Negotiation between the two ends: pure functions of configuration, wishes and start-up frames.
//!
//! ```text
//!                 request                                  reply
//!   A  the initiator wants peer-to-peer       and the responder does it too
//!   B  a Send, ..                             ..
//!   C  an RDMA Write, ..                      .. the one that the responder chose
//!   D  or an RDMA Read may be the first frame ..
//!   IRD, ORD  of the initiator                of the responder
//!   M  markers wanted by the sender, C  CRCs wanted by the sender, then used in both directions
//! ```

use rdmux_transport::iwarp::{Rtr, StreamParams};
use rdmux_wire::iwarp::mpa::{Enhanced, Flags, Kind, Startup};

use super::{Config, Markers, Revision};

/// A program's requirements for a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wishes {
    /// Whether the connection is to be peer-to-peer. Only the initiator chooses; the responder accepts its choice.
    pub(crate) peer_to_peer: bool,
    /// RDMA Reads and atomics that this end has outstanding.
    pub(crate) ord: u16,
    /// RDMA Reads and atomics that this end serves at a time.
    pub(crate) ird: u16,
}

/// The part of a request that is kept until the program answers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    revision: u8,
    crc: bool,
    markers: bool,
    pub(crate) enhanced: Option<Enhanced>,
}

/// The reason why a request is refused without reaching a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadRequest {
    /// The frame is no request, or has an unsupported revision. The stream is reset, which makes
    /// newer implementations try an older revision.
    Reset,
    /// The request requires something unsupported: a reply refuses it.
    Refuse(Asked),
}

/// The reason why a reply establishes no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadReply {
    /// The peer refused.
    Rejected,
    /// The frame is no reply, or an invalid one: MPA error code 4.
    Invalid,
    /// The peer wants more RDMA Reads than this end serves, or serves none where one is needed: MPA error code 6.
    InsufficientIrd,
    /// The peer chose a first frame that this end does not send, or none: MPA error code 7.
    NoMatchingRtr,
}

/// Returns the initiator's frame.
pub(crate) fn request<'a>(
    config: &Config,
    revision: Revision,
    wishes: &Wishes,
    private_data: &'a [u8],
) -> Startup<'a> {
    let flags = Flags::default()
        .with(Flags::CRC, config.crc)
        .with(Flags::MARKERS, config.markers == Markers::Ask);
    let enhanced = (revision == Revision::V2).then_some(Enhanced {
        peer_to_peer: wishes.peer_to_peer,
        rtr_send: false,
        rtr_write: wishes.peer_to_peer,
        rtr_read: wishes.peer_to_peer,
        ird: wishes.ird,
        ord: wishes.ord,
    });
    Startup { kind: Kind::Request, flags, revision: revision.number(), enhanced, private_data }
}

/// Checks whether this end supports what a request requires.
pub(crate) fn check_request(config: &Config, request: &Startup<'_>) -> Result<Asked, BadRequest> {
    if request.kind != Kind::Request || !(1..=2).contains(&request.revision) {
        return Err(BadRequest::Reset);
    }
    let asked = Asked {
        revision: request.revision,
        crc: request.flags.has(Flags::CRC),
        markers: request.flags.has(Flags::MARKERS),
        enhanced: request.enhanced,
    };
    if asked.markers && config.markers == Markers::Refuse {
        return Err(BadRequest::Refuse(asked));
    }
    Ok(asked)
}

impl Asked {
    /// Returns whether the connection would be peer-to-peer.
    pub(crate) fn peer_to_peer(&self) -> bool {
        self.enhanced.is_some_and(|e| e.peer_to_peer)
    }

    /// Returns the first frame that the responder chooses from those that the initiator offers. For one that offers
    /// none the choice is a Write, as in the kernel's siw.
    fn rtr(&self) -> Option<Rtr> {
        let offered = self.enhanced.filter(|e| e.peer_to_peer)?;
        Some(match offered {
            Enhanced { rtr_write: true, .. } => Rtr::Write,
            Enhanced { rtr_read: true, .. } => Rtr::Read,
            Enhanced { rtr_send: true, .. } => Rtr::Send,
            _ => Rtr::Write,
        })
    }

    /// Returns how many RDMA Reads the initiator serves at a time; none if it does not say.
    pub(crate) fn ird(&self) -> Option<u16> {
        self.negotiated().map(|e| e.ird)
    }
    /// Returns how many RDMA Reads the initiator wants to have outstanding; none if it does not say.
    pub(crate) fn ord(&self) -> Option<u16> {
        self.negotiated().map(|e| e.ord)
    }

    fn negotiated(&self) -> Option<Enhanced> {
        let told = |depth| depth != Enhanced::NOT_NEGOTIATED;
        self.enhanced.filter(|e| told(e.ird) && told(e.ord))
    }
}

/// Returns the responder's frame, and the negotiated parameters.
pub(crate) fn reply<'a>(
    config: &Config,
    asked: &Asked,
    wishes: &Wishes,
    private_data: &'a [u8],
) -> (Startup<'a>, StreamParams) {
    let rtr = asked.rtr();
    let crc = config.crc || asked.crc;
    let rx_markers = config.markers == Markers::Ask;
    // A Read needs a responder that serves it.
    let ird = wishes.ird.max(u16::from(rtr == Some(Rtr::Read)));
    let ord = asked.ird().map_or(wishes.ord, |theirs| wishes.ord.min(theirs));
    let enhanced = asked.enhanced.map(|e| {
        let told = e.ird != Enhanced::NOT_NEGOTIATED && e.ord != Enhanced::NOT_NEGOTIATED;
        let depth = |depth| if told { depth } else { Enhanced::NOT_NEGOTIATED };
        Enhanced {
            peer_to_peer: rtr.is_some(),
            rtr_send: rtr == Some(Rtr::Send),
            rtr_write: rtr == Some(Rtr::Write),
            rtr_read: rtr == Some(Rtr::Read),
            ird: depth(ird),
            ord: depth(ord),
        }
    });
    let flags = Flags::default().with(Flags::CRC, crc).with(Flags::MARKERS, rx_markers);
    let revision = asked.revision;
    let frame = Startup { kind: Kind::Reply, flags, revision, enhanced, private_data };
    let tx_markers = asked.markers;
    (frame, StreamParams { initiator: false, crc, tx_markers, rx_markers, ord, ird, rtr })
}

/// Returns the responder's refusal.
pub(crate) fn refusal<'a>(asked: &Asked, private_data: &'a [u8]) -> Startup<'a> {
    let flags = Flags::REJECT.with(Flags::CRC, asked.crc);
    // A refusal does not say how many Reads this end would serve.
    let enhanced = asked.enhanced.map(|_| Enhanced::default());
    Startup { kind: Kind::Reply, flags, revision: asked.revision, enhanced, private_data }
}

/// Returns the parameters on the initiator's side, after the reply has arrived. `most` is the largest IRD of this end to which
/// the responder may raise `wishes`.
pub(crate) fn conclude(
    config: &Config,
    revision: Revision,
    wishes: &Wishes,
    most: u16,
    reply: &Startup<'_>,
) -> Result<StreamParams, BadReply> {
    if reply.kind != Kind::Reply || !(1..=revision.number()).contains(&reply.revision) {
        return Err(BadReply::Invalid);
    }
    if reply.flags.has(Flags::REJECT) {
        return Err(BadReply::Rejected);
    }
    let tx_markers = reply.flags.has(Flags::MARKERS);
    if tx_markers && config.markers == Markers::Refuse {
        return Err(BadReply::Invalid);
    }
    let mut agreed = StreamParams {
        initiator: true,
        crc: config.crc || reply.flags.has(Flags::CRC),
        tx_markers,
        rx_markers: config.markers == Markers::Ask,
        ord: wishes.ord,
        ird: wishes.ird,
        rtr: None,
    };
    // A reply of an older revision has no further fields.
    let Some(theirs) = reply.enhanced else { return Ok(agreed) };
    // A responder that uses the mode unasked waits for the frame, too.
    if theirs.peer_to_peer {
        agreed.rtr = Some(chosen(&theirs)?);
    }
    if theirs.ird != Enhanced::NOT_NEGOTIATED && theirs.ord != Enhanced::NOT_NEGOTIATED {
        if theirs.ord > most.max(wishes.ird) {
            return Err(BadReply::InsufficientIrd);
        }
        agreed.ird = wishes.ird.max(theirs.ord);
        agreed.ord = wishes.ord.min(theirs.ird);
    }
    if agreed.rtr == Some(Rtr::Read) && agreed.ord == 0 {
        if theirs.ird == 0 {
            return Err(BadReply::InsufficientIrd);
        }
        agreed.ord = 1;
    }
    Ok(agreed)
}

/// Returns the first frame that the responder chose, if it is one that this end sends.
fn chosen(theirs: &Enhanced) -> Result<Rtr, BadReply> {
    match theirs {
        Enhanced { rtr_write: true, .. } => Ok(Rtr::Write),
        Enhanced { rtr_read: true, .. } => Ok(Rtr::Read),
        _ => Err(BadReply::NoMatchingRtr),
    }
}

#[cfg(test)]
mod tests;
