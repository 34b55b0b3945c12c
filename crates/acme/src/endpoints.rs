//! `-e`: the endpoints of a service.
//!
//! The protocol asks for one endpoint of one port, and has no word for "how many": endpoints are counted for each port
//! number, and the first answer tells how many ports there are.

use std::io;

use rdmux_acm_client::Endpoint as Described;
use rdmux_wire::acm::client::Query;
use serde::Serialize;

use crate::screen::Screen;
use crate::session::{Reply, Session, shown};

/// An endpoint, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Endpoint {
    pub(crate) guid: String,
    pub(crate) port: u8,
    pub(crate) pkey: String,
    pub(crate) index: u8,
    pub(crate) provider: String,
    pub(crate) addresses: Vec<String>,
}

/// Shows one endpoint, or all (0).
///
/// # Errors
/// When the output cannot be written.
pub(crate) fn list(session: &Session, wanted: u8, screen: &mut Screen<'_>) -> io::Result<()> {
    // Before anything is known, a device may have as many ports as a byte can say.
    let mut ports = u8::MAX;
    let mut has_any = false;
    for index in if wanted == 0 { 1..=u8::MAX } else { wanted..=wanted } {
        match of_index(session, index, &mut ports) {
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

/// The endpoints that have an index, of all ports.
fn of_index(session: &Session, index: u8, ports: &mut u8) -> Result<Vec<Endpoint>, String> {
    let mut found = Vec::new();
    let mut port = 1;
    let mut last = *ports;
    while port <= last {
        match session.ask(Query::Endpoint { index, port }) {
            Ok(Reply::Endpoint(Described { info, addresses })) => {
                last = info.phys_port_cnt;
                *ports = last;
                found.push(Endpoint {
                    guid: format!("{:#018x}", info.dev_guid.0),
                    port: info.port_num,
                    pkey: format!("{:#06x}", info.pkey.0),
                    index,
                    provider: shown(info.prov_name.as_bytes()),
                    addresses: addresses.iter().map(|text| shown(text.as_bytes())).collect(),
                });
            }
            Ok(_) => return Err("the answer is none about an endpoint".to_owned()),
            Err(failure) if failure.status().is_some() => {}
            Err(failure) => return Err(failure.to_string()),
        }
        let Some(next) = port.checked_add(1) else { break };
        port = next;
    }
    Ok(found)
}
