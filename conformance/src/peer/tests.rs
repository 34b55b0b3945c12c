//! The client's tests, the same as in `verbs-peer/tests.c`. Each test has a session of its own.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rdmux::{Access, Qkey, QpType, RemoteMr, Rkey, SendWr, WcFlags, WcOpcode, WcStatus};

use super::client::Session;
use super::{ALL_RIGHTS, Wants, Words};
use crate::exchange::{GRH, QKEY, REGION, SIZES};

/// A test.
pub(super) struct Test {
    pub(super) name: &'static str,
    pub(super) wants: Wants,
    pub(super) run: fn(&mut Session) -> Result<()>,
}

const fn test(name: &'static str, qp_type: QpType, run: fn(&mut Session) -> Result<()>) -> Test {
    Test {
        name,
        wants: Wants { qp_type, rights: ALL_RIGHTS, rnr_retry: 7, retry_cnt: 7, srq: false },
        run,
    }
}

impl Test {
    const fn rights(mut self, rights: Access) -> Self {
        self.wants.rights = rights;
        self
    }
    const fn srq(mut self) -> Self {
        self.wants.srq = true;
        self
    }
    const fn retries(mut self, rnr_retry: u8, retry_cnt: u8) -> Self {
        (self.wants.rnr_retry, self.wants.retry_cnt) = (rnr_retry, retry_cnt);
        self
    }
}

/// The table of tests.
pub(super) const TESTS: &[Test] = &[
    test("rc/send", QpType::Rc, send_sizes),
    test("rc/send_imm", QpType::Rc, send_imm),
    test("rc/send_gather", QpType::Rc, send_gather),
    test("rc/send_inline", QpType::Rc, send_inline),
    test("rc/send_inv", QpType::Rc, send_inv).rights(ALL_RIGHTS.union(Access::MW_BIND)),
    test("rc/write", QpType::Rc, write_sizes),
    test("rc/write_imm", QpType::Rc, write_imm),
    test("rc/read", QpType::Rc, read_sizes),
    test("rc/read_many", QpType::Rc, read_many),
    test("rc/fetch_add", QpType::Rc, fetch_add),
    test("rc/cmp_swap", QpType::Rc, cmp_swap),
    test("rc/mixed", QpType::Rc, mixed),
    test("rc/write_bad_key", QpType::Rc, write_bad_key),
    test("rc/read_out_of_range", QpType::Rc, read_out_of_range),
    test("rc/write_no_right", QpType::Rc, write_no_right)
        .rights(Access::LOCAL_WRITE.union(Access::REMOTE_READ)),
    test("rc/atomic_unaligned", QpType::Rc, atomic_unaligned),
    test("rc/send_too_long", QpType::Rc, send_too_long),
    test("rc/flush", QpType::Rc, flush),
    test("rc/rnr_then_ready", QpType::Rc, rnr_then_ready),
    test("rc/rnr_exceeded", QpType::Rc, rnr_exceeded).retries(2, 7),
    test("rc/nobody_answers", QpType::Rc, nobody_answers).retries(7, 2),
    test("rc/srq", QpType::Rc, srq).srq(),
    test("rc/background", QpType::Rc, background),
    test("rc/deregistered", QpType::Rc, deregistered),
    test("uc/send", QpType::Uc, send_sizes),
    test("uc/send_imm", QpType::Uc, send_imm),
    test("uc/send_gather", QpType::Uc, send_gather),
    test("uc/send_inline", QpType::Uc, send_inline),
    test("uc/write", QpType::Uc, write_sizes),
    test("uc/write_imm", QpType::Uc, write_imm),
    test("ud/send", QpType::Ud, ud_send),
    test("ud/send_imm", QpType::Ud, ud_send_imm),
    test("ud/wrong_qkey", QpType::Ud, ud_wrong_qkey),
];

// ---- RC and UC

#[expect(clippy::cast_possible_truncation, reason = "the sizes are small")]
fn send_sizes(s: &mut Session) -> Result<()> {
    for &n in SIZES {
        s.fill(n, n as u32);
        s.ask(&format!("recv {n:x}"))?;
        s.post(SendWr::send(1), n)?;
        s.succeeds()?;
        s.received(n as u32, WcOpcode::Recv, n)?;
    }
    Ok(())
}

fn send_imm(s: &mut Session) -> Result<()> {
    s.fill(5000, 3);
    s.ask(&format!("recv {:x}", 5000))?;
    s.post(SendWr::send(1).imm(0xdead_beef_u32.to_be_bytes()).solicited(), 5000)?;
    s.succeeds()?;
    let seen = s.received(3, WcOpcode::Recv, 5000)?;
    immediate(seen.extra, seen.flags, 0xdead_beef)
}

fn immediate(got: u32, flags: u32, wanted: u32) -> Result<()> {
    let there = flags & WcFlags::WITH_IMM.bits() != 0;
    ensure!(there && got == wanted, "immediate {got:x}, flags {flags:x}");
    Ok(())
}

fn send_gather(s: &mut Session) -> Result<()> {
    let lens = [1, 1000, 3, 24, 2000, 7, 1, 64];
    let all = lens.iter().sum();
    s.fill(all, 4);
    s.ask(&format!("recv {all:x}"))?;
    let mut at = REGION;
    let pieces = lens.map(|len| {
        at += len;
        s.peer.mr.slice(at - len..at)
    });
    s.peer.qp.post_send(&SendWr::send(1).sges(&pieces).signaled())?;
    s.succeeds()?;
    s.received(4, WcOpcode::Recv, all)?;
    Ok(())
}

fn send_inline(s: &mut Session) -> Result<()> {
    let mut data = [0; 64];
    crate::exchange::fill(&mut data, 5);
    s.ask("recv 40")?;
    let pieces = [&data[..10], &data[10..]];
    s.peer.qp.post_send(&SendWr::send(1).inline(&pieces).signaled())?;
    s.succeeds()?;
    s.received(5, WcOpcode::Recv, 64)?;
    Ok(())
}

#[expect(clippy::cast_possible_truncation, reason = "the sizes are small")]
fn write_sizes(s: &mut Session) -> Result<()> {
    for &n in SIZES {
        s.fill(n, n as u32 + 1);
        s.post(SendWr::write(1, s.remote(16)), n)?;
        s.succeeds()?;
        if s.peer.wants.qp_type == QpType::Uc {
            // A completed send may not have arrived: a SEND that follows it shows that it has.
            s.ask("recv 0")?;
            s.post(SendWr::send(1), 0)?;
            s.succeeds()?;
            s.received(0, WcOpcode::Recv, 0)?;
        }
        s.ask(&format!("check 10 {n:x} {:x}", n + 1))?;
    }
    Ok(())
}

fn write_imm(s: &mut Session) -> Result<()> {
    for len in [0, 9, 10000] {
        s.fill(len, 6);
        s.ask("recv 0")?;
        s.post(SendWr::write(1, s.remote(0)).imm([1, 2, 3, 4]), len)?;
        s.succeeds()?;
        let seen = s.received(0, WcOpcode::RecvRdmaWithImm, len)?;
        immediate(seen.extra, seen.flags, 0x0102_0304)?;
        s.ask(&format!("check 0 {len:x} 6"))?;
    }
    Ok(())
}

// ---- RC only

#[expect(clippy::cast_possible_truncation, reason = "the sizes are small")]
fn read_sizes(s: &mut Session) -> Result<()> {
    for &n in SIZES {
        s.ask(&format!("fill 10 {n:x} {:x}", n + 2))?;
        s.peer.mr.write(REGION, &vec![0; n]);
        s.post(SendWr::read(1, s.remote(16)), n)?;
        s.succeeds()?;
        let diff = s.peer.difference(REGION, n, n as u32 + 2);
        ensure!(diff.is_none(), "wrong byte at {diff:?} of {n}");
    }
    Ok(())
}

/// More READs than the responder serves at a time, followed by a fenced SEND.
fn read_many(s: &mut Session) -> Result<()> {
    const N: usize = 40;
    const LEN: usize = 3000;
    s.ask(&format!("fill 0 {:x} 7", N * LEN))?;
    s.ask("recv 8")?;
    s.peer.mr.write(REGION, &[0; N * LEN]);
    for i in 0..N {
        let list = [s.peer.mr.slice(REGION + i * LEN..REGION + (i + 1) * LEN)];
        let from = s.remote((i * LEN) as u64);
        s.peer.qp.post_send(&SendWr::read(i as u64, from).sges(&list).signaled())?;
    }
    s.post(SendWr::send(1).fence(), 8)?;
    for _ in 0..=N {
        s.succeeds()?;
    }
    ensure!(s.peer.difference(REGION, N * LEN, 7).is_none(), "wrong bytes");
    s.received(7, WcOpcode::Recv, 8)?;
    Ok(())
}

fn fetch_add(s: &mut Session) -> Result<()> {
    let mut v = 0xffff_ffff_ffff_fff0_u64;
    let add = 0x0102_0304_0506_0708;
    s.ask(&format!("poke 40 {v:x}"))?;
    for _ in 0..50 {
        s.post(SendWr::fetch_add(1, s.remote(0x40), add), 8)?;
        s.original(v)?;
        v = v.wrapping_add(add);
    }
    s.server_has(0x40, v)
}

fn cmp_swap(s: &mut Session) -> Result<()> {
    let first = 0x1122_3344_5566_7788;
    s.ask(&format!("poke 48 {first:x}"))?;
    for (compare, swap, was) in [(1, 2, first), (first, 2, first), (2, 3, 2)] {
        s.post(SendWr::cmp_swap(1, s.remote(0x48), compare, swap), 8)?;
        s.original(was)?;
    }
    s.server_has(0x48, 3)
}

/// Many requests of all kinds in flight at once.
fn mixed(s: &mut Session) -> Result<()> {
    const N: usize = 60;
    const LEN: usize = 1500;
    s.fill(4 * LEN, 8);
    for _ in 0..N {
        s.ask(&format!("recv {LEN:x}"))?;
    }
    s.ask("poke 8 0")?;
    for _ in 0..N {
        let (short, long) = ([s.local(LEN)], [s.local(4 * LEN)]);
        s.peer.qp.post_send(&SendWr::send(1).sges(&short))?;
        s.peer.qp.post_send(&SendWr::write(2, s.remote(0x1000)).sges(&long))?;
        s.post(SendWr::fetch_add(3, s.remote(8), 1), 8)?;
        s.succeeds()?;
        s.fill(8, 8); // the result of the atomic was stored there
    }
    for _ in 0..N {
        s.received(8, WcOpcode::Recv, LEN)?;
    }
    s.ask(&format!("check 1000 {:x} 8", 4 * LEN))?;
    s.server_has(8, N as u64)
}

/// Invalidation of a key of the server by a SEND.
fn send_inv(s: &mut Session) -> Result<()> {
    let answer = s.ask("bind 1000")?;
    let mut words = Words::new(&answer);
    let rkey = Rkey(words.hex32()?);
    let window = RemoteMr { rkey, addr: words.hex()?, len: 0x1000 };
    s.fill(100, 9);
    s.post(SendWr::write(1, window), 100)?;
    s.succeeds()?;
    s.ask("recv 64")?;
    s.post(SendWr::send_invalidate(1, rkey), 100)?;
    s.succeeds()?;
    let seen = s.received(9, WcOpcode::Recv, 100)?;
    let there = seen.flags & WcFlags::WITH_INV.bits() != 0;
    ensure!(there && seen.extra == rkey.0, "invalidated {:x}, flags {:x}", seen.extra, seen.flags);
    s.post(SendWr::write(1, window), 100)?;
    s.done(WcStatus::RemAccessErr)
}

// ---- objects of the server

/// Receives are taken from a shared queue, which raises an event when it falls below its limit.
fn srq(s: &mut Session) -> Result<()> {
    for _ in 0..4 {
        s.ask("recv 40")?;
    }
    s.ask("limit 3")?;
    s.fill(50, 14);
    for _ in 0..2 {
        s.post(SendWr::send(1), 50)?;
        s.succeeds()?;
        s.received(14, WcOpcode::Recv, 50)?;
    }
    let event = s.ask("event")?;
    ensure!(event == "f", "event {event}");
    Ok(())
}

/// The server's program computes; its memory can be read and written meanwhile.
fn background(s: &mut Session) -> Result<()> {
    let start = Instant::now();
    s.ask("fill 0 2710 f")?;
    s.ask("compute 1770")?; // six seconds
    for _ in 0..20 {
        s.post(SendWr::read(1, s.remote(0)), 10000)?;
        s.succeeds()?;
        s.post(SendWr::write(2, s.remote(0x4000)), 10000)?;
        s.succeeds()?;
    }
    ensure!(
        start.elapsed() < Duration::from_secs(5),
        "the request waited for the server's program"
    );
    s.ask("check 4000 2710 f")?;
    Ok(())
}

fn deregistered(s: &mut Session) -> Result<()> {
    s.post(SendWr::write(1, s.remote(0)), 100)?;
    s.succeeds()?;
    s.ask("drop")?;
    s.post(SendWr::write(1, s.remote(0)), 100)?;
    s.refused(&[WcStatus::RemAccessErr])
}

// ---- refused requests

fn write_bad_key(s: &mut Session) -> Result<()> {
    s.you.memory.rkey.0 ^= 0x5500;
    s.post(SendWr::write(1, s.remote(0)), 100)?;
    s.refused(&[WcStatus::RemAccessErr])
}

fn read_out_of_range(s: &mut Session) -> Result<()> {
    let end = (REGION + crate::exchange::LOCAL) as u64;
    let from = RemoteMr { addr: s.you.memory.addr + end - 99, ..s.you.memory };
    s.post(SendWr::read(1, from), 100)?;
    s.refused(&[WcStatus::RemAccessErr])
}

fn write_no_right(s: &mut Session) -> Result<()> {
    s.post(SendWr::write(1, s.remote(0)), 100)?;
    s.refused(&[WcStatus::RemAccessErr])
}

fn atomic_unaligned(s: &mut Session) -> Result<()> {
    let list = [s.local(8)];
    let wr = SendWr::fetch_add(1, s.remote(4), 1).sges(&list).signaled();
    if s.peer.qp.post_send(&wr).is_err() {
        return Ok(()); // refused at once, which is valid too
    }
    s.refused(&[WcStatus::RemInvReqErr])
}

fn send_too_long(s: &mut Session) -> Result<()> {
    s.ask("recv 10")?;
    s.post(SendWr::send(1), 17)?;
    // The specification requires an invalid request error here (IBTA 9.9.3), rxe returns an operational error.
    s.refused(&[WcStatus::RemInvReqErr, WcStatus::RemOpErr])
}

/// The error flushes the requests posted after it.
fn flush(s: &mut Session) -> Result<()> {
    s.peer.post_recv(16)?;
    s.you.memory.rkey.0 ^= 0x5500;
    s.post(SendWr::write(1, s.remote(0)), 4)?;
    s.post(SendWr::send(2), 4)?;
    s.refused(&[WcStatus::RemAccessErr])?;
    s.done(WcStatus::WrFlushErr)?;
    s.done(WcStatus::WrFlushErr)
}

fn rnr_then_ready(s: &mut Session) -> Result<()> {
    s.fill(2000, 10);
    s.post(SendWr::send(1), 2000)?;
    sleep(Duration::from_millis(20)); // time for some thirty RNR NAKs
    s.ask(&format!("recv {:x}", 2000))?;
    s.succeeds()?;
    s.received(10, WcOpcode::Recv, 2000)?;
    Ok(())
}

fn rnr_exceeded(s: &mut Session) -> Result<()> {
    s.post(SendWr::send(1), 8)?;
    s.done(WcStatus::RnrRetryExcErr)
}

fn nobody_answers(s: &mut Session) -> Result<()> {
    s.hang_up()?; // destroys the server's queue pair
    sleep(Duration::from_millis(300));
    s.post(SendWr::send(1), 8)?;
    s.done(WcStatus::RetryExcErr)
}

// ---- UD

fn post_datagram(s: &Session, wr: SendWr<'_>, len: usize, qkey: u32) -> Result<()> {
    s.post(wr.to(&s.peer.way_to(&s.you), s.you.qpn, Qkey(qkey)), len)?;
    s.succeeds()
}

fn ud_send(s: &mut Session) -> Result<()> {
    for len in [0, 1, 2, 3, 200, 1024] {
        s.fill(len, 11);
        s.ask(&format!("recv {:x}", GRH + len))?;
        post_datagram(s, SendWr::send(1), len, QKEY)?;
        let seen = s.received(11, WcOpcode::Recv, GRH + len)?;
        let from_us = seen.src_qp == s.peer.qp.qpn().get();
        let grh = seen.flags & WcFlags::GRH.bits() != 0;
        ensure!(from_us && grh, "source QPN {:x}, flags {:x}", seen.src_qp, seen.flags);
    }
    Ok(())
}

fn ud_send_imm(s: &mut Session) -> Result<()> {
    s.fill(100, 12);
    s.ask(&format!("recv {:x}", GRH + 100))?;
    post_datagram(s, SendWr::send(1).imm(0xcafe_1234_u32.to_be_bytes()), 100, QKEY)?;
    let seen = s.received(12, WcOpcode::Recv, GRH + 100)?;
    immediate(seen.extra, seen.flags, 0xcafe_1234)
}

/// A datagram with a wrong Q_Key is dropped; the next one arrives.
fn ud_wrong_qkey(s: &mut Session) -> Result<()> {
    s.ask(&format!("recv {:x}", GRH + 100))?;
    s.fill(200, 13);
    post_datagram(s, SendWr::send(1), 50, QKEY + 1)?;
    post_datagram(s, SendWr::send(1), 60, QKEY)?;
    s.received(13, WcOpcode::Recv, GRH + 60)?;
    Ok(())
}
