//! Resolves names to addresses and, on InfiniBand and RoCE, to GIDs and paths, for use by connections. This layer makes no
//! connections itself.
//!
//! An [`Answer`] has everything that a connection needs: port space, both addresses, paths, and a prefix of its private data.
//! [`Options::connect_along`](crate::Options::connect_along) uses it unchanged, on any kind of device:
//!
//! ```
//! use rdmux::resolver::{Hints, Resolver};
//! use rdmux::{Context, Options};
//!
//! # fn main() -> rdmux::Result<()> {
//! # let context = Context::builder().embedded().open()?;
//! let mut listener = Options::new().context(&context).bind((context.address()?, 0).into())?;
//! let port = listener.local_addr().port().to_string();
//! let node = context.address()?.to_string(); // or a name
//! let server = std::thread::spawn(move || {
//!     let mut peer = listener.accept()?;
//!     while let Some(message) = peer.recv()? {
//!         peer.send(&message)?;
//!     }
//!     rdmux::Result::Ok(())
//! });
//!
//! let hints = Hints { native: true, ..Hints::default() };
//! let answers = Resolver::new(&context).resolve(Some(&node), Some(&port), &hints)?;
//! for answer in &answers {
//!     println!("{} by {} paths", answer.dst.expect("an address"), answer.paths.len());
//! }
//! let mut connection = Options::new().context(&context).connect_along(&answers[0])?;
//! connection.send(b"hello")?;
//! assert_eq!(connection.recv()?.as_deref(), Some(&b"hello"[..]));
//! connection.close()?;
//! server.join().unwrap()
//! # }
//! ```
//!
//! The C equivalent is `rdma_getaddrinfo(3)` with `RDMUX_RAI_NATIVE` of `<rdmux/cm.h>`.

use std::fmt;
use std::net::SocketAddr;

pub use rdmux_host::ServiceKey;
use rdmux_host::resolver::{self as host, ResolveError};
pub use rdmux_host::resolver::{Answer, Family, Hints};

use crate::Context;
use crate::error::{Attempt as _, Cause, Result};

/// Resolves names for connections over a context's device.
#[derive(Clone)]
pub struct Resolver {
    context: Context,
    resolver: host::Resolver,
}

impl Resolver {
    /// Returns a resolver for a context's device and host.
    pub fn new(context: &Context) -> Self {
        let resolver = host::Resolver::new(context.client().clone(), &[context.kind()]);
        let resolver = resolver.names_of(context.options().dir.clone());
        Self { context: context.clone(), resolver }
    }

    /// Resolves a node and a service like getaddrinfo(3), and returns at least one answer, the best first. With
    /// [`Hints::native`] the first has a GID and a path, if the device has them, and those with IP addresses follow.
    ///
    /// Blocks for as long as the name service does, and up to 2 s each for the neighbour and the path.
    ///
    /// # Errors
    /// When the name service has no address, or the host service is gone. A peer that does not answer is not an
    /// error: the answers then have IP addresses only.
    pub fn resolve(
        &self,
        node: Option<&str>,
        service: Option<&str>,
        hints: &Hints,
    ) -> Result<Vec<Answer>> {
        self.resolver.resolve(node, service, Some(hints)).on(self, "resolve a name")
    }

    /// Returns the native address of an IP address with the path to it, followed by the IP address itself.
    pub fn resolve_addr(&self, to: SocketAddr, hints: &Hints) -> Vec<Answer> {
        self.resolver.resolve_addr(to, hints)
    }

    /// Returns subnet administration's services of a name or a service ID, queried through this port of an InfiniBand device. They
    /// have no paths.
    ///
    /// # Errors
    /// When no such service exists, or subnet administration does not answer within 2 s.
    pub fn services(&self, port: u8, service: &ServiceKey) -> Result<Vec<Answer>> {
        let gid = self.context.device().gid(port, 0).map(|entry| entry.gid);
        let no_gid = || Cause::Invalid(format!("port {port} has no GID"));
        let gid = gid.ok_or_else(no_gid).on(self, "look for a service")?;
        self.resolver.services(gid, service).on(self, "look for a service")
    }
}

/// Async forms of the above. A thread of the runtime for blocking calls does the work, and finishes it if the future is
/// dropped.
#[cfg(feature = "tokio")]
impl Resolver {
    /// Async form of [`resolve`](Self::resolve).
    ///
    /// # Errors
    /// As for [`resolve`](Self::resolve), or outside a tokio runtime.
    pub async fn resolve_async(
        &self,
        node: Option<&str>,
        service: Option<&str>,
        hints: &Hints,
    ) -> Result<Vec<Answer>> {
        let (node, service) = (node.map(str::to_owned), service.map(str::to_owned));
        let hints = *hints;
        let resolve = move |this: Self| this.resolve(node.as_deref(), service.as_deref(), &hints);
        self.on_thread("resolve a name", resolve).await
    }

    /// Async form of [`services`](Self::services).
    ///
    /// # Errors
    /// As for [`services`](Self::services), or outside a tokio runtime.
    pub async fn services_async(&self, port: u8, service: &ServiceKey) -> Result<Vec<Answer>> {
        let service = service.clone();
        self.on_thread("look for a service", move |this| this.services(port, &service)).await
    }

    async fn on_thread(
        &self,
        asked: &'static str,
        work: impl FnOnce(Self) -> Result<Vec<Answer>> + Send + 'static,
    ) -> Result<Vec<Answer>> {
        crate::wait::in_runtime().on(self, asked)?;
        let this = self.clone();
        let done = tokio::task::spawn_blocking(move || work(this)).await;
        done.map_err(std::io::Error::other).on(self, asked)?
    }
}

impl fmt::Display for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "resolver of host {}", self.context.host())
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Resolver({})", self.context.host())
    }
}

impl From<ResolveError> for Cause {
    fn from(error: ResolveError) -> Self {
        match error {
            ResolveError::Host(error) => error.into(),
            other => Self::Unresolved(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use rdmux_cm::{Addr, PortSpace};
    use rdmux_host::HostName;
    use rdmux_host::client::admin;
    use rdmux_wire::mad::{Method, MgmtClass};
    use rdmux_wire::sa::{self, SaMad, ServiceRecord, ServiceRecordMask};
    use rdmux_wire::{Pkey, ServiceId};

    use super::*;
    use crate::umad::{Address, AgentAttr, Fabric, Port};
    use crate::{DeviceKind, Listener, Options, PortState, QpType};

    mod acm;

    const NATIVE: Hints = Hints {
        passive: false,
        numeric_host: false,
        no_route: false,
        native: true,
        family: None,
        port_space: None,
        qp_type: None,
        src: None,
    };

    fn infiniband() -> [Context; 2] {
        let fabric = Fabric::managed("switch:3").unwrap();
        ["a", "b"].map(|host| {
            let builder = Context::builder().embedded().fabric(&fabric).host(host);
            let context = builder.device(DeviceKind::Ib).open().unwrap();
            while context.query_port().unwrap().state != PortState::Active {
                context.next_event(None).unwrap();
            }
            context
        })
    }

    fn alone(kind: DeviceKind) -> [Context; 2] {
        let context = Context::builder().embedded().device(kind).open().unwrap();
        [context.clone(), context]
    }

    fn listener(context: &Context) -> Listener {
        let at = (context.address().unwrap(), 0).into();
        Options::new().context(context).bind(at).unwrap()
    }

    /// Resolves a listener's address from another host, as a program does.
    fn found(from: &Context, to: &Listener) -> Vec<Answer> {
        let (node, service) =
            (to.local_addr().ip().to_string(), to.local_addr().port().to_string());
        Resolver::new(from).resolve(Some(&node), Some(&service), &NATIVE).unwrap()
    }

    /// Connects with a resolved answer and nothing else.
    fn connects(from: &Context, to: &Answer, listener: &mut Listener) {
        let (context, to) = (from.clone(), to.clone());
        let client = std::thread::spawn(move || {
            let options = Options::new().context(&context).private_data(*b"who I am");
            let mut connection = options.connect_along(&to).unwrap();
            connection.send(b"found").unwrap();
            connection.close().unwrap();
        });
        let mut connection = listener.accept().unwrap();
        assert_eq!(connection.private_data()[..8], *b"who I am");
        assert_eq!(connection.recv().unwrap().as_deref(), Some(&b"found"[..]));
        assert_eq!(connection.recv().unwrap(), None);
        client.join().unwrap();
    }

    #[test]
    fn resolved_addresses_connect_over_infiniband_roce_and_iwarp() {
        for ([a, b], has_gid) in [
            (infiniband(), true),
            (alone(DeviceKind::Roce), true),
            (alone(DeviceKind::Iwarp), false),
        ] {
            let mut listener = listener(&b);
            let answers = found(&a, &listener);
            let [first, .., last] = &answers[..] else { panic!("one answer: {answers:?}") };
            assert_eq!(first.dst.unwrap().ib().is_some(), has_gid, "{first:?}");
            assert_eq!(
                (first.paths.len(), first.connect.len()),
                if has_gid { (1, 36) } else { (0, 0) }
            );
            assert_eq!(last.dst.unwrap().socket(), Some(listener.local_addr()));
            for answer in [first, last] {
                assert!(answer.port_space == Some(PortSpace::Tcp) || answer == last);
                connects(&a, answer, &mut listener);
            }
        }
    }

    /// Returns how many queries a host has sent to its subnet, to neighbours and to administration.
    fn questions(of: &Context) -> u64 {
        let status = admin::status(&of.options().dir, &HostName::new(of.host()).unwrap()).unwrap();
        let names =
            ["tx_address_resolutions", "sa_answers", "sa_timeouts"].map(|n| format!("service_{n}"));
        names.iter().map(|name| status.counter(name).unwrap()).sum()
    }

    #[test]
    fn connecting_with_given_paths_sends_no_sa_query() {
        let [a, b] = infiniband();
        let mut listener = listener(&b);
        let native = found(&a, &listener).swap_remove(0);
        let before = questions(&a);
        for _ in 0..10 {
            connects(&a, &native, &mut listener);
        }
        // The peer learns the path back from the request itself.
        assert_eq!(questions(&a), before);
        let by_ip = Answer { dst: Some(listener.local_addr().into()), ..Answer::default() };
        connects(&a, &by_ip, &mut listener);
        assert!(questions(&a) > before, "they are counted");
    }

    #[test]
    fn address_without_listener_resolves_and_rejects_with_reason_8() {
        let [a, b] = infiniband();
        let to = (b.address().unwrap(), 7).into();
        let answer = Resolver::new(&a).resolve_addr(to, &NATIVE).swap_remove(0);
        let refused = Options::new().context(&a).connect_along(&answer).unwrap_err();
        assert!(matches!(refused.cause(), Cause::Rejected { reason: 8, .. }), "{refused}");
    }

    #[test]
    fn answers_for_datagrams_make_no_connection() {
        let [a, b] = alone(DeviceKind::Roce);
        let listener = listener(&b);
        let answer = Answer { dst: Some(listener.local_addr().into()), ..Answer::default() };
        let others = [
            Answer { port_space: Some(PortSpace::Udp), ..answer.clone() },
            Answer { port_space: Some(PortSpace::IpoIb), ..answer.clone() },
            Answer { qp_type: Some(QpType::Ud), ..answer.clone() },
            Answer { qp_type: Some(QpType::Uc), ..answer },
        ];
        for answer in others {
            let options = Options::new().context(&a).timeout(std::time::Duration::ZERO);
            let refused = options.connect_along(&answer).unwrap_err();
            assert!(matches!(refused.cause(), Cause::Invalid(_)), "{answer:?}: {refused}");
        }
    }

    #[test]
    fn failing_resolver_leaves_the_ip_address() {
        // There is no fabric, and so no GID of any peer.
        let context = Context::builder().embedded().device(DeviceKind::Ib).open().unwrap();
        let resolver = Resolver::new(&context);
        let answers = resolver.resolve(Some("127.77.255.254"), Some("7"), &NATIVE).unwrap();
        assert!(answers.iter().all(|answer| answer.dst.unwrap().socket().is_some()), "{answers:?}");
        let error = resolver.resolve(Some("no.such.name.invalid"), None, &NATIVE).unwrap_err();
        assert!(matches!(error.cause(), Cause::Unresolved(_)), "{error}");
        assert!(error.to_string().contains("\"no.such.name.invalid\""), "{error}");
    }

    fn register(context: &Context, name: &str, sid: u64) {
        let record = ServiceRecord {
            service_id: ServiceId(sid),
            service_gid: context.gid(0).unwrap(),
            service_pkey: Pkey::DEFAULT,
            service_lease: u32::MAX,
            service_name: name.into(),
            ..ServiceRecord::default()
        }
        .to_bytes();
        let mut mad = SaMad::new(Method::SET, ServiceRecord::ATTR_ID, &record);
        mad.sa.component_mask = (ServiceRecordMask::SERVICE_ID
            | ServiceRecordMask::SERVICE_GID
            | ServiceRecordMask::SERVICE_PKEY
            | ServiceRecordMask::SERVICE_LEASE
            | ServiceRecordMask::SERVICE_NAME)
            .bits();
        let agent = AgentAttr::new(MgmtClass::SUBN_ADM, sa::CLASS_VERSION);
        let mut client = Port::open(context, 1).unwrap().client(&agent).unwrap();
        let manager = Address::gsi(context.query_port().unwrap().sm_lid);
        let answer = client.ask(&manager, &mad.to_bytes()).unwrap();
        assert_eq!(SaMad::parse(&answer.mad).unwrap().header.status, 0);
    }

    #[test]
    fn services_are_found_by_name_and_by_id() {
        let [a, b] = infiniband();
        let ids = [0x1000_0000_dead_0001, 0x1000_0000_dead_0002, 0x1000_0000_dead_0003];
        for sid in ids {
            register(&b, "storage", sid);
        }
        let resolver = Resolver::new(&a);
        let sids = |answers: &[Answer]| {
            let mut sids: Vec<u64> =
                answers.iter().map(|a| a.dst.unwrap().ib().unwrap().sid.0).collect();
            sids.sort_unstable();
            sids
        };
        let all = resolver.services(1, &ServiceKey::parse("storage")).unwrap();
        assert_eq!(sids(&all), ids);
        for answer in &all {
            let (src, dst) = (answer.src.unwrap(), answer.dst.unwrap());
            let gid = |addr: &Addr| addr.ib().unwrap().gid;
            assert_eq!((gid(&src), gid(&dst)), (a.gid(0).unwrap(), b.gid(0).unwrap()));
            assert_eq!(answer.port_space, Some(PortSpace::Ib));
        }
        let one = resolver.services(1, &ServiceKey::parse("0x10000000dead0002")).unwrap();
        assert_eq!(sids(&one), ids[1..2]);
        let none = resolver.services(1, &ServiceKey::parse("nowhere")).unwrap_err();
        assert_eq!(none.cause().kind(), std::io::ErrorKind::NotFound, "{none}");
        let roce = Context::builder().embedded().open().unwrap();
        assert!(Resolver::new(&roce).services(1, &ServiceKey::parse("storage")).is_err());
    }
}
