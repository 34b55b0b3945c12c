//! The negotiation matrix: the flags of each side, and the parameters that result.

use alloc::string::String;

use super::*;

const V1: Revision = Revision::V1;
const V2: Revision = Revision::V2;

/// Returns the four bytes of revision 2 from a peer, by the letters of RFC 6581, and IRD and ORD.
fn enhanced(letters: &str, ird: u16, ord: u16) -> Option<Enhanced> {
    let has = |letter| letters.contains(letter);
    Some(Enhanced {
        peer_to_peer: has('A'),
        rtr_send: has('B'),
        rtr_write: has('C'),
        rtr_read: has('D'),
        ird,
        ord,
    })
}

fn letters(enhanced: &Enhanced) -> String {
    let Enhanced { peer_to_peer, rtr_send, rtr_write, rtr_read, .. } = *enhanced;
    let flags = [(peer_to_peer, 'A'), (rtr_send, 'B'), (rtr_write, 'C'), (rtr_read, 'D')];
    flags.into_iter().filter_map(|(on, letter)| on.then_some(letter)).collect()
}

fn frame(kind: Kind, revision: u8, flags: Flags, enhanced: Option<Enhanced>) -> Startup<'static> {
    Startup { kind, flags, revision, enhanced, private_data: b"" }
}

fn wishes(peer_to_peer: bool) -> Wishes {
    Wishes { peer_to_peer, ord: 4, ird: 6 }
}

#[test]
fn mpa_request_has_enhanced_fields_only_in_v2_and_rtr_bits_only_in_peer_to_peer() {
    let config = Config::default();
    for (revision, peer_to_peer, says) in
        [(V2, true, Some("ACD")), (V2, false, Some("")), (V1, true, None), (V1, false, None)]
    {
        let request = request(&config, revision, &wishes(peer_to_peer), b"data");
        assert_eq!(request.enhanced.as_ref().map(letters).as_deref(), says);
        assert_eq!((request.revision, request.flags), (revision.number(), Flags::default()));
        if let Some(e) = request.enhanced {
            assert_eq!((e.ird, e.ord), (6, 4));
        }
    }
    let config = Config { crc: true, markers: Markers::Ask, ..config };
    let asks = request(&config, V2, &wishes(true), b"").flags;
    assert!(asks.has(Flags::CRC) && asks.has(Flags::MARKERS));
}

/// Cases of the responder: the initiator's flags, the reply's flags, and the first frame.
#[test]
fn mpa_responder_selects_rtr_frame_ird_and_ord_from_the_request() {
    let config = Config::default();
    let none = Enhanced::NOT_NEGOTIATED;
    for (revision, asks, says, rtr, depths) in [
        // siw with its defaults: no peer-to-peer.
        (2, enhanced("", 128, 128), Some(""), None, (4, 6)),
        (2, enhanced("ACD", 6, 4), Some("AC"), Some(Rtr::Write), (4, 6)),
        (2, enhanced("ABCD", 6, 4), Some("AC"), Some(Rtr::Write), (4, 6)),
        (2, enhanced("ABC", 6, 4), Some("AC"), Some(Rtr::Write), (4, 6)),
        // cxgb4: a Read only.
        (2, enhanced("AD", 6, 4), Some("AD"), Some(Rtr::Read), (4, 6)),
        (2, enhanced("ABD", 6, 4), Some("AD"), Some(Rtr::Read), (4, 6)),
        (2, enhanced("AB", 6, 4), Some("AB"), Some(Rtr::Send), (4, 6)),
        // The initiator offers no first frame: the responder requests a Write, as siw does.
        (2, enhanced("A", 6, 4), Some("AC"), Some(Rtr::Write), (4, 6)),
        // Without A the other letters mean nothing.
        (2, enhanced("BCD", 6, 4), Some(""), None, (4, 6)),
        // This end has no more outstanding than the peer serves.
        (2, enhanced("AC", 2, 100), Some("AC"), Some(Rtr::Write), (2, 6)),
        (2, enhanced("AC", 0, 0), Some("AC"), Some(Rtr::Write), (0, 6)),
        (2, enhanced("AC", none, 4), Some("AC"), Some(Rtr::Write), (4, 6)),
        (2, enhanced("AC", 6, none), Some("AC"), Some(Rtr::Write), (4, 6)),
        // Revision 2 without S, and revision 1.
        (2, None, None, None, (4, 6)),
        (1, None, None, None, (4, 6)),
    ] {
        let asked = frame(Kind::Request, revision, Flags::default(), asks);
        let asked = check_request(&config, &asked).unwrap();
        assert_eq!(asked.peer_to_peer(), rtr.is_some(), "{asks:?}");
        let (reply, agreed) = reply(&config, &asked, &wishes(false), b"");
        assert_eq!(reply.enhanced.as_ref().map(letters).as_deref(), says, "{asks:?}");
        assert_eq!((reply.kind, reply.revision), (Kind::Reply, revision));
        assert_eq!((agreed.rtr, (agreed.ord, agreed.ird)), (rtr, depths), "{asks:?}");
        assert!(!agreed.initiator && !agreed.crc && !agreed.tx_markers && !agreed.rx_markers);
        let told = asks.is_some_and(|e| e.ird != none && e.ord != none);
        if let Some(e) = reply.enhanced {
            assert_eq!((e.ord, e.ird), if told { depths } else { (none, none) }, "{asks:?}");
        }
    }
}

#[test]
fn mpa_responder_that_selects_read_rtr_has_ird_of_at_least_one() {
    let asked = frame(Kind::Request, 2, Flags::default(), enhanced("AD", 1, 1));
    let asked = check_request(&Config::default(), &asked).unwrap();
    let (reply, agreed) = reply(&Config::default(), &asked, &Wishes::default(), b"");
    assert_eq!((reply.enhanced.unwrap().ird, agreed.ird), (1, 1));
}

/// CRC and markers: the flags of either side, and the result, for both roles.
#[test]
fn mpa_crc_is_used_if_either_side_asks_and_markers_if_the_receiver_asks() {
    use Markers::{Ask, Give, Refuse};
    for crc in [false, true] {
        for markers in [Refuse, Give, Ask] {
            for theirs in [
                Flags::default(),
                Flags::CRC,
                Flags::MARKERS,
                Flags::CRC.with(Flags::MARKERS, true),
                Flags::SIW_GSO,
            ] {
                let config = Config { crc, markers, ..Config::default() };
                let expected = (crc || theirs.has(Flags::CRC), theirs.has(Flags::MARKERS));
                let refused = expected.1 && markers == Refuse;

                let peer = frame(Kind::Request, 2, theirs, enhanced("AC", 1, 1));
                match check_request(&config, &peer) {
                    Ok(asked) => {
                        let (said, agreed) = reply(&config, &asked, &wishes(false), b"");
                        assert!(!refused);
                        assert_eq!((agreed.crc, agreed.tx_markers), expected);
                        assert_eq!(agreed.rx_markers, markers == Ask);
                        assert_eq!(said.flags.has(Flags::CRC), agreed.crc);
                        assert_eq!(said.flags.has(Flags::MARKERS), agreed.rx_markers);
                    }
                    Err(why) => {
                        assert!(refused && matches!(why, BadRequest::Refuse(_)));
                        let BadRequest::Refuse(asked) = why else { continue };
                        assert!(refusal(&asked, b"").flags.has(Flags::REJECT));
                    }
                }
                let peer = frame(Kind::Reply, 2, theirs, enhanced("AC", 1, 1));
                match conclude(&config, V2, &wishes(true), 16, &peer) {
                    Ok(agreed) => {
                        assert!(!refused);
                        assert_eq!((agreed.crc, agreed.tx_markers), expected);
                        assert_eq!(agreed.rx_markers, markers == Ask);
                    }
                    Err(why) => assert!(refused && why == BadReply::Invalid),
                }
            }
        }
    }
}

#[test]
fn mpa_request_with_wrong_key_or_revision_is_reset() {
    for (kind, revision) in [(Kind::Reply, 2), (Kind::Request, 0), (Kind::Request, 3)] {
        let peer = frame(kind, revision, Flags::default(), None);
        assert_eq!(check_request(&Config::default(), &peer), Err(BadRequest::Reset));
    }
}

/// Cases of the initiator: the wishes, the responder's flags, and the result.
#[test]
fn mpa_initiator_accepts_only_offered_rtr_and_sufficient_ird() {
    let none = Enhanced::NOT_NEGOTIATED;
    let ok = |rtr, ord, ird| Ok((rtr, ord, ird));
    for (wish, revision, says, outcome) in [
        (true, 2, enhanced("AC", 6, 4), ok(Some(Rtr::Write), 4, 6)),
        (true, 2, enhanced("AD", 6, 4), ok(Some(Rtr::Read), 4, 6)),
        // More than one: the first that suits the initiator.
        (true, 2, enhanced("ACD", 6, 4), ok(Some(Rtr::Write), 4, 6)),
        (true, 2, enhanced("ABCD", 6, 4), ok(Some(Rtr::Write), 4, 6)),
        (true, 2, enhanced("ABD", 6, 4), ok(Some(Rtr::Read), 4, 6)),
        // A first frame that was not offered.
        (true, 2, enhanced("AB", 6, 4), Err(BadReply::NoMatchingRtr)),
        (true, 2, enhanced("A", 6, 4), Err(BadReply::NoMatchingRtr)),
        // The peer does not support peer-to-peer.
        (true, 2, enhanced("", 6, 4), ok(None, 4, 6)),
        (true, 2, enhanced("CD", 6, 4), ok(None, 4, 6)),
        // Peer-to-peer was not requested. A responder that uses it nevertheless waits for the first frame.
        (false, 2, enhanced("AC", 6, 4), ok(Some(Rtr::Write), 4, 6)),
        (false, 2, enhanced("AB", 6, 4), Err(BadReply::NoMatchingRtr)),
        (false, 2, enhanced("", 6, 4), ok(None, 4, 6)),
        // The peer serves less; it wants less, more than expected, more than the initiator can serve.
        (true, 2, enhanced("AC", 1, 1), ok(Some(Rtr::Write), 1, 6)),
        (true, 2, enhanced("AC", 0, 0), ok(Some(Rtr::Write), 0, 6)),
        (true, 2, enhanced("AC", 6, 16), ok(Some(Rtr::Write), 4, 16)),
        (true, 2, enhanced("AC", 6, 17), Err(BadReply::InsufficientIrd)),
        // A Read needs a responder that serves it.
        (true, 2, enhanced("AD", 0, 4), Err(BadReply::InsufficientIrd)),
        (true, 2, enhanced("AC", none, none), ok(Some(Rtr::Write), 4, 6)),
        (true, 2, enhanced("AC", none, 17), ok(Some(Rtr::Write), 4, 6)),
        // Without S, and of the older revision.
        (true, 2, None, ok(None, 4, 6)),
        (true, 1, None, ok(None, 4, 6)),
        (true, 0, None, Err(BadReply::Invalid)),
        (true, 3, enhanced("AC", 6, 4), Err(BadReply::Invalid)),
    ] {
        let peer = frame(Kind::Reply, revision, Flags::default(), says);
        let got = conclude(&Config::default(), V2, &wishes(wish), 16, &peer);
        assert!(got.is_err() || got.unwrap().initiator);
        assert_eq!(got.map(|p| (p.rtr, p.ord, p.ird)), outcome, "{wish} {revision} {says:?}");
    }
}

#[test]
fn mpa_v1_initiator_rejects_a_v2_reply() {
    let peer = frame(Kind::Reply, 2, Flags::default(), enhanced("AC", 6, 4));
    let got = conclude(&Config::default(), V1, &wishes(true), 16, &peer);
    assert_eq!(got, Err(BadReply::Invalid));
    let peer = frame(Kind::Request, 1, Flags::default(), None);
    let got = conclude(&Config::default(), V1, &wishes(true), 16, &peer);
    assert_eq!(got, Err(BadReply::Invalid));
    // A refusal has no other fields that matter.
    let peer = frame(Kind::Reply, 2, Flags::REJECT, enhanced("", 0, 17));
    let got = conclude(&Config::default(), V2, &wishes(true), 16, &peer);
    assert_eq!(got, Err(BadReply::Rejected));
}

#[test]
fn mpa_initiator_with_read_rtr_has_ord_of_at_least_one() {
    let wishes = Wishes { peer_to_peer: true, ord: 0, ird: 0 };
    let peer = frame(Kind::Reply, 2, Flags::default(), enhanced("AD", 1, 0));
    let agreed = conclude(&Config::default(), V2, &wishes, 16, &peer).unwrap();
    assert_eq!((agreed.rtr, agreed.ord, agreed.ird), (Some(Rtr::Read), 1, 0));
}
