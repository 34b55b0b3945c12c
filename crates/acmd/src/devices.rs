//! The host's devices: their contexts, and the description of their ports for the machine.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use rdmux::{Context, DeviceKind, GidEntry, Pkey, PortState};
use rdmux_acm::{Port, PortId, PortKind};
use rdmux_host::DeviceChoice;
use rdmux_wire::sa::Rate;

use crate::failures::Failures;
use crate::poller::{Interest, Poller, Token};
use crate::rest::Rest;

/// Time to wait before opening a device again: at first, and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Identifies a port of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct At {
    /// The device.
    pub(crate) kind: DeviceKind,
    /// The port, from 1.
    pub(crate) number: u8,
}

/// The current state of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The description for the machine.
    pub(crate) port: Port,
    /// The name of the port's device.
    pub(crate) device: String,
    /// The port's P_Key table, including empty entries.
    pub(crate) pkeys: Vec<Pkey>,
    /// The port's IP addresses.
    pub(crate) addresses: Vec<GidEntry>,
}

impl Seen {
    /// Returns the P_Key that `default` means: that of the table's first partition, as [`pkey`](Self::pkey) returns it, so that a
    /// line that names this partition by its key means the same endpoint.
    pub(crate) fn default_pkey(&self) -> Option<Pkey> {
        let first = self.pkeys.iter().copied().find(|pkey| pkey.0 & 0x7fff != 0)?;
        self.pkey(first).map(|(_, pkey)| pkey)
    }

    /// Returns the table's entry for this key's partition, and its index.
    pub(crate) fn pkey(&self, wanted: Pkey) -> Option<(u16, Pkey)> {
        let same = |pkey: &Pkey| pkey.0 & 0x7fff == wanted.0 & 0x7fff;
        let found = (0_u16..).zip(self.pkeys.iter().copied()).filter(|(_, pkey)| same(pkey));
        // A full member's key is preferred.
        found.max_by_key(|(index, pkey)| (pkey.0 & 0x8000, u16::MAX - index))
    }
}

/// A device.
enum Device {
    /// An open device.
    Open(Context, Drive),
    /// A device that is not open, and when to try again.
    Closed(Instant),
}

/// Time at which a device must be driven.
#[derive(Clone, Copy, Debug)]
struct Drive {
    /// The time at which it must be driven even without input.
    at: Option<Instant>,
    rest: Rest,
}

impl Drive {
    /// Returns when the device must be driven next, including the end of a rest.
    fn next(&self) -> Option<Instant> {
        self.at.into_iter().chain(self.rest.end()).min()
    }
}

/// The devices of a host.
pub(crate) struct Devices {
    host: String,
    devices: BTreeMap<DeviceKind, Device>,
    failures: Failures<DeviceKind>,
    ids: BTreeMap<At, PortId>,
}

impl Devices {
    /// Returns the devices of a host, none of them open yet.
    pub(crate) fn new(host: &str, choice: DeviceChoice) -> Self {
        let now = Instant::now();
        let closed = |kind: &DeviceKind| (*kind, Device::Closed(now));
        let devices = choice.kinds().iter().map(closed).collect();
        let failures = Failures::new(RETRY.0, RETRY.1);
        Self { host: host.to_owned(), devices, failures, ids: BTreeMap::new() }
    }

    /// Returns the context of a device, if it is open.
    pub(crate) fn context(&self, kind: DeviceKind) -> Option<&Context> {
        match self.devices.get(&kind)? {
            Device::Open(context, _) => Some(context),
            Device::Closed(_) => None,
        }
    }

    /// Returns the open contexts.
    pub(crate) fn contexts(&self) -> impl Iterator<Item = (DeviceKind, &Context)> {
        self.devices.keys().filter_map(|&kind| Some((kind, self.context(kind)?)))
    }

    /// Returns the device of a token.
    pub(crate) fn of_token(number: u64) -> Option<DeviceKind> {
        let kinds = DeviceChoice::All.kinds();
        kinds.iter().copied().find(|kind| u64::from(*kind as u8) == number)
    }

    /// Opens devices that are closed and whose pause is over. Returns whether any was opened.
    pub(crate) fn open(&mut self, now: Instant, poller: &Poller) -> bool {
        let mut opened = false;
        for (&kind, device) in &mut self.devices {
            let Device::Closed(until) = *device else { continue };
            if now < until {
                continue;
            }
            let context = Context::builder().host(&self.host).device(kind).driven().open();
            let watched = context.and_then(|context| {
                let (device, drive) = (Token::Device((kind as u8).into()), drive_token(kind));
                let watched = poller.add(&context, device, Interest::Read);
                let watched =
                    watched.and_then(|()| poller.add(context.drive_fd(), drive, Interest::Read));
                watched.map_err(|e| {
                    rdmux::Error::new(context.to_string(), "be watched", rdmux::Cause::Os(e))
                })?;
                Ok(context)
            });
            match watched {
                Ok(context) => {
                    tracing::info!("{context} is open");
                    let drive = Drive { at: Some(now), rest: Rest::default() };
                    *device = Device::Open(context, drive);
                    self.failures.end(&kind);
                    opened = true;
                }
                Err(e) => {
                    *device = Device::Closed(self.failures.tell(now, kind, &e));
                }
            }
        }
        opened
    }

    /// Forgets failures, so that those that continue are logged again, and has devices that cannot be opened tried again at once.
    pub(crate) fn forget_failures(&mut self, now: Instant) {
        self.failures.clear();
        for device in self.devices.values_mut() {
            if let Device::Closed(until) = device {
                *until = now;
            }
        }
    }

    /// Closes a failed device, to open it again later.
    pub(crate) fn close(&mut self, kind: DeviceKind, now: Instant, poller: &Poller) {
        if let Some(device) = self.devices.get_mut(&kind)
            && let Device::Open(context, _) = device
        {
            poller.remove(&*context);
            poller.remove(context.drive_fd());
            *device = Device::Closed(now + RETRY.0);
        }
    }

    /// Returns when to open a device again.
    pub(crate) fn next_try(&self) -> Option<Instant> {
        let until = |device: &Device| match device {
            Device::Open(..) => None,
            Device::Closed(until) => Some(*until),
        };
        self.devices.values().filter_map(until).min()
    }

    /// Drives a device.
    pub(crate) fn drive(&mut self, kind: DeviceKind, now: Instant, poller: &Poller) {
        if let Some(Device::Open(context, drive)) = self.devices.get_mut(&kind) {
            drive.at = context.drive().map(|pause| now + pause);
            if drive.rest.stop() {
                poller.change(context.drive_fd(), drive_token(kind), Interest::Read);
            }
        }
    }

    /// Records how many datagrams of a device were only for other hosts, and lets the device rest if that helps.
    pub(crate) fn rest(&mut self, kind: DeviceKind, others: u32, poller: &Poller) {
        if let Some(Device::Open(context, drive)) = self.devices.get_mut(&kind)
            && drive.rest.begin(Instant::now(), others)
        {
            poller.change(context.drive_fd(), drive_token(kind), Interest::Nothing);
        }
    }

    /// Returns whether many hosts send requests at this time.
    pub(crate) fn is_crowded(&self, now: Instant) -> bool {
        let is_crowded = |device: &Device| matches!(device, Device::Open(_, drive) if drive.rest.is_crowded(now));
        self.devices.values().any(is_crowded)
    }

    /// Returns the devices that must be driven now, even without input.
    pub(crate) fn due(&self, now: Instant) -> Vec<DeviceKind> {
        let is_due = |device: &Device| matches!(device, Device::Open(_, drive) if drive.next().is_some_and(|at| at <= now));
        self.devices.iter().filter(|(_, device)| is_due(device)).map(|(kind, _)| *kind).collect()
    }

    /// Returns when to open a device again, or to drive one without input.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let drive = |device: &Device| match device {
            Device::Open(_, drive) => drive.next(),
            Device::Closed(_) => None,
        };
        self.devices.values().filter_map(drive).chain(self.next_try()).min()
    }

    /// Returns the number of a port, which does not change.
    pub(crate) fn id(&mut self, at: At) -> PortId {
        let next = PortId(u16::try_from(self.ids.len() + 1).unwrap_or(u16::MAX));
        *self.ids.entry(at).or_insert(next)
    }

    /// Returns the ports of all open devices.
    pub(crate) fn see(&mut self) -> BTreeMap<At, Seen> {
        let mut all = BTreeMap::new();
        for (kind, context) in self.contexts() {
            for number in 1..=context.num_ports() {
                if let Some(seen) = see(context, kind, number) {
                    all.insert(At { kind, number }, seen);
                }
            }
        }
        all
    }
}

fn drive_token(kind: DeviceKind) -> Token {
    Token::Drive((kind as u8).into())
}

/// Returns a port of a device, or none if the device is gone.
fn see(context: &Context, kind: DeviceKind, number: u8) -> Option<Seen> {
    let attr = context.query_port_number(number).ok()?;
    let pkeys: Vec<Pkey> =
        (0..attr.pkey_tbl_len).map_while(|index| context.pkey(number, index).ok()).collect();
    let addresses: Vec<GidEntry> = context
        .addresses_of_port(number)
        .into_iter()
        .filter(|entry| !entry.gid.is_zero())
        .collect();
    let port_kind = match kind {
        DeviceKind::Ib => PortKind::InfiniBand,
        DeviceKind::Roce => PortKind::Roce,
        DeviceKind::Iwarp => PortKind::Iwarp,
    };
    let gids = match port_kind {
        PortKind::Iwarp => addresses.iter().map(|entry| entry.gid).collect(),
        _ => context.gids_of_port(number).iter().map(|entry| entry.gid).collect::<Vec<_>>(),
    };
    let mut had = BTreeSet::new();
    let gids = gids.into_iter().filter(|gid| !gid.is_zero() && had.insert(gid.0)).collect();
    let port = Port {
        kind: port_kind,
        is_active: attr.state == PortState::Active,
        device_guid: context.query().node_guid,
        number,
        count: context.num_ports(),
        lid: attr.lid,
        lmc: attr.lmc,
        sm_lid: attr.sm_lid,
        sm_sl: attr.sm_sl,
        gids,
        pkeys: pkeys.iter().copied().filter(|pkey| pkey.0 & 0x7fff != 0).collect(),
        rate: rate(attr.rate().1),
        mtu: attr.active_mtu,
        subnet_timeout: attr.subnet_timeout,
    };
    Some(Seen { port, device: context.name().to_owned(), pkeys, addresses })
}

/// Returns the code of a rate given in units of 100 Mb/s: the highest that does not exceed it.
fn rate(hundreds: u32) -> Rate {
    let mbps = hundreds.saturating_mul(100);
    let codes = (0..64).map(Rate).filter(|rate| (1..=mbps).contains(&rate.mbps()));
    codes.max_by_key(|rate| rate.mbps()).unwrap_or(Rate::GBPS_2_5)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(pkeys: &[u16]) -> Seen {
        let pkeys: Vec<_> = pkeys.iter().copied().map(Pkey).collect();
        let port = Port {
            kind: PortKind::InfiniBand,
            is_active: true,
            device_guid: rdmux::Guid(1),
            number: 1,
            count: 1,
            lid: rdmux::Lid(1),
            lmc: 0,
            sm_lid: rdmux::Lid(1),
            sm_sl: 0,
            gids: Vec::new(),
            pkeys: pkeys.clone(),
            rate: Rate::GBPS_100,
            mtu: rdmux::Mtu::M4096,
            subnet_timeout: 18,
        };
        Seen { port, device: "rdmux_ib0".to_owned(), pkeys, addresses: Vec::new() }
    }

    #[test]
    fn partition_is_found_with_either_membership_and_the_full_one_first() {
        let seen = seen(&[0, 0x7fff, 0x8012, 0x0012, 0xffff]);
        assert_eq!(seen.default_pkey(), Some(Pkey(0xffff)));
        assert_eq!(seen.pkey(Pkey(0x0012)), Some((2, Pkey(0x8012))));
        assert_eq!(seen.pkey(Pkey(0x7fff)), Some((4, Pkey(0xffff))));
        assert_eq!(seen.pkey(Pkey(0x8013)), None);
    }

    #[test]
    fn rate_has_the_code_of_the_highest_that_the_link_has() {
        assert_eq!(rate(1000), Rate::GBPS_100);
        assert_eq!(rate(25), Rate::GBPS_2_5);
        assert_eq!(rate(1010), Rate::GBPS_100);
        assert_eq!(rate(0), Rate::GBPS_2_5);
        // Two lanes of HDR; four of HDR, NDR and XDR. Rates end at 600 Gb/s.
        for (hundreds, gbps) in [(1000, 100), (2000, 200), (4000, 400), (8000, 600)] {
            assert_eq!(rate(hundreds).mbps(), gbps * 1000);
        }
    }

    #[test]
    fn poll_token_maps_to_its_device_kind() {
        for &kind in DeviceChoice::All.kinds() {
            assert_eq!(Devices::of_token((kind as u8).into()), Some(kind));
        }
        assert_eq!(Devices::of_token(200), None);
    }
}
