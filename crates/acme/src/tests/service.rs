//! A scripted service.

use std::io::{Read as _, Write as _};
use std::net::Ipv4Addr;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;

use rdmux_testing::{TempDir, temp_dir};
use rdmux_wire::acm::Address;
use rdmux_wire::acm::client::{
    Answer, Counters, Endpoint, EndpointInfo, Frame, Op, Paths, Query, Reply, Request, Statistic,
    Status, Subject,
};
use rdmux_wire::layout::Text;
use rdmux_wire::sa::{PathRecord, Rate, Selector};
use rdmux_wire::{Gid, Guid, Lid, Pkey};

/// Returns the bytes of an answer; none closes the connection.
type Script = dyn Fn(&Request) -> Option<Vec<u8>> + Send + Sync;

/// A service with a private socket. Its threads end with their connections, and the last one with the process.
pub(super) struct Scripted {
    path: PathBuf,
    asked: Arc<Mutex<Vec<Query>>>,
    _dir: TempDir,
}

impl Scripted {
    /// Starts a service that answers all queries successfully.
    pub(super) fn well() -> Self {
        Self::new(|request| Some(bytes(request, answer(&request.query))))
    }

    /// Starts a service that answers all queries with this failure.
    pub(super) fn failing(status: Status) -> Self {
        Self::new(move |request| Some(failed(request, status)))
    }

    pub(super) fn new(
        script: impl Fn(&Request) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> Self {
        let dir = temp_dir();
        let path = dir.path().join("svc");
        let listener = UnixListener::bind(&path).unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (script, log): (Arc<Script>, _) = (Arc::new(script), asked.clone());
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (script, log) = (script.clone(), log.clone());
                thread::spawn(move || serve(stream, &*script, &log));
            }
        });
        Self { path, asked, _dir: dir }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the queries received so far.
    pub(super) fn asked(&self) -> Vec<Query> {
        self.asked.lock().unwrap().clone()
    }
}

fn serve(mut stream: UnixStream, script: &Script, log: &Mutex<Vec<Query>>) {
    let mut bytes = Vec::new();
    loop {
        match Frame::of_request(&bytes).unwrap() {
            Frame::Needs(len) => {
                let have = bytes.len();
                bytes.resize(len, 0);
                if stream.read_exact(&mut bytes[have..]).is_err() {
                    return;
                }
            }
            Frame::Whole(_) => {
                let request = Request::parse(&bytes).unwrap();
                log.lock().unwrap().push(request.query);
                let Some(answer) = script(&request) else { return };
                if stream.write_all(&answer).is_err() {
                    return;
                }
                bytes.clear();
            }
        }
    }
}

/// Returns the path in every answer.
pub(super) fn path() -> PathRecord {
    let gid = |last| Gid([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
    PathRecord {
        dgid: gid(2),
        sgid: gid(1),
        dlid: Lid(7),
        slid: Lid(3),
        flow_label: 0x2_3456,
        hop_limit: 64,
        tclass: 5,
        reversible: true,
        numb_path: 1,
        pkey: Pkey(0xffff),
        sl: 3,
        mtu_selector: Selector::EXACTLY,
        mtu: 4,
        rate_selector: Selector::EXACTLY,
        rate: Rate(6),
        packet_life_time_selector: Selector::EXACTLY,
        packet_life_time: 18,
        ..PathRecord::default()
    }
}

/// Returns a successful answer. There are two endpoints, of two ports each.
pub(super) fn answer(query: &Query) -> Answer<'static> {
    const FIELDS: &[[u8; 64]] = &[field(b"hosta"), field(b"10.0.0.1")];
    static STATISTICS: std::sync::OnceLock<[[u8; rdmux_wire::acm::client::STATISTIC_LEN]; 2]> =
        std::sync::OnceLock::new();
    match query {
        Query::Resolve { source: None, .. } => {
            let source = Address::Ip4(Ipv4Addr::new(10, 0, 0, 1));
            Answer::Paths(Paths::one(path(), Some(source)))
        }
        Query::ResolvePath { .. } => Answer::Paths(Paths::one(path(), Address::name("chosen"))),
        Query::Resolve { .. } | Query::QuerySa { .. } => Answer::Paths(Paths::one(path(), None)),
        Query::Counters(Subject::Index(3..)) => Answer::Failed(Op::PERF_QUERY, Status::INVALID),
        Query::Counters(_) => {
            let values = [1, 22, 333, 4444, 55555, 666_666, (1 << 63) + 1];
            Answer::Counters(values.into_iter().collect::<Counters>())
        }
        Query::Endpoint { index: 1..=2, port: 0..=2 } => {
            let Query::Endpoint { index, port } = query else { unreachable!() };
            let info = EndpointInfo {
                dev_guid: Guid(0x1122_3344_5566_7788),
                port_num: *port,
                phys_port_cnt: 2,
                pkey: Pkey(0xffff),
                prov_name: Text::from("ibacmp"),
                ..EndpointInfo::default()
            };
            Answer::Endpoint(Endpoint { info, fields: &FIELDS[..usize::from(*index)] })
        }
        Query::Endpoint { .. } => Answer::Failed(Op::EP_QUERY, Status::INVALID),
        Query::Flush(_) => Answer::Flushed(3),
        Query::Statistics => Answer::Statistics(STATISTICS.get_or_init(|| {
            [Statistic::new("claims", 5), Statistic::new("datagrams", 1)].map(|s| s.to_bytes())
        })),
    }
}

const fn field(text: &[u8]) -> [u8; 64] {
    let mut field = [0; 64];
    let mut i = 0;
    while i < text.len() {
        field[i] = text[i];
        i += 1;
    }
    field
}

/// Encodes an answer for the socket.
pub(super) fn bytes(request: &Request, answer: Answer<'_>) -> Vec<u8> {
    let reply = Reply { tid: request.tid, answer };
    let mut bytes = vec![0; reply.wire_len()];
    reply.emit(&mut bytes);
    bytes
}

/// Encodes an answer that reports a failure.
pub(super) fn failed(request: &Request, status: Status) -> Vec<u8> {
    let op = match request.query {
        Query::Counters(_) => Op::PERF_QUERY,
        Query::Endpoint { .. } => Op::EP_QUERY,
        Query::Flush(_) => Op::FLUSH,
        Query::Statistics => Op::STATISTICS,
        _ => Op::RESOLVE,
    };
    bytes(request, Answer::Failed(op, status))
}
