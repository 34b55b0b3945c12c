//! `-e`: the endpoints of a service.
//!
//! The protocol queries one endpoint of one port, and cannot query their number. Endpoints are counted for each port
//! number, and each answer gives the number of ports of its device. Port 0 stands for all ports, so the endpoints of all
//! devices contain the number of port numbers to query.

use std::io;

use rdmux_acm_client::Endpoint as Described;
use rdmux_wire::acm::client::Query;
use serde::Serialize;

use crate::screen::Screen;
use crate::session::{Reply, Session, shown};

/// An endpoint, as displayed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Endpoint {
    pub(crate) guid: String,
    pub(crate) port: u8,
    pub(crate) pkey: String,
    pub(crate) index: u8,
    pub(crate) provider: String,
    pub(crate) addresses: Vec<String>,
}

/// Lists one endpoint, or all (0).
///
/// # Errors
/// When the output cannot be written.
pub(crate) fn list(session: &Session, wanted: u8, screen: &mut Screen<'_>) -> io::Result<()> {
    let ports = match ports(session) {
        Ok(ports) => ports,
        Err(why) => return screen.failed(&format!("{}: {why}", session.name())),
    };
    let mut has_any = false;
    for index in if wanted == 0 { 1..=u8::MAX } else { wanted..=wanted } {
        match of_index(session, index, ports) {
            Ok(endpoints) if endpoints.is_empty() => break,
            Ok(endpoints) => {
                has_any = true;
                let service = session.name().to_owned();
                endpoints.into_iter().try_for_each(|e| screen.endpoint(&service, e))?;
            }
            Err(why) => return screen.failed(&format!("{}: {why}", session.name())),
        }
    }
    if wanted != 0 && !has_any {
        screen.no_endpoint(session.name(), wanted)?;
    }
    Ok(())
}

/// Returns the largest number of ports of a device with an endpoint, or the maximum of a byte if there is no
/// endpoint.
fn ports(session: &Session) -> Result<u8, String> {
    let mut most = None;
    for index in 1..=u8::MAX {
        let Some(Described { info, .. }) = ask(session, index, 0)? else { break };
        most = most.max(Some(info.phys_port_cnt.max(info.port_num)));
    }
    Ok(most.unwrap_or(u8::MAX))
}

/// Returns the endpoints that have an index, of all ports.
fn of_index(session: &Session, index: u8, ports: u8) -> Result<Vec<Endpoint>, String> {
    let mut found = Vec::new();
    for port in 1..=ports {
        let Some(Described { info, addresses }) = ask(session, index, port)? else { continue };
        found.push(Endpoint {
            guid: format!("{:#018x}", info.dev_guid.0),
            port: info.port_num,
            pkey: format!("{:#06x}", info.pkey.0),
            index,
            provider: shown(info.prov_name.as_bytes()),
            addresses: addresses.iter().map(|text| shown(text.as_bytes())).collect(),
        });
    }
    Ok(found)
}

/// Queries an endpoint of a port. Returns none if the port has no such endpoint.
fn ask(session: &Session, index: u8, port: u8) -> Result<Option<Described>, String> {
    match session.ask(Query::Endpoint { index, port }) {
        Ok(Reply::Endpoint(endpoint)) => Ok(Some(endpoint)),
        Ok(_) => Err("the answer does not describe an endpoint".to_owned()),
        Err(failure) if failure.status().is_some() => Ok(None),
        Err(failure) => Err(failure.to_string()),
    }
}
