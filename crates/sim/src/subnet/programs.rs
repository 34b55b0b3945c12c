//! Programs that query subnet administration: they join and leave groups, register services for some time, subscribe to
//! events, and query paths. Each has one outstanding request at a time, and repeats it until everything is as it wants.
//!
//! A program learns only by the client reregister event of its port that it must register everything again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use rand::Rng;
use rdmux_subnet::umad::{FileId, UserAddress, UserMad};
use rdmux_subnet::{PortEvent, PortId, Time};
use rdmux_wire::layout::Layout;
use rdmux_wire::mad::Method;
use rdmux_wire::sa::{
    JoinState, McMemberRecord, PathRecord, PathRecordMask, ReportedNotice, SaMad,
};
use rdmux_wire::{Gid, Lid, Rmpp, RmppFlags, RmppType};

use super::device::open_program;
use super::wishes::{FOR_EVER, Item, LAST, MGIDS, Wish, bytes, is_gone};
use super::world::{Event, World};

/// A time longer than the round-trip time of a datagram.
const LATE: Duration = Duration::from_millis(50);

/// The subject of a request: an item to register or unregister, or the path to a port.
#[derive(Debug)]
enum Asked {
    Item(Item, bool),
    Path(PortId),
}

/// The outstanding request of a program.
struct Pending {
    asked: Asked,
    tid: u32,
    since: Time,
    /// Whether the program was asked to reregister since the request was sent.
    stale: bool,
}

/// A program that queries administration.
pub(super) struct Program {
    pub(super) port: PortId,
    pub(super) gid: Gid,
    file: FileId,
    /// The join state for each group.
    pub(super) states: [JoinState; MGIDS.len()],
    pub(super) wishes: BTreeMap<Item, Wish>,
    pending: Option<Pending>,
    next_tid: u32,
    /// Ports to which the program queries paths.
    questions: VecDeque<PortId>,
    pub(super) paths: Vec<(PortId, Vec<PathRecord>)>,
    /// The traps reported since the last quiet period.
    pub(super) reports: Vec<u16>,
    /// The requests sent since the last sweep was requested.
    pub(super) sent: u64,
    /// Whether the program's next step is scheduled.
    awake: bool,
}

impl Program {
    /// Resets the counts of requests and reports.
    pub(super) fn begin_silence(&mut self) {
        self.sent = 0;
        self.reports.clear();
    }

    /// Returns whether everything is as it wants.
    pub(super) fn is_content(&self) -> bool {
        self.wishes.values().all(|wish| wish.done == Some(wish.wanted)) && self.questions.is_empty()
    }

    fn wish(&mut self, item: Item) -> &mut Wish {
        let (since, latest) = (Time::ZERO, Time::ZERO);
        let (wanted, done, is_certain) = (false, Some(false), true);
        let new = Wish { wanted, done, is_certain, lease: 0, since, latest, mlid: Lid::NONE };
        self.wishes.entry(item).or_insert(new)
    }
}

impl World {
    pub(super) fn start_programs(&mut self, ends: &[PortId]) {
        let mut free: BTreeSet<PortId> = ends.iter().copied().collect();
        for _ in 0..self.scenario.programs {
            let port = ends[self.rng.random_range(0..ends.len())];
            if !free.remove(&port) {
                continue;
            }
            let some = [
                JoinState::FULL_MEMBER,
                JoinState::FULL_MEMBER,
                JoinState::NON_MEMBER,
                JoinState::SEND_ONLY_NON_MEMBER,
            ];
            // A program that joins another group must be able to create it.
            let sends = JoinState::SEND_ONLY_FULL_MEMBER;
            let mut full =
                || if self.rng.random_bool(0.2) { sends } else { JoinState::FULL_MEMBER };
            let (one, two) = (full(), full());
            let first = some[self.rng.random_range(0..some.len())];
            let guid = self.subnet.port(port).map(|view| view.guid()).unwrap_or_default();
            self.programs.push(Program {
                port,
                gid: Gid::new(Gid::DEFAULT_PREFIX, guid),
                file: open_program(&mut self.umad, port),
                states: [first, one, two, JoinState::FULL_MEMBER],
                wishes: BTreeMap::new(),
                pending: None,
                next_tid: 0,
                questions: VecDeque::new(),
                paths: Vec::new(),
                reports: Vec::new(),
                sent: 0,
                awake: false,
            });
            self.subnet.set_attached(port, true);
            let program = self.programs.len() - 1;
            for _ in 0..self.rng.random_range(0..5) {
                self.change_mind(program);
            }
        }
    }

    /// Changes the state that a program wants.
    pub(super) fn change_mind(&mut self, index: usize) {
        let item = match self.rng.random_range(0..8) {
            0..=3 => Item::Member(self.rng.random_range(0..LAST)),
            4..=5 => Item::Service(self.rng.random_range(1..4)),
            6 => Item::Subscription(self.rng.random_range(64..68)),
            _ => {
                let to = self.rng.random_range(0..self.programs.len());
                let to = self.programs[to].port;
                self.programs[index].questions.push_back(to);
                return self.wake(index);
            }
        };
        let lease = match self.rng.random_bool(0.3) {
            true => FOR_EVER,
            false => self.rng.random_range(0..120),
        };
        self.trace(|| format!("program {index} changes its mind about {item:?}, lease {lease}"));
        let wish = self.programs[index].wish(item);
        wish.wanted = !wish.wanted;
        wish.done = None;
        if wish.wanted {
            wish.lease = lease;
        }
        self.wake(index);
    }

    /// Makes each program query paths to all others, at the end.
    pub(super) fn questions(&mut self) {
        let all: Vec<PortId> = self.programs.iter().map(|program| program.port).collect();
        for index in 0..self.programs.len() {
            let program = &mut self.programs[index];
            program.paths.clear();
            program.questions = all.iter().copied().filter(|port| *port != program.port).collect();
            self.wake(index);
        }
    }

    /// Makes a program create a new group.
    pub(super) fn create_group(&mut self) {
        self.maker = (0..self.programs.len()).find(|&index| {
            let part = self.part(self.programs[index].port);
            self.master(&part).is_some()
        });
        let Some(index) = self.maker else { return };
        let wish = self.programs[index].wish(Item::Member(LAST));
        (wish.wanted, wish.done) = (true, None);
        self.wake(index);
    }

    fn wake(&mut self, index: usize) {
        if !std::mem::replace(&mut self.programs[index].awake, true) {
            let pause = self.rng.random_range(LATE..3 * LATE);
            self.agenda.after(pause, Event::Act { program: index });
        }
    }

    /// Passes a port's event to its program.
    pub(super) fn port_event(&mut self, at: PortId, event: PortEvent) {
        let program = self.programs.iter().position(|program| program.port == at);
        let Some(index) = program.filter(|_| event == PortEvent::ClientReregister) else { return };
        self.trace(|| format!("program {index} is asked to register again"));
        self.stats.reregistrations += 1;
        let program = &mut self.programs[index];
        for wish in program.wishes.values_mut() {
            wish.is_certain = false;
            if wish.wanted {
                wish.done = None;
            }
        }
        if let Some(pending) = &mut program.pending {
            pending.stale = true;
        }
        self.wake(index);
    }

    /// Takes the next step towards the state that a program wants.
    pub(super) fn act(&mut self, index: usize) -> Result<(), String> {
        let now = self.agenda.now();
        let program = &mut self.programs[index];
        program.awake = false;
        if program.pending.is_some() {
            return Ok(());
        }
        let open = program.wishes.iter().find(|(_, wish)| wish.done != Some(wish.wanted));
        let (asked, (method, attr_id, mask, data)) = match (open, program.questions.front()) {
            (Some((&item, wish)), _) => {
                (Asked::Item(item, wish.wanted), program.request(item, wish))
            }
            (None, Some(&to)) => {
                use PathRecordMask as Mask;
                let guid = self.subnet.port(to).map(|view| view.guid()).unwrap_or_default();
                let dgid = Gid::new(Gid::DEFAULT_PREFIX, guid);
                let record = PathRecord {
                    sgid: program.gid,
                    dgid,
                    reversible: true,
                    numb_path: 127,
                    ..PathRecord::default()
                };
                let mask = Mask::SGID | Mask::DGID | Mask::REVERSIBLE | Mask::NUMB_PATH;
                let request = (Method::GET_TABLE, PathRecord::ATTR_ID, mask.bits(), bytes(&record));
                (Asked::Path(to), request)
            }
            (None, None) => return Ok(()),
        };
        program.next_tid += 1;
        program.sent += 1;
        let tid = program.next_tid;
        program.pending = Some(Pending { asked, tid, since: now, stale: false });
        let mut mad = SaMad::new(method, attr_id, &data);
        mad.header.tid = tid.into();
        mad.sa.component_mask = mask;
        if method == Method::GET_TABLE {
            let (kind, flags) = (RmppType::DATA, RmppFlags::ACTIVE);
            mad.rmpp = Rmpp { version: Rmpp::VERSION, kind, flags, ..mad.rmpp };
        }
        let view = self.subnet.port(program.port);
        let (lid, sl) = view.map_or((Lid::NONE, 0), |view| (view.sm_lid(), view.sm_sl()));
        let record = UserMad {
            agent: 0,
            status: 0,
            timeout_ms: 100,
            retries: 3,
            address: UserAddress { sl, ..UserAddress::gsi(lid) },
            data: mad.to_bytes().to_vec(),
        };
        let (file, is_there) = (program.file, lid != Lid::NONE);
        let sent = match is_there {
            true => self.write(file, record)?,
            false => Err(rdmux_subnet::umad::Errno::Inval),
        };
        if sent.is_err() {
            self.ended(index, UserMad::TIMED_OUT.try_into().unwrap_or(u16::MAX), &[]);
        }
        Ok(())
    }

    /// Handles an answer or a Report that a program reads.
    pub(super) fn program_reads(&mut self, file: FileId, mad: UserMad) -> Result<(), String> {
        let Some(index) = self.programs.iter().position(|program| program.file == file) else {
            return Ok(());
        };
        let tid = mad.data.get(12..16).and_then(|tid| tid.first_chunk());
        let tid = tid.map_or(0, |tid| u32::from_be_bytes(*tid));
        if mad.status == 0
            && let Ok(sa) = SaMad::parse(&mad.data)
            && sa.header.method == Method::REPORT
        {
            let notice = ReportedNotice::read(sa.data).map_err(|e| format!("a Report: {e}"))?;
            self.trace(|| format!("program {index} reads of trap {}", notice.notice.trap_number));
            self.stats.reports += 1;
            self.programs[index].reports.push(notice.notice.trap_number);
            let mut answer = sa;
            answer.header.method = Method::REPORT_RESP;
            let data = answer.to_bytes().to_vec();
            let answer = UserMad { timeout_ms: 0, retries: 0, data, ..mad };
            let _ = self.write(file, answer)?;
            return Ok(());
        }
        if self.programs[index].pending.as_ref().is_none_or(|pending| pending.tid != tid) {
            return Err(format!("program {index} reads an answer to nothing, tid {tid:#x}"));
        }
        let sa = SaMad::parse(&mad.data);
        match sa {
            Ok(sa) if mad.status == 0 => {
                let (code, data) = (sa.header.status, sa.data.to_vec());
                if let Some(Pending { asked: Asked::Path(to), .. }) = self.programs[index].pending
                    && code == 0
                {
                    let all: Vec<PathRecord> = sa.records().collect();
                    self.read_paths(index, to, all)?;
                }
                self.ended(index, code, &data);
            }
            _ => self.ended(index, u16::try_from(mad.status).unwrap_or(u16::MAX), &[]),
        }
        Ok(())
    }

    fn read_paths(&mut self, index: usize, to: PortId, all: Vec<PathRecord>) -> Result<(), String> {
        let guid = self.subnet.port(to).map(|view| view.guid()).unwrap_or_default();
        let program = &mut self.programs[index];
        let ends = (program.gid, Gid::new(Gid::DEFAULT_PREFIX, guid));
        if let Some(other) = all.iter().find(|path| (path.sgid, path.dgid) != ends) {
            return Err(format!("program {index} asked for paths to {to} and got {other:?}"));
        }
        if !all.is_empty() {
            program.paths.push((to, all));
        }
        Ok(())
    }

    /// Handles the end of a program's request: code 0 is an answer without error.
    fn ended(&mut self, index: usize, code: u16, data: &[u8]) {
        let now = self.agenda.now();
        let Some(pending) = self.programs[index].pending.take() else { return };
        self.trace(|| format!("program {index}: {:?} ends with {code:#06x}", pending.asked));
        let program = &mut self.programs[index];
        let mut refused = code != 0;
        match pending.asked {
            Asked::Path(to) => {
                if program.questions.front() == Some(&to) {
                    program.questions.pop_front();
                }
            }
            Asked::Item(item, wanted) => {
                let is_over = code == 0 || !wanted && is_gone(item, code);
                refused &= !is_over;
                let wish = program.wish(item);
                if wanted {
                    let lease = Duration::from_secs(wish.lease.into());
                    wish.latest = wish.latest.max(now.after(LATE).after(lease));
                    if let Ok(record) = McMemberRecord::read(data)
                        && code == 0
                        && matches!(item, Item::Member(_))
                    {
                        wish.mlid = record.mlid;
                    }
                }
                // A registration from before a manager's reregister request may be lost by now.
                if is_over && !(pending.stale && wanted) {
                    wish.done = Some(wanted);
                    wish.is_certain = !pending.stale;
                    wish.since = pending.since;
                }
            }
        }
        match refused {
            true => self.stats.refusals += 1,
            false => self.stats.registrations += 1,
        }
        if !self.programs[index].is_content() {
            self.wake(index);
        }
    }
}
