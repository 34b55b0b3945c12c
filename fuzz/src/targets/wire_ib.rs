//! InfiniBand packets and their management: no input makes the codecs panic, and parsed data is encoded identically,
//! including reserved bits.

use std::fmt::Display;

use rdmux_wire::ib_packet::{IbPacket, Parts};
use rdmux_wire::layout::Layout;
use rdmux_wire::mad::{MAD_LEN, Method};
use rdmux_wire::pm::{self, PmMad};
use rdmux_wire::sa::{self, LinkRecord, NodeRecord, PathRecord, SaMad};
use rdmux_wire::sm::{self, Trap};
use rdmux_wire::smp::Smp;
use rdmux_wire::{Rmpp, rmpp, vcrc};

/// Parses a packet from its LRH on. Its CRCs are corrected first, so that more than one in 2^48 gets further.
pub fn wire_ib_packet(data: &[u8]) {
    let Ok(parts) = Parts::split(data) else { return };
    let icrc = parts.right_icrc();
    let covered = [parts.route, parts.transport, &icrc].concat();
    assert_eq!(covered.len(), usize::from(parts.lrh.pkt_len) * 4);
    let whole = [&covered[..], &vcrc::vcrc(&[&covered])].concat();
    let Ok(packet) = IbPacket::parse(&whole) else { return };
    shows(&packet);
    let mut out = vec![0; packet.wire_len()];
    assert_eq!(packet.emit(&mut out), out.len());
    assert_eq!(IbPacket::parse(&out), Ok(packet));
}

/// Parses subnet management packets, and every attribute and trap.
pub fn wire_smp(data: &[u8]) {
    let mut mad = padded(data);
    if let Ok(smp) = Smp::parse(&mad) {
        shows(&smp);
        mad[18..20].fill(0); // the header's reserved bytes
        assert_eq!(smp.to_bytes(), mad);
    }
    let body = &mad[64..128];
    for id in (0..0x40).chain([0xff90]) {
        let Some(attribute) = sm::Attribute::parse(id, body).expect("64 bytes are enough") else {
            continue;
        };
        shows(&attribute);
        let mut out = [0; 64];
        attribute.emit(&mut out);
        let len = attribute.wire_len();
        assert_eq!((&out[..len], attribute.attr_id()), (&body[..len], id));
        attribute.fields(&mut |name, value| assert!(!format!("{name}{value}").is_empty()));
    }
    let details = body[10..].try_into().expect("54 bytes");
    for number in 0..512 {
        if let Some(trap) = Trap::parse(number, details) {
            shows(&trap);
            assert_eq!((trap.number(), trap.details()), (number, *details));
        }
    }
}

/// Parses datagrams of subnet administration and performance management, RMPP headers, and every record.
pub fn wire_sa_pm(data: &[u8]) {
    let mut mad = padded(data);
    mad[18..20].fill(0); // the header's reserved bytes
    let rmpp = Rmpp::of(&mad);
    shows(&rmpp);
    assert_eq!(rmpp.to_bytes(), mad[rmpp::OFFSET..rmpp::OFFSET + Rmpp::LEN]);
    if let Ok(sa) = SaMad::parse(&mad) {
        shows(&sa);
        assert_eq!(sa.to_bytes(), mad);
        for method in [Method::GET, Method::GET_TABLE_RESP, Method::GET_MULTI_RESP] {
            let mut other = sa;
            other.header.method = method;
            shows(&other);
        }
        count::<LinkRecord>(&sa);
        count::<PathRecord>(&sa);
        count::<NodeRecord>(&sa);
    }
    // A message of many datagrams.
    if let Ok(sa) = SaMad::parse(data) {
        shows(&sa);
        count::<NodeRecord>(&sa);
    }
    if let Ok(pm) = PmMad::parse(&mad) {
        shows(&pm);
        assert_eq!(pm.to_bytes(), mad);
    }
    for id in 0..0x100 {
        if let Some(record) =
            sa::Record::parse(id, &mad[sa::DATA_AT..]).expect("200 bytes are enough")
        {
            shows(&record);
            let mut out = [0; 200];
            record.emit(&mut out);
            let len = record.wire_len();
            assert_eq!(out[..len], mad[sa::DATA_AT..sa::DATA_AT + len]);
        }
        if let Some(attribute) =
            pm::Attribute::parse(id, &mad[pm::DATA_AT..]).expect("192 bytes are enough")
        {
            shows(&attribute);
            let mut out = [0; 192];
            attribute.emit(&mut out);
            let len = attribute.wire_len();
            assert_eq!(out[..len], mad[pm::DATA_AT..pm::DATA_AT + len]);
        }
    }
}

fn count<T: Layout>(sa: &SaMad<'_>) {
    assert!(sa.records::<T>().count() * T::LEN <= sa.data.len());
}

fn padded(data: &[u8]) -> [u8; MAD_LEN] {
    let mut mad = [0; MAD_LEN];
    let n = data.len().min(MAD_LEN);
    mad[..n].copy_from_slice(&data[..n]);
    mad
}

fn shows(value: &impl Display) {
    assert!(!value.to_string().is_empty());
}

/// Returns initial datagrams of each class, one with each attribute ID.
///
/// # Errors
/// Never.
pub fn management() -> anyhow::Result<Vec<Vec<u8>>> {
    let mut all = Vec::new();
    for (class, version, ids) in [
        (0x01, 1, &[0x02, 0x11, 0x12, 0x15, 0x18, 0x20][..]),
        (0x81, 1, &[0x11, 0x15, 0x16, 0x19, 0x1b]),
        (0x03, 2, &[0x01, 0x03, 0x11, 0x12, 0x35, 0x38, 0x3a, 0xf3]),
        (0x04, 1, &[0x01, 0x10, 0x12, 0x15, 0x1b, 0x1d]),
    ] {
        for &id in ids {
            for method in [0x01, 0x81, 0x92] {
                let mut mad = [0x5a; MAD_LEN];
                mad[..24].fill(0);
                mad[..4].copy_from_slice(&[1, class, version, method]);
                mad[17] = id;
                all.push(mad.to_vec());
            }
        }
    }
    Ok(all)
}

/// Returns packets of a subnet with such datagrams, with and without GRH.
///
/// # Errors
/// Never.
pub fn packets() -> anyhow::Result<Vec<Vec<u8>>> {
    use rdmux_wire::{Bth, Deth, Gid, Grh, Lid, Lrh, Opcode, Packet, Psn, Qkey, Qpn};
    let mads = management()?;
    let packet = |(i, mad): (usize, &Vec<u8>)| {
        let bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn::QP1, Psn::new(1));
        let deth = Deth { qkey: Qkey::QP1, src_qpn: Qpn::QP1 };
        let payload = &mad[..mad.len() - i % 4];
        let packet = Packet { deth: Some(deth), ..Packet::new(bth, payload) };
        let (sgid, dgid) = (Gid([1; 16]), Gid([2; 16]));
        let grh =
            Grh { tclass: 0, flow_label: 0, pay_len: 0, next_hdr: 0, hop_limit: 1, sgid, dgid };
        let lrh = Lrh { dlid: Lid(2), slid: Lid(1), ..Lrh::DEFAULT };
        let packet = IbPacket { lrh, grh: (i % 2 == 1).then_some(grh), packet };
        let mut bytes = vec![0; packet.wire_len()];
        packet.emit(&mut bytes);
        bytes
    };
    Ok(mads.iter().enumerate().map(packet).collect())
}
