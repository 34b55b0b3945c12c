//! The path to the peer of a request: the path in its REQ, seen from the other end (IBTA 12.7), or for SIDR the reverse of
//! the path of its datagram.

use rdmux_transport::attr::AddressVector;
use rdmux_wire::cm::{self, RejReason, Req};
use rdmux_wire::{Gid, Lid, Mtu};

use super::Manager;
use super::listen::{Refusal, Target};
use super::route::by_address;
use crate::address::Addr;
use crate::params::Route;
use crate::path::{MadPath, Path};
use crate::sink::{DevicePort, LocalAddress};

/// The LID of a path through routers, which the sender does not know (IBTA 12.6.5).
const PERMISSIVE: Lid = Lid(0xffff);

/// The field that makes an alternate path invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// A GID, or its partition.
    Gid,
    /// A LID.
    Lid,
}

impl Manager {
    /// Returns the path back along the alternate path of a REQ, if it has one. It may begin at any port of the device.
    pub(super) fn alternate_of_request(
        &self,
        req: &Req,
        target: &Target,
        primary: &Path,
    ) -> Result<Option<Path>, Wrong> {
        if req.alternate.is_none() {
            return Ok(None);
        }
        let (device, (src, dst)) = (&target.device, target.ends);
        let route = Route {
            src,
            dst,
            device: device.device,
            sgid: primary.local,
            slid: primary.slid,
            av: primary.av,
            mtu: primary.mtu,
            pkey: primary.pkey,
            pkey_index: primary.pkey_index,
            packet_lifetime: primary.packet_lifetime,
        };
        self.path_of_alternate(device, &req.alternate, &route).map(Some)
    }

    /// Returns the path back along an alternate path, of a connection with this route. Its fields about this end must be true. Its
    /// fields about the peer are taken on trust.
    pub(super) fn path_of_alternate(
        &self,
        device: &LocalAddress,
        path: &cm::Path,
        route: &Route,
    ) -> Result<Path, Wrong> {
        let of_device = |p: &&DevicePort| p.device == device.device;
        let mut ports = self.device_ports.iter().filter(of_device);
        let port = ports.find(|port| port.gid_index(path.remote_gid).is_some());
        let peer = path.local_gid;
        if peer.is_zero() || peer.ip().to_canonical().is_multicast() {
            return Err(Wrong::Gid);
        }
        let common = Path {
            local: path.remote_gid,
            slid: Lid(0),
            back_lid: Lid(0),
            av: AddressVector {
                is_global: true,
                dgid: peer,
                flow_label: path.flow_label,
                traffic_class: path.tclass,
                ..route.av
            },
            pkey: route.pkey,
            pkey_index: route.pkey_index,
            mtu: route.mtu,
            packet_lifetime: path.ack_timeout.code().saturating_sub(1),
        };
        if !device.has_lids {
            let is_ours = |a: &&LocalAddress| a.device == device.device && a.gid == path.remote_gid;
            let own = self.addresses.iter().find(is_ours).ok_or(Wrong::Gid)?;
            if own.gid.ip().to_canonical().is_ipv4() != peer.ip().to_canonical().is_ipv4() {
                return Err(Wrong::Gid);
            }
            let (sgid_index, port_num) = (own.sgid_index, own.port_num);
            let av = AddressVector { sgid_index, port_num, ..common.av };
            return Ok(Path { av, ..common });
        }
        let port = port.ok_or(Wrong::Gid)?;
        let sgid_index = port.gid_index(path.remote_gid).ok_or(Wrong::Gid)?;
        let pkey_index = port.pkey_index(route.pkey).ok_or(Wrong::Gid)?;
        let bits =
            known_lid(path.remote_lid).and_then(|lid| port.path_bits(lid)).ok_or(Wrong::Lid)?;
        if !path.local_lid.is_unicast() {
            return Err(Wrong::Lid);
        }
        Ok(Path {
            slid: own_lid(port, bits),
            back_lid: own_lid(port, bits),
            av: AddressVector {
                is_global: path.hop_limit > 1,
                sgid_index,
                hop_limit: path.hop_limit,
                dlid: path.local_lid.0,
                sl: path.sl,
                src_path_bits: bits,
                static_rate: path.rate,
                port_num: port.port_num,
                ..common.av
            },
            pkey_index,
            ..common
        })
    }

    /// Returns the path back along the primary path of a REQ that arrived by `path` at a local address.
    pub(super) fn path_of_request(
        &self,
        path: &MadPath,
        req: &Req,
        device: &LocalAddress,
        ends: (Addr, Addr),
    ) -> Result<Path, Refusal> {
        let mtu = match Mtu::from_code(req.path_mtu) {
            Some(mtu) if mtu <= device.mtu => mtu,
            _ => {
                return Err(Refusal::Reason(RejReason::INVALID_MTU, Some(device.mtu.code())));
            }
        };
        let back = if !device.has_lids {
            if req.primary.local_gid != path.remote() || req.primary.remote_gid != path.local {
                // Otherwise a process that accepted would send its data to a third party.
                return Err(Refusal::Reason(RejReason::INVALID_GID, None));
            }
            by_address(&self.cm.config, device, ends, path.remote(), mtu)
        } else {
            self.along_lids(path, req, device, mtu)?
        };
        Ok(Path {
            av: AddressVector {
                flow_label: req.primary.flow_label,
                traffic_class: req.primary.tclass,
                ..back.av
            },
            packet_lifetime: req.primary.ack_timeout.code().saturating_sub(1),
            ..back
        })
    }

    /// Returns the path on InfiniBand, which REQ describes completely: LIDs, GIDs, service level, rate and partition. The fields
    /// about this end must be correct.
    fn along_lids(
        &self,
        path: &MadPath,
        req: &Req,
        device: &LocalAddress,
        mtu: Mtu,
    ) -> Result<Path, Refusal> {
        let reason = |reason| Refusal::Reason(reason, None);
        let primary = &req.primary;
        let port = self.device_port(path.device, device.port_num);
        let port = port.ok_or_else(|| reason(RejReason::INVALID_GID))?;
        let sgid_index = port.gid_index(primary.remote_gid);
        let sgid_index = sgid_index.ok_or_else(|| reason(RejReason::INVALID_GID))?;
        let (slid, dlid) = (known_lid(primary.remote_lid), known_lid(primary.local_lid));
        // Linux refuses a partition that it does not have with the same reason.
        let pkey_index = port.pkey_index(req.pkey).ok_or_else(|| reason(RejReason::INVALID_GID))?;
        // Fields that the path lacks are copied from the request's packet, if it arrived at the same port.
        let came = (path.av.port_num.max(1) == port.port_num).then_some(path.av);
        let bits = match slid {
            Some(lid) => port.path_bits(lid),
            None => came.map(|av| av.src_path_bits),
        };
        let bits = bits.ok_or_else(|| reason(RejReason::INVALID_LID))?;
        let dlid = dlid.or(came.map(|av| Lid(av.dlid))).unwrap_or(Lid(0));
        if !dlid.is_unicast() {
            return Err(reason(RejReason::INVALID_LID));
        }
        Ok(Path {
            local: primary.remote_gid,
            slid: own_lid(port, bits),
            back_lid: own_lid(port, bits),
            av: AddressVector {
                is_global: primary.hop_limit > 1,
                dgid: primary.local_gid,
                sgid_index,
                hop_limit: primary.hop_limit,
                dlid: dlid.0,
                sl: primary.sl,
                src_path_bits: bits,
                static_rate: primary.rate,
                port_num: port.port_num,
                ..AddressVector::default()
            },
            pkey: port.pkeys.get(usize::from(pkey_index)).copied().unwrap_or(req.pkey),
            pkey_index,
            mtu,
            packet_lifetime: 0,
        })
    }

    /// Returns the path by which a datagram arrived at a local address.
    pub(super) fn path_of_datagram(
        &self,
        path: &MadPath,
        device: &LocalAddress,
        ends: (Addr, Addr),
    ) -> Path {
        if !device.has_lids {
            return by_address(&self.cm.config, device, ends, Gid::from(ends.1.ip()), device.mtu);
        }
        let port = self.device_port(path.device, device.port_num);
        let key = port.and_then(|port| port.pkeys.get(usize::from(path.pkey_index)).copied());
        Path {
            local: path.local,
            slid: port.map_or(Lid(0), |port| own_lid(port, path.av.src_path_bits)),
            back_lid: Lid(0),
            av: path.av,
            pkey: key.unwrap_or(device.pkey),
            pkey_index: path.pkey_index,
            mtu: device.mtu,
            packet_lifetime: self.cm.config.packet_lifetime,
        }
    }
}

/// Returns a LID, or none for the permissive LID, which means that the sender did not know it.
fn known_lid(lid: Lid) -> Option<Lid> {
    (lid != PERMISSIVE).then_some(lid)
}

fn own_lid(port: &DevicePort, path_bits: u8) -> Lid {
    Lid(port.lid.0 | u16::from(path_bits))
}
