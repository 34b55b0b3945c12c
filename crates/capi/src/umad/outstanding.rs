//! Requests that may still be unanswered. A transaction ID must not be reused before its answer was received. So before this library
//! sends an ID again without having read its answer, it queries the device. Other IDs need no check.

use std::collections::BTreeSet;

use crate::abi::umad::umad_hdr;

/// The most IDs that are remembered. For a program with more outstanding requests, a reused ID is not detected here.
const MAX: usize = 1 << 16;

/// Requests by which an answer is recognised.
#[derive(Debug, Default)]
pub(super) struct Outstanding(BTreeSet<Request>);

/// A request. The upper half of its ID is replaced by the agent's number when it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Request {
    pub(super) agent: u32,
    pub(super) class: u8,
    pub(super) tid: u32,
}

/// The bit in the method of a response.
const RESPONSE: u8 = 0x80;
/// The method that is a response without that bit.
const TRAP_REPRESS: u8 = 7;

impl Request {
    /// Returns the request that a MAD is, or that it answers.
    pub(super) fn of(agent: u32, mad: &[u8]) -> Option<Self> {
        let class = *mad.get(std::mem::offset_of!(umad_hdr, mgmt_class))?;
        let low = std::mem::offset_of!(umad_hdr, tid) + 4;
        let tid = u32::from_be_bytes(mad.get(low..low + 4)?.try_into().ok()?);
        Some(Self { agent, class, tid })
    }
}

/// Returns whether a MAD is an answer, and not a request.
pub(super) fn is_response(mad: &[u8]) -> bool {
    let method = mad.get(std::mem::offset_of!(umad_hdr, method));
    method.is_some_and(|method| method & RESPONSE != 0 || *method == TRAP_REPRESS)
}

impl Outstanding {
    /// Returns whether a request was sent and its answer is not read yet.
    pub(super) fn contains(&self, request: &Request) -> bool {
        self.0.contains(request)
    }

    /// Remembers a sent request, unless there are too many.
    pub(super) fn sent(&mut self, request: Request) {
        if self.0.len() < MAX {
            self.0.insert(request);
        }
    }

    /// Removes a request that is no longer outstanding.
    pub(super) fn ended(&mut self, request: &Request) {
        self.0.remove(request);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the first bytes of a MAD of class 3.
    fn mad(method: u8, tid: u64) -> [u8; 24] {
        let mut mad = [1, 3, 2, method].into_iter().chain([0; 20]);
        let mut bytes: [u8; 24] = std::array::from_fn(|_| mad.next().unwrap_or(0));
        bytes[8..16].copy_from_slice(&tid.to_be_bytes());
        bytes
    }

    #[test]
    fn an_answer_ends_the_request_of_its_id_class_and_agent() {
        let mut outstanding = Outstanding::default();
        let request = Request::of(2, &mad(1, 7)).unwrap();
        outstanding.sent(request);
        assert!(outstanding.contains(&request));
        // The upper half has no meaning.
        let answer = Request::of(2, &mad(0x81, 2 << 32 | 7)).unwrap();
        let others = [Request { agent: 1, ..answer }, Request { class: 4, ..answer }];
        for other in others {
            outstanding.ended(&other);
            assert!(outstanding.contains(&request));
        }
        outstanding.ended(&answer);
        assert!(!outstanding.contains(&request));
        assert_eq!(Request::of(0, &[0; 15]), None);
    }

    #[test]
    fn trap_repress_is_a_response() {
        assert!(is_response(&mad(0x81, 0)) && is_response(&mad(7, 0)));
        assert!(!is_response(&mad(1, 0)) && !is_response(&mad(5, 0)) && !is_response(&[]));
    }

    #[test]
    fn no_more_are_remembered_than_the_limit() {
        let mut outstanding = Outstanding::default();
        for tid in 0..=u32::try_from(MAX).unwrap() {
            outstanding.sent(Request { agent: 0, class: 1, tid });
        }
        assert_eq!(outstanding.0.len(), MAX);
    }
}
