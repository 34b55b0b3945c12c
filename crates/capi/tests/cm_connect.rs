//! Connections through the C functions of librdmacm, both sides in one process.
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "C functions, passed what the test itself made"
)]

mod cm_common;

use std::ptr::null_mut;

use cm_common::*;

/// Creates a connection with a queue pair at each end. Returns the active id and the passive one.
unsafe fn connected(server: &Channel, client: &Channel) -> (*mut rdma_cm_id, *mut rdma_cm_id) {
    unsafe {
        let (listener, port) = server.listener(RDMA_PS_TCP);
        let active = client.resolved(RDMA_PS_TCP, port);
        create_qp(active);
        ok(rdma_connect(active, &mut conn_param(b"hello")));
        let request = server.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
        let passive = request.id();
        create_qp(passive);
        ok(rdma_accept(passive, &mut conn_param(b"welcome")));
        request.ack();
        client.expect(RDMA_CM_EVENT_ESTABLISHED).ack();
        server.expect(RDMA_CM_EVENT_ESTABLISHED).ack();
        ok(rdma_destroy_id(listener));
        (active, passive)
    }
}

unsafe fn destroy(id: *mut rdma_cm_id) {
    unsafe {
        rdma_destroy_qp(id);
        assert!((*id).qp.is_null() && (*id).send_cq.is_null() && (*id).recv_cq_channel.is_null());
        ok(rdma_destroy_id(id));
    }
}

#[test]
fn rc_connection_transfers_data_and_both_sides_get_disconnected() {
    unsafe {
        let (server, client) = (Channel::new(), Channel::new());
        let (active, passive) = connected(&server, &client);
        assert_eq!(qp_state((*active).qp), IBV_QPS_RTS);
        assert_eq!(qp_state((*passive).qp), IBV_QPS_RTS);

        let mut to = Buffer::new((*passive).pd);
        to.post_recv((*passive).qp);
        let mut from = Buffer::new((*active).pd);
        from.bytes[..16].copy_from_slice(b"sixteen bytes ok");
        from.post_send((*active).qp);
        assert_eq!(poll((*active).send_cq).status, IBV_WC_SUCCESS);
        let received = poll((*passive).recv_cq);
        assert_eq!((received.status, received.byte_len), (IBV_WC_SUCCESS, 16));
        assert_eq!(&to.bytes[..16], b"sixteen bytes ok");

        to.post_recv((*passive).qp);
        ok(rdma_disconnect(active));
        server.expect(RDMA_CM_EVENT_DISCONNECTED).ack();
        ok(rdma_disconnect(passive));
        client.expect(RDMA_CM_EVENT_DISCONNECTED).ack();
        assert_eq!(poll((*passive).recv_cq).status, IBV_WC_WR_FLUSH_ERR);
        assert_eq!(qp_state((*active).qp), IBV_QPS_ERR);
        to.free();
        from.free();
        destroy(active);
        destroy(passive);
        server.destroy();
        client.destroy();
    }
}

#[test]
fn ids_and_events_say_what_the_manual_promises() {
    unsafe {
        let (server, client) = (Channel::new(), Channel::new());
        let (listener, port) = server.listener(RDMA_PS_TCP);
        assert!(!(*listener).verbs.is_null(), "an id bound to an address has its device");
        let active = client.resolved(RDMA_PS_TCP, port);
        assert_eq!((*active).verbs, (*listener).verbs, "one context a process");
        assert_eq!((*active).pd, (*listener).pd);
        assert_eq!((*active).port_num, 1);
        let route = (*active).route;
        assert_eq!(read(&raw const route.addr.dst.dst_storage), (ip(), port).into());
        let local = read(&raw const route.addr.src.src_storage);
        assert_eq!(local.ip(), ip());
        assert_eq!(rdma_get_src_port(active), local.port().to_be());
        assert_eq!(rdma_get_dst_port(active), port.to_be());
        let gid = ip().to_ipv6_mapped().octets();
        assert_eq!(route.addr.addr.ibaddr.sgid.raw, gid);
        assert_eq!(route.addr.addr.ibaddr.dgid.raw, gid);
        assert_eq!(route.num_paths, 1);
        let path = *route.path_rec;
        assert_eq!((path.sgid.raw, path.dgid.raw, path.pkey), (gid, gid, 0xffff));
        assert_eq!((path.hop_limit, path.reversible, path.mtu_selector), (64, 1, 2));

        create_qp(active);
        assert_eq!(qp_state((*active).qp), IBV_QPS_INIT);
        assert_eq!((*(*active).send_cq).cq_context, active.cast());
        ok(rdma_connect(active, &mut conn_param(b"hello")));
        let request = server.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
        assert_eq!(request.get().listen_id, listener);
        let passive = request.id();
        assert_eq!((*passive).context, (*listener).context);
        assert_eq!((*passive).channel, server.0);
        assert_eq!((*passive).verbs, (*listener).verbs);
        let seen = (*passive).route.addr;
        assert_eq!(read(&raw const seen.dst.dst_storage), local);
        let asked = request.conn();
        assert_eq!((asked.responder_resources, asked.initiator_depth), (3, 2), "sides swapped");
        assert_eq!(asked.qp_num, (*(*active).qp).qp_num);
        assert_eq!(request.data().len(), 56);
        assert_eq!(&request.data()[..5], b"hello");

        create_qp(passive);
        ok(rdma_accept(passive, null_mut()));
        request.ack();
        let established = client.expect(RDMA_CM_EVENT_ESTABLISHED);
        assert_eq!(established.conn().qp_num, (*(*passive).qp).qp_num);
        assert_eq!(established.data().len(), 196);
        established.ack();
        server.expect(RDMA_CM_EVENT_ESTABLISHED).ack();
        // Without parameters the passive side accepts the requested values.
        let (mut attr, mut init) = (std::mem::zeroed(), std::mem::zeroed());
        ok(ibv_query_qp((*passive).qp, &raw mut attr, -1, &raw mut init));
        assert_eq!((attr.max_dest_rd_atomic, attr.max_rd_atomic), (3, 2));
        destroy(active);
        server.expect(RDMA_CM_EVENT_DISCONNECTED).ack();
        destroy(passive);
        ok(rdma_destroy_id(listener));
    }
}

/// A program that has not answered yet gets the event of the peer's end when it answers.
#[test]
fn accept_after_peer_has_gone_gets_rejected_event() {
    unsafe {
        let (server, client) = (Channel::new(), Channel::new());
        let (listener, port) = server.listener(RDMA_PS_TCP);
        let mut passive = [null_mut(); 2];
        for request in &mut passive {
            let active = client.resolved(RDMA_PS_TCP, port);
            create_qp(active);
            ok(rdma_connect(active, &mut conn_param(b"hello")));
            let event = server.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
            *request = event.id();
            event.ack();
            // The first peer's rejection arrived before the second one's request.
            assert!(!server.is_readable());
            destroy(active);
        }
        create_qp(passive[0]);
        ok(rdma_accept(passive[0], &mut conn_param(b"welcome")));
        let event = server.event();
        assert_eq!((event.kind(), event.id()), (RDMA_CM_EVENT_REJECTED, passive[0]));
        event.ack();
        assert_eq!(qp_state((*passive[0]).qp), IBV_QPS_ERR);
        destroy(passive[0]);
        ok(rdma_destroy_id(passive[1]));
        ok(rdma_destroy_id(listener));
        server.destroy();
        client.destroy();
    }
}

#[test]
fn rejected_connect_has_status_and_private_data() {
    unsafe {
        let (server, client) = (Channel::new(), Channel::new());
        let (listener, port) = server.listener(RDMA_PS_TCP);
        let active = client.resolved(RDMA_PS_TCP, port);
        create_qp(active);
        ok(rdma_connect(active, null_mut()));
        let request = server.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
        ok(rdma_reject(request.id(), b"go away".as_ptr().cast(), 7));
        let refused = request.id();
        request.ack();
        ok(rdma_destroy_id(refused));
        let event = client.event();
        assert_eq!((event.kind(), event.status()), (RDMA_CM_EVENT_REJECTED, 28));
        assert_eq!(&event.data()[..8], b"go away\0");
        event.ack();
        assert_eq!(qp_state((*active).qp), IBV_QPS_ERR);
        destroy(active);

        // There is no listener any more.
        ok(rdma_destroy_id(listener));
        let active = client.resolved(RDMA_PS_TCP, port);
        create_qp(active);
        ok(rdma_connect(active, null_mut()));
        let event = client.event();
        assert_eq!((event.kind(), event.status()), (RDMA_CM_EVENT_REJECTED, 8));
        event.ack();
        destroy(active);
    }
}

/// Takes a queue pair to a state with the connection manager's attributes.
unsafe fn go(id: *mut rdma_cm_id, qp: *mut ibv_qp, state: ibv_qp_state) {
    unsafe {
        let mut attr: ibv_qp_attr = std::mem::zeroed();
        attr.qp_state = state;
        let mut mask = 0;
        ok(rdma_init_qp_attr(id, &raw mut attr, &raw mut mask));
        assert_eq!(ibv_modify_qp(qp, &raw mut attr, mask), 0);
    }
}

#[test]
fn rdma_connect_with_own_qp_num_gets_connect_response() {
    unsafe {
        let (server, client) = (Channel::new(), Channel::new());
        let (listener, port) = server.listener(RDMA_PS_TCP);
        let active = client.resolved(RDMA_PS_TCP, port);
        let cq = ibv_create_cq((*active).verbs, 16, null_mut(), null_mut(), 0);
        let mut init = qp_attr(IBV_QPT_RC);
        (init.send_cq, init.recv_cq) = (cq, cq);
        let ours = ibv_create_qp((*active).pd, &raw mut init);
        let theirs = ibv_create_qp((*active).pd, &raw mut init);
        go(active, ours, IBV_QPS_INIT);
        let (mut attr, mut mask): (ibv_qp_attr, _) = (std::mem::zeroed(), 0);
        attr.qp_state = IBV_QPS_RTR;
        fails(rdma_init_qp_attr(active, &raw mut attr, &mut 0), libc::EINVAL);

        fails(rdma_connect(active, null_mut()), libc::EINVAL);
        let mut param = conn_param(b"");
        param.qp_num = (*ours).qp_num;
        ok(rdma_connect(active, &raw mut param));
        let request = server.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
        assert_eq!(request.conn().qp_num, (*ours).qp_num);
        let passive = request.id();
        request.ack();
        for state in [IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS] {
            go(passive, theirs, state);
        }
        param.qp_num = (*theirs).qp_num;
        ok(rdma_accept(passive, &raw mut param));
        let response = client.expect(RDMA_CM_EVENT_CONNECT_RESPONSE);
        assert_eq!(response.conn().qp_num, (*theirs).qp_num);
        response.ack();
        go(active, ours, IBV_QPS_RTR);
        // The queue pair may request more than it serves, as from a peer that serves more.
        let mut device: ibv_device_attr = std::mem::zeroed();
        assert_eq!(ibv_query_device((*active).verbs, &raw mut device), 0);
        assert!(device.max_qp_init_rd_atom > device.max_qp_rd_atom);
        attr.qp_state = IBV_QPS_RTS;
        ok(rdma_init_qp_attr(active, &raw mut attr, &raw mut mask));
        attr.max_rd_atomic = u8::try_from(device.max_qp_init_rd_atom).unwrap() + 1;
        assert_eq!(ibv_modify_qp(ours, &raw mut attr, mask), libc::EINVAL);
        attr.max_rd_atomic -= 1;
        assert_eq!(ibv_modify_qp(ours, &raw mut attr, mask), 0);
        ok(rdma_establish(active));
        server.expect(RDMA_CM_EVENT_ESTABLISHED).ack();

        let mut buffer = Buffer::new((*active).pd);
        buffer.post_recv(theirs);
        buffer.post_send(ours);
        assert_eq!(poll(cq).status, IBV_WC_SUCCESS);
        assert_eq!(poll(cq).status, IBV_WC_SUCCESS);
        buffer.free();
        for id in [active, passive, listener] {
            ok(rdma_destroy_id(id));
        }
        assert_eq!(ibv_destroy_qp(ours), 0);
        assert_eq!(ibv_destroy_qp(theirs), 0);
        assert_eq!(ibv_destroy_cq(cq), 0);
    }
}

#[test]
fn ece_options_reach_the_peer() {
    unsafe {
        let (server, client) = (Channel::new(), Channel::new());
        let (listener, port) = server.listener(RDMA_PS_TCP);
        let active = client.resolved(RDMA_PS_TCP, port);
        let mut ece = ibv_ece { vendor_id: 0x1234, options: 0x5678_9abc, comp_mask: 0 };
        ok(rdma_set_local_ece(active, &raw mut ece));
        let mut param = conn_param(b"");
        param.qp_num = 0x4321;
        ok(rdma_connect(active, &raw mut param));
        let request = server.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
        let mut seen = ibv_ece { vendor_id: 0, options: 0, comp_mask: 7 };
        ok(rdma_get_remote_ece(request.id(), &raw mut seen));
        assert_eq!((seen.vendor_id, seen.options, seen.comp_mask), (0x1234, 0x5678_9abc, 0));

        // The answer has the requester's vendor and this end's options.
        let mut ours = ibv_ece { vendor_id: 0x9999, options: 0x42, comp_mask: 0 };
        ok(rdma_set_local_ece(request.id(), &raw mut ours));
        param.qp_num = 0x4322;
        ok(rdma_accept(request.id(), &raw mut param));
        client.expect(RDMA_CM_EVENT_CONNECT_RESPONSE).ack();
        ok(rdma_get_remote_ece(active, &raw mut seen));
        assert_eq!((seen.vendor_id, seen.options), (0x1234, 0x42));
        ours.vendor_id = 0;
        fails(rdma_set_local_ece(active, &raw mut ours), libc::EINVAL);
        let passive = request.id();
        request.ack();
        ok(rdma_destroy_id(active));
        ok(rdma_destroy_id(passive));

        let active = client.resolved(RDMA_PS_TCP, port);
        ok(rdma_connect(active, &raw mut param));
        let request = server.expect(RDMA_CM_EVENT_CONNECT_REQUEST);
        ok(rdma_reject_ece(request.id(), null_mut(), 0));
        let event = client.event();
        assert_eq!((event.kind(), event.status()), (RDMA_CM_EVENT_REJECTED, 35));
        event.ack();
        let passive = request.id();
        request.ack();
        for id in [active, passive, listener] {
            ok(rdma_destroy_id(id));
        }
    }
}
