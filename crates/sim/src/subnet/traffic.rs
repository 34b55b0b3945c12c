//! Datagrams in flight: between the subnet, the managers, and the agents of administration and of programs.

use std::time::Duration;

use rand::Rng;
use rdmux_subnet::manager::{Event as Told, Manager};
use rdmux_subnet::service::Service;
use rdmux_subnet::umad::{Errno, FileId, Umad, Unsent, UserAddress, UserMad};
use rdmux_subnet::{MadPacket, PortId, Subnet};
use rdmux_wire::Qpn;
use rdmux_wire::mad::{MadHeader, Method, MgmtClass};
use rdmux_wire::sm::SmState;

use super::device::Agents;
use super::world::{Event, Out, World};

impl World {
    pub(super) fn arrive(&mut self, at: PortId, packet: &MadPacket) -> Result<(), String> {
        let now = self.agenda.now();
        let seat = self.seats.iter().position(|seat| seat.port == at && seat.manager.is_some());
        // The manager's own requests have no agent in the upper half of their transaction IDs.
        let is_for_agent = MadHeader::parse(&packet.mad[..])
            .is_ok_and(|h| h.method == Method::GET_RESP && h.tid >> 32 != 0);
        match seat {
            Some(index) if packet.dst_qpn == Qpn::QP0 && !is_for_agent => {
                let from = UserAddress::smi(packet.slid);
                self.with(index, |manager, _, out| manager.handle_mad(now, &from, &packet.mad, out))
            }
            _ => self.device(|umad, ports, agents| umad.arrived(now, at, packet, ports, agents)),
        }
    }

    /// Calls a running manager.
    pub(super) fn with(
        &mut self,
        index: usize,
        f: impl FnOnce(&mut Manager, Option<&mut Service>, &mut Out),
    ) -> Result<(), String> {
        let now = self.agenda.now();
        let seat = &mut self.seats[index];
        let (port, file, mut out) = (seat.port, seat.file, Out::default());
        let Some(manager) = &mut seat.manager else { return Ok(()) };
        f(manager, seat.service.as_mut(), &mut out);
        let mut written = Vec::new();
        if let Some(service) = &mut seat.service {
            for told in &out.told {
                service.handle_event(now, manager, told);
            }
            written.extend(std::iter::from_fn(|| service.next_mad()));
        }
        for told in out.told {
            self.trace(|| format!("manager {index}: {told:?}"));
            match told {
                Told::SweepEnded(report) => {
                    self.stats.sweeps += 1;
                    self.stats.problems += report.problem_count;
                }
                Told::State(SmState::MASTER) => self.stats.masters += 1,
                _ => {}
            }
        }
        for (to, mad) in out.sent {
            let is_set = |header: MadHeader| header.method == Method::SET;
            if MadHeader::parse(&mad[..]).is_ok_and(is_set) && !self.is_due_to_liar(port, &mad) {
                self.sets += 1;
            }
            self.travel(Event::Transmit { from: port, to, mad });
        }
        for mad in written {
            self.sets += u64::from(mad.data.get(1) == Some(&MgmtClass::SUBN_DIRECTED.0));
            let back = Unsent::of(&mad);
            // For example because the port has lost its LID.
            if let (Err(why), Some(back)) = (self.write(file, mad)?, back)
                && let Some(service) = &mut self.seats[index].service
            {
                service.handle_unsent(&back.record(why));
            }
        }
        Ok(())
    }

    /// Calls the device and executes its output.
    pub(super) fn device<R>(
        &mut self,
        act: impl FnOnce(&mut Umad, &Subnet, &mut Agents) -> R,
    ) -> Result<R, String> {
        let mut agents = Agents::default();
        let result = act(&mut self.umad, &self.subnet, &mut agents);
        self.passed(agents)?;
        Ok(result)
    }

    /// Writes to the file of a program or of administration.
    pub(super) fn write(
        &mut self,
        file: FileId,
        mad: UserMad,
    ) -> Result<Result<(), Errno>, String> {
        let (now, mut agents) = (self.agenda.now(), Agents::default());
        let result = self.umad.write(now, file, mad, &self.subnet, &mut agents);
        self.passed(agents)?;
        Ok(result)
    }

    /// Executes the output of the device.
    fn passed(&mut self, agents: Agents) -> Result<(), String> {
        for (from, packet) in agents.sent {
            self.travel(Event::Depart { from, packet });
        }
        for (file, mad) in agents.read {
            let now = self.agenda.now();
            let seat = self.seats.iter().position(|s| s.file == file && s.manager.is_some());
            match seat {
                Some(index) if Service::is_asked(&mad) => {
                    self.with(index, |manager, service, _| {
                        if let Some(service) = service {
                            service.handle_mad(now, manager, &mad);
                        }
                    })?
                }
                // A response to a request of administration's own, such as the Set of an alias.
                Some(_) => {}
                None => self.program_reads(file, mad)?,
            }
        }
        Ok(())
    }

    /// Delays a datagram, or loses it.
    pub(super) fn travel(&mut self, event: Event) {
        self.stats.datagrams += 1;
        let mixed = self.agenda.now().0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.stats.fingerprint = self.stats.fingerprint.rotate_left(7) ^ mixed;
        if self.lossy && self.rng.random_bool(self.scenario.loss) {
            self.stats.lost += 1;
            return;
        }
        let delay = self.rng.random_range(Duration::ZERO..=self.scenario.delay);
        self.agenda.after(delay, event);
    }
}
