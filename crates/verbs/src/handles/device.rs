//! Calls of programs on a device: queries, asynchronous events, and polling.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rdmux_wire::Pkey;

pub use crate::engine::device::{Device, PORT};
use crate::handles::event::AsyncEvent;
use crate::objects::error::VerbsError;
use crate::objects::port::{PhysState, PortAttr, PortState};
use crate::objects::query::{DeviceAttr, VENDOR_ID};
use crate::objects::quota::{Counted, Permit};

impl Device {
    /// Returns the attributes of the device.
    pub fn query(&self) -> DeviceAttr {
        let info = self.control().info();
        let adapter = info.adapter.as_ref();
        // The adapters of a generated subnet have no vendor.
        let (vendor_id, vendor_part_id, hw_ver) = match adapter {
            Some(a) if a.vendor_id != 0 => (a.vendor_id, a.device_id.into(), a.revision),
            _ => (VENDOR_ID, 1, 1),
        };
        DeviceAttr {
            kind: info.kind,
            fw_ver: env!("CARGO_PKG_VERSION"),
            node_guid: info.node_guid,
            sys_image_guid: adapter.map_or(info.node_guid, |a| a.system_guid),
            // With on-demand paging the whole address space can be registered.
            max_mr_size: u64::MAX,
            page_size_cap: 0xffff_f000,
            vendor_id,
            vendor_part_id,
            hw_ver,
            limits: info.limits,
            phys_port_cnt: u8::try_from(info.ports.len()).unwrap_or(u8::MAX),
            // The value that the service sent at first: it does not change, and a child of fork(2) may query it, too.
            max_pkeys: info.ports.first().map_or(0, |port| port.attr.pkey_tbl_len),
            local_ca_ack_delay: info.kind.row().ack_delay,
        }
    }

    /// Returns the attributes of a port.
    ///
    /// # Errors
    ///
    /// EINVAL for a port that does not exist.
    pub fn query_port(&self, port: u8) -> Result<PortAttr, VerbsError> {
        let attr = self.port(port, |port| port.attr.clone());
        let attr = attr.ok_or_else(|| {
            VerbsError::invalid("query a port", format!("there is no port {port}"))
        })?;
        let (state, phys_state) = (PortState::Down, PhysState::Disabled);
        Ok(if self.has_failed() { PortAttr { state, phys_state, ..attr } } else { attr })
    }

    /// Returns the current entry of a port's P_Key table (`ibv_query_pkey(3)`).
    pub fn query_pkey(&self, port: u8, index: u16) -> Option<Pkey> {
        self.port(port, |port| port.pkeys.get(usize::from(index)).copied()).flatten()
    }

    /// Returns the device's name.
    pub fn name(&self) -> &str {
        &self.control().info().device
    }
    /// Returns the host's name.
    pub fn host(&self) -> &str {
        &self.control().info().host
    }

    /// Takes the next asynchronous event. Blocks unless `O_NONBLOCK` is set on the descriptor.
    ///
    /// # Errors
    ///
    /// EAGAIN on a non-blocking descriptor without an event.
    pub fn get_async_event(&self) -> Result<AsyncEvent, VerbsError> {
        self.events().get(AsyncEvent::of).map_err(VerbsError::os("wait for an event"))
    }
    /// Takes the next event, if there is one, without blocking.
    pub fn try_get_async_event(&self) -> Option<AsyncEvent> {
        self.events().try_get(AsyncEvent::of)
    }
    /// Takes an event whose eight-byte count the caller has already read from the descriptor. Returns none if the event was
    /// withdrawn meanwhile.
    pub fn take_counted_event(&self) -> Option<AsyncEvent> {
        self.events().take_counted(AsyncEvent::of)
    }
    /// Returns the descriptor that is readable while an asynchronous event is queued.
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        self.events().as_fd()
    }

    /// Processes the control events that the service has sent so far. Afterwards a queue pair has the stream that was made for it
    /// before the program learned of the connection.
    pub fn sync_control(self: &Arc<Self>) {
        self.engine().control_events(self);
    }

    /// Polls the device once: processes arrivals, runs timers and transmits what is pending. Polling an empty completion queue
    /// does the same.
    pub fn progress(self: &Arc<Self>) {
        self.engine().poll(self);
    }

    /// Sends acknowledgements that are held back to be piggybacked on the program's next message or poll. A thread calls this
    /// before it does other work: the sender's completion would otherwise be up to a millisecond late.
    pub fn acknowledge(self: &Arc<Self>) {
        self.engine().acknowledge(self);
    }

    /// Processes and acknowledges everything that has arrived. For a program that ends or disconnects and will not poll again:
    /// otherwise a peer retransmits until its retries are used up.
    pub fn drain(self: &Arc<Self>) {
        self.engine().drain(self);
    }

    /// Counts an object that the device does not create itself, until the permit is dropped. `what` names the operation in the
    /// error.
    ///
    /// # Errors
    ///
    /// ENOMEM when the limit in [`Limits`](crate::control::Limits) is reached.
    pub fn permit(&self, what: &'static str, kind: Counted) -> Result<Permit, VerbsError> {
        self.quota().take(what, kind)
    }
}
