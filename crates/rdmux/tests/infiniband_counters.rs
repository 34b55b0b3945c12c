//! The counters of an InfiniBand port: messages of its programs, and packets with wrong keys.

use std::time::Instant;

use rdmux::umad::mad::{MAD_LEN, MadHeader};
use rdmux::umad::pm::{CLASS_VERSION, DATA_AT, PortCountersExtended};
use rdmux::umad::{Address, AgentAttr, Client, Fabric, Method, MgmtClass, Port};
use rdmux::{
    Access, Ah, Context, Cq, DeviceKind, Mr, PortState, Qkey, Qp, QpType, SendWr, WcStatus,
};

/// A host's device, once its port is up, a queue pair and memory.
struct End {
    context: Context,
    cq: Cq,
    qp: Qp,
    mr: Mr,
    counters: Client,
}

impl End {
    fn new(fabric: &Fabric, host: &str, qp_type: QpType) -> Self {
        let builder = Context::builder().embedded().fabric(fabric).host(host);
        let context = builder.device(DeviceKind::Ib).open().unwrap();
        while context.query_port().unwrap().state != PortState::Active {
            context.next_event(None).unwrap();
        }
        let (cq, pd) = (context.cq(64).unwrap(), context.pd());
        let qp = pd.qp(qp_type).cq(&cq).build().unwrap();
        let mr = pd.alloc(64 << 10, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        let agent = AgentAttr::new(MgmtClass::PERF, CLASS_VERSION);
        let counters = Port::open(&context, 1).unwrap().client(&agent).unwrap();
        Self { context, cq, qp, mr, counters }
    }

    /// Returns the own port's counters, by a datagram to itself, which no port counts.
    fn counters(&mut self) -> PortCountersExtended {
        let mut mad = [0; MAD_LEN];
        let mut header = MadHeader::new(MgmtClass::PERF, CLASS_VERSION, Method::GET);
        header.attr_id = PortCountersExtended::ATTR_ID;
        header.emit(&mut mad);
        mad[DATA_AT + 1] = 1;
        let own = Address::gsi(self.context.query_port().unwrap().lid);
        let answer = self.counters.ask(&own, &mad).unwrap();
        PortCountersExtended::from_bytes(answer.mad[DATA_AT..].first_chunk().unwrap())
    }

    fn succeeds(&self) {
        assert_eq!(self.cq.wait_one(None).unwrap().status, WcStatus::Success);
    }
}

/// Returns the counters of an end once its manager's datagrams have arrived.
fn settled(end: &mut End) -> PortCountersExtended {
    loop {
        let first = end.counters();
        if first == end.counters() {
            return first;
        }
    }
}

/// Returns the increase of both ends' counters, once each has received all packets of the other. No other node may be
/// sending.
fn both_settled(ends: [&mut End; 2], before: &[PortCountersExtended; 2]) -> [[u64; 4]; 2] {
    let [a, b] = ends;
    loop {
        let after = [settled(a), settled(b)];
        let grown = [0, 1].map(|n| {
            let counts = |of: &PortCountersExtended| {
                [of.port_xmit_pkts, of.port_xmit_data, of.port_rcv_pkts, of.port_rcv_data]
            };
            let (after, before) = (counts(&after[n]), counts(&before[n]));
            [0, 1, 2, 3].map(|field| after[field] - before[field])
        });
        if grown[0][..2] == grown[1][2..] && grown[1][..2] == grown[0][2..] {
            return grown;
        }
    }
}

#[test]
fn ports_count_each_packet_of_a_message_and_of_its_acknowledgements() {
    let fabric = Fabric::managed("switch:3").unwrap();
    let [mut a, mut b] = ["a", "b"].map(|host| End::new(&fabric, host, QpType::Rc));
    let (to_a, to_b) = (a.qp.endpoint(0).unwrap(), b.qp.endpoint(0).unwrap());
    a.qp.connect(to_b, 0, Access::REMOTE_WRITE).unwrap();
    b.qp.connect(to_a, 0, Access::REMOTE_WRITE).unwrap();
    let before = [&mut a, &mut b].map(settled);
    b.qp.post_recv(1, &[b.mr.slice(..)]).unwrap();
    a.qp.post_send(&SendWr::send(2).sges(&[a.mr.slice(..)]).signaled()).unwrap();
    b.succeeds();
    a.succeeds();
    let [[sent, words, answers, of_answers], _] = both_settled([&mut a, &mut b], &before);
    // At least 16 packets, or more on a machine that is busy for longer than the retry timer: 4,096 bytes, LRH, BTH and ICRC each.
    assert!((16..40).contains(&sent), "{sent}");
    assert_eq!(words, sent * ((4 << 10) / 4 + 6));
    // An AETH is one word.
    assert!(answers >= 1 && of_answers == answers * 7, "{answers}");
    assert_eq!(a.counters().port_multicast_xmit_pkts, before[0].port_multicast_xmit_pkts);
}

#[test]
fn wrong_qkey_datagram_counts_qkey_violation_at_the_receiving_port() {
    let fabric = Fabric::managed("switch:3").unwrap();
    let [a, mut b] = ["a", "b"].map(|host| End::new(&fabric, host, QpType::Ud));
    for end in [&a, &b] {
        end.qp.activate(Qkey(0x11)).unwrap();
        end.qp.post_recv(1, &[end.mr.slice(..)]).unwrap();
    }
    let to_b = Ah::to_lid(b.context.query_port().unwrap().lid);
    let send = |qkey| {
        let datagram = SendWr::send(2).inline(&[b"hello"]).to(&to_b, b.qp.qpn(), qkey).signaled();
        a.qp.post_send(&datagram).unwrap();
        a.succeeds();
    };
    assert_eq!(b.context.query_port().unwrap().qkey_violations, 0);
    for _ in 0..5 {
        send(Qkey(0x12));
    }
    send(Qkey(0x11));
    b.succeeds();
    let since = Instant::now();
    // The port reports it once the fabric has learned of it.
    while b.context.query_port().unwrap().qkey_violations == 0 {
        b.counters();
        assert!(since.elapsed().as_secs() < 20);
    }
    let port = b.context.query_port().unwrap();
    assert_eq!((port.pkey_violations, a.context.query_port().unwrap().qkey_violations), (0, 0));
}
