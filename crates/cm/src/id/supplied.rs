//! The commands set_paths and resolve_along: the program supplies one to six path records, and no query is sent.
//!
//! | flags of `ibv_path_data` | meaning |
//! |---|---|
//! | GMP | the path of the connection manager's own datagrams; without it they take the primary path |
//! | PRIMARY, OUTBOUND | the path of this end's packets |
//! | PRIMARY, INBOUND | the path of the peer's packets, as a record from the peer to this end |
//! | ALTERNATE, OUTBOUND and INBOUND | likewise for the alternate path |
//! | INBOUND_REVERSE | with OUTBOUND: the peer's packets take the reverse path |
//!
//! REQ carries one primary and one alternate path (IBTA 12.6.5). Its LIDs are the destinations of either side. Service level, rate,
//! flow label, traffic class, hop limit and partition hold for both directions. So records of the two directions that differ in these
//! are refused, as are records that do not begin at a port of this host.

use rdmux_transport::Time;
use rdmux_transport::attr::AddressVector;
use rdmux_wire::sa::PathRecord;
use rdmux_wire::{Gid, Lid, Mtu};

use super::Manager;
use super::entry::{IdState, Owns};
use super::route::{by_address, route_along};
use crate::address::{Addr, IbAddr};
use crate::error::{CmError, Command};
use crate::params::PathData;
use crate::path::{Path, Paths};
use crate::sink::{IdHandle, LocalAddress, Sink};

impl Manager {
    /// Sets the paths that the program supplies (`RDMA_OPTION_IB_PATH`) instead of querying for one, and reports ROUTE_RESOLVED.
    /// The records' values are used as they are. Where addresses are GIDs (RoCE) LIDs and service level have no meaning.
    ///
    /// # Errors
    /// When the address is not resolved, the route already is or is being resolved, there is no primary path, or a record
    /// contradicts another or the id's port: [`CmError::Path`] names the field.
    pub fn set_paths(
        &mut self,
        id: IdHandle,
        records: &[PathData],
        sink: &mut impl Sink,
    ) -> Result<(), CmError> {
        let command = Command::SetPath;
        let found = self.in_state(id, command, IdState::AddrResolved)?;
        let Some(by_address) = found.path else { return Err(self.wrong_state(id, command)) };
        let device = self.get(id, command)?.device.clone();
        let Some(device) = device else { return Err(self.wrong_state(id, command)) };
        let paths = self.paths_of(&device, &by_address, records);
        let paths = paths.map_err(|(path, field)| CmError::Path { id, path, field })?;
        self.install(id, paths, sink);
        Ok(())
    }

    /// Sets addresses and paths together, in place of resolve_addr, resolve_route and [`set_paths`](Self::set_paths), and reports
    /// ROUTE_RESOLVED. Without a source address, that of the primary path is used. `privileged` allows any source
    /// port.
    ///
    /// # Errors
    /// As for these calls; nothing has changed then.
    pub fn resolve_along(
        &mut self,
        now: Time,
        id: IdHandle,
        (src, dst): (Option<Addr>, Addr),
        records: &[PathData],
        privileged: bool,
        sink: &mut impl Sink,
    ) -> Result<(), CmError> {
        let _ = now;
        let command = Command::ResolveAlong;
        let found = self.get(id, command)?;
        let state = found.state();
        let (local, is_bound) = match state {
            IdState::Idle => (src, false),
            IdState::AddrBound => (found.local, true),
            _ => return Err(CmError::State { id, command, state }),
        };
        let wrong = |(path, field)| CmError::Path { id, path, field };
        let out =
            Roles::of(records).map_err(wrong)?.primary.ok_or(wrong(("primary", "flags")))?.out;
        let device = self.device_along(id, local.as_ref(), &dst, out);
        let device = device.ok_or(wrong(("primary", "sgid")))?;
        let local = match (local, dst) {
            (Some(Addr::Ip(local)), Addr::Ip(_)) => Addr::Ip((device.ip, local.port()).into()),
            (None, Addr::Ip(_)) => Addr::Ip((device.ip, 0).into()),
            (Some(Addr::Ib(local)), Addr::Ib(_)) => {
                IbAddr { gid: device.gid, pkey: device.pkey, ..local }.into()
            }
            (None, Addr::Ib(_)) => {
                IbAddr { pkey: device.pkey, ..IbAddr::of_port(device.gid) }.into()
            }
            _ => return Err(CmError::Family { id, command }),
        };
        let dgid = match dst {
            Addr::Ib(dst) => dst.gid,
            Addr::Ip(dst) if !device.has_lids => Gid::from(dst.ip()),
            // Only that IP address's host knows the port's GID.
            Addr::Ip(_) => out.dgid,
        };
        let by_address = by_address(&self.cm.config, &device, (local, dst), dgid, device.mtu);
        let pkey_index = self.pkey_index(&device);
        let by_address = Path { pkey_index, ..by_address };
        let paths = self.paths_of(&device, &by_address, records).map_err(wrong)?;
        let local = match (is_bound, local) {
            (true, local) => local,
            (false, Addr::Ip(local)) => {
                self.bind_to(id, local, dst.socket(), privileged, command)?
            }
            (false, Addr::Ib(local)) => {
                self.hold_native(id, local, privileged, command)?;
                self.get(id, command)?.local.unwrap_or(Addr::Ib(local))
            }
        };
        if let Owns::Port(ps, port) = self.get(id, command)?.owns {
            self.port_table(ps).set_ip(port, id, device.ip);
        }
        let found = self.get_mut(id, command)?;
        let options = found.options;
        found.go(IdState::AddrQuery);
        found.go(IdState::AddrResolved);
        (found.local, found.peer) = (Some(local), Some(dst));
        found.path = Some(by_address);
        found.route = Some(route_along(&by_address, device.device, &options, (local, dst)));
        found.device = Some(device);
        self.install(id, paths, sink);
        Ok(())
    }

    /// Returns the local device and port where a path begins.
    fn device_along(
        &self,
        id: IdHandle,
        local: Option<&Addr>,
        dst: &Addr,
        out: &PathRecord,
    ) -> Option<LocalAddress> {
        let found = self.ids.get(&id)?;
        if dst.ib().is_some() {
            let is_other =
                local.and_then(Addr::ib).is_some_and(|own| !own.is_any() && own.gid != out.sgid);
            let at = IbAddr { pkey: out.pkey, ..IbAddr::of_port(out.sgid) };
            return self.native_device(found, &at).filter(|_| !is_other);
        }
        let ip = local.map(Addr::ip).filter(|ip| !ip.is_unspecified());
        let fits = |a: &&LocalAddress| {
            a.gid == out.sgid
                && found.may_use(a.device, a.transport)
                && ip.map_or(a.ip.is_ipv4() == dst.ip().is_ipv4(), |ip| a.ip == ip)
        };
        self.addresses.iter().find(fits).cloned()
    }

    /// Returns the alternate path that records describe. They must describe no other path, and its MTU must be at least `mtu`. The
    /// error names the path and the invalid field.
    pub(super) fn alternate_along(
        &self,
        device: &LocalAddress,
        by_address: &Path,
        records: &[PathData],
        mtu: Mtu,
    ) -> Result<Path, Wrong> {
        let ends = Ends { device, by_address, manager: self };
        let Roles { cm: None, primary: None, alternate: Some(way) } = Roles::of(records)? else {
            return Err(("alternate", "flags"));
        };
        let path = ends.path("alternate", way, (way.out.sgid, way.out.dgid))?;
        if path.mtu < mtu { Err(("alternate", "mtu")) } else { Ok(path) }
    }

    /// Returns the paths that records describe. The error names the path and the invalid field.
    fn paths_of(
        &self,
        device: &LocalAddress,
        by_address: &Path,
        records: &[PathData],
    ) -> Result<Paths, Wrong> {
        let ends = Ends { device, by_address, manager: self };
        let roles = Roles::of(records)?;
        let primary = roles.primary.ok_or(("primary", "flags"))?;
        let primary = ends.path("primary", primary, (by_address.local, by_address.av.dgid))?;
        let alternate = match roles.alternate {
            None => None,
            Some(way) => {
                let path = ends.path("alternate", way, (way.out.sgid, way.out.dgid))?;
                // Both paths have the same MTU, which is the queue pair's.
                if path.mtu < primary.mtu {
                    return Err(("alternate", "mtu"));
                }
                Some(path)
            }
        };
        let cm = match roles.cm {
            None => None,
            Some(out) => Some(ends.path("CM", Way { out, back: None }, (out.sgid, out.dgid))?),
        };
        Ok(Paths { primary, alternate, cm })
    }
}

/// The name of an invalid path and of the field.
type Wrong = (&'static str, &'static str);

/// A path: the outbound record, and the inbound one if that differs.
#[derive(Clone, Copy)]
struct Way<'a> {
    out: &'a PathRecord,
    back: Option<&'a PathRecord>,
}

/// The purposes of the records.
struct Roles<'a> {
    cm: Option<&'a PathRecord>,
    primary: Option<Way<'a>>,
    alternate: Option<Way<'a>>,
}

impl<'a> Roles<'a> {
    fn of(records: &'a [PathData]) -> Result<Self, Wrong> {
        let mut cm = None;
        for data in records.iter().filter(|data| data.flags & PathData::GMP != 0) {
            once(&mut cm, &data.record, "CM")?;
        }
        let known = PathData::GMP | PathData::PRIMARY | PathData::ALTERNATE | DIRECTIONS;
        if records.iter().any(|data| data.flags & !known != 0 || data.flags == 0) {
            return Err(("any", "flags"));
        }
        let primary = way(records, PathData::PRIMARY, "primary")?;
        let alternate = way(records, PathData::ALTERNATE, "alternate")?;
        Ok(Self { cm, primary, alternate })
    }
}

const DIRECTIONS: u32 = PathData::OUTBOUND | PathData::INBOUND | PathData::INBOUND_REVERSE;

/// Returns the records of the primary or of the alternate path.
fn way<'a>(
    records: &'a [PathData],
    role: u32,
    name: &'static str,
) -> Result<Option<Way<'a>>, Wrong> {
    let (mut out, mut back, mut reverse) = (None, None, false);
    for data in records.iter().filter(|data| data.flags & role != 0) {
        match data.flags & DIRECTIONS {
            // Without a direction it is for both, as in the first programs with this option.
            0 => {
                once(&mut out, &data.record, name)?;
                reverse = true;
            }
            flags => {
                if flags & PathData::OUTBOUND != 0 {
                    once(&mut out, &data.record, name)?;
                    reverse |= flags & PathData::INBOUND_REVERSE != 0;
                }
                if flags & PathData::INBOUND != 0 {
                    once(&mut back, &data.record, name)?;
                }
                if flags == PathData::INBOUND_REVERSE {
                    return Err((name, "flags"));
                }
            }
        }
    }
    match (out, back) {
        (None, None) => Ok(None),
        // No record gives the peer's path, or two do.
        (None, Some(_)) => Err((name, "flags")),
        (Some(_), None) if !reverse => Err((name, "flags")),
        (Some(_), Some(_)) if reverse => Err((name, "flags")),
        (Some(out), back) => Ok(Some(Way { out, back })),
    }
}

fn once<'a>(
    place: &mut Option<&'a PathRecord>,
    record: &'a PathRecord,
    name: &'static str,
) -> Result<(), Wrong> {
    match place.replace(record) {
        None => Ok(()),
        Some(_) => Err((name, "flags")),
    }
}

/// The ends of paths.
struct Ends<'m> {
    device: &'m LocalAddress,
    by_address: &'m Path,
    manager: &'m Manager,
}

impl Ends<'_> {
    fn path(
        &self,
        name: &'static str,
        way: Way<'_>,
        (sgid, dgid): (Gid, Gid),
    ) -> Result<Path, Wrong> {
        let wrong = |field| Err((name, field));
        let out = way.out;
        if out.sgid != sgid {
            return wrong("sgid");
        }
        if out.dgid != dgid || dgid.is_zero() {
            return wrong("dgid");
        }
        if let Some(back) = way.back {
            self.same_both_ways(out, back).map_err(|field| (name, field))?;
        }
        let Some(mtu) = Mtu::from_code(out.mtu) else { return wrong("mtu") };
        let back_mtu = way.back.map_or(Some(mtu), |back| Mtu::from_code(back.mtu));
        let Some(back_mtu) = back_mtu else { return wrong("mtu") };
        let life = way.back.map_or(0, |back| back.packet_life_time).max(out.packet_life_time);
        let mtu = mtu.min(back_mtu);
        if mtu > self.device.mtu {
            return wrong("mtu");
        }
        let common = Path { mtu, packet_lifetime: life, ..*self.by_address };
        let path = if self.device.has_lids {
            self.by_lid(&common, out)
        } else {
            self.by_gid(&common, out)
        };
        let path = path.map_err(|field| (name, field))?;
        let back_lid = way.back.map_or(path.slid, |back| back.dlid);
        if self.device.has_lids
            && self.port(sgid).is_none_or(|port| port.path_bits(back_lid).is_none())
        {
            return wrong("dlid");
        }
        Ok(Path { back_lid, ..path })
    }

    /// Checks that the two directions agree in the fields that REQ has once.
    fn same_both_ways(&self, out: &PathRecord, back: &PathRecord) -> Result<(), &'static str> {
        let same = [
            ("sgid", out.sgid == back.dgid && out.dgid == back.sgid),
            ("slid", !self.device.has_lids || out.dlid == back.slid),
            ("sl", out.sl == back.sl),
            ("rate", out.rate == back.rate),
            ("pkey", (out.pkey.0 ^ back.pkey.0) & 0x7fff == 0),
            ("flow_label", out.flow_label == back.flow_label),
            ("tclass", out.tclass == back.tclass),
            ("hop_limit", out.hop_limit == back.hop_limit),
        ];
        same.into_iter().find(|(_, is_same)| !is_same).map_or(Ok(()), |(field, _)| Err(field))
    }

    /// Returns the port of the id's device that has a GID.
    fn port(&self, gid: Gid) -> Option<&crate::sink::DevicePort> {
        let device = self.device.device;
        let mut ports = self.manager.device_ports.iter().filter(|port| port.device == device);
        ports.find(|port| port.gid_index(gid).is_some())
    }

    fn by_lid(&self, common: &Path, record: &PathRecord) -> Result<Path, &'static str> {
        let port = self.port(record.sgid).ok_or("sgid")?;
        let src_path_bits = port.path_bits(record.slid).ok_or("slid")?;
        let is_global = record.hop_limit > 1;
        if !record.dlid.is_unicast() {
            return Err("dlid");
        }
        Ok(Path {
            local: record.sgid,
            slid: record.slid,
            av: AddressVector {
                is_global,
                dgid: record.dgid,
                sgid_index: port.gid_index(record.sgid).ok_or("sgid")?,
                flow_label: record.flow_label,
                hop_limit: record.hop_limit,
                traffic_class: record.tclass,
                dlid: record.dlid.0,
                sl: record.sl,
                src_path_bits,
                static_rate: record.rate.0,
                port_num: port.port_num,
            },
            pkey: record.pkey,
            pkey_index: port.pkey_index(record.pkey).ok_or("pkey")?,
            ..*common
        })
    }

    fn by_gid(&self, common: &Path, record: &PathRecord) -> Result<Path, &'static str> {
        let device = self.device.device;
        let own = |a: &&LocalAddress| a.device == device && a.gid == record.sgid;
        let own = self.manager.addresses.iter().find(own).ok_or("sgid")?;
        let port = self.manager.device_port(device, own.port_num);
        let has = |pkey| port.is_none_or(|port| port.pkey_index(pkey).is_some());
        if record.pkey.0 & 0x7fff != 0 && !has(record.pkey) {
            return Err("pkey");
        }
        let hop_limit = if record.hop_limit > 1 { record.hop_limit } else { common.av.hop_limit };
        let flow_label =
            if record.flow_label == 0 { common.av.flow_label } else { record.flow_label };
        Ok(Path {
            local: record.sgid,
            slid: Lid(0),
            av: AddressVector {
                is_global: true,
                dgid: record.dgid,
                sgid_index: own.sgid_index,
                flow_label,
                hop_limit,
                traffic_class: record.tclass,
                port_num: own.port_num,
                ..AddressVector::default()
            },
            ..*common
        })
    }
}
