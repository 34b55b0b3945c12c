//! The status of a service.

use std::io::Write;
use std::os::fd::OwnedFd;

use rdmux_verbs::control::DeviceKind;
use rdmux_verbs::counters::{Counter, IB_DROPS};
use rdmux_verbs::xrc::hub;

use super::clients::{Client, ClientId};
use super::core::Core;
use super::requests::failure;
use crate::proto::{
    ClientKind, ClientStatus, DomainStatus, Failure, HolderStatus, IdStatus, Response, Status,
    TargetStatus,
};

impl Core {
    /// Returns the status in a memfd, because it may be longer than a message.
    pub(super) fn tell_status(&self) -> Result<(Response, Vec<OwnedFd>), Failure> {
        let bytes = postcard::to_stdvec(&self.status())
            .map_err(|e| Failure::new(libc::ENOMEM, e.to_string()))?;
        let write = || -> std::io::Result<OwnedFd> {
            let flags = rustix::fs::MemfdFlags::CLOEXEC;
            let mut file = std::fs::File::from(rustix::fs::memfd_create("rdmux-status", flags)?);
            file.write_all(&bytes)?;
            std::io::Seek::rewind(&mut file)?;
            Ok(file.into())
        };
        let fd = write().map_err(|e| failure(&e))?;
        Ok((Response::Status(bytes.len() as u64), vec![fd]))
    }

    fn status(&self) -> Status {
        let device = |(id, c): &(ClientId, &Client)| {
            matches!(c.kind, Some(ClientKind::Device(_))) && !self.is_hub(*id)
        };
        let own = self.clients.iter().filter(device).any(|(_, c)| c.pid == own_pid());
        let devices = self.clients.iter().filter(device);
        let slots = self.slots.in_use() - self.hub_slots();
        let (mut xrc_domains, mut xrc_targets) = (Vec::new(), Vec::new());
        for (kind, hub) in self.hubs().filter_map(|(kind, thread)| Some((kind, thread.hub()?))) {
            let (domains, targets) = hub.status();
            xrc_domains.extend(domains.into_iter().map(|domain| domain_row(kind, domain)));
            xrc_targets.extend(targets.into_iter().map(|target| target_row(kind, target)));
        }
        Status {
            host: self.options.host.to_string(),
            pid: std::process::id(),
            uptime_ms: millis(self.started),
            embedded: own,
            node_guid: self.node_guid,
            gids: self.addresses.gids(),
            port: self.options.config.service.port,
            fabrics: self.adapter.status(),
            clients: devices.map(|(_, c)| self.client_status(c)).collect(),
            ids: self.id_status(),
            groups: [self.groups.status(), self.adapter.groups()].concat(),
            xrc_domains,
            xrc_targets,
            device_counters: self.device_counters(),
            service_counters: self.counts.all(),
            cm_counters: self.cm_counters(),
            slots: u32::try_from(slots).unwrap_or(u32::MAX),
            rings: u32::try_from(self.rings.len() + self.host_rings.len()).unwrap_or(u32::MAX),
        }
    }

    /// Returns all devices' counters, including the service's own drops of packets for no process, or for all members of a
    /// group.
    fn device_counters(&self) -> Vec<(String, u64)> {
        let mut all = self.clients.counters();
        let drops: Vec<_> = self.adapter.iter().map(|adapter| adapter.data.drops()).collect();
        let words = Counter::ALL.iter().map(|counter| *counter as usize);
        for (word, (_, value)) in words.zip(&mut all) {
            let Some(at) = word.checked_sub(IB_DROPS) else { continue };
            let own: u64 = drops.iter().filter_map(|drops| drops.get(at)).sum();
            *value = value.wrapping_add(own);
        }
        all
    }

    pub(super) fn client_status(&self, client: &Client) -> ClientStatus {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        ClientStatus {
            pid: client.pid,
            comm: client.comm.clone(),
            device: client.device_kind().unwrap_or_default().device_name().to_owned(),
            slots: client.slots.clone(),
            qps: client.counter(Counter::QpsOpen),
            channels: count(client.channels.len()),
            ids: count(client.channels.iter().map(|c| self.manager.ids_in(*c)).sum()),
            uptime_ms: millis(client.since),
        }
    }

    fn id_status(&self) -> Vec<IdStatus> {
        let row = |id| {
            let info = self.manager.query(id).ok()?;
            let owner = self.channels.get(&info.channel).map(|c| c.owner);
            let pid = owner.and_then(|o| self.clients.get(o)).map_or(0, |c| c.pid);
            Some(IdStatus {
                id: id.0,
                pid,
                space: format!("{:?}", info.port_space),
                state: info.state.to_string(),
                src: info.local.map(|addr| addr.to_string()),
                dst: info.peer.map(|addr| addr.to_string()),
            })
        };
        self.manager.ids().filter_map(row).collect()
    }
}

impl Core {
    fn cm_counters(&self) -> Vec<(String, u64)> {
        let c = self.manager.counters();
        let iw = self.manager.stream_counters();
        [
            ("cm_mads_sent", c.mads_sent),
            ("cm_mads_retried", c.mads_retried),
            ("cm_mads_received", c.mads_received),
            ("cm_duplicates", c.duplicates),
            ("cm_drop_length", c.bad_length),
            ("cm_drop_version", c.bad_version),
            ("cm_drop_class", c.bad_class),
            ("cm_drop_class_version", c.bad_class_version),
            ("cm_drop_method", c.bad_method),
            ("cm_drop_attribute", c.bad_attribute),
            ("cm_drop_field", c.bad_field),
            ("cm_drop_unknown_connection", c.unknown_connection),
            ("cm_drop_unexpected", c.unexpected),
            ("cm_refused_no_listener", c.no_listener),
            ("cm_drop_backlog_full", c.backlog_full),
            ("cm_refused_stale", c.stale),
            ("cm_established", c.established),
            ("cm_timeouts", c.timeouts),
            ("cm_redirected", c.redirected),
            ("cm_refused_laps", c.laps_refused),
            ("cm_drop_floods", c.floods),
            ("cm_sidr_forgotten", c.sidr_forgotten),
            ("cm_timewait_forgotten", c.timewait_forgotten),
            ("iw_frames_sent", iw.frames_sent),
            ("iw_frames_received", iw.frames_received),
            ("iw_established", iw.established),
            ("iw_fallbacks", iw.fallbacks),
            ("iw_rtrs", iw.rtrs),
            ("iw_drop_request", iw.bad_request),
            ("iw_drop_reply", iw.bad_reply),
            ("iw_drop_rtr", iw.bad_rtr),
            ("iw_refused_no_listener", iw.no_listener),
            ("iw_drop_silent", iw.silent),
            ("iw_drop_shed", iw.shed),
            ("iw_timeouts", iw.timeouts),
            ("iw_streams_pending", self.streams.len() as u64),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }
}

fn domain_row(kind: DeviceKind, domain: hub::DomainStatus) -> DomainStatus {
    let hub::DomainStatus { id, file, pids, srqs } = domain;
    DomainStatus { device: kind.device_name().to_owned(), id, file, pids, srqs: srqs as u64 }
}

fn target_row(kind: DeviceKind, target: hub::TargetStatus) -> TargetStatus {
    let hub::TargetStatus { qpn, domain, now, holders } = target;
    let holder = |holder: hub::HolderStatus| {
        let hub::HolderStatus { pid, comm, handles, registered } = holder;
        HolderStatus { pid, comm, handles, registered }
    };
    TargetStatus {
        device: kind.device_name().to_owned(),
        qpn: qpn.get(),
        domain,
        state: now.as_ref().map_or_else(|| "busy".to_owned(), |now| format!("{:?}", now.state)),
        dest_qpn: now.as_ref().map_or(0, |now| now.dest_qpn.get()),
        bytes: now.as_ref().map_or(0, |now| now.bytes as u64),
        holders: holders.into_iter().map(holder).collect(),
    }
}

fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

fn millis(since: std::time::Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
