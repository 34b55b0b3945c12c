//! tshark reads what `rdmux capture` has written: packets of queue pairs, of rings and between hosts, and management datagrams of the
//! port, from programs and the port's own agents.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::TIMEOUT;
use super::ground::{self, Ground, HOSTS, Shown};

/// Programs that connect queue pairs by themselves, server and client: between the hosts, and on one. Together they
/// send every kind of packet that programs of the distribution send.
const EXCHANGES: &[&str] = &[
    "ibv_rc_pingpong -d rdmux_ib0 -n 5 -s 30000 -m 1024",
    "ibv_rc_pingpong -d rdmux_ib0 -n 5 -g 0",
    "ibv_uc_pingpong -d rdmux_ib0 -n 5 -m 2048",
    "ibv_ud_pingpong -d rdmux_ib0 -n 5 -s 1000",
    "ibv_ud_pingpong -d rdmux_ib0 -n 5 -s 1000 -g 0",
    "ib_write_lat -d rdmux_ib0 -n 5 -s 20000 -F",
    "ib_write_bw -d rdmux_ib0 -n 5 -s 65536 -F",
    "ib_read_bw -d rdmux_ib0 -n 5 -s 65536 -F",
    "ib_atomic_bw -d rdmux_ib0 -n 5 -F -A FETCH_AND_ADD",
    "ib_atomic_bw -d rdmux_ib0 -n 5 -F -A CMP_AND_SWAP",
];

/// Programs that send management datagrams: directed and by LID, with RMPP, and to another host's agents.
const QUERIES: &[&str] =
    &["sminfo", "saquery", "ibnetdiscover", "smpquery -D nodeinfo 0", "perfquery {lid} 1"];

/// The TCP port on which these programs exchange connection parameters.
const PORT: u16 = 18515;

/// Opcodes of RC, UC and UD that must occur, with tshark's names.
const OPCODES: &[(u8, &str)] = &[
    (0x00, "RC SEND First"),
    (0x01, "RC SEND Middle"),
    (0x02, "RC SEND Last"),
    (0x04, "RC SEND Only"),
    (0x06, "RC RDMA WRITE First"),
    (0x07, "RC RDMA WRITE Middle"),
    (0x08, "RC RDMA WRITE Last"),
    (0x0c, "RC RDMA READ Request"),
    (0x0d, "RC RDMA READ Response First"),
    (0x0f, "RC RDMA READ Response Last"),
    (0x11, "RC Acknowledge"),
    (0x12, "RC ATOMIC Acknowledge"),
    (0x13, "RC CmpSwap"),
    (0x14, "RC FetchAdd"),
    (0x20, "UC SEND First"),
    (0x64, "UD SEND Only"),
];

/// The opcodes that both hosts send to each other.
const BOTH_WAYS: &[u8] = &[0x00, 0x01, 0x02, 0x11, 0x20, 0x64];

/// Management classes that must occur: subnet management by LID and directed, administration, performance.
const CLASSES: &[u8] = &[0x01, 0x81, 0x03, 0x04];

/// Runs exchanges and queries while a host is captured, and checks the file with tshark and `rdmux decode`.
pub(crate) fn by_tshark(ground: &Ground) -> Result<()> {
    let file = ground.dir().join("capture.pcapng");
    let file = file.to_str().context("a path")?;
    let host = HOSTS[1];
    let mut capture = ground.start_rdmux(host, "capture", &["capture", "-w", file])?;
    capture.until("capturing", TIMEOUT, |it| Ok(it.output().contains("capturing")))?;
    for line in EXCHANGES {
        for client in HOSTS {
            exchange(ground, line, client).with_context(|| format!("{line} from {client}"))?;
        }
    }
    let shown = ground.show()?;
    let lid = |host| ground::lid(shown.node(host)?);
    let lids = [lid(HOSTS[0])?, lid(HOSTS[1])?];
    for line in QUERIES {
        ground.said(&line.replace("{lid}", &lids[0].0.to_string()))?;
    }
    capture.stop(Signal::INT, TIMEOUT)?;
    ground.rdmux(&["decode", "-q", file]).context("its own decoder")?;
    nothing_is_malformed(file)?;
    let fields = fields(file)?;
    for (opcode, name) in OPCODES {
        let of_it = || fields.iter().filter(|f| f.opcode == Some(*opcode) && f.class.is_none());
        ensure!(of_it().next().is_some(), "no {name} was captured");
        for slid in lids.iter().filter(|_| BOTH_WAYS.contains(opcode)) {
            // Between the hosts packets have the LIDs of their ports.
            let there = of_it().any(|f| f.slid == slid.0 && f.slid != f.dlid);
            ensure!(there, "no {name} of LID {slid} was captured");
        }
    }
    let known: BTreeSet<u16> = lids.iter().map(|lid| lid.0).collect();
    let data = fields.iter().filter(|f| f.class.is_none());
    for f in data {
        ensure!(
            known.contains(&f.slid) && known.contains(&f.dlid),
            "{f:?} has LIDs of other ports"
        );
    }
    let on_one = fields.iter().filter(|f| f.class.is_none() && f.slid == f.dlid).count();
    ensure!(on_one > 0, "no packet between programs of one host was captured");
    let global = |grh| fields.iter().filter(|f| f.class.is_none() && f.has_grh == grh).count();
    ensure!(global(true) > 0 && global(false) > 0, "either all packets have a GRH, or none has");
    for class in CLASSES {
        let there = fields.iter().any(|f| f.class == Some(*class));
        ensure!(there, "no datagram of management class {class:#04x} was captured");
    }
    Ok(())
}

/// Runs a program with itself: the server on the host that is captured.
fn exchange(ground: &Ground, line: &str, client: &str) -> Result<()> {
    // Between hosts, packets with acknowledgements must be captured, and not records of rings.
    let line = &format!("RDMUX_HOST_RINGS=off {line}");
    let mut server = ground.start(HOSTS[1], "server", line)?;
    server.until("listening", TIMEOUT, |_| Ok(ground::listens(PORT)))?;
    ground.said_on(client, &format!("{line} 127.0.0.1"))?;
    server.succeed(TIMEOUT)
}

/// The fields that tshark prints of a packet.
#[derive(Debug)]
struct Fields {
    slid: u16,
    dlid: u16,
    has_grh: bool,
    opcode: Option<u8>,
    class: Option<u8>,
}

fn tshark(args: &[&str]) -> Result<String> {
    let out = Command::new("tshark").args(args).output().context("tshark is not installed")?;
    let said = String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "tshark {}: {said}", args.join(" "));
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

fn nothing_is_malformed(file: &str) -> Result<()> {
    let filter = "_ws.malformed || _ws.short || _ws.expert.severity >= 8388608";
    let bad = tshark(&["-r", file, "-Y", filter, "-V"])?;
    ensure!(bad.is_empty(), "tshark reports malformed packets: {bad}");
    let others = tshark(&["-r", file, "-Y", "!infiniband"])?;
    ensure!(others.is_empty(), "tshark does not recognise these packets as InfiniBand: {others}");
    Ok(())
}

fn fields(file: &str) -> Result<Vec<Fields>> {
    let names = [
        "infiniband.lrh.slid",
        "infiniband.lrh.dlid",
        "infiniband.grh",
        "infiniband.bth.opcode",
        "infiniband.mad.mgmtclass",
    ];
    let mut args = vec!["-r", file, "-T", "fields"];
    args.extend(names.iter().flat_map(|name| ["-e", *name]));
    let text = tshark(&args)?;
    text.lines().map(|line| one(line).with_context(|| line.to_owned())).collect()
}

fn one(line: &str) -> Option<Fields> {
    let mut words = line.split('\t');
    let mut next = || words.next().map(str::trim);
    let (slid, dlid) = (number(next()?)?, number(next()?)?);
    let has_grh = !next()?.is_empty();
    let byte = |word: &str| number(word).and_then(|n| u8::try_from(n).ok());
    let (opcode, class) = (byte(next()?), byte(next()?));
    Some(Fields { slid, dlid, has_grh, opcode, class })
}

fn number(word: &str) -> Option<u16> {
    match word.strip_prefix("0x") {
        Some(digits) => u16::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}
