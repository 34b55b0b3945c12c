//! Two processes of one host that access each other's memory, and the failures that must not occur.
#![expect(clippy::cast_possible_truncation, reason = "small numbers of the tests themselves")]

mod processes;

use processes::{ALL, End, Peer, ROLE, all_lengths, counter, in_a_process, lengths, pattern, sum};
use rdmux::{Access, RemoteMr, Rkey, SendWr, WcStatus};

/// Not a test, but the entry point of the other tests' processes.
#[test]
fn role() {
    match std::env::var(ROLE).as_deref() {
        Ok("peer") => return processes::be_peer(|_, _, words| panic!("{words:?}")),
        Ok("copies") => copies(),
        Ok("order") => order(),
        Ok("rights") => rights(),
        Ok("takes_back") => takes_back(),
        Ok("fails") => fails(),
        Ok("gives_up") => gives_up(),
        Ok("off_there") => off(),
        Err(_) => return,
        Ok(other) => panic!("{other}"),
    }
    println!("SAYS done");
}

fn copies() {
    let end = End::open();
    let mut peer = Peer::start(&end, "on", ALL);
    all_lengths(&end, &mut peer);
    let bytes: usize = lengths().sum();
    assert_eq!(counter("direct_write_bytes"), bytes as u64);
    assert_eq!(counter("direct_read_bytes"), bytes as u64);
    let fetched: usize = lengths().filter(|len| *len >= 32 << 10).sum();
    assert_eq!(counter("direct_fetch_bytes"), fetched as u64);
    assert_eq!(counter("direct_offer_bytes"), fetched as u64);
    assert_eq!(counter("direct_fetch_failures"), 0);
}

fn off() {
    let end = End::open();
    let mut peer = Peer::start(&end, "off", ALL);
    all_lengths(&end, &mut peer);
    assert_eq!(counter("direct_writes") + counter("direct_reads") + counter("direct_fetches"), 0);
}

/// Alternates SENDs and WRITEs: the data that a message announces are there when it arrives.
fn order() {
    let end = End::open();
    let mut peer = Peer::start(&end, "on", ALL);
    let far = peer.region("region", 1 << 20, ALL);
    peer.region("region", 4096, ALL);
    let near = end.pd.alloc(1 << 20, ALL).unwrap();
    for round in 0..200_u64 {
        let len = [8, 5000, 100_000, 1 << 20][round as usize % 4];
        near.store(0, round);
        peer.tell("recv 1 64");
        peer.hear();
        let part = far.slice(0..len as u64);
        end.qp.post_send(&SendWr::write(1, part).sges(&[near.slice(..len)])).unwrap();
        end.qp.post_send(&SendWr::send(2).sges(&[near.slice(..8)])).unwrap();
        end.qp.post_send(&SendWr::read(3, part).sges(&[near.slice(..len)]).signaled()).unwrap();
        assert_eq!(peer.ask("wait"), "Success 8");
        assert_eq!(peer.ask("first 0"), round.to_string());
        end.done(3, WcStatus::Success);
        assert_eq!(near.load(0), round);
    }
    assert!(counter("direct_writes") >= 200);
}

/// Access without permission is refused, as always.
fn rights() {
    let read_only = Access::LOCAL_WRITE | Access::REMOTE_READ;
    type Case = (&'static str, Access, Access, fn(RemoteMr) -> RemoteMr);
    let cases: [Case; 6] = [
        ("region", ALL, read_only, |r| r),
        ("region", read_only, ALL, |r| r),
        ("elsewhere", ALL, ALL, |r| r),
        ("region", ALL, ALL, |r| RemoteMr { addr: r.addr + 1, ..r }),
        ("region", ALL, ALL, |r| RemoteMr { addr: u64::MAX - 10, ..r }),
        ("region", ALL, ALL, |r| RemoteMr { rkey: Rkey(r.rkey.0 ^ 1), ..r }),
    ];
    for (i, (how, qp, region, change)) in cases.into_iter().enumerate() {
        let end = End::open();
        let mut peer = Peer::start(&end, "on", qp);
        let far = peer.region(how, 4096, region);
        let near = end.pd.alloc(4096, ALL).unwrap();
        near.write(0, &[7; 4096]);
        let wr = SendWr::write(1, change(far));
        end.qp.post_send(&wr.sges(&[near.slice(..)]).signaled()).unwrap();
        let done = end.next();
        assert!(
            matches!(done.status, WcStatus::RemAccessErr | WcStatus::RemInvReqErr),
            "{i}: {:?}",
            done.status
        );
        assert_eq!(peer.ask("first 0"), "0");
    }
    assert_eq!(counter("direct_writes"), 0);
}

/// Memory is deregistered while it is being written to.
fn takes_back() {
    for round in 0..8 {
        let end = End::open();
        let mut peer = Peer::start(&end, "on", ALL);
        let len = [64, 300_000][round % 2];
        let far = peer.region("region", len, ALL);
        let near = end.pd.alloc(len, ALL).unwrap();
        peer.tell(if round % 4 < 2 { "back 0" } else { "fail" });
        let mut fill = 0_u8;
        let status = loop {
            fill = fill.wrapping_add(1);
            near.write(0, &vec![fill; len]);
            end.qp.post_send(&SendWr::write(1, far).sges(&[near.slice(..)]).signaled()).unwrap();
            let done = end.next();
            if done.status != WcStatus::Success {
                break done.status;
            }
        };
        if round % 4 < 2 {
            assert_eq!(status, WcStatus::RemAccessErr);
            assert_eq!(peer.hear(), "same");
        } else {
            // A failed queue pair does not answer.
            assert_eq!(status, WcStatus::RetryExcErr);
            peer.hear();
            assert_eq!(peer.ask("back 0"), "same");
        }
    }
}

/// A SEND delivers its memory's contents from before its queue pair failed, or is not delivered.
fn gives_up() {
    let mut arrived = 0;
    for round in 0..60 {
        let end = End::open();
        let mut peer = Peer::start(&end, "on", ALL);
        peer.region("region", 1 << 20, ALL);
        peer.ask("recv 0 1048576");
        let near = end.pd.alloc(1 << 20, ALL).unwrap();
        near.write(0, &pattern(1 << 20, round));
        end.qp.post_send(&SendWr::send(1).sges(&[near.slice(..)]).signaled()).unwrap();
        (0..u32::from(round) * 200).for_each(|_| std::hint::spin_loop());
        end.qp.fail().unwrap();
        near.write(0, &vec![0; 1 << 20]);
        peer.ask("fail");
        if peer.ask("wait").starts_with("Success") {
            arrived += 1;
            assert_eq!(peer.ask("sum 0 1048576"), sum(&pattern(1 << 20, round)).to_string());
        }
    }
    println!("{arrived} arrived");
}

/// Access rights are revoked and granted again.
fn fails() {
    let end = End::open();
    let mut peer = Peer::start(&end, "on", ALL);
    let far = peer.region("region", 4096, ALL);
    let near = end.pd.alloc(4096, ALL).unwrap();
    let write = |status| {
        end.qp.post_send(&SendWr::write(1, far).sges(&[near.slice(..)]).signaled()).unwrap();
        end.done(1, status);
    };
    write(WcStatus::Success);
    peer.ask(&format!("change 0 {}", (Access::LOCAL_WRITE | Access::REMOTE_READ).bits()));
    end.qp.post_send(&SendWr::read(1, far).sges(&[near.slice(..)]).signaled()).unwrap();
    end.done(1, WcStatus::Success);
    peer.ask(&format!("change 0 {}", ALL.bits()));
    write(WcStatus::Success);
    assert_eq!(counter("direct_writes"), 2);
    peer.ask("change 0 1");
    write(WcStatus::RemAccessErr);
    assert_eq!(counter("direct_writes"), 2);
}

#[test]
fn writes_and_reads_of_every_length_work_by_direct_copy() {
    in_a_process("copies");
}

#[test]
fn without_permission_for_direct_copies_everything_uses_the_ring() {
    in_a_process("off_there");
}

#[test]
fn send_arrives_after_the_preceding_write() {
    in_a_process("order");
}

#[test]
fn direct_write_without_rights_is_remote_access_error() {
    in_a_process("rights");
}

#[test]
fn deregistered_memory_is_not_written_by_direct_copies() {
    in_a_process("takes_back");
}

#[test]
fn send_delivers_memory_from_before_the_queue_pair_failed() {
    in_a_process("gives_up");
}

#[test]
fn revoked_remote_write_is_remote_access_error_at_once() {
    in_a_process("fails");
}
