//! Prints the status of a fabric.

use std::time::Duration;

use anyhow::Result;
use rdmux_command::output::{self, Report};
use rdmux_command::say;
use rdmux_fabric::proto::Status;
use serde_json::{Map, Value, json};

/// Describes the size of a fabric.
pub(super) fn size(s: &Status) -> String {
    let count = |n: u32, one: &str, many: &str| format!("{n} {}", if n == 1 { one } else { many });
    format!(
        "{}, {}, {}{}",
        count(s.switches, "switch", "switches"),
        count(s.adapters, "adapter", "adapters"),
        count(s.links, "link", "links"),
        if s.links_down == 0 { String::new() } else { format!(" ({} down)", s.links_down) }
    )
}

fn uptime(s: &Status) -> String {
    output::time(Duration::from_millis(s.uptime_ms))
}

/// Lists all running fabrics, one per row.
pub(super) fn list(all: &[Status]) -> Result<()> {
    let headings =
        ["FABRIC", "FROM", "SWITCHES", "ADAPTERS", "LINKS", "HOSTS", "FILES", "PID", "UP"];
    let mut report = Report::new(&headings).right(&[2, 3, 4, 5, 6, 7, 8]);
    for s in all {
        report.row([
            s.fabric.clone(),
            s.source.clone(),
            s.switches.to_string(),
            s.adapters.to_string(),
            s.links.to_string(),
            s.attached.len().to_string(),
            s.files.len().to_string(),
            s.pid.to_string(),
            uptime(s),
        ]);
    }
    report.print();
    Ok(())
}

/// Prints a fabric and its manager, without hosts and programs.
pub(crate) fn print_summary(s: &Status) {
    say!("fabric     {}", s.fabric);
    say!("has        {}; {} ports active", size(s), s.active_ports);
    print_manager(s);
}

/// Prints a fabric completely.
pub(super) fn print(s: &Status, all_counters: bool) -> Result<()> {
    say!("fabric     {}", s.fabric);
    say!(
        "from       {}{}",
        s.source,
        if s.simulated { ", simulated: no host attaches" } else { "" }
    );
    say!("has        {}; {} ports active", size(s), s.active_ports);
    if let Some(listen) = &s.listen {
        say!("listens    {listen}");
    }
    let stays = if s.stays { "" } else { ", ends after the last client" };
    say!("service    process {}, up {}{stays}", s.pid, uptime(s));
    print_manager(s);
    if !s.attached.is_empty() {
        say!("\nHOSTS");
        let mut report =
            Report::new(&["HOST", "PID", "ADAPTER", "NODE GUID", "LID"]).right(&[1, 4]);
        for a in &s.attached {
            let lid = if a.lid.0 == 0 { "-".to_owned() } else { a.lid.0.to_string() };
            report.row([
                a.host.clone(),
                a.pid.to_string(),
                a.adapter.clone(),
                a.guid.to_string(),
                lid,
            ]);
        }
        report.print();
    }
    if !s.files.is_empty() {
        say!("\nMANAGEMENT INTERFACES");
        let mut report =
            Report::new(&["PID", "NAME", "NODE", "PORT", "WAITING", "BYTES", "DROPPED"])
                .right(&[0, 3, 4, 5, 6]);
        for f in &s.files {
            report.row([
                f.pid.to_string(),
                f.comm.clone(),
                f.node.clone(),
                f.port.to_string(),
                f.waiting.0.to_string(),
                f.waiting.1.to_string(),
                f.dropped.to_string(),
            ]);
        }
        report.print();
    }
    let shown: Vec<_> =
        s.counters.iter().filter(|(_, value)| all_counters || *value != 0).collect();
    if !shown.is_empty() {
        say!("\nCOUNTERS");
        let mut report = Report::new(&["NAME", "VALUE"]).right(&[1]);
        for (name, value) in shown {
            report.row([name.clone(), value.to_string()]);
        }
        report.print();
    }
    Ok(())
}

/// Prints the subnet manager that is part of the fabric.
fn print_manager(s: &Status) {
    let Some(m) = &s.manager else {
        return say!("manager    none in the fabric");
    };
    let who = match m.master {
        _ if m.state == "master" => String::new(),
        Some(master) => format!(", the master is at {master}"),
        None => String::new(),
    };
    say!(
        "manager    {}, priority {}, at {}, routing {}{who}",
        m.state,
        m.priority,
        m.guid,
        m.routing
    );
    if let Some(partitions) = &m.partitions {
        say!("partitions {partitions}");
    }
    let Some(last) = &m.last else { return };
    let time = |us: u64| output::time(Duration::from_micros(us));
    let problems = match last.problem_count {
        0 => String::new(),
        1 => "; 1 problem:".to_owned(),
        n => format!("; {n} problems:"),
    };
    let (ago, took, nodes) = (time(last.ago_us), time(last.took_us), last.nodes);
    say!("sweep      {ago} ago, took {took}, reached {nodes} nodes{problems}");
    for problem in &last.problems {
        say!("           {problem}");
    }
    let shown = last.problems.len() as u64;
    if shown < last.problem_count {
        say!("           and {} more", last.problem_count - shown);
    }
}

/// Converts a status to JSON for scripts: counters by name.
pub(super) fn as_json(s: &Status) -> Value {
    let mut value = json!(s);
    let counters: Map<String, Value> =
        s.counters.iter().map(|(name, value)| (name.clone(), (*value).into())).collect();
    value["counters"] = counters.into();
    value
}
