//! Datagrams sent to a multicast group by its address, compared with those sent with an address handle.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rdmux::cm::{EventChannel, EventKind, Id, JoinFlags, PortSpace};
use rdmux::{Ah, Context, Cq, Qkey, Qp, QpType, Qpn, SendWr};

use super::programs::on_host;
use super::run::Bench;
use super::stats::{Figure, Goal, Unit};

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 77, 64, 1);
/// The number of datagrams of one round, and how many are sent between waits for the queue.
const SENDS: u64 = 64_000;
const BATCH: u64 = 32;
const TIMEOUT: Duration = Duration::from_secs(10);

/// The program that measures the C library.
const PROGRAM: &str = include_str!("sendto.c");

/// A member that only sends: no member receives, so that only sending is measured.
struct Member {
    id: Id,
    qp: Qp,
    cq: Cq,
    way: (Ah, Qpn, Qkey),
}

impl Bench {
    /// Measures the seconds per datagram of 64 bytes through the C library, with a program compiled for it.
    pub(super) fn sendto(&mut self, at: IpAddr) -> Result<Figure> {
        const NAME: &str = "rdma_sendto 64 B";
        let place = tempfile::tempdir()?;
        let (source, program) = (place.path().join("sendto.c"), place.path().join("sendto"));
        fs::write(&source, PROGRAM)?;
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-O2", "-o"]).arg(&program).arg(&source);
        let built = cc.args(["-lrdmacm", "-libverbs"]).output().context("cannot start cc")?;
        let said = String::from_utf8_lossy(&built.stderr);
        ensure!(
            built.status.success(),
            "cannot compile a program for librdmacm (it needs the Debian packages gcc, libibverbs-dev, librdmacm-dev):\n{said}"
        );
        self.progress.set_message(NAME);
        let program =
            program.to_str().context("the path of the folder for temporary files is not UTF-8")?;
        let mut run = on_host("bench-a", program)?;
        run.args([at.to_string(), GROUP.to_string(), self.rounds.to_string()]);
        let ran = run.output()?;
        let (printed, said) =
            (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
        ensure!(ran.status.success(), "the program failed ({}):\n{said}", ran.status);
        let (by_address, by_handle) = times(&printed)?;
        let figure = Figure::alone(NAME, Unit::Seconds, &by_address);
        Ok(figure.beside("ibv_post_send", &by_handle).with_goal(Goal::AtMost(1.15)))
    }

    /// Measures the seconds per datagram of 64 bytes through the Rust API.
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

/// Parses the two columns of the program's output from nanoseconds to seconds.
fn times(printed: &str) -> Result<(Vec<f64>, Vec<f64>)> {
    let columns = printed.lines().map(|line| -> Result<(f64, f64)> {
        let (address, handle) =
            line.split_once(' ').context("a line of the output does not have two times")?;
        Ok((address.parse::<f64>()? / 1e9, handle.parse::<f64>()? / 1e9))
    });
    columns.collect::<Result<Vec<_>>>().map(|rows| rows.into_iter().unzip())
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
        let event = channel.next(Some(TIMEOUT))?.context("the join was not answered in time")?;
        let event = event.expect(EventKind::MulticastJoin, "join a group")?;
        let ud = event.ud().context("the join's event does not describe the group")?;
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

#[cfg(test)]
mod tests {
    use super::times;

    #[test]
    fn both_columns_of_what_the_program_prints_are_seconds() {
        let (address, handle) = times("1200.500 1000.000\n1100.000 900.000\n").unwrap();
        assert_eq!((address.len(), handle), (2, vec![1e-6, 9e-7]));
        assert!(times("1200\n").is_err());
        assert!(times("a b\n").is_err());
    }
}
