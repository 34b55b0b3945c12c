//! Resolves names to IP addresses with the C library's getaddrinfo(3), which finds virtual hosts by their names.

use std::net::IpAddr;

use dns_lookup::{AddrInfo, AddrInfoHints, LookupError};
use rdmux_cm::PortSpace;
use rdmux_transport::attr::QpType;

use super::{Answer, Family, Hints, ResolveError};
use crate::names::{Registry, RuntimeDir};

/// Returns the addresses of a node and a service, in the C library's order.
pub(super) fn answers(
    dir: Option<&RuntimeDir>,
    node: Option<&str>,
    service: Option<&str>,
    hints: Option<&Hints>,
) -> Result<Vec<Answer>, ResolveError> {
    let asked = hints.copied().unwrap_or_default();
    let name = node.filter(|_| !asked.numeric_host);
    let known = dir.zip(name).and_then(|(dir, name)| Registry::look_up(dir, name));
    let address = known.as_ref().map(IpAddr::to_string);
    let host = address.as_deref().or(node);
    let found = look_up(host, service, hints.map(|hints| for_c(node.is_none(), hints)))?;
    Ok(found.iter().map(|found| answer(found, &asked)).collect())
}

/// Returns the port of a service.
pub(super) fn port(service: Option<&str>, hints: &Hints) -> Result<u16, ResolveError> {
    if service.is_none() {
        return Ok(0);
    }
    let any = Hints { passive: true, family: Some(Family::Ipv4), ..*hints };
    let found = look_up(None, service, Some(for_c(true, &any)))?;
    Ok(found.first().map_or(0, |found| found.sockaddr.port()))
}

fn look_up(
    node: Option<&str>,
    service: Option<&str>,
    hints: Option<AddrInfoHints>,
) -> Result<Vec<AddrInfo>, ResolveError> {
    let what = || match (node, service) {
        (Some(node), Some(service)) => format!("\"{node}\", service \"{service}\""),
        (Some(one), None) | (None, Some(one)) => format!("\"{one}\""),
        (None, None) => "nothing".to_owned(),
    };
    let failed = |error: LookupError| {
        // The error code is 0 if the C library was not called.
        let code = Some(error.error_num()).filter(|code| *code != 0).unwrap_or(libc::EAI_NONAME);
        ResolveError::Lookup { what: what(), code, source: error.into() }
    };
    let found = dns_lookup::getaddrinfo(node, service, hints).map_err(failed)?;
    // Addresses other than IP addresses are skipped.
    let found: Vec<AddrInfo> = found.filter_map(Result::ok).collect();
    if found.is_empty() {
        return Err(failed(LookupError::new(libc::EAI_NONAME)));
    }
    Ok(found)
}

/// Converts the hints to those of getaddrinfo(3).
fn for_c(is_without_node: bool, hints: &Hints) -> AddrInfoHints {
    let mut flags = 0;
    if hints.passive {
        flags |= libc::AI_PASSIVE;
    }
    if hints.numeric_host {
        flags |= libc::AI_NUMERICHOST;
    }
    let address = match hints.family {
        Some(Family::Ipv4) => libc::AF_INET,
        Some(Family::Ipv6) => libc::AF_INET6,
        Some(Family::Other(family)) => family,
        // The first answer is 0.0.0.0 in any case. Sorting it before `::` takes the C library longer than a
        // client needs to connect, and some clients connect right after a handshake with this program.
        None | Some(Family::Ib) if is_without_node && hints.passive => libc::AF_INET,
        None | Some(Family::Ib) => libc::AF_UNSPEC,
    };
    let socktype = match hints.qp_type {
        None => 0,
        Some(QpType::Ud) => libc::SOCK_DGRAM,
        Some(_) => libc::SOCK_STREAM,
    };
    let protocol = match (hints.port_space, socktype) {
        (Some(PortSpace::Tcp), _) | (Some(PortSpace::Ib), libc::SOCK_STREAM) => libc::IPPROTO_TCP,
        (Some(PortSpace::Udp | PortSpace::IpoIb), _) | (Some(PortSpace::Ib), libc::SOCK_DGRAM) => {
            libc::IPPROTO_UDP
        }
        _ => 0,
    };
    AddrInfoHints { flags, address, socktype, protocol }
}

fn answer(found: &AddrInfo, asked: &Hints) -> Answer {
    let by_type = match found.socktype {
        libc::SOCK_STREAM => Some(QpType::Rc),
        libc::SOCK_DGRAM => Some(QpType::Ud),
        _ => None,
    };
    let by_protocol = match found.protocol {
        libc::IPPROTO_TCP => Some(PortSpace::Tcp),
        libc::IPPROTO_UDP => Some(PortSpace::Udp),
        _ => None,
    };
    let addr = Some(found.sockaddr.into());
    let (src, dst) = if asked.passive { (addr, None) } else { (asked.src, addr) };
    Answer {
        passive: asked.passive,
        port_space: asked.port_space.or(by_protocol),
        qp_type: asked.qp_type.or(by_type),
        src,
        dst,
        ..Answer::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(node: Option<&str>, service: Option<&str>, hints: &Hints) -> Vec<Answer> {
        answers(None, node, service, Some(hints)).unwrap()
    }

    #[test]
    fn hints_choose_transport_and_port_space() {
        let connections = of(Some("127.0.0.1"), Some("7174"), &Hints::default());
        let first = &connections[0];
        assert_eq!((first.port_space, first.qp_type), (Some(PortSpace::Tcp), Some(QpType::Rc)));
        assert_eq!(first.dst.unwrap().to_string(), "127.0.0.1:7174");
        let hints = Hints { qp_type: Some(QpType::Ud), ..Hints::default() };
        let datagrams = of(Some("127.0.0.1"), Some("7174"), &hints);
        assert_eq!(datagrams[0].port_space, Some(PortSpace::Udp));
        let hints = Hints { port_space: Some(PortSpace::Ib), passive: true, ..Hints::default() };
        let listener = &of(None, Some("7"), &hints)[0];
        assert_eq!((listener.port_space, listener.dst), (Some(PortSpace::Ib), None));
        assert_eq!(listener.src.unwrap().to_string(), "0.0.0.0:7");
    }

    #[test]
    fn errors_are_those_of_getaddrinfo() {
        let numeric = Hints { numeric_host: true, ..Hints::default() };
        let error = answers(None, Some("localhost"), None, Some(&numeric)).unwrap_err();
        assert_eq!((error.eai(), error.errno()), (Some(libc::EAI_NONAME), libc::ENOENT));
        assert!(error.to_string().contains("\"localhost\""), "{error}");
        for (node, service) in [(None, None), (Some("a\0b"), None)] {
            let error = answers(None, node, service, None).unwrap_err();
            assert_eq!(error.eai(), Some(libc::EAI_NONAME), "{error}");
        }
        let other = Hints { family: Some(Family::Other(99)), ..Hints::default() };
        let error = answers(None, Some("127.0.0.1"), None, Some(&other)).unwrap_err();
        assert_eq!((error.eai(), error.errno()), (Some(libc::EAI_FAMILY), libc::EAFNOSUPPORT));
    }
}
