//! Two processes of one host when one or both may not access the other's memory: data that cannot be copied directly in
//! a direction are sent through the ring, and the bytes are right.

mod processes;

use std::os::unix::process::CommandExt;

use processes::{
    ALL, End, Peer, ROLE, SWITCH, all_lengths, bytes, command, counter, hex, in_a_process,
    in_a_process_of,
};
use rdmux::{Mr, RemoteMr, SendWr, WcStatus};
use rdmux_testing::in_pid_namespace;
use rustix::process::{DumpableBehavior, geteuid, set_dumpable_behavior};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

/// A user id that needs no account.
const SOMEBODY: u32 = 54_321;
const ELSE: u32 = 54_322;
/// See `NOBODY` in the service.
const NOBODY: u32 = 65_534;

/// Not a test, but the entry point of the other tests' processes.
#[test]
fn role() {
    match std::env::var(ROLE).as_deref() {
        Ok("peer") => return processes::be_peer(more),
        Ok("undumpable") => one_way(|peer| drop(peer.ask("undumpable"))),
        Ok("forbidden_here") => one_way(|_| forbid()),
        Ok("forbidden_there") => other_way(),
        Ok("strangers") => strangers(ELSE),
        Ok("nobodies") => strangers(NOBODY),
        Ok("friends") => friends(),
        Ok("foreign_proc") => foreign_proc(),
        Err(_) => return,
        Ok(other) => panic!("{other}"),
    }
    println!("SAYS done");
}

/// Handles the commands of a peer that ordinary peers do not have.
fn more(end: &End, regions: &[Option<Mr>], words: &[&str]) -> String {
    match *words {
        ["undumpable"] => set_dumpable_behavior(DumpableBehavior::NotDumpable).unwrap(),
        ["forbid"] => forbid(),
        ["boards"] => return boards(),
        ["write", far] => {
            let far = RemoteMr::from_bytes(&bytes(far)).unwrap();
            let near = [regions[0].as_ref().unwrap().slice(..usize::try_from(far.len).unwrap())];
            end.qp.post_send(&SendWr::write(7, far).sges(&near).signaled()).unwrap();
            end.done(7, WcStatus::Success);
        }
        _ => panic!("{words:?}"),
    }
    String::new()
}

/// Makes the kernel refuse copies to and from other processes' memory, as in a container.
fn forbid() {
    let calls = [libc::SYS_process_vm_readv, libc::SYS_process_vm_writev];
    let rules = calls.into_iter().map(|call| (call, Vec::new())).collect();
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, TargetArch::x86_64);
    let program: BpfProgram = filter.unwrap().try_into().unwrap();
    seccompiler::apply_filter_all_threads(&program).unwrap();
}

/// Returns how many boards this process has mapped, and how many pidfds it has.
fn boards() -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let boards = maps.lines().filter(|line| line.contains("rdmux-board")).count();
    let fds = std::fs::read_dir("/proc/self/fd").unwrap();
    let targets = fds.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok());
    let pidfds = targets.filter(|to| to.to_string_lossy().contains("pidfd")).count();
    format!("{boards} {pidfds}")
}

/// Checks all operations in both directions, and that the peer can write to this process.
fn both_ways(end: &End, peer: &mut Peer) {
    all_lengths(end, peer);
    let near = end.pd.alloc(100_000, ALL).unwrap();
    peer.ask("fill 0 77");
    let first = peer.ask("first 0");
    peer.ask(&format!("write {}", hex(&near.remote().to_bytes())));
    assert_eq!(near.load(0).to_string(), first);
}

/// This process may not access the peer's memory, but the peer may access this process's.
fn one_way(refuse: impl Fn(&mut Peer)) {
    let end = End::open();
    let mut peer = Peer::start(&end, "on", ALL);
    refuse(&mut peer);
    both_ways(&end, &mut peer);
    assert_eq!(counter("direct_reads"), 0);
    assert_eq!(counter("direct_writes"), 1, "the peer's");
    assert!(counter("direct_fetches") > 0, "the peer's");
    assert_eq!(counter("direct_fetch_failures"), 0);
    assert_eq!(counter("direct_refused"), 1);
}

/// This process may access the peer's memory, but the peer may not access this process's.
fn other_way() {
    let end = End::open();
    let mut peer = Peer::start(&end, "on", ALL);
    peer.ask("forbid");
    both_ways(&end, &mut peer);
    assert!(counter("direct_writes") > 0 && counter("direct_reads") > 0);
    assert_eq!(counter("direct_fetches"), 1, "of the peer's WRITE, by us");
    assert!(counter("direct_fetch_failures") > 0);
    assert_eq!(counter("direct_refused"), 1);
}

/// Neither side gets the descriptors to access the other's memory, because the peer belongs, or may belong, to another
/// user.
fn strangers(user: u32) {
    let end = End::open();
    let mut command = command("peer");
    if geteuid().is_root() {
        command.uid(user).gid(user);
    }
    let mut peer = Peer::start_by(command.env(SWITCH, "on"), &end, ALL);
    both_ways(&end, &mut peer);
    assert_eq!((boards(), peer.ask("boards")), ("1 0".into(), "1 0".into()));
    for name in ["direct_writes", "direct_reads", "direct_fetches", "direct_refused"] {
        assert_eq!(counter(name), 0, "{name}");
    }
}

/// The peer gets the descriptors to access this process's memory but cannot use them, so this process may not access
/// the peer's memory either.
fn foreign_proc() {
    if let Some(mut command) = in_pid_namespace() {
        let end = End::open();
        command.arg(std::env::current_exe().unwrap());
        command.args(["--exact", "role", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, "peer").env(SWITCH, "on");
        let mut peer = Peer::start_by(&mut command, &end, ALL);
        both_ways(&end, &mut peer);
        assert_eq!((boards(), peer.ask("boards")), ("2 1".into(), "1 0".into()));
        for name in ["direct_writes", "direct_reads", "direct_fetches", "direct_refused"] {
            assert_eq!(counter(name), 0, "{name}");
        }
    }
}

/// A check of the test itself: friendly processes do access each other's memory.
fn friends() {
    let end = End::open();
    let mut peer = Peer::start(&end, "on", ALL);
    both_ways(&end, &mut peer);
    assert_eq!((boards(), peer.ask("boards")), ("2 1".into(), "2 1".into()));
}

/// Returns whether processes can run as other users here. Prints a notice if not.
fn is_root() -> bool {
    let root = geteuid().is_root();
    if !root {
        println!("skipped: only root has processes of other users");
    }
    root
}

#[test]
fn non_dumpable_process_falls_back_to_the_ring() {
    // For root it would make no difference.
    in_a_process_of("undumpable", geteuid().is_root().then_some(SOMEBODY));
}

#[test]
fn sandboxed_process_cannot_copy_directly_but_its_peer_can() {
    in_a_process("forbidden_here");
}

#[test]
fn sandboxed_peer_cannot_copy_directly_but_this_process_can() {
    in_a_process("forbidden_there");
}

#[test]
fn processes_of_one_user_exchange_memory_descriptors() {
    in_a_process("friends");
}

#[test]
fn a_process_to_which_proc_shows_another_pid_namespace_is_reached_by_the_ring() {
    in_a_process("foreign_proc");
}

#[test]
fn processes_of_different_users_exchange_no_memory_descriptors() {
    if is_root() {
        in_a_process("strangers");
    }
}

#[test]
fn processes_of_unmapped_users_exchange_no_memory_descriptors() {
    if is_root() {
        in_a_process_of("nobodies", Some(NOBODY));
    }
}
