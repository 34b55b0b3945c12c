//! Datagrams to a group of IPv6 (<rdmux/multicast.h>), over RoCE at an IPv6 address.
//!
//! Needs the privilege to create a network namespace, and `ip` of iproute2, because loopback interfaces have no IPv6 multicast. Without
//! them the test reports that it was skipped.
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "C functions, passed what the test itself made"
)]

mod cm_common;

use std::ffi::c_int;
use std::net::Ipv6Addr;
use std::process::Command;
use std::thread;

use cm_common::*;
use libc::{ipv6_mreq, sockaddr};

unsafe extern "C" {
    fn rdma_sendto(id: *mut rdma_cm_id, wr: *mut ibv_send_wr, to: *mut sockaddr) -> c_int;
}

const OWN: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0x77, 1);
const GROUP: Ipv6Addr = Ipv6Addr::new(0xff1e, 0, 0, 0, 0, 0, 0, 0x77);
const OTHER: Ipv6Addr = Ipv6Addr::new(0xff1e, 0, 0, 0, 0, 0, 0, 0x78);

/// Moves this thread into a new network namespace with an interface that has `OWN`.
fn new_network() -> Result<(), String> {
    // Only the network is unshared, no memory or descriptor table.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err(format!("no namespace: {}", std::io::Error::last_os_error()));
    }
    for words in [
        "link set lo up".to_owned(),
        "link add v0 type veth peer name v1".to_owned(),
        format!("addr add {OWN}/64 dev v0 nodad"),
        "link set v0 up".to_owned(),
        "link set v1 up".to_owned(),
    ] {
        let out = Command::new("ip").args(words.split(' ')).output();
        let out = out.map_err(|e| format!("cannot run ip: {e}"))?;
        if !out.status.success() {
            return Err(format!("ip {words}: {}", String::from_utf8_lossy(&out.stderr)));
        }
    }
    Ok(())
}

/// Creates a datagram id at the IPv6 address, with a queue pair.
unsafe fn bound(channel: &Channel) -> *mut rdma_cm_id {
    let id = channel.id(RDMA_PS_UDP);
    unsafe {
        ok(rdma_bind_addr(id, Addr::ip6(OWN).ptr()));
        create_qp(id);
    }
    id
}

unsafe fn option(id: *mut rdma_cm_id, name: u32, group: Ipv6Addr) -> c_int {
    let mut mreq: ipv6_mreq = unsafe { std::mem::zeroed() };
    mreq.ipv6mr_multiaddr.s6_addr = group.octets();
    let (level, name) = (RDMA_PROTO_IP.cast_signed(), name.cast_signed());
    unsafe { rdma_set_option(id, level, name, (&raw mut mreq).cast(), size_of::<ipv6_mreq>()) }
}

unsafe fn joined(channel: &Channel, id: *mut rdma_cm_id, group: Ipv6Addr) {
    unsafe { ok(option(id, IP_ADD_MEMBERSHIP, group)) };
    channel.expect(RDMA_CM_EVENT_MULTICAST_JOIN).ack();
}

/// Sends 16 bytes to a group. Returns the result, and the fields that the call has filled in.
unsafe fn send(id: *mut rdma_cm_id, byte: u8, group: Ipv6Addr) -> (c_int, ibv_send_wr_ud) {
    let mut bytes = [byte; 16];
    unsafe {
        let mut sge = ibv_sge { addr: bytes.as_mut_ptr() as u64, length: 16, lkey: 0 };
        let mut wr: ibv_send_wr = std::mem::zeroed();
        (wr.sg_list, wr.num_sge, wr.opcode) = (&raw mut sge, 1, IBV_WR_SEND);
        wr.send_flags = IBV_SEND_INLINE;
        let sent = rdma_sendto(id, &raw mut wr, Addr::ip6(group).ptr());
        (sent, wr.wr.ud)
    }
}

unsafe fn a_datagram_reaches_members() {
    unsafe {
        let channel = Channel::new();
        let (to, from) = (bound(&channel), bound(&channel));
        let mut buffer = Buffer::new((*to).pd);
        buffer.post_recv((*to).qp);
        joined(&channel, to, GROUP);
        joined(&channel, from, GROUP);
        joined(&channel, from, OTHER);

        // No datagram is received from the group that only the sender has joined.
        ok(send(from, 1, OTHER).0);
        let (sent, ud) = send(from, 2, GROUP);
        ok(sent);
        assert_eq!((ud.remote_qpn, ud.remote_qkey), (0xff_ffff, RDMA_UDP_QKEY));
        assert!(!ud.ah.is_null());
        for _ in 0..2 {
            assert_eq!(poll((*from).send_cq).status, IBV_WC_SUCCESS);
        }
        let done = poll((*to).recv_cq);
        assert_eq!((done.status, done.byte_len), (IBV_WC_SUCCESS, 56));
        assert_eq!(done.src_qp, (*(*from).qp).qp_num);
        assert_eq!(buffer.bytes[8..24], OWN.octets());
        assert_eq!(buffer.bytes[24..40], GROUP.octets());
        assert_eq!(buffer.bytes[40..56], [2; 16]);

        ok(option(from, IP_DROP_MEMBERSHIP, OTHER));
        fails(send(from, 3, OTHER).0, libc::EADDRNOTAVAIL);
        rdma_destroy_qp(to);
        buffer.free();
        ok(rdma_destroy_id(to));
        rdma_destroy_qp(from);
        ok(rdma_destroy_id(from));
    }
}

#[test]
fn a_datagram_to_a_group_of_ipv6_reaches_its_members() {
    let alone = thread::spawn(|| match new_network() {
        Ok(()) => {
            FURTHER.set(OWN.into()).unwrap();
            unsafe { a_datagram_reaches_members() };
        }
        Err(why) => println!("SKIPPED: {why}"),
    });
    alone.join().unwrap();
}
