//! OpenSM and infiniband-diags on fabrics.

use anyhow::Result;

use crate::management::{
    Also, BringUp, Compare, Extra, Ground, ManagedBy, Management, acm, captured, data, diags,
    handover, ibacm, ibsim, librdmacm, repartition, two_managers, two_ports,
};
use crate::row::{Device, Row, Run, Way};

/// The shape that programs query: two levels of switches, several cables between two of them, free ports.
const TREE: &str = "fattree:40";

pub(super) fn rows() -> Vec<Row> {
    let mut rows = bring_ups();
    rows.extend(two());
    let handovers = handover::ROWS.iter();
    rows.extend(handovers.map(|(it, brief)| row(it.title, *brief, Management::Handover(*it))));
    rows.extend(comparisons());
    rows.extend(looks(ManagedBy::OpenSm));
    rows.extend(more(ManagedBy::OpenSm));
    rows.extend(looks(ManagedBy::Fabric));
    rows.extend(more(ManagedBy::Fabric));
    rows.push(row(
        managed("saquery and smpquery of service levels", ManagedBy::Fabric),
        true,
        Management::With(&["--sm-sl-to-vl", "default"], diags::sa::levels),
    ));
    rows.push(row(
        managed("smpquery pkeys and saquery -g of partitions that change", ManagedBy::Fabric),
        true,
        Management::With(&[], repartition::while_up),
    ));
    rows.push(row("opensm and two ports of a host", true, Management::Two(two_ports::opensm)));
    rows.push(row(
        managed("ibstat and smpquery of two ports of a host", ManagedBy::Fabric),
        true,
        Management::With(&[], two_ports::own),
    ));
    rows.push(row(
        managed("perfquery of ports that data comes by", ManagedBy::Fabric),
        true,
        Management::With(&[], data::is_counted),
    ));
    rows.push(row(
        managed("ib_write_bw while the fabric is killed", ManagedBy::Fabric),
        true,
        Management::With(&[], data::fabric_is_killed),
    ));
    rows.push(row(
        managed("ibportstate of a port that babbles", ManagedBy::Fabric),
        true,
        Management::With(&["--sm-babbling-port-policy"], diags::portstate::babbles),
    ));
    rows.push(row(
        managed("tshark of a capture of packets and datagrams", ManagedBy::Fabric),
        true,
        Management::With(&[], captured::by_tshark),
    ));
    rows.push(row(
        managed("ib_acme of addresses, by ibacm's multicast protocol", ManagedBy::Fabric),
        true,
        Management::With(&[], ibacm::by_multicast),
    ));
    rows.push(row(
        managed("ib_acme of addresses, by ibacm's questions to administration", ManagedBy::Fabric),
        true,
        Management::With(&[], ibacm::by_administration),
    ));
    rows.push(row(
        managed("rdma_getaddrinfo of Debian's librdmacm, by our ib_acm", ManagedBy::Fabric),
        true,
        Management::With(&[], librdmacm::finds_the_route),
    ));
    rows.extend(resolution());
    rows
}

/// ACM, by rdmux's service and tool and by Debian's.
fn resolution() -> Vec<Row> {
    type Case = (&'static str, bool, fn(&Ground) -> Result<()>);
    let rows: [Case; 12] = [
        ("ib_acme of Debian's and ours, of our ib_acm", true, acm::lines::of_ours),
        ("ib_acme of Debian's and ours, of Debian's ibacm", false, acm::lines::of_theirs),
        ("ib_acme of Debian's and ours, of no service", false, acm::lines::of_nobody),
        ("ib_acm and Debian's ibacm, with groups' paths", true, acm::mixed::by_multicast),
        ("ib_acm and Debian's ibacm, with administration's", true, acm::mixed::by_administration),
        ("ib_acm and Debian's ibacm, by GIDs and LIDs", true, acm::mixed::by_ports),
        ("ib_acm and Debian's ibacm, by preloaded files", true, acm::alike::by_files),
        ("ib_acm and Debian's ibacm, of strangers", true, acm::alike::of_strangers),
        ("ib_acm and Debian's ibacm, of the host itself", true, acm::alike::of_itself),
        ("ib_acm and Debian's ibacm, over TCP", true, acm::alike::by_tcp),
        ("ibacm of Debian's by what ib_acme has written", true, acm::files::are_read),
        ("rping with ACM, the quick start", true, acm::quick::start),
    ];
    let own = |title| managed(title, ManagedBy::Fabric);
    rows.map(|(title, brief, run)| row(own(title), brief, Management::With(&[], run))).into()
}

/// Returns the title of a row, which includes whether the fabric's own manager is used.
fn managed(title: &str, by: ManagedBy) -> String {
    match by {
        ManagedBy::OpenSm => title.to_owned(),
        ManagedBy::Fabric => format!("{title}, managed by the fabric"),
    }
}

fn row(title: impl Into<String>, brief: bool, management: Management) -> Row {
    let (device, way, run) = (Device::Ib, Way::Management, Run::Management(management));
    Row { device, title: title.into(), way, brief, run }
}

/// Each engine on a shape that suits it, each LMC, partitions and QoS once in CI; outside CI all valid combinations.
fn bring_ups() -> Vec<Row> {
    let brief = [
        BringUp::plain("two"),
        BringUp::plain("switch:8").lmc(2),
        BringUp::plain("switch:8").and(Extra::Qos),
        BringUp::plain("switch:8").and(Extra::Partitions),
        BringUp::plain("fattree:40").by("ftree"),
        BringUp::plain("fattree:40").by("updn").lmc(1),
        BringUp::plain("torus:3x3x3").by("dor"),
        BringUp::plain("torus:3x3x3").by("torus-2QoS"),
        BringUp::plain("dragonfly:4,2,2").by("lash"),
        BringUp::plain("dragonfly:4,2,2").by("dfsssp"),
        BringUp::plain("fattree:40").by("sssp"),
        BringUp::plain("fattree:40").by("minhop"),
    ];
    let mut rows: Vec<Row> =
        brief.iter().map(|up| row(up.title(), true, Management::BringUp(*up))).collect();
    for up in matrix() {
        let title = up.title();
        if rows.iter().all(|row| row.title != title) {
            rows.push(row(title, false, Management::BringUp(up)));
        }
    }
    rows
}

fn matrix() -> Vec<BringUp> {
    /// The engines that suit a shape. ftree and lash support no LMC.
    const SUITS: &[(&str, &[&str])] = &[
        ("two", &[]),
        ("switch:8", &["minhop", "updn", "sssp", "dfsssp"]),
        ("fattree:40", &["minhop", "updn", "ftree", "sssp", "dfsssp"]),
        ("fattree:648", &["minhop", "updn", "ftree", "sssp", "dfsssp"]),
        ("torus:3x3x3", &["minhop", "updn", "dor", "lash", "torus-2QoS", "sssp", "dfsssp"]),
        ("dragonfly:4,2,2", &["minhop", "updn", "lash", "sssp", "dfsssp"]),
    ];
    let mut all = Vec::new();
    for &(shape, engines) in SUITS {
        all.push(BringUp::plain(shape));
        for &engine in engines {
            let most = if matches!(engine, "ftree" | "lash") { 0 } else { 2 };
            all.extend((0..=most).map(|lmc| BringUp::plain(shape).by(engine).lmc(lmc)));
        }
        if engines.is_empty() {
            // Without switches there are no forwarding tables.
            all.extend((1..=2).map(|lmc| BringUp::plain(shape).lmc(lmc)));
        }
        all.push(BringUp::plain(shape).and(Extra::Qos));
        all.push(BringUp::plain(shape).and(Extra::Partitions));
    }
    all.push(BringUp::plain("fattree:10368"));
    all.push(BringUp::plain("fattree:10368").by("ftree"));
    all
}

/// Administration compared with OpenSM's, on each kind of subnet and with path bits.
fn comparisons() -> Vec<Row> {
    let all = [
        (Compare { shape: "two", lmc: 0, also: Also::Nothing }, false),
        (Compare { shape: "switch:8", lmc: 0, also: Also::Nothing }, true),
        (Compare { shape: "switch:8", lmc: 1, also: Also::Nothing }, false),
        (Compare { shape: "switch:8", lmc: 0, also: Also::Qos }, true),
        (Compare { shape: "fattree:36", lmc: 0, also: Also::Nothing }, false),
        (Compare { shape: "fattree:36", lmc: 1, also: Also::Nothing }, true),
        (Compare { shape: "torus:3x3x3", lmc: 0, also: Also::Nothing }, false),
        (Compare { shape: "switch:8", lmc: 0, also: Also::PartitionsAndQos }, true),
        (Compare { shape: "fattree:36", lmc: 1, also: Also::Partitions }, true),
    ];
    all.map(|(it, brief)| row(it.title(), brief, Management::Compare(it))).into()
}

fn two() -> Vec<Row> {
    type Case = (&'static str, bool, fn(&Ground) -> Result<()>);
    let rows: [Case; 3] = [
        ("opensm, and one with a higher priority", true, two_managers::priority),
        ("opensm, and one with the same priority", false, two_managers::equal_priority),
        ("opensm, and the master is killed", true, two_managers::killed),
    ];
    rows.map(|(title, brief, run)| row(title, brief, Management::Two(run))).into()
}

/// Returns further rows with more than one program each. Brief are those with features that no other row has.
fn more(by: ManagedBy) -> Vec<Row> {
    type Case = (&'static str, fn(&Ground) -> Result<()>);
    /// The rows in which the manager is OpenSM, or none.
    const WITHOUT_OURS: &[&str] = &[
        "ibsim reads the same file",
        "ibidsverify and a LID of two ports",
        "opensm and traps of faults",
    ];
    const ROWS: &[Case] = &[
        ("ibsim reads the same file", ibsim::same_file),
        ("ibidsverify and a LID of two ports", diags::discover::ibidsverify_duplicate),
        ("saquery ServiceRecord of a service", diags::registered::services),
        ("saquery InformInfoRecord of a subscriber", diags::registered::subscriptions),
        ("opensm and traps of faults", diags::registered::traps),
        ("GetMulti of MultiPathRecord", diags::registered::multi_paths),
        ("perfquery by service level", diags::counters::by_level),
        ("perfquery of what was dropped", diags::counters::details),
        ("perfquery of faults", diags::counters::faults),
    ];
    let suits = |title: &str| by == ManagedBy::OpenSm || !WITHOUT_OURS.contains(&title);
    let rows = ROWS.iter().filter(|(title, _)| suits(title));
    rows.map(|&(title, run)| {
        let look = Management::Look(TREE, by, run);
        let brief = title.starts_with("ibsim") || title.starts_with("GetMulti");
        row(managed(title, by), brief, look)
    })
    .collect()
}

/// Returns the rows of programs that query a shape. Brief are the first of each with OpenSM, and with the fabric's own manager those
/// that read its results, or query its administration.
fn looks(by: ManagedBy) -> Vec<Row> {
    type Look = (&'static str, fn(&Ground) -> Result<()>);
    const LOOKS: &[Look] = &[
        ("ibstat", diags::own::ibstat),
        ("ibstatus", diags::own::ibstatus),
        ("ibaddr", diags::own::ibaddr),
        ("sminfo", diags::own::sminfo),
        ("ibnetdiscover", diags::discover::ibnetdiscover),
        ("ibhosts", diags::discover::ibhosts),
        ("ibswitches", diags::discover::ibswitches),
        ("iblinkinfo", diags::discover::iblinkinfo),
        ("ibidsverify", diags::discover::ibidsverify),
        ("smpquery nodeinfo, nodedesc, guidinfo", diags::query::nodes),
        ("smpquery portinfo", diags::query::ports),
        ("smpquery switchinfo", diags::query::switches),
        ("smpquery pkeys, sl2vl, vlarb", diags::query::tables),
        ("smpquery mlnxextportinfo", diags::query::vendors),
        ("smpquery otherwise", diags::query::ways),
        ("smpdump", diags::query::smpdump),
        ("ibroute", diags::routes::ibroute),
        ("ibtracert", diags::routes::ibtracert),
        ("dump_fts", diags::routes::dump_fts),
        ("check_lft_balance", diags::routes::check_lft_balance),
        ("saquery NodeRecord", diags::sa::nodes),
        ("saquery PortInfoRecord", diags::sa::ports),
        ("saquery SwitchInfoRecord, LFTRecord, MFTRecord", diags::sa::forwarding),
        ("saquery LinkRecord", diags::sa::links),
        ("saquery PathRecord", diags::sa::paths),
        ("saquery of tables", diags::sa::tables),
        ("saquery MCMemberRecord", diags::sa::groups),
        ("ibping", diags::ping::ibping),
        ("perfquery", diags::counters::perfquery),
        ("ibqueryerrors", diags::counters::ibqueryerrors),
        ("ibportstate", diags::portstate::ibportstate),
    ];
    /// The rows to which a larger subnet matters: answers of thousands of records.
    const LARGE: &[&str] = &[
        "ibnetdiscover",
        "iblinkinfo",
        "dump_fts",
        "saquery NodeRecord",
        "saquery PortInfoRecord",
        "saquery SwitchInfoRecord, LFTRecord, MFTRecord",
        "saquery LinkRecord",
        "ibqueryerrors",
    ];
    /// The rows that CI runs with the fabric's own manager.
    const BRIEF: &[&str] = &[
        "ibstat",
        "sminfo",
        "ibnetdiscover",
        "iblinkinfo",
        "smpquery portinfo",
        "ibroute",
        "ibtracert",
        "dump_fts",
        "check_lft_balance",
        "saquery NodeRecord",
        "saquery PortInfoRecord",
        "saquery SwitchInfoRecord, LFTRecord, MFTRecord",
        "saquery LinkRecord",
        "saquery PathRecord",
        "saquery of tables",
        "saquery MCMemberRecord",
        "ibportstate",
    ];
    let is_brief = |title: &str| by == ManagedBy::OpenSm || BRIEF.contains(&title);
    let on = |shape: &'static str, &(title, look): &Look, brief: bool| {
        let look = Management::Look(shape, by, look);
        row(managed(&format!("{title} on {shape}"), by), brief, look)
    };
    let large = LOOKS.iter().filter(|(title, _)| LARGE.contains(title));
    let rows = LOOKS.iter().map(|look| on(TREE, look, is_brief(look.0)));
    rows.chain(large.map(|look| on("fattree:648", look, false))).collect()
}
