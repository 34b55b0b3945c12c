//! The time without completions when a connection's link goes down and it migrates to another one, compared with the retry timer
//! of its queue pair.
//!
//! Two hosts with two ports each are on a subnet, connected by the connection manager along the first ports, with the second
//! ports as alternate path. The sender's first port is disabled while it posts one WRITE after the other.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rdmux::cm::{ConnParam, IdOption, PathData, ServiceId};
use rdmux::umad::sm::{Attribute, PhysState, PortInfo, PortState as State};
use rdmux::umad::smp::Smp;
use rdmux::umad::{Address, AgentAttr, Fabric, Method, MgmtClass, Port};
use rdmux::{
    Access, AckTimeout, Context, Cq, DeviceKind, MigState, Mr, PortState, Qp, QpType, SendWr,
    WcStatus,
};
use rdmux_command::two_paths::{Connected, Place, connect, record};

use super::run::Bench;
use super::stats::{Figure, Unit};

/// The acknowledgement timeout: 16.8 ms.
const TIMER: AckTimeout = AckTimeout::new(12);
/// The number of retries before the path is given up.
const RETRIES: u8 = 1;
const SERVICE: ServiceId = ServiceId(0x1000_0000_0000_be9c);
/// The timeout of each step.
const LIMIT: Duration = Duration::from_secs(20);
/// How long WRITEs run before the link goes down.
const BEFORE: Duration = Duration::from_millis(100);

impl Bench {
    pub(super) fn migration(&mut self) -> Result<Figure> {
        const NAME: &str = "without completions at a migration";
        let (gaps, timers) = self.rounds(
            NAME,
            |_| Pair::new()?.gap(),
            |_| Ok(TIMER.duration().context("there is a timer")?.as_secs_f64()),
        )?;
        Ok(Figure::alone(NAME, Unit::Seconds, &gaps).beside("the retry timer", &timers))
    }
}

/// A queue pair, its completion queue, and memory.
struct End {
    context: Context,
    cq: Cq,
    qp: Qp,
    mr: Mr,
}

impl End {
    fn new(context: &Context) -> Result<Self> {
        let (cq, pd) = (context.cq(16)?, context.pd());
        let qp = pd.qp(QpType::Rc).cq(&cq).build()?;
        let mr = pd.alloc(4096, Access::all())?;
        Ok(Self { context: context.clone(), cq, qp, mr })
    }
}

/// Two connected ends that are armed for migration.
struct Pair {
    ends: [End; 2],
    _connection: Connected,
}

impl Pair {
    fn new() -> Result<Self> {
        let fabric = Fabric::managed("switch:6")?;
        let contexts = [host(&fabric, "a")?, host(&fabric, "b")?];
        let [a, b] = &contexts;
        let records = [
            record(PathData::PRIMARY, [end(a, 1)?, end(b, 1)?]),
            record(PathData::ALTERNATE, [end(a, 2)?, end(b, 2)?]),
        ];
        let ends = [End::new(a)?, End::new(b)?];
        let param = ConnParam { retry_count: RETRIES, rnr_retry_count: 7, ..ConnParam::default() };
        let options = [IdOption::AckTimeout(TIMER.code())];
        let qps = [&ends[0].qp, &ends[1].qp];
        let connection = connect([a, b], qps, (SERVICE, &records), (&param, &options), LIMIT)?;
        let start = Instant::now();
        while ends.iter().any(|end| end.qp.migration() != MigState::Armed) {
            ensure!(
                start.elapsed() < LIMIT,
                "the connection's alternate path was not armed in time"
            );
            thread::yield_now();
        }
        Ok(Self { ends, _connection: connection })
    }

    /// Returns the longest time between two completions while the link goes down.
    fn gap(&self) -> Result<f64> {
        let [near, far] = &self.ends;
        let is_down = AtomicBool::new(false);
        thread::scope(|scope| {
            let disabling = scope.spawn(|| {
                thread::sleep(BEFORE);
                let disabled = disable(&near.context, 1);
                is_down.store(true, Ordering::Release);
                disabled
            });
            let (start, mut longest) = (Instant::now(), Duration::ZERO);
            let mut last = start;
            let mut after = 0;
            while after < 1000 {
                let wr = SendWr::write(1, far.mr.remote());
                near.qp.post_send(&wr.sges(&[near.mr.slice(..64)]).signaled())?;
                let done = loop {
                    if let Some(done) = near.cq.poll_one() {
                        break done;
                    }
                    ensure!(start.elapsed() < LIMIT, "timed out: no WRITE completes");
                };
                if done.status != WcStatus::Success {
                    bail!("a WRITE completed with {:?}", done.status);
                }
                longest = longest.max(last.elapsed());
                last = Instant::now();
                let is_over =
                    is_down.load(Ordering::Acquire) && near.qp.migration() == MigState::Migrated;
                after += u32::from(is_over);
                ensure!(start.elapsed() < LIMIT, "the connection did not migrate in time");
            }
            disabling.join().map_err(|_| anyhow::anyhow!("disabling the port panicked"))??;
            Ok(longest.as_secs_f64())
        })
    }
}

/// Returns a host with two ports, once they are up.
fn host(fabric: &Fabric, name: &str) -> Result<Context> {
    let builder = Context::builder().embedded().fabric(fabric).fabric(fabric).host(name);
    let context = builder.device(DeviceKind::Ib).open()?;
    for port in [1, 2] {
        while context.query_port_number(port)?.state != PortState::Active {
            context.next_event(Some(LIMIT))?.context("a port did not become active in time")?;
        }
    }
    Ok(context)
}

/// Returns the address of a port.
fn end(context: &Context, port: u8) -> Result<Place> {
    Ok((context.gid_of_port(port, 0)?, context.query_port_number(port)?.lid))
}

/// Disables a port's link, as `ibportstate -D 0 PORT disable` does.
fn disable(context: &Context, number: u8) -> Result<()> {
    let agent = AgentAttr::new(MgmtClass::SUBN_DIRECTED, 1);
    let mut client = Port::open(context, number)?.client(&agent)?;
    let smp = |method| Smp::directed(method, PortInfo::ATTR_ID, number.into(), &[]);
    let answer = client.ask_smp(&Address::directed(), &smp(Method::GET))?;
    let Some(Attribute::PortInfo(mut info)) = answer.attribute() else {
        bail!("the answer has no PortInfo");
    };
    (info.port_state, info.port_physical_state) = (State::DOWN, PhysState::DISABLED);
    let mut set = smp(Method::SET);
    set.set_attribute(&Attribute::PortInfo(info));
    client.ask_smp(&Address::directed(), &set)?;
    Ok(())
}
