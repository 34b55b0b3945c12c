//! Common code of librdmacm's tests: a host of their own, the C functions, and short names for the steps of every program.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::missing_safety_doc,
    clippy::undocumented_unsafe_blocks,
    reason = "each test takes what it needs; the functions are C's, and the tests pass them what they made"
)]

#[path = "../../src/abi/cma.rs"]
#[allow(non_camel_case_types, non_snake_case, missing_docs)]
pub mod cma;
#[path = "../../src/abi/verbs.rs"]
#[allow(non_camel_case_types, non_snake_case, missing_docs)]
pub mod verbs;

use std::ffi::{c_char, c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ptr::{null, null_mut};
use std::sync::{LazyLock, Mutex, OnceLock};
use std::time::{Duration, Instant};

use libc::{sockaddr, sockaddr_in, sockaddr_in6, sockaddr_storage};
use rdmux_capi as _;
use rdmux_host::names::{HostName, RuntimeDir};
use rdmux_host::service::{Service, ServiceHandle, ServiceOptions};
use rdmux_testing::{TempDir, temp_dir};

pub use cma::*;
pub use verbs::*;

unsafe extern "C-unwind" {
    pub fn rdma_get_cm_event(
        channel: *mut rdma_event_channel,
        event: *mut *mut rdma_cm_event,
    ) -> c_int;
}
unsafe extern "C" {
    pub fn rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context;
    pub fn rdma_free_devices(list: *mut *mut ibv_context);
    pub fn rdma_create_event_channel() -> *mut rdma_event_channel;
    pub fn rdma_destroy_event_channel(channel: *mut rdma_event_channel);
    pub fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int;
    pub fn rdma_event_str(event: rdma_cm_event_type) -> *const c_char;
    pub fn rdma_write_cm_event(
        id: *mut rdma_cm_id,
        event: rdma_cm_event_type,
        status: c_int,
        arg: u64,
    ) -> c_int;
    pub fn rdma_create_id(
        channel: *mut rdma_event_channel,
        id: *mut *mut rdma_cm_id,
        context: *mut c_void,
        ps: rdma_port_space,
    ) -> c_int;
    pub fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int;
    pub fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int;
    pub fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int;
    pub fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int;
    pub fn rdma_resolve_addr(
        id: *mut rdma_cm_id,
        src: *mut sockaddr,
        dst: *mut sockaddr,
        timeout_ms: c_int,
    ) -> c_int;
    pub fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int;
    pub fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16;
    pub fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16;
    pub fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int;
    pub fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int;
    pub fn rdma_reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int;
    pub fn rdma_reject_ece(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int;
    pub fn rdma_establish(id: *mut rdma_cm_id) -> c_int;
    pub fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int;
    pub fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int;
    pub fn rdma_init_qp_attr(
        id: *mut rdma_cm_id,
        attr: *mut ibv_qp_attr,
        mask: *mut c_int,
    ) -> c_int;
    pub fn rdma_create_qp(
        id: *mut rdma_cm_id,
        pd: *mut ibv_pd,
        attr: *mut ibv_qp_init_attr,
    ) -> c_int;
    pub fn rdma_destroy_qp(id: *mut rdma_cm_id);
    pub fn rdma_create_srq(
        id: *mut rdma_cm_id,
        pd: *mut ibv_pd,
        attr: *mut ibv_srq_init_attr,
    ) -> c_int;
    pub fn rdma_destroy_srq(id: *mut rdma_cm_id);
    pub fn rdma_create_ep(
        id: *mut *mut rdma_cm_id,
        res: *mut rdma_addrinfo,
        pd: *mut ibv_pd,
        attr: *mut ibv_qp_init_attr,
    ) -> c_int;
    pub fn rdma_destroy_ep(id: *mut rdma_cm_id);
    pub fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int;
    pub fn rdma_getaddrinfo(
        node: *const c_char,
        service: *const c_char,
        hints: *const rdma_addrinfo,
        res: *mut *mut rdma_addrinfo,
    ) -> c_int;
    pub fn rdma_freeaddrinfo(res: *mut rdma_addrinfo);
    pub fn rdma_resolve_addrinfo(
        id: *mut rdma_cm_id,
        node: *const c_char,
        service: *const c_char,
        hints: *const rdma_addrinfo,
    ) -> c_int;
    pub fn rdma_query_addrinfo(id: *mut rdma_cm_id, info: *mut *mut rdma_addrinfo) -> c_int;
    pub fn rdma_join_multicast(
        id: *mut rdma_cm_id,
        addr: *mut sockaddr,
        context: *mut c_void,
    ) -> c_int;
    pub fn rdma_join_multicast_ex(
        id: *mut rdma_cm_id,
        attr: *mut rdma_cm_join_mc_attr_ex,
        context: *mut c_void,
    ) -> c_int;
    pub fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int;
    pub fn rdma_set_option(
        id: *mut rdma_cm_id,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        len: usize,
    ) -> c_int;
    pub fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int;
    pub fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int;
    pub fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;

    pub fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int;
    pub fn ibv_create_cq(
        context: *mut ibv_context,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: *mut ibv_comp_channel,
        vector: c_int,
    ) -> *mut ibv_cq;
    pub fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    pub fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
    pub fn ibv_query_qp(
        qp: *mut ibv_qp,
        attr: *mut ibv_qp_attr,
        mask: c_int,
        init: *mut ibv_qp_init_attr,
    ) -> c_int;
    pub fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    pub fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    pub fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, len: usize, access: c_int)
    -> *mut ibv_mr;
    pub fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
}

/// The test's host: a service in a thread, on a loopback address that is otherwise unused, in a directory of its own.
pub struct Host {
    /// The host's address.
    pub ip: Ipv4Addr,
    folder: TempDir,
    service: Mutex<Option<ServiceHandle>>,
}

/// Removes the directory when the process exits, because statics are never dropped.
extern "C" fn remove_folder() {
    let _ = std::fs::remove_dir_all(HOST.folder.path());
}

/// A further address of the test's host, if a test sets it before all else.
pub static FURTHER: OnceLock<IpAddr> = OnceLock::new();

static HOST: LazyLock<Host> = LazyLock::new(|| {
    let folder = temp_dir();
    let runtime = RuntimeDir::at(folder.path()).unwrap();
    let name = HostName::new("test").unwrap();
    let mut options = ServiceOptions::new(name, runtime);
    let mut spread = std::process::id();
    let (ip, service) = loop {
        spread = spread.wrapping_mul(0x9e37_79b1).wrapping_add(1);
        let [a, b, ..] = spread.to_be_bytes();
        let ip = Ipv4Addr::new(127, 79, a, b.clamp(1, 254));
        options.addresses = Some([IpAddr::V4(ip)].iter().chain(FURTHER.get()).copied().collect());
        if let Ok(service) = Service::spawn(options.clone()) {
            break (ip, service);
        }
    };
    // Every test starts here, before it calls anything that reads the environment.
    unsafe {
        std::env::set_var("RDMUX_RUNTIME_DIR", folder.path());
        std::env::set_var("RDMUX_HOST", "test");
        assert_eq!(libc::atexit(remove_folder), 0);
    }
    Host { ip, folder, service: Mutex::new(Some(service)) }
});

/// Returns the address of the test's host.
pub fn ip() -> Ipv4Addr {
    HOST.ip
}

/// Ends the service of the test's host.
pub fn end_service() {
    let service = HOST.service.lock().unwrap().take().expect("it runs");
    service.stop().unwrap();
}

/// A socket address in C's form.
pub struct Addr(sockaddr_storage);

impl Addr {
    /// Creates an IPv4 address with a port.
    pub fn new(ip: Ipv4Addr, port: u16) -> Self {
        unsafe {
            let mut storage: sockaddr_storage = std::mem::zeroed();
            let v4 = (&raw mut storage).cast::<sockaddr_in>();
            (*v4).sin_family = libc::AF_INET.try_into().unwrap();
            (*v4).sin_port = port.to_be();
            (*v4).sin_addr.s_addr = u32::from(ip).to_be();
            Self(storage)
        }
    }
    /// Creates an IPv6 address without a port.
    pub fn ip6(ip: Ipv6Addr) -> Self {
        unsafe {
            let mut storage: sockaddr_storage = std::mem::zeroed();
            let v6 = (&raw mut storage).cast::<sockaddr_in6>();
            (*v6).sin6_family = libc::AF_INET6.try_into().unwrap();
            (*v6).sin6_addr.s6_addr = ip.octets();
            Self(storage)
        }
    }
    /// Returns the pointer for C functions.
    pub fn ptr(&mut self) -> *mut sockaddr {
        (&raw mut self.0).cast()
    }
}

/// Returns the IPv4 address and port at a C pointer.
pub unsafe fn read(addr: *const sockaddr_storage) -> SocketAddr {
    unsafe {
        let v4 = addr.cast::<sockaddr_in>().read();
        assert_eq!(c_int::from(v4.sin_family), libc::AF_INET);
        let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
        SocketAddr::new(ip.into(), u16::from_be(v4.sin_port))
    }
}

/// Returns the thread's errno.
pub fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Asserts that a call failed with this errno.
#[track_caller]
pub fn fails(result: c_int, expected: c_int) {
    let errno = errno();
    assert_eq!((result, errno), (-1, expected));
}

/// Asserts that a call succeeded.
#[track_caller]
pub fn ok(result: c_int) {
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// An event channel.
pub struct Channel(pub *mut rdma_event_channel);

impl Channel {
    /// Creates a channel, and the test's host if there is none yet.
    pub fn new() -> Self {
        let _ = ip();
        let channel = unsafe { rdma_create_event_channel() };
        assert!(!channel.is_null(), "{}", std::io::Error::last_os_error());
        Self(channel)
    }
    /// Returns the channel's descriptor.
    pub fn fd(&self) -> c_int {
        unsafe { (*self.0).fd }
    }
    /// Returns whether the channel's descriptor polls as readable.
    pub fn is_readable(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.fd(), events: libc::POLLIN, revents: 0 };
        (unsafe { libc::poll(&raw mut poll, 1, 0) }) == 1
    }
    /// Creates an id on the channel.
    pub fn id(&self, space: rdma_port_space) -> *mut rdma_cm_id {
        let mut id = null_mut();
        ok(unsafe { rdma_create_id(self.0, &raw mut id, 0x77 as *mut c_void, space) });
        id
    }
    /// Creates a listening id. Returns its port too.
    pub fn listener(&self, space: rdma_port_space) -> (*mut rdma_cm_id, u16) {
        let id = self.id(space);
        unsafe {
            ok(rdma_bind_addr(id, Addr::new(ip(), 0).ptr()));
            ok(rdma_listen(id, 8));
            (id, u16::from_be(rdma_get_src_port(id)))
        }
    }
    /// Creates an id whose address and route are resolved.
    pub fn resolved(&self, space: rdma_port_space, port: u16) -> *mut rdma_cm_id {
        let id = self.id(space);
        unsafe {
            ok(rdma_resolve_addr(id, null_mut(), Addr::new(ip(), port).ptr(), 2000));
            self.expect(RDMA_CM_EVENT_ADDR_RESOLVED).ack();
            ok(rdma_resolve_route(id, 2000));
            self.expect(RDMA_CM_EVENT_ROUTE_RESOLVED).ack();
        }
        id
    }
    /// Waits for the next event.
    pub fn event(&self) -> Event {
        let mut event = null_mut();
        ok(unsafe { rdma_get_cm_event(self.0, &raw mut event) });
        Event(event)
    }
    /// Waits for the next event, which must be of this kind.
    #[track_caller]
    pub fn expect(&self, kind: rdma_cm_event_type) -> Event {
        let event = self.event();
        assert_eq!((event.kind(), event.status()), (kind, 0));
        event
    }
    /// Destroys the channel.
    pub fn destroy(self) {
        unsafe { rdma_destroy_event_channel(self.0) }
    }
}

/// An event that is not acknowledged yet.
pub struct Event(pub *mut rdma_cm_event);

unsafe impl Send for Event {}

impl Event {
    /// Returns a copy of the event.
    pub fn get(&self) -> rdma_cm_event {
        unsafe { *self.0 }
    }
    /// Returns the event's kind.
    pub fn kind(&self) -> rdma_cm_event_type {
        self.get().event
    }
    /// Returns the event's status.
    pub fn status(&self) -> c_int {
        self.get().status
    }
    /// Returns the event's id.
    pub fn id(&self) -> *mut rdma_cm_id {
        self.get().id
    }
    /// Returns the parameters of a connection's event.
    pub fn conn(&self) -> rdma_conn_param {
        unsafe { self.get().param.conn }
    }
    /// Returns the parameters of a datagram id's event.
    pub fn ud(&self) -> rdma_ud_param {
        unsafe { self.get().param.ud }
    }
    /// Returns the private data of a connection's event.
    pub fn data(&self) -> Vec<u8> {
        let conn = self.conn();
        let len = usize::from(conn.private_data_len);
        unsafe { std::slice::from_raw_parts(conn.private_data.cast(), len).to_vec() }
    }
    /// Acknowledges the event.
    pub fn ack(self) {
        ok(unsafe { rdma_ack_cm_event(self.0) });
    }
}

/// An id passed to another thread.
#[derive(Clone, Copy)]
pub struct Id(pub *mut rdma_cm_id);
unsafe impl Send for Id {}

impl Id {
    /// Returns the pointer.
    pub fn get(self) -> *mut rdma_cm_id {
        self.0
    }
}

/// Returns attributes of a small queue pair.
pub fn qp_attr(qp_type: ibv_qp_type) -> ibv_qp_init_attr {
    let cap = ibv_qp_cap {
        max_send_wr: 8,
        max_recv_wr: 8,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: 16,
    };
    ibv_qp_init_attr {
        qp_context: null_mut(),
        send_cq: null_mut(),
        recv_cq: null_mut(),
        srq: null_mut(),
        cap,
        qp_type,
        sq_sig_all: 1,
    }
}

/// Returns connection parameters with these private data.
pub fn conn_param(data: &[u8]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: data.as_ptr().cast(),
        private_data_len: data.len().try_into().unwrap(),
        responder_resources: 2,
        initiator_depth: 3,
        flow_control: 0,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: 0,
        qp_num: 0,
    }
}

/// Creates a small queue pair for an id, in its default domain.
pub unsafe fn create_qp(id: *mut rdma_cm_id) {
    unsafe { ok(rdma_create_qp(id, null_mut(), &mut qp_attr((*id).qp_type))) }
}

/// Returns the state of a queue pair.
pub unsafe fn qp_state(qp: *mut ibv_qp) -> ibv_qp_state {
    unsafe {
        let (mut attr, mut init) = (std::mem::zeroed(), std::mem::zeroed());
        ok(ibv_query_qp(qp, &raw mut attr, IBV_QP_STATE.cast_signed(), &raw mut init));
        attr.qp_state
    }
}

/// Memory registered in an id's domain.
pub struct Buffer {
    /// The memory.
    pub bytes: Box<[u8; 64]>,
    mr: *mut ibv_mr,
}

impl Buffer {
    /// Registers zeroed memory in a domain.
    pub unsafe fn new(pd: *mut ibv_pd) -> Self {
        let mut bytes = Box::new([0; 64]);
        let access = IBV_ACCESS_LOCAL_WRITE.cast_signed();
        let mr = unsafe { ibv_reg_mr(pd, bytes.as_mut_ptr().cast(), 64, access) };
        assert!(!mr.is_null());
        Self { bytes, mr }
    }
    fn sge(&mut self) -> ibv_sge {
        let lkey = unsafe { (*self.mr).lkey };
        ibv_sge { addr: self.bytes.as_mut_ptr() as u64, length: 64, lkey }
    }
    /// Posts a receive into the whole memory.
    pub unsafe fn post_recv(&mut self, qp: *mut ibv_qp) {
        unsafe {
            let mut sge = self.sge();
            let mut wr: ibv_recv_wr = std::mem::zeroed();
            (wr.sg_list, wr.num_sge) = (&raw mut sge, 1);
            let mut bad = null_mut();
            let post = (*(*qp).context).ops.post_recv.unwrap();
            ok(post(qp, &raw mut wr, &raw mut bad));
        }
    }
    /// Sends the first 16 bytes, to a datagram peer if there is one.
    pub unsafe fn post_send(&mut self, qp: *mut ibv_qp) {
        unsafe {
            let mut sge = ibv_sge { length: 16, ..self.sge() };
            let mut wr: ibv_send_wr = std::mem::zeroed();
            (wr.sg_list, wr.num_sge, wr.opcode) = (&raw mut sge, 1, IBV_WR_SEND);
            let mut bad = null_mut();
            let post = (*(*qp).context).ops.post_send.unwrap();
            ok(post(qp, &raw mut wr, &raw mut bad));
        }
    }
    /// Deregisters the memory.
    pub unsafe fn free(self) {
        ok(unsafe { ibv_dereg_mr(self.mr) });
    }
}

/// The timeout for expected events, long enough for an overloaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for the next completion.
pub unsafe fn poll(cq: *mut ibv_cq) -> ibv_wc {
    let since = Instant::now();
    unsafe {
        let mut wc: ibv_wc = std::mem::zeroed();
        let poll = (*(*cq).context).ops.poll_cq.unwrap();
        loop {
            match poll(cq, 1, &raw mut wc) {
                0 => {
                    assert!(since.elapsed() < PATIENCE, "no completion");
                    std::thread::yield_now();
                }
                n => {
                    assert_eq!(n, 1);
                    return wc;
                }
            }
        }
    }
}

/// Hints without any values.
pub const NO_HINTS: *const rdma_addrinfo = null();
