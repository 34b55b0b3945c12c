//! The verbs peer on the crate `rdmux`: the same exchange as the C program of `verbs-peer`.
//!
//! Two programs connect queue pairs by themselves. They exchange the connection parameters, and the client's
//! commands to the server, over a TCP connection as lines of text. `verbs-peer/control.c` lists the
//! lines.

pub mod client;
pub mod server;
mod tests;

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::str::{FromStr, SplitAsciiWhitespace};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rdmux::Access;
use rdmux::{
    AckTimeout, Ah, AttrMask, Completion, Context, Cq, Gid, Mr, Mtu, Pd, Psn, Qkey, Qp, QpAttr,
    QpState, QpType, Qpn, RemoteMr, Rkey, RnrTimer, Srq,
};

use crate::exchange::{LOCAL, QKEY, REGION, difference};

/// A minute, because the wire may lose packets.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The first PSN of both sides: near the maximum, so that PSNs wrap.
const FIRST_PSN: Psn = Psn::new(0x00ff_fff0);

/// The access rights of the region unless a test needs less.
pub(crate) const ALL_RIGHTS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC);

/// The data of one side's queue pair and memory that the other side needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side {
    pub(crate) qpn: Qpn,
    pub(crate) psn: Psn,
    pub(crate) mtu: Mtu,
    pub(crate) gid: Gid,
    pub(crate) memory: RemoteMr,
}

/// The parameters of a session besides its transport.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wants {
    pub(crate) qp_type: QpType,
    /// The access rights of the server's region.
    pub(crate) rights: Access,
    /// The client's retries after RNR NAKs.
    pub(crate) rnr_retry: u8,
    /// The client's retries after timeouts.
    pub(crate) retry_cnt: u8,
    /// Whether the server receives from a shared receive queue.
    pub(crate) srq: bool,
}

/// One end of a session.
pub(crate) struct Peer {
    pub(crate) wants: Wants,
    pub(crate) me: Side,
    pub(crate) cq: Cq,
    pub(crate) qp: Qp,
    pub(crate) mr: Mr,
    pub(crate) pd: Pd,
    pub(crate) srq: Option<Srq>,
    sgid_index: u8,
}

impl Peer {
    /// Creates a queue pair in INIT and its memory, on the device that has the address `local`.
    pub(crate) fn new(context: &Context, local: IpAddr, wants: Wants) -> Result<Self> {
        let sgid_index = context.gid_index(local)?;
        let entry = context.gids().swap_remove(usize::from(sgid_index));
        let pd = context.pd();
        let cq = context.cq(1024)?;
        let mr = pd.alloc(REGION + LOCAL, wants.rights)?;
        let builder = pd.qp(wants.qp_type).cq(&cq).max_send_wr(256).max_recv_wr(256);
        let srq = if wants.srq { Some(pd.srq(64, 1)?) } else { None };
        let builder = srq.iter().fold(builder, |b, srq| b.srq(srq));
        let qp = builder.max_sge(16).max_inline(64).build()?;
        let access = match wants.qp_type {
            QpType::Rc | QpType::XrcSend | QpType::XrcRecv => ALL_RIGHTS - Access::LOCAL_WRITE,
            QpType::Uc => Access::REMOTE_WRITE,
            QpType::Ud => Access::empty(),
        };
        let attr = QpAttr {
            state: QpState::Init,
            pkey_index: 0,
            port_num: 1,
            access,
            qkey: Qkey(QKEY),
            ..qp.attr()
        };
        let last =
            if wants.qp_type == QpType::Ud { AttrMask::QKEY } else { AttrMask::ACCESS_FLAGS };
        qp.modify(&attr, AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | last)?;
        let (qpn, gid, memory) = (qp.qpn(), entry.gid, mr.remote());
        let me = Side { qpn, psn: FIRST_PSN, mtu: entry.mtu, gid, memory };
        Ok(Self { wants, me, cq, qp, mr, pd, srq, sgid_index })
    }

    /// Takes the queue pair to RTS towards the other side.
    pub(crate) fn connect(&self, you: &Side) -> Result<()> {
        let attr = QpAttr {
            state: QpState::Rtr,
            av: *self.way_to(you).vector(),
            path_mtu: if you.mtu.bytes() < self.me.mtu.bytes() { you.mtu } else { self.me.mtu },
            dest_qpn: you.qpn,
            rq_psn: you.psn,
            sq_psn: self.me.psn,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: RnrTimer::new(12),
            timeout: AckTimeout::new(16), // 268 ms, because a slow machine is not a dead one
            retry_cnt: self.wants.retry_cnt,
            rnr_retry: self.wants.rnr_retry,
            ..self.qp.attr()
        };
        let (mut rtr, mut rts) = (AttrMask::STATE, AttrMask::STATE | AttrMask::SQ_PSN);
        if self.wants.qp_type != QpType::Ud {
            rtr |= AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
        }
        if self.wants.qp_type == QpType::Rc {
            rtr |= AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
            rts |= AttrMask::TIMEOUT
                | AttrMask::RETRY_CNT
                | AttrMask::RNR_RETRY
                | AttrMask::MAX_QP_RD_ATOMIC;
        }
        self.qp.modify(&attr, rtr).context("to RTR")?;
        self.qp.modify(&QpAttr { state: QpState::Rts, ..attr }, rts).context("to RTS")
    }

    /// Returns an address handle of the other side.
    pub(crate) fn way_to(&self, you: &Side) -> Ah {
        Ah::to_gid(you.gid, self.sgid_index)
    }

    /// Posts a receive of `len` bytes.
    pub(crate) fn post_recv(&self, len: usize) -> Result<()> {
        let list = [self.mr.slice(REGION..REGION + len)];
        match &self.srq {
            Some(srq) => srq.post_recv(0, &list)?,
            None => self.qp.post_recv(0, &list)?,
        }
        Ok(())
    }

    /// Returns the next completion, whatever its status.
    pub(crate) fn completion(&self) -> Result<Completion> {
        let mut one = [rdmux::EMPTY];
        match self.cq.wait(&mut one, Some(TIMEOUT))? {
            0 => bail!("no completion within a minute"),
            _ => Ok(one[0]),
        }
    }

    /// Returns the first of `len` bytes at `at` that differs from the pattern.
    pub(crate) fn difference(&self, at: usize, len: usize, seed: u32) -> Option<usize> {
        difference(&self.mr.to_vec(at..at + len), seed)
    }
}

/// The control connection.
pub(crate) struct Control {
    input: BufReader<TcpStream>,
    output: TcpStream,
}

impl Control {
    pub(crate) fn new(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { input: BufReader::new(stream.try_clone()?), output: stream })
    }
    /// Returns the local address.
    pub(crate) fn local(&self) -> Result<IpAddr> {
        Ok(self.output.local_addr()?.ip().to_canonical())
    }
    /// Sends a line.
    pub(crate) fn put(&mut self, line: &str) -> Result<()> {
        Ok(self.output.write_all(format!("{line}\n").as_bytes())?)
    }
    /// Closes the connection.
    pub(crate) fn close(&mut self) -> Result<()> {
        Ok(self.output.shutdown(Shutdown::Both)?)
    }
    /// Returns the next line; none at the end.
    pub(crate) fn get(&mut self) -> Result<Option<String>> {
        let mut line = String::new();
        let n = self.input.read_line(&mut line)?;
        Ok((n > 0).then(|| line.trim_end().to_owned()))
    }
}

/// The words of a line.
pub(crate) struct Words<'a>(SplitAsciiWhitespace<'a>);

impl<'a> Words<'a> {
    pub(crate) fn new(line: &'a str) -> Self {
        Self(line.split_ascii_whitespace())
    }
    /// Returns the next word of the line.
    pub(crate) fn word(&mut self) -> Result<&'a str> {
        self.0.next().context("the line has too few words")
    }
    /// Parses a hexadecimal number.
    pub(crate) fn hex(&mut self) -> Result<u64> {
        let word = self.word()?;
        u64::from_str_radix(word, 16).with_context(|| format!("{word:?} is not a number"))
    }
    /// Parses a hexadecimal number of 32 bits.
    pub(crate) fn hex32(&mut self) -> Result<u32> {
        Ok(u32::try_from(self.hex()?)?)
    }
    /// Parses a size in hexadecimal.
    pub(crate) fn size(&mut self) -> Result<usize> {
        Ok(usize::try_from(self.hex()?)?)
    }
    fn gid(&mut self) -> Result<Gid> {
        let n = u128::from_str_radix(self.word()?, 16)?;
        Ok(Gid(n.to_be_bytes()))
    }
    /// Parses `QPN PSN MTU GID`, without memory.
    pub(crate) fn side(&mut self) -> Result<Side> {
        let (qpn, psn) = (Qpn::new(self.hex32()?), Psn::new(self.hex32()?));
        let code = u8::try_from(self.hex()?)?;
        let mtu = Mtu::from_code(code).with_context(|| format!("unknown MTU code {code}"))?;
        let memory = RemoteMr { addr: 0, rkey: Rkey(0), len: 0 };
        Ok(Side { qpn, psn, mtu, gid: self.gid()?, memory })
    }
}

impl Side {
    /// Returns `QPN PSN MTU GID`.
    pub(crate) fn line(&self) -> String {
        let gid = u128::from_be_bytes(self.gid.0);
        format!("{:x} {:x} {:x} {gid:032x}", self.qpn.get(), self.psn.get(), self.mtu.code())
    }
}

/// A transport, parsed from its name.
pub(crate) struct Transport(pub(crate) QpType);

impl FromStr for Transport {
    type Err = anyhow::Error;
    fn from_str(s: &str) -> Result<Self> {
        Ok(Self(match s {
            "rc" | "srq" => QpType::Rc,
            "uc" => QpType::Uc,
            "ud" => QpType::Ud,
            _ => bail!("unknown transport {s:?}"),
        }))
    }
}
