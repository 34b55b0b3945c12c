//! A frame formatted as a line of text or of JSON.

use std::fmt;
use std::time::Duration;

use rdmux_wire::Packet;
use serde::Serialize;

use super::frame::{Addresses, Dissection, What};
use super::iwarp::JsonUnit;
use super::mad::JsonMad;
use super::roce::{IcrcCheck, Roce, RocePacket, Vcrc};

/// A frame with its position in the file.
pub(super) struct Line<'a> {
    /// The number, counted from 1.
    pub(super) number: u64,
    /// The time since 1970.
    pub(super) time: Duration,
    /// The time since the first frame.
    pub(super) relative: Duration,
    pub(super) dissection: &'a Dissection<'a>,
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.relative.as_secs();
        write!(f, "{:6} {seconds:4}.{:06}  ", self.number, self.relative.subsec_micros())?;
        if let Some(lrh) = self.dissection.lrh {
            write!(f, "{lrh}  ")?;
        }
        if let Some(Addresses { src, dst }) = self.dissection.addresses {
            write!(f, "{src} > {dst}  ")?;
        }
        if let Some(vlan) = self.dissection.vlan {
            write!(f, "vlan {vlan} ")?;
        }
        self.dissection.what.fmt(f)
    }
}

impl fmt::Display for What<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Roce(roce) => roce.fmt(f),
            Self::Iwarp(iwarp) => iwarp.fmt(f),
            Self::Tcp(segment) => segment.fmt(f),
            Self::Undecodable(error) => write!(f, "UNDECODABLE RDMA: {error}"),
            Self::CutShort { captured, original } => {
                write!(f, "RDMA, cut short: {captured} of {original} bytes captured")
            }
            Self::Fragment { protocol, offset } => {
                let name = match *protocol {
                    rdmux_wire::ip::UDP => "UDP".into(),
                    rdmux_wire::ip::TCP => "TCP".into(),
                    other => format!("protocol {other}"),
                };
                write!(f, "IP fragment of {name} at {offset}")
            }
            Self::Other(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for Roce<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.first.fmt(f)?;
        if let Some(last) = self.offloaded.last() {
            let packets = self.offloaded.len() + 1;
            write!(f, " (offloaded: {packets} packets, up to psn {})", last.packet.bth.psn)?;
        }
        match self.icrc {
            IcrcCheck::Right => {}
            IcrcCheck::Wrong { found, computed } => {
                write!(f, " ICRC WRONG: {found:08x}, should be {computed:08x}")?;
            }
            IcrcCheck::Unchecked => f.write_str(" (cut short, ICRC not checked)")?,
        }
        match self.vcrc.filter(|vcrc| !vcrc.is_right()) {
            Some(Vcrc { found, computed }) => {
                write!(f, " VCRC WRONG: {found:04x}, should be {computed:04x}")
            }
            None => Ok(()),
        }
    }
}

impl fmt::Display for RocePacket<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.mad {
            Some(mad) => mad.fmt(f),
            None => self.packet.fmt(f),
        }
    }
}

/// A frame as a JSON object. Absent fields are omitted.
#[derive(Serialize)]
pub(super) struct JsonLine<'a> {
    file: &'a str,
    frame: u64,
    /// Seconds since 1970 with nine decimals, as a string because a number would lose some of them.
    time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    src: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dst: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slid: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dlid: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sl: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vl: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vlan: Option<u16>,
    kind: &'static str,
    /// The contents of the line of text.
    text: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    packets: Vec<JsonPacket>,
    /// The iWARP start-up frames and FPDUs that end in this frame.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    units: Vec<JsonUnit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    icrc: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vcrc: Option<&'static str>,
}

/// An RDMA packet in JSON output.
#[derive(Serialize)]
struct JsonPacket {
    opcode: String,
    dest_qpn: u32,
    psn: u32,
    pkey: u16,
    ack_req: bool,
    solicited: bool,
    payload: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    src_qpn: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    qkey: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    va: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rkey: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dma_len: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    syndrome: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    msn: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    imm: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    invalidate: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cm: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mad: Option<JsonMad>,
}

impl<'a> JsonLine<'a> {
    pub(super) fn new(file: &'a str, line: &Line<'_>) -> Self {
        let Dissection { addresses, lrh, vlan, what } = line.dissection;
        let mut packets = Vec::new();
        let mut units = Vec::new();
        let (mut icrc, mut vcrc) = (None, None);
        let kind = match what {
            What::Roce(roce) => {
                packets = roce.packets().map(JsonPacket::new).collect();
                icrc = Some(match roce.icrc {
                    IcrcCheck::Right => "right",
                    IcrcCheck::Wrong { .. } => "wrong",
                    IcrcCheck::Unchecked => "unchecked",
                });
                vcrc = roce.vcrc.map(|vcrc| if vcrc.is_right() { "right" } else { "wrong" });
                "rdma"
            }
            What::Iwarp(iwarp) => {
                units = iwarp.units.iter().map(JsonUnit::new).collect();
                "iwarp"
            }
            What::Undecodable(_) => "undecodable",
            What::CutShort { .. } => "cut_short",
            What::Fragment { .. } => "fragment",
            What::Tcp(_) | What::Other(_) => "other",
        };
        Self {
            file,
            frame: line.number,
            time: format!("{}.{:09}", line.time.as_secs(), line.time.subsec_nanos()),
            src: addresses.map(|a| a.src.to_string()),
            dst: addresses.map(|a| a.dst.to_string()),
            slid: lrh.map(|lrh| lrh.slid.0),
            dlid: lrh.map(|lrh| lrh.dlid.0),
            sl: lrh.map(|lrh| lrh.sl),
            vl: lrh.map(|lrh| lrh.vl),
            vlan: *vlan,
            kind,
            text: what.to_string(),
            packets,
            units,
            icrc,
            vcrc,
        }
    }
}

impl JsonPacket {
    fn new(packet: &RocePacket<'_>) -> Self {
        let Packet { bth, reth, aeth, atomic, deth, imm, ieth, payload, .. } = packet.packet;
        Self {
            opcode: bth.opcode.to_string(),
            dest_qpn: bth.dest_qpn.get(),
            psn: bth.psn.get(),
            pkey: bth.pkey.0,
            ack_req: bth.ack_req,
            solicited: bth.solicited,
            payload: payload.len(),
            src_qpn: deth.map(|h| h.src_qpn.get()),
            qkey: deth.map(|h| h.qkey.0),
            va: reth.map(|h| h.va).or(atomic.map(|h| h.va)),
            rkey: reth.map(|h| h.rkey.0).or(atomic.map(|h| h.rkey.0)),
            dma_len: reth.map(|h| h.dma_len),
            syndrome: aeth.map(|h| h.syndrome.to_string()),
            msn: aeth.map(|h| h.msn),
            imm: imm.map(|h| u32::from_be_bytes(h.0)),
            invalidate: ieth.map(|h| h.0.0),
            cm: packet.mad.and_then(|mad| mad.cm()),
            mad: packet.mad.as_ref().map(JsonMad::new),
        }
    }
}
