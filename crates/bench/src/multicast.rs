//! Datagrams to a multicast group by its address, beside those with an address handle that is ready.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rdmux::cm::{EventChannel, EventKind, Id, JoinFlags, PortSpace};
use rdmux::{Ah, Context, Cq, Qkey, Qp, QpType, Qpn, SendWr};

use super::run::Bench;
use super::stats::{Figure, Goal, Unit};

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 77, 64, 1);
/// Datagrams of one round, and after how many the queue is waited for.
const SENDS: u64 = 64_000;
const BATCH: u64 = 32;
const TIMEOUT: Duration = Duration::from_secs(10);

/// A member that only sends: nobody hears it, so sending is all that is measured.
struct Member {
    id: Id,
    qp: Qp,
    cq: Cq,
    way: (Ah, Qpn, Qkey),
}

impl Bench {
    /// Seconds for a datagram of 64 bytes.
    pub(super) fn multicast(&mut self, at: IpAddr) -> Result<Figure> {
        const NAME: &str = "UD SEND 64 B to a group by its address";
        let member = Member::join(&self.context, at)?;
        let (by_address, by_handle) = self.rounds(
            NAME,
            |_| member.timed(|wr| member.id.send_to(wr, GROUP)),
            |_| {
                let (ah, qpn, qkey) = &member.way;
                member.timed(|wr| member.qp.post_send(&wr.to(ah, *qpn, *qkey)))
            },
        )?;
        member.id.leave_multicast(GROUP)?;
        let figure = Figure::alone(NAME, Unit::Seconds, &by_address);
        Ok(figure.beside("an address handle", &by_handle).with_goal(Goal::AtMost(1.15)))
    }
}

impl Member {
    fn join(context: &Context, at: IpAddr) -> Result<Self> {
        let channel = EventChannel::new(context)?;
        let id = Id::new(&channel, PortSpace::Udp)?;
        id.bind(SocketAddr::new(at, 0))?;
        let depth = u32::try_from(BATCH * 2)?;
        let cq = context.cq(depth)?;
        let qp = context.pd().qp(QpType::Ud).cq(&cq).max_send_wr(depth).max_inline(64).build()?;
        id.attach_qp(&qp)?;
        id.join_multicast(GROUP, JoinFlags::SendOnlyFullMember)?;
        let event = channel.next(Some(TIMEOUT))?.context("nobody answered the join")?;
        let event = event.expect(EventKind::MulticastJoin, "join a group")?;
        let ud = event.ud().context("an answer that does not describe the group")?;
        let way = (Ah::from_vector(ud.av), ud.qp_num, ud.qkey);
        drop(event);
        Ok(Self { id, qp, cq, way })
    }

    fn timed(&self, send: impl Fn(SendWr<'_>) -> rdmux::Result<()>) -> Result<f64> {
        let bytes = [0x5a; 64];
        let data = [&bytes[..]];
        let start = Instant::now();
        for n in 1..=SENDS {
            let wr = SendWr::send(n).inline(&data);
            if n % BATCH != 0 {
                send(wr)?;
                continue;
            }
            send(wr.signaled())?;
            self.cq.wait_one(Some(TIMEOUT))?;
        }
        Ok(start.elapsed().as_secs_f64() / SENDS as f64)
    }
}
