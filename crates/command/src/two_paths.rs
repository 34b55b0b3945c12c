//! A connection along given path records that can migrate to the alternate path, without any query. Commands that show
//! migration share it.

use std::time::Duration;

use anyhow::{Context as _, Result};
use rdmux::cm::{
    ConnParam, EventChannel, EventKind, IbAddr, Id, IdOption, PathData, PathRecord, PortSpace,
    ServiceId,
};
use rdmux::{Context, Gid, Lid, Mtu, Pkey, Qp, QpType};

use crate::cmutil::expect;

/// An end of a path.
pub type Place = (Gid, Lid);

/// Returns the record of a path, reversible; `role` is [`PathData::PRIMARY`] or [`PathData::ALTERNATE`].
pub fn record(role: u32, [from, to]: [Place; 2]) -> PathData {
    let record = PathRecord {
        sgid: from.0,
        dgid: to.0,
        slid: from.1,
        dlid: to.1,
        pkey: Pkey::DEFAULT,
        mtu: Mtu::M1024.code(),
        packet_life_time: 8,
        ..PathRecord::default()
    };
    PathData { flags: role | PathData::BIDIRECTIONAL, record }
}

/// Both ends of a connection, the connecting end first.
pub struct Connected {
    /// The ids.
    pub ids: [Id; 2],
    /// The channels of their events.
    pub channels: [EventChannel; 2],
}

/// Connects a queue pair of each context along `records`, the first of which is the primary path, to a service of the second
/// context. Both ids have these options, and each event may take at most `timeout`.
///
/// # Errors
/// When a step fails.
pub fn connect(
    contexts: [&Context; 2],
    qps: [&Qp; 2],
    (service, records): (ServiceId, &[PathData]),
    (param, options): (&ConnParam, &[IdOption]),
    timeout: Duration,
) -> Result<Connected> {
    let [a, b] = contexts;
    let channels = [EventChannel::new(a)?, EventChannel::new(b)?];
    let next = |end: usize, kind| expect(&channels[end], kind, "connect along paths", timeout);
    let listener = Id::with_type(&channels[1], PortSpace::Ib, QpType::Rc)?;
    let active = Id::with_type(&channels[0], PortSpace::Ib, QpType::Rc)?;
    for id in [&listener, &active] {
        options.iter().try_for_each(|option| id.set_option(*option))?;
    }
    listener.bind(IbAddr::new(Gid::ZERO, service))?;
    listener.listen(1)?;
    let to = records.first().context("no path record was given")?.record.dgid;
    active.resolve_along(None, IbAddr::new(to, service), records)?;
    next(0, EventKind::RouteResolved)?;
    active.attach_qp(qps[0])?;
    active.connect(param)?;
    let passive = next(1, EventKind::ConnectRequest)?
        .take_id()
        .context("the connection request has no id")?;
    passive.attach_qp(qps[1])?;
    passive.accept(param)?;
    next(0, EventKind::Established)?;
    next(1, EventKind::Established)?;
    Ok(Connected { ids: [active, passive], channels })
}
