//! QP1 of the adapter's ports for connections: datagrams of the connection manager travel from host to host like data, and
//! arrive at the service's own socket.

use rdmux_cm::MadPath;
use rdmux_link::wire::{Arrival, Frame, Payload};
use rdmux_transport::attr::AddressVector;
use rdmux_wire::mad::MAD_LEN;
use rdmux_wire::{Bth, Deth, Gid, Grh, HeaderBuf, Opcode, Packet, Psn, Qkey, Qpn};

use super::Ib;
use super::adapters::PortAt;
use crate::service::core::Core;
use crate::service::counters::Count;
use crate::service::ports::PortId;

/// Returns the port in the form of the dispatcher of management datagrams.
fn port_id(at: PortAt) -> PortId {
    PortId { device: Ib::KIND, number: at.number() }
}

/// A datagram that arrived at a queue pair of the service.
pub(super) struct Datagram<'a> {
    /// The path back to its sender. Its GID is zero if the packet has none.
    pub(super) av: AddressVector,
    /// The local GID that the sender addressed, or the port's GID if the packet has none.
    pub(super) local: Gid,
    pub(super) src_qpn: Qpn,
    pub(super) qkey: Qkey,
    pub(super) pkey_index: u16,
    pub(super) payload: &'a [u8],
}

impl Core {
    /// Parses a datagram. The wire has checked its addresses and its partition.
    pub(super) fn datagram<'a>(
        &self,
        at: PortAt,
        arrival: &Arrival<'a>,
    ) -> Result<Datagram<'a>, Count> {
        let packet = Packet::parse(arrival.without_icrc()).map_err(|_| Count::DropMalformed)?;
        if packet.bth.opcode != Opcode::UD_SEND_ONLY {
            return Err(Count::DropOpcode);
        }
        let deth = packet.deth.ok_or(Count::DropOpcode)?;
        let route = arrival.ib.ok_or(Count::DropMalformed)?;
        let port = self.adapter[at].device_port(self.node_guid);
        let pkey_index = port.pkeys.iter().position(|key| packet.bth.pkey.admits(*key));
        let pkey_index = pkey_index.and_then(|at| u16::try_from(at).ok()).ok_or(Count::DropPkey)?;
        let grh = route.grh.as_ref().and_then(|grh| Grh::parse(grh).ok());
        let ends = AddressVector {
            dlid: route.slid.0,
            sl: route.sl,
            src_path_bits: route.dlid_path_bits,
            port_num: at.number(),
            ..AddressVector::default()
        };
        let default = port.gids.first().copied().unwrap_or(Gid::ZERO);
        let (av, local) = match grh {
            None => (ends, default),
            Some(grh) => {
                let index = port.gid_index(grh.dgid).unwrap_or(0);
                let av = AddressVector {
                    is_global: true,
                    dgid: grh.sgid,
                    sgid_index: index,
                    hop_limit: grh.hop_limit,
                    traffic_class: grh.tclass,
                    ..ends
                };
                (av, port.gids.get(usize::from(index)).copied().unwrap_or(default))
            }
        };
        let Deth { src_qpn, qkey } = deth;
        Ok(Datagram { av, local, src_qpn, qkey, pkey_index, payload: packet.payload })
    }

    /// Handles a datagram to QP1.
    pub(super) fn process_gsi(&mut self, at: PortAt, arrival: &Arrival<'_>) -> Result<(), Count> {
        let datagram = self.datagram(at, arrival)?;
        if datagram.qkey != Qkey::QP1 {
            return Err(Count::DropQkey);
        }
        let path = MadPath {
            device: Ib::KIND as u32,
            local: datagram.local,
            av: datagram.av,
            pkey_index: datagram.pkey_index,
            remote_qpn: datagram.src_qpn,
        };
        self.process_mad(port_id(at), &path, datagram.payload)
    }

    /// Sends a datagram of the connection manager.
    pub(super) fn send_from_gsi(&mut self, path: &MadPath, qkey: Qkey, mad: &[u8; MAD_LEN]) {
        let Some(at) = self.adapter.at(path.av.port_num) else {
            return self.counts.add(Count::TxErrors);
        };
        let port = self.adapter[at].device_port(self.node_guid);
        let own = rdmux_wire::Lid(path.av.dlid);
        if let Some(bits) = port.path_bits(own).filter(|_| path.remote_qpn == Qpn::QP1) {
            // To this host itself: it arrives from the LID that it was sent from, and does not pass over a wire.
            let back = AddressVector {
                dlid: port.lid.0 | u16::from(path.av.src_path_bits),
                dgid: path.local,
                src_path_bits: bits,
                ..path.av
            };
            let local = if path.av.is_global { path.av.dgid } else { path.local };
            self.counts.add(Count::TxMads);
            return self.outbox.deliver(port_id(at), &MadPath { av: back, local, ..*path }, mad);
        }
        let ends = (Qpn::QP1, path.remote_qpn);
        let sent = self.send_datagram(at, ends, qkey, path.pkey_index, &path.av, mad);
        self.counts.add(if sent { Count::TxMads } else { Count::TxErrors });
    }

    /// Sends a datagram from a queue pair of the service, at once. The wire counts what a switch or port would drop. Returns whether
    /// it was sent or dropped so.
    pub(super) fn send_datagram(
        &mut self,
        at: PortAt,
        (from, to): (Qpn, Qpn),
        qkey: Qkey,
        pkey_index: u16,
        av: &AddressVector,
        payload: &[u8],
    ) -> bool {
        let port = self.adapter[at].device_port(self.node_guid);
        let Some(&pkey) = port.pkeys.get(usize::from(pkey_index)) else { return false };
        let bth = Bth::new(Opcode::UD_SEND_ONLY, to, Psn::default());
        let pad = (4 - payload.len() % 4) % 4;
        let pad = u8::try_from(pad).unwrap_or(0);
        let bth = Bth { mig_req: true, pkey, pad, ..bth };
        let header = HeaderBuf::new(&bth).deth(&Deth { qkey, src_qpn: from });
        let payload = Payload::Bytes(payload);
        let frame = Frame { header: header.as_slice(), payload, pad, ack: None };
        self.adapter[at].data.send(av, &frame)
    }
}
