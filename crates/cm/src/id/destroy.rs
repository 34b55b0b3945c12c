//! The command destroy, and the handling of closed channels and removed addresses.

use alloc::vec::Vec;

use rdmux_transport::Time;
use rdmux_wire::cm::SidrStatus;

use super::entry::{IdState, Link, Owns};
use super::mcast::leave_at_network;
use super::{EventBody, Manager};
use crate::error::{CmError, Command};
use crate::event::EventKind;
use crate::ib::sidr::SidrAnswer;
use crate::iw::StreamWish;
use crate::sink::{ChannelId, DevicePort, IdHandle, LocalAddress, Sink};

impl Manager {
    /// Destroys an id in any state (rdma_destroy_id(3)). Disconnects a connection and refuses a request,
    /// also the untaken requests of a listener. No events follow. Returns the number of events
    /// that the id had, with CONNECT_REQUESTs counted for the listener, so that the process can wait until it
    /// has acknowledged them.
    ///
    /// # Errors
    /// When there is no such id.
    pub fn destroy(
        &mut self,
        now: Time,
        id: IdHandle,
        sink: &mut impl Sink,
    ) -> Result<u32, CmError> {
        let command = Command::Destroy;
        self.take(id).map_err(|_| CmError::NoSuchId { id, command })?;
        self.cancel_path(id, sink);
        let Some(mut gone) = self.ids.remove(&id) else {
            return Err(CmError::NoSuchId { id, command });
        };
        for request in core::mem::take(&mut gone.requests) {
            let _events = self.destroy(now, request, sink);
        }
        self.leave_channel(gone.channel, id);
        self.timers.clear(&mut gone.deadline, id);
        if gone.state() == IdState::AddrQuery {
            sink.cancel_resolve(id);
        }
        match gone.owns {
            Owns::Nothing => {}
            Owns::Service => self.services.release(id),
            Owns::Port(ps, port) => {
                self.port_table(ps).release(port, id);
                if gone.state() == IdState::Listen {
                    self.held.listener_ended(now, port);
                }
            }
        }
        for (context, left) in core::mem::take(&mut gone.groups) {
            leave_at_network(id, &gone, context, &left, sink);
        }
        if gone.state() == IdState::Listen && gone.may_have_streams() {
            self.unlisten(id, sink);
        }
        self.unlink(now, gone.link, sink);
        Ok(gone.events)
    }

    /// Closes the listening sockets of an id that accepts streams.
    fn unlisten(&mut self, id: IdHandle, sink: &mut impl Sink) {
        sink.stream(StreamWish::Unlisten(id));
        self.iw.check_queue();
    }

    /// Releases a connection or lookup that no id owns any more.
    fn unlink(&mut self, now: Time, link: Link, sink: &mut impl Sink) {
        match link {
            Link::None => {}
            Link::Conn(conn) => self.cm.release(now, conn, sink),
            Link::Stream(stream) => self.iw.release(stream, sink),
            Link::Lookup(request) => self.cm.sidr_cancel(request),
            Link::LookedUp(key) => {
                self.cm.sidr_reply(now, key, &SidrAnswer::refusal(SidrStatus::REJECT), sink);
            }
        }
    }

    /// Destroys the ids of `channel`, whose process died or closed it. Their peers are informed
    /// at once.
    pub fn channel_gone(&mut self, now: Time, channel: ChannelId, sink: &mut impl Sink) {
        while let Some(&id) = self.channels.get(&channel).and_then(|ids| ids.first()) {
            let _events = self.destroy(now, id, sink);
        }
    }

    /// Sets the addresses that ids can have now. An id whose address is no longer among them gets an event.
    /// If the whole device is gone this is DEVICE_REMOVAL, and its connections end. Otherwise it is
    /// ADDR_CHANGE, once until the address is back, and its connections stay.
    pub fn set_addresses(&mut self, now: Time, addrs: Vec<LocalAddress>, sink: &mut impl Sink) {
        self.addresses = addrs;
        let lost = self.ids.iter_mut().filter_map(|(&id, i)| {
            let device = i.device.as_ref()?;
            let has = |a: &LocalAddress| a.ip == device.ip && a.device == device.device;
            let is_gid = |port: &DevicePort| {
                port.device == device.device
                    && device.has_lids
                    && device.ip == device.gid.ip()
                    && port.gid_index(device.gid).is_some()
            };
            let is_there = self.addresses.iter().any(has) || self.device_ports.iter().any(is_gid);
            let removed = !self.addresses.iter().any(|a| a.device == device.device);
            let was_told = core::mem::replace(&mut i.is_lost, !is_there);
            let is_news = !is_there && (removed || !was_told);
            (is_news && i.state() != IdState::DeviceRemoval).then_some((id, removed))
        });
        for (id, removed) in lost.collect::<Vec<(IdHandle, bool)>>() {
            self.lose_groups(now, id, sink);
            if removed {
                self.device_removed(now, id, sink);
            } else {
                self.emit(id, EventBody::new(EventKind::AddrChange), sink);
            }
        }
    }

    /// Sets the ports of this host's devices with their current tables. Paths already reported do not change.
    pub fn set_device_ports(&mut self, ports: Vec<DevicePort>) {
        self.device_ports = ports;
    }

    fn device_removed(&mut self, now: Time, id: IdHandle, sink: &mut impl Sink) {
        self.cancel_path(id, sink);
        let Some(found) = self.ids.get_mut(&id) else { return };
        let listened = found.state() == IdState::Listen && found.may_have_streams();
        if found.state() == IdState::AddrQuery {
            sink.cancel_resolve(id);
        }
        found.go(IdState::DeviceRemoval);
        let link = core::mem::replace(&mut found.link, Link::None);
        self.timers.clear(&mut found.deadline, id);
        if listened {
            self.unlisten(id, sink);
        }
        self.unlink(now, link, sink);
        self.emit(id, EventBody::new(EventKind::DeviceRemoval), sink);
    }
}
