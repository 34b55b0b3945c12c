//! Requests and responses whose bytes follow from a few parameters, so that each byte can be checked.

use rand::Rng;
use rdmux_wire::rmpp::OFFSET;

/// The header of subnet administration: MAD header, RMPP header, and 20 bytes.
pub(super) const HEADER: usize = 56;

/// The class: subnet administration.
pub(super) const CLASS: u8 = 3;

/// The class version.
pub(super) const VERSION: u8 = 2;

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Request and response are one datagram.
    Get,
    /// The response has segments.
    GetTable,
    /// Request and response have segments.
    GetMulti,
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Get, Self::GetTable, Self::GetMulti];

    pub(super) fn method(self) -> u8 {
        match self {
            Self::Get => 0x01,
            Self::GetTable => 0x12,
            Self::GetMulti => 0x14,
        }
    }

    pub(super) fn of(method: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.method() == method & 0x7f)
    }
}

/// The parameters of a request: the first bytes of its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) kind: Kind,
    /// The seed of the data.
    pub(super) seed: u32,
    /// The data length of a request with segments.
    pub(super) request: u32,
    /// The data length of a response with segments.
    pub(super) response: u32,
    /// Whether the server will not answer.
    pub(super) silent: bool,
}

/// The encoded length of a question.
const QUESTION: u32 = 13;

impl Question {
    /// Draws a request, and its response.
    pub(super) fn draw(longest: u32, silent: f64, rng: &mut impl Rng) -> Self {
        let kind = Kind::ALL[rng.random_range(0..3)];
        let length = |rng: &mut dyn rand::RngCore| match rng.random_range(0..6) {
            0 => 0,
            1 => rng.random_range(0..=longest.min(400)),
            // Full segments, or full windows.
            2 => 200 * rng.random_range(0..=longest / 200).min(rng.random_range(0..4)),
            3 => (200 * 64).min(longest),
            4 => (200 * 65).min(longest),
            _ => rng.random_range(0..=longest),
        };
        Self {
            kind,
            seed: rng.random(),
            request: length(rng),
            response: length(rng),
            silent: rng.random_bool(silent),
        }
    }

    /// Returns the whole request, with this lower half of its TID.
    pub(super) fn request(&self, tid: u32) -> Vec<u8> {
        let mut data = Vec::new();
        for word in [self.seed, self.request, self.response] {
            data.extend(word.to_be_bytes());
        }
        data.push(self.silent.into());
        let more = if self.kind == Kind::GetMulti { self.request } else { 200 - QUESTION };
        data.extend(bytes(self.seed, more));
        let segments = self.kind == Kind::GetMulti;
        mad(self.kind.method(), tid.into(), segments, &data)
    }

    /// Returns the question of a request, if every byte is right.
    pub(super) fn parse(mad: &[u8]) -> Option<Self> {
        let kind = Kind::of(*mad.get(3)?)?;
        let data = mad.get(HEADER..)?;
        let word = |at: usize| Some(u32::from_be_bytes(*data.get(at..)?.first_chunk()?));
        let (seed, request, response) = (word(0)?, word(4)?, word(8)?);
        let question = Self { kind, seed, request, response, silent: data.get(12)? & 1 != 0 };
        // Strangers may claim any length.
        if kind == Kind::GetMulti && data.len() as u64 != u64::from(QUESTION) + u64::from(request) {
            return None;
        }
        let right = question.request(0);
        (right.get(HEADER..) == Some(data)).then_some(question)
    }

    /// Returns the whole response, to a request with this TID.
    pub(super) fn response(&self, tid: u64) -> Vec<u8> {
        let single = self.kind == Kind::Get;
        let data = bytes(!self.seed, if single { 200 } else { self.response });
        mad(self.kind.method() | 0x80, tid, !single, &data)
    }

    /// Returns whether a response is right, ignoring its RMPP header.
    pub(super) fn is_answered_by(&self, mad: &[u8]) -> bool {
        let Some(tid) = mad.get(8..).and_then(|b| b.first_chunk()) else { return false };
        let right = self.response(u64::from_be_bytes(*tid));
        mad.len() == right.len() && mad[..OFFSET] == right[..OFFSET] && mad[36..] == right[36..]
    }
}

fn mad(method: u8, tid: u64, segments: bool, data: &[u8]) -> Vec<u8> {
    let mut mad = vec![0; HEADER];
    mad[..4].copy_from_slice(&[1, CLASS, VERSION, method]);
    mad[8..16].copy_from_slice(&tid.to_be_bytes());
    mad[26] = segments.into();
    mad[36..HEADER].fill(0xa5);
    mad.extend(data);
    mad
}

/// Returns bytes that follow from a seed.
fn bytes(seed: u32, len: u32) -> Vec<u8> {
    (0..len).map(|i| (seed ^ i.wrapping_mul(0x9e37_79b9)).to_be_bytes()[1]).collect()
}
