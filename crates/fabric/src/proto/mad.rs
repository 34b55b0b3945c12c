//! Management datagrams between a program and a fabric, with their addresses.
//!
//! A record is a header of [`HEADER`] bytes and the datagram. The header has the layout of `struct ib_user_mad`
//! (`linux/include/uapi/rdma/ib_user_mad.h`), so the C library passes it on unchanged; fields in host byte order are
//! little-endian. A record of more than [`FIRST`] bytes is several consecutive messages: the first has the `length` of the
//! whole and the first [`FIRST`] bytes, the others just more bytes, [`FRAGMENT`] each except the last. So a reader with
//! room for a datagram can take any first message at once, and keep it if the whole record needs more room.

use rdmux_runtime::Share;
use rdmux_runtime::socket::MAX_MESSAGE;
use rdmux_subnet::umad::{UserAddress, UserGrh, UserMad};
use rdmux_wire::mad::MAD_LEN;
use rdmux_wire::{Gid, Lid, Qkey, Qpn};

/// Length of the header in bytes.
pub const HEADER: usize = 64;
/// Maximum length of the first message of a record in bytes: a header and a datagram.
pub const FIRST: usize = HEADER + MAD_LEN;
/// Maximum length of each further message in bytes.
pub const FRAGMENT: usize = MAX_MESSAGE / 2;
/// Maximum length of a record in bytes.
pub const MAX_RECORD: usize = 64 << 20;

/// The field of the header with the whole length, including the header.
const LENGTH: core::ops::Range<usize> = 16..20;

/// The reason why a message is not part of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRecord {
    /// The header is incomplete.
    #[error("the header of a datagram is incomplete")]
    Short,
    /// The length is less than the message's, or more than a record may have.
    #[error("a record of {0} bytes has an invalid length")]
    Length(usize),
    /// A message of a record has a wrong length.
    #[error("a fragment of {0} bytes has a wrong length")]
    Fragment(usize),
}

/// Returns the length of the record whose first message begins with these bytes, including the header.
///
/// # Errors
/// [`BadRecord`].
pub fn record_length(first: &[u8]) -> Result<usize, BadRecord> {
    let word = first.get(LENGTH).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes);
    let length = word.filter(|_| first.len() >= HEADER).ok_or(BadRecord::Short)? as usize;
    if (HEADER..=MAX_RECORD).contains(&length) {
        Ok(length)
    } else {
        Err(BadRecord::Length(length))
    }
}

/// Encodes a record into `record`, replacing its contents.
pub fn encode(mad: &UserMad, record: &mut Vec<u8>) {
    let length = u32::try_from(HEADER + mad.data.len()).unwrap_or(u32::MAX);
    let (to, grh) = (&mad.address, mad.address.grh.unwrap_or_default());
    record.clear();
    for word in [mad.agent, mad.status, mad.timeout_ms, mad.retries, length] {
        record.extend_from_slice(&word.to_le_bytes());
    }
    record.extend_from_slice(&to.qpn.get().to_be_bytes());
    record.extend_from_slice(&to.qkey.0.to_be_bytes());
    record.extend_from_slice(&to.lid.0.to_be_bytes());
    let has_grh = u8::from(to.grh.is_some());
    record.extend_from_slice(&[to.sl, to.path_bits, has_grh, grh.gid_index]);
    record.extend_from_slice(&[grh.hop_limit, grh.traffic_class]);
    record.extend_from_slice(&grh.gid.0);
    record.extend_from_slice(&grh.flow_label.to_be_bytes());
    record.extend_from_slice(&to.pkey_index.to_le_bytes());
    record.resize(HEADER, 0);
    record.extend_from_slice(&mad.data);
}

/// Decodes a whole record.
///
/// # Errors
/// [`BadRecord`].
pub fn decode(record: &[u8]) -> Result<UserMad, BadRecord> {
    let length = record_length(record)?;
    if length != record.len() {
        return Err(BadRecord::Length(length));
    }
    decode_first(record)
}

/// Decodes the first message of a record, with the data in it.
///
/// # Errors
/// [`BadRecord::Short`].
pub fn decode_first(first: &[u8]) -> Result<UserMad, BadRecord> {
    let (header, data) = first.split_first_chunk::<HEADER>().ok_or(BadRecord::Short)?;
    let four = |at: usize| [header[at], header[at + 1], header[at + 2], header[at + 3]];
    let mut gid = Gid::ZERO;
    gid.0.copy_from_slice(&header[36..52]);
    let grh = UserGrh {
        gid_index: header[33],
        gid,
        hop_limit: header[34],
        traffic_class: header[35],
        flow_label: u32::from_be_bytes(four(52)),
    };
    let address = UserAddress {
        qpn: Qpn::new(u32::from_be_bytes(four(20))),
        qkey: Qkey(u32::from_be_bytes(four(24))),
        lid: Lid(u16::from_be_bytes([header[28], header[29]])),
        sl: header[30],
        path_bits: header[31],
        grh: (header[32] != 0).then_some(grh),
        pkey_index: u16::from_le_bytes([header[56], header[57]]),
    };
    Ok(UserMad {
        agent: u32::from_le_bytes(four(0)),
        status: u32::from_le_bytes(four(4)),
        timeout_ms: u32::from_le_bytes(four(8)),
        retries: u32::from_le_bytes(four(12)),
        address,
        data: data.to_vec(),
    })
}

/// Splits a record into messages.
pub fn messages(record: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (first, rest) = record.split_at(record.len().min(FIRST));
    std::iter::once(first).chain(rest.chunks(FRAGMENT))
}

/// Returns the length of the record whose first message has `bytes` bytes and begins with `first`.
///
/// # Errors
/// [`BadRecord`].
pub fn begins(first: &[u8], bytes: usize) -> Result<usize, BadRecord> {
    let length = record_length(first)?;
    if bytes == length.min(FIRST) { Ok(length) } else { Err(BadRecord::Fragment(bytes)) }
}

/// Reassembles records from messages.
#[derive(Debug)]
pub struct Reassembly {
    partial: Option<Partial>,
    /// The share for the length of a record that is kept in part.
    share: Share,
}

/// An incomplete record.
#[derive(Debug)]
enum Partial {
    /// The bytes that have arrived, and its length.
    Kept(Vec<u8>, usize),
    /// A record that is skipped, and how many bytes of it are still to arrive.
    Skipped(usize),
}

/// A record that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came<'m> {
    /// The whole record.
    Whole(&'m [u8]),
    /// The first message of a record that exceeds its user's room. The others are skipped.
    Refused(&'m [u8]),
}

impl Reassembly {
    /// Makes a reassembly whose incomplete records are charged to a share.
    pub fn new(share: Share) -> Self {
        Self { partial: None, share }
    }

    /// Handles the next message. Calls `with` with a record that is complete (with the message itself if that is all), or with the first
    /// message of one that has no room.
    ///
    /// # Errors
    /// [`BadRecord`]: the sender does not follow this protocol.
    pub fn take<T>(
        &mut self,
        message: &[u8],
        with: impl FnOnce(Came<'_>) -> T,
    ) -> Result<Option<T>, BadRecord> {
        let is_next = |left| {
            let is_next = message.len() == FRAGMENT.min(left);
            if is_next { Ok(left - message.len()) } else { Err(BadRecord::Fragment(message.len())) }
        };
        match self.partial.take() {
            None => {
                let length = begins(message, message.len())?;
                if message.len() == length {
                    return Ok(Some(with(Came::Whole(message))));
                }
                if self.share.take(length).is_err() {
                    self.partial = Some(Partial::Skipped(length - message.len()));
                    return Ok(Some(with(Came::Refused(message))));
                }
                self.partial = Some(Partial::Kept(message.to_vec(), length));
            }
            Some(Partial::Kept(mut record, length)) => {
                let left = is_next(length - record.len())?;
                record.extend_from_slice(message);
                if left == 0 {
                    self.share.set(0);
                    return Ok(Some(with(Came::Whole(&record))));
                }
                self.partial = Some(Partial::Kept(record, length));
            }
            Some(Partial::Skipped(left)) => {
                let left = is_next(left)?;
                self.partial = (left > 0).then_some(Partial::Skipped(left));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use rdmux_runtime::Shares;

    use super::*;

    fn reassembly() -> Reassembly {
        Reassembly::new(Shares::new(0).none(0))
    }

    fn whole(came: Came<'_>) -> Vec<u8> {
        match came {
            Came::Whole(record) => record.to_vec(),
            Came::Refused(first) => panic!("{first:?}"),
        }
    }

    fn record(length: usize) -> Vec<u8> {
        let data = (0..251).cycle().take(length - HEADER).collect();
        let address = UserAddress {
            qpn: Qpn::QP1,
            qkey: Qkey::QP1,
            lid: Lid(0x0102),
            sl: 3,
            path_bits: 4,
            grh: Some(UserGrh {
                gid_index: 5,
                gid: Gid([6; 16]),
                hop_limit: 7,
                traffic_class: 8,
                flow_label: 9,
            }),
            pkey_index: 0x0a0b,
        };
        let mad = UserMad { agent: 1, status: 110, timeout_ms: 1000, retries: 3, address, data };
        let mut record = vec![1; 7];
        encode(&mad, &mut record);
        assert_eq!(decode(&record), Ok(mad));
        record
    }

    #[test]
    fn mad_record_header_has_the_ib_user_mad_layout() {
        let record = record(HEADER + 4);
        assert_eq!(
            record[..20],
            [1, 0, 0, 0, 110, 0, 0, 0, 0xe8, 3, 0, 0, 3, 0, 0, 0, 68, 0, 0, 0]
        );
        assert_eq!(record[20..36], [0, 0, 0, 1, 0x80, 1, 0, 0, 1, 2, 3, 4, 1, 5, 7, 8]);
        assert_eq!(
            record[36..64],
            [&[6; 16][..], &[0, 0, 0, 9, 0x0b, 0x0a, 0, 0, 0, 0, 0, 0]].concat()
        );
    }

    #[test]
    fn mad_records_of_any_length_are_reassembled() {
        let mut reassembly = reassembly();
        let two = FIRST + FRAGMENT;
        for length in
            [HEADER, FIRST - 1, FIRST, FIRST + 1, two - 1, two, two + 1, two + 2 * FRAGMENT]
        {
            let record = record(length);
            let mut got = None;
            for message in messages(&record) {
                assert!(got.is_none(), "whole before its end");
                got = reassembly.take(message, whole).unwrap();
            }
            assert_eq!(got, Some(record));
        }
    }

    #[test]
    fn mad_record_beyond_the_users_share_is_refused_and_its_fragments_skipped() {
        const LENGTH: usize = FIRST + 2 * FRAGMENT;
        let shares = Shares::of(1000, 4 * LENGTH);
        let mut all = [1, 1, 1, 2].map(|uid| Reassembly::new(shares.none(uid)));
        let record = record(LENGTH);
        let (first, rest) = record.split_at(FIRST);
        for reassembly in &mut all[..2] {
            assert_eq!(reassembly.take(first, whole), Ok(None));
        }
        let refused = |came: Came<'_>| match came {
            Came::Refused(first) => decode_first(first).unwrap(),
            Came::Whole(_) => panic!("whole"),
        };
        let mad = all[2].take(first, refused).unwrap().unwrap();
        let data = record[HEADER..FIRST].to_vec();
        assert_eq!(mad, UserMad { data, ..decode(&record).unwrap() });
        assert_eq!(all[3].take(first, whole), Ok(None), "another user's");
        // The messages that follow are its rest.
        let (middle, last) = rest.split_at(FRAGMENT);
        assert_eq!(all[2].take(middle, whole), Ok(None));
        assert_eq!(all[2].take(last, whole), Ok(None));
        let short = &record[..HEADER + 4];
        assert_eq!(all[2].take(short, |_| ()), Err(BadRecord::Fragment(short.len())));
        // A complete record makes room, and so does one whose sender is gone.
        assert_eq!(all[0].take(middle, whole), Ok(None));
        assert_eq!(all[0].take(last, whole), Ok(Some(record.clone())));
        assert_eq!(all[2].take(first, whole), Ok(None));
        let [_, second, third, _] = all;
        let mut next = Reassembly::new(shares.none(1));
        assert!(next.take(first, refused).unwrap().is_some());
        drop((second, third));
        assert_eq!(Reassembly::new(shares.none(1)).take(first, whole), Ok(None));
        // A fragment where none is allowed.
        assert_eq!(next.take(&[1], |_| ()), Err(BadRecord::Fragment(1)));
    }

    #[test]
    fn malformed_mad_records_are_refused() {
        let take = |message: &[u8]| reassembly().take(message, |_| ()).unwrap_err();
        assert_eq!(take(&[0; HEADER - 1]), BadRecord::Short);
        assert_eq!(take(&[0; HEADER]), BadRecord::Length(0));
        let mut huge = record(HEADER);
        huge[LENGTH].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(take(&huge), BadRecord::Length(u32::MAX as usize));
        let short = &record(HEADER + 9)[..HEADER + 8];
        assert_eq!(take(short), BadRecord::Fragment(HEADER + 8));
        let long = record(2 * FRAGMENT);
        assert_eq!(take(&long[..FIRST + 1]), BadRecord::Fragment(FIRST + 1));
        let mut twice = reassembly();
        assert_eq!(twice.take(&long[..FIRST], |_| ()), Ok(None));
        assert_eq!(twice.take(&[1], |_| ()), Err(BadRecord::Fragment(1)));
    }
}
