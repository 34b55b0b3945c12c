//! Passes management datagrams between the service's ports and the agents.

use std::net::{IpAddr, SocketAddr};

use rdmux_cm::{MadPath, Time};
use rdmux_verbs::control::DeviceKind;
use rdmux_verbs::kind;
use rdmux_wire::mad::MAD_LEN;
use rdmux_wire::{Qkey, Qpn};

use super::clients::{Client, ClientId};
use super::core::Core;
use super::counters::Count;
use super::mad::{Due, Owner};
use super::ports::{self, PortId};
use crate::proto::{MadAddress, Notify};

impl Core {
    /// Handles a datagram for a queue pair of a kind of device that arrived at a socket other than its owner's: the kernel
    /// merges packets of several owners, and a socket may have been bound after the packet arrived.
    pub(super) fn process_stray(
        &mut self,
        (kind, qpn): (DeviceKind, Qpn),
        src: SocketAddr,
        dst: IpAddr,
        bytes: &[u8],
    ) {
        let is_of_kind = |&id: &ClientId| {
            self.clients.get(id).and_then(Client::device_kind).is_some_and(|of| of == kind)
        };
        let Some(owner) = self.owner_of(kind, qpn).filter(is_of_kind) else {
            return self.counts.add(Count::DropNoQp);
        };
        let stray = Notify::Stray { src, dst, bytes: bytes.to_vec() };
        let told = self.offer(owner, &stray);
        self.counts.add(if told { Count::Strays } else { Count::StraysLost });
    }

    /// Passes a management datagram that arrived at QP1 of a port to its agent.
    pub(super) fn process_mad(
        &mut self,
        port: PortId,
        path: &MadPath,
        mad: &[u8],
    ) -> Result<(), Count> {
        self.counts.add(Count::RxMads);
        if self.process_kinds(path, mad) {
            return Ok(());
        }
        let (number, owner) = self.agents.dispatch(port, Qpn::QP1, mad)?;
        match owner {
            Owner::Cm => {
                let now = self.now();
                self.manager.handle_mad(now, path, mad, &mut self.outbox);
            }
            Owner::Client(client) => {
                let (local, remote, qpn) = (path.local, path.remote(), path.remote_qpn);
                self.notify_mad(
                    client,
                    number,
                    MadAddress { local, remote, qpn, qkey: Qkey::QP1 },
                    0,
                    mad,
                );
            }
        }
        Ok(())
    }

    /// Delivers a management datagram that this host sent to itself.
    pub(super) fn deliver_mad(&mut self, port: PortId, path: &MadPath, mad: &[u8; MAD_LEN]) {
        if let Err(reason) = self.process_mad(port, path, mad) {
            self.counts.add(reason);
        }
    }

    /// Notifies a client of a datagram, or of one that got no response.
    fn notify_mad(
        &mut self,
        client: ClientId,
        agent: u32,
        from: MadAddress,
        errno: i32,
        mad: &[u8],
    ) {
        let notify = Notify::Mad { agent, from, errno, mad: mad.to_vec() };
        if errno == 0 {
            self.offer(client, &notify);
        } else {
            self.notify(client, &notify, Vec::new());
        }
    }

    /// Sends datagrams again that got no response, or reports that none arrived.
    pub(super) fn resend_mads(&mut self, now: Time) {
        for due in self.agents.handle_timeout(now) {
            match due {
                Due::Retry { port, to, mad } => self.send_agent_mad(port, &to, &mad),
                Due::Expired { agent, client, to, mad } => {
                    self.counts.add(Count::MadTimeouts);
                    self.notify_mad(client, agent, to, libc::ETIMEDOUT, &mad[..]);
                }
            }
        }
    }

    /// Sends an agent's datagram.
    pub(super) fn send_agent_mad(&mut self, port: PortId, to: &MadAddress, mad: &[u8; MAD_LEN]) {
        let path =
            MadPath { remote_qpn: to.qpn, ..MadPath::between(to.local.ip(), to.remote.ip()) };
        ports::of(port.device).send_mad(self, &path, to.qkey, mad);
    }

    /// Sends a datagram of the connection manager.
    pub(super) fn send_cm_mad(&mut self, path: &MadPath, mad: &[u8; MAD_LEN]) {
        match kind::numbered(path.device) {
            Some(kind) => ports::of(kind).send_mad(self, path, Qkey::QP1, mad),
            None => self.counts.add(Count::TxErrors),
        }
    }
}
