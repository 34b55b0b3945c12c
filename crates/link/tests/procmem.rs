//! Access to the memory of another process.
//!
//! The other process is this test program again, made the target by its environment.
#![expect(clippy::cast_possible_truncation, reason = "patterns of bytes")]

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, mpsc};

use rdmux_link::board::EndMark;
use rdmux_link::procmem::Range;
use rdmux_link::{Board, PeerBoard, Piece, ProcMemError, ProcessMemory};

const ROLE: &str = "RDMUX_TEST_PROCMEM_TARGET";
const EXEC_ROLE: &str = "RDMUX_TEST_PROCMEM_EXEC";
const NAMESPACE_ROLE: &str = "RDMUX_TEST_PROCMEM_NAMESPACE";

/// The target: prints the address of its buffer, waits for a line, prints the buffer's contents.
#[test]
fn target() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let buffer: Vec<std::sync::atomic::AtomicU8> =
        (0..100_000u32).map(|i| std::sync::atomic::AtomicU8::new(i as u8)).collect();
    println!("\nADDR {:#x}", buffer.as_ptr() as usize);
    std::io::stdout().flush().unwrap();
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let sum: u64 =
        buffer.iter().map(|b| u64::from(b.load(std::sync::atomic::Ordering::Relaxed))).sum();
    println!("\nSUM {sum}");
}

struct Target {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Target {
    fn spawn() -> (Self, u64) {
        Self::spawn_as("target", ROLE)
    }

    fn spawn_as(test: &str, role: &str) -> (Self, u64) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(role, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut target = Self { child, lines };
        let addr = target.expect("ADDR 0x");
        (target, u64::from_str_radix(&addr, 16).unwrap())
    }

    fn expect(&mut self, prefix: &str) -> String {
        let mut line = String::new();
        while self.lines.read_line(&mut line).unwrap() > 0 {
            if let Some(rest) = line.trim().strip_prefix(prefix) {
                return rest.to_owned();
            }
            line.clear();
        }
        panic!("the target ended before it said {prefix}");
    }

    fn pid(&self) -> i32 {
        self.child.id() as i32
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pidfd(pid: i32) -> std::os::fd::OwnedFd {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap()
}

#[test]
fn process_memory_read_and_write_work_and_bad_addresses_fault() {
    let (mut target, addr) = Target::spawn();
    let memory = ProcessMemory::new(target.pid(), Some(pidfd(target.pid()))).unwrap();
    let mut bytes = vec![0; 100_000];
    match memory.read(addr, &mut bytes) {
        Err(ProcMemError::Refused { .. }) => {
            return println!("SKIPPED: the kernel does not let us read our child's memory");
        }
        other => other.unwrap(),
    }
    assert!(bytes.iter().enumerate().all(|(i, b)| *b == i as u8));
    memory.write(addr + 10, &[0; 50_000]).unwrap();
    memory.read(addr, &mut bytes[..0]).unwrap();
    bytes[10..50_010].fill(0);

    let e = memory.read(8, &mut [0; 8]).unwrap_err();
    assert!(matches!(e, ProcMemError::Fault { va: 8, len: 8, done: 0, .. }), "{e}");
    let e = memory.write(u64::MAX - 3, &[0; 8]).unwrap_err();
    assert!(matches!(e, ProcMemError::Fault { done: 0, .. }), "{e}");

    target.child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    let sum: u64 = bytes.iter().map(|b| u64::from(*b)).sum();
    assert_eq!(target.expect("SUM "), sum.to_string());
}

#[test]
fn partial_process_memory_read_reports_the_bytes_done() {
    let (target, addr) = Target::spawn();
    let memory = ProcessMemory::new(target.pid(), None).unwrap();
    if let Err(ProcMemError::Refused { .. }) = memory.read(addr, &mut [0]) {
        return println!("SKIPPED: the kernel does not let us read our child's memory");
    }
    // Somewhere above the buffer the readable memory ends.
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", target.pid())).unwrap();
    let readable = maps.lines().filter_map(|line| {
        let (range, rights) = line.split_once(' ')?;
        let (start, end) = range.split_once('-').filter(|_| rights.starts_with('r'))?;
        Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
    });
    let readable: Vec<_> = readable.collect();
    let ends_there = |end| !readable.iter().any(|(start, _)| *start == end);
    let (_, end) =
        readable.iter().copied().find(|(_, end)| *end > addr && ends_there(*end)).unwrap();
    let mut bytes = vec![0; 4096 + 100];
    let e = memory.read(end - 100, &mut bytes).unwrap_err();
    assert!(matches!(e, ProcMemError::Fault { done: 100, .. }), "{e}");
}

#[test]
fn memory_of_a_dead_process_is_gone() {
    let (mut target, addr) = Target::spawn();
    let pid = target.pid();
    let memory = ProcessMemory::new(pid, Some(pidfd(pid))).unwrap();
    let blind = ProcessMemory::new(pid, None).unwrap();
    assert!(!memory.is_gone());
    target.child.kill().unwrap();
    target.child.wait().unwrap();
    assert!(memory.is_gone());
    let e = memory.write(addr, &[1]).unwrap_err();
    assert!(matches!(e, ProcMemError::Gone { .. }), "{e}");
    let e = blind.read(addr, &mut [0]).unwrap_err();
    assert!(matches!(e, ProcMemError::Gone { .. }), "{e}");
}

#[test]
fn own_process_and_invalid_pids_are_refused() {
    let own = std::process::id() as i32;
    assert!(matches!(ProcessMemory::new(own, None), Err(ProcMemError::OwnProcess { .. })));
    let thread = rustix::thread::gettid().as_raw_nonzero().get();
    assert!(matches!(ProcessMemory::new(thread, None), Err(ProcMemError::OwnProcess { .. })));
    for pid in [0, -1, i32::MIN] {
        assert!(matches!(ProcessMemory::new(pid, None), Err(ProcMemError::Gone { .. })));
    }
}

#[test]
fn gathered_write_to_process_memory_is_exact() {
    let (target, addr) = Target::spawn();
    let memory = ProcessMemory::new(target.pid(), Some(pidfd(target.pid()))).unwrap();
    let bytes: Vec<u8> = (0..40).map(|i| 200 - i).collect();
    for (first, second) in (0..20).flat_map(|a| (0..20).map(move |b| (a, b))) {
        memory.write(addr, &[0; 64]).unwrap();
        let (one, two) = bytes[..first + second].split_at(first);
        let pieces = [one, two].map(|part| Piece::new(part.as_ptr(), part.len()));
        memory.write_pieces(addr, &pieces).unwrap();
        let mut there = [0; 64];
        memory.read(addr, &mut there).unwrap();
        assert_eq!(there[..first + second], bytes[..first + second]);
        assert!(there[first + second..].iter().all(|b| *b == 0), "{first} and {second}");
    }
}

/// Not a test: the role of a process that reports on another process by a pidfd.
#[test]
fn role_of_another_namespace() {
    if std::env::var_os(NAMESPACE_ROLE).is_none() {
        return;
    }
    let (target, addr) = Target::spawn();
    let memory = ProcessMemory::of_pidfd(pidfd(target.pid()));
    if let Ok(memory) = &memory {
        assert_eq!(memory.pid(), target.pid());
        match memory.read(addr + 1, &mut [0]) {
            Ok(()) | Err(ProcMemError::Refused { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    println!("\nSAYS {:?}", memory.map(drop));
}

/// The process ID of a pidfd in /proc then differs from the one that a copy needs.
#[test]
fn pidfd_with_proc_of_another_pid_namespace_is_refused() {
    let unshare = |more: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child"]);
        command.args(more).arg("--");
        command
    };
    let says = |mut command: Command| {
        command.arg(std::env::current_exe().unwrap());
        command.args(["--exact", "role_of_another_namespace", "--nocapture"]);
        let out = command.env(NAMESPACE_ROLE, "1").output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    };
    let said = says(Command::new("env"));
    assert!(said.contains("SAYS Ok"), "{said}");
    for (more, what) in [(&[][..], "SAYS Err(ForeignProc)"), (&["--mount-proc"], "SAYS Ok")] {
        if !unshare(more).arg("true").output().is_ok_and(|out| out.status.success()) {
            println!("SKIPPED: no PID namespace {more:?}");
            continue;
        }
        let said = says(unshare(more));
        assert!(said.contains(what), "{more:?}: {said}");
    }
}

#[test]
fn process_that_ended_is_gone_for_every_copy_even_if_another_has_its_id() {
    let ended = {
        let (target, _) = Target::spawn();
        pidfd(target.pid())
    };
    let (other, addr) = Target::spawn();
    let memory = ProcessMemory::new(other.pid(), Some(ended)).unwrap();
    for _ in 0..1000 {
        let written = memory.write(addr, &[0xff]);
        assert!(matches!(written, Err(ProcMemError::Gone { .. })), "{written:?}");
    }
}

/// Not a test: the role of a process with a board that becomes a [`target`].
#[test]
fn role_of_a_process_that_calls_execve() {
    if std::env::var_os(EXEC_ROLE).is_none() {
        return;
    }
    let board = Arc::new(Board::create().unwrap());
    let of_thread = board.clone();
    let (ready, marked) = mpsc::channel();
    // It ends when the kernel ends it.
    std::thread::spawn(move || {
        let _mark = EndMark::new(of_thread).unwrap();
        ready.send(()).unwrap();
        loop {
            std::thread::park();
        }
    });
    marked.recv().unwrap();
    let bytes = std::hint::black_box([7_u8; 8]);
    println!("\nADDR {:#x}", bytes.as_ptr() as usize);
    println!("\nBOARD {}", board.fd().as_raw_fd());
    std::io::stdout().flush().unwrap();
    std::io::stdin().read_line(&mut String::new()).unwrap();
    let program = std::env::current_exe().unwrap();
    let error = Command::new(program)
        .args(["--exact", "target", "--nocapture"])
        .env_remove(EXEC_ROLE)
        .env(ROLE, "1")
        .exec();
    panic!("{error}");
}

#[test]
fn memory_of_a_process_that_called_execve_is_gone() {
    let (mut child, addr) = Target::spawn_as("role_of_a_process_that_calls_execve", EXEC_ROLE);
    let path = format!("/proc/{}/fd/{}", child.pid(), child.expect("BOARD "));
    let board = PeerBoard::map(&std::fs::File::open(path).unwrap().into()).unwrap();
    assert!(board.shows_end());
    let memory = ProcessMemory::new(child.pid(), Some(pidfd(child.pid()))).unwrap();
    let memory = memory.with_board(&board);
    let mut bytes = [0; 8];
    match memory.read(addr, &mut bytes) {
        Err(ProcMemError::Refused { .. }) => {
            return println!("SKIPPED: the kernel does not let us read our child's memory");
        }
        other => other.unwrap(),
    }
    assert_eq!(bytes, [7; 8]);
    memory.write(addr, &bytes).unwrap();

    child.child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    let addr = u64::from_str_radix(&child.expect("ADDR 0x"), 16).unwrap();
    assert!(!memory.is_gone(), "the process still exists");
    let piece = Piece::new(bytes.as_ptr(), bytes.len());
    let range = Range { va: addr, len: 8 };
    // SAFETY: nothing is written to `bytes`, since the copies fail.
    let outcomes = unsafe {
        [
            memory.read(addr, &mut [0; 8]),
            memory.write(addr, &bytes),
            memory.write_pieces(addr, &[piece]),
            memory.read_pieces(addr, &[piece]),
            memory.read_ranges(&[range], &[piece]),
        ]
    };
    for outcome in outcomes {
        assert!(matches!(outcome, Err(ProcMemError::Gone { .. })), "{outcome:?}");
    }
}
