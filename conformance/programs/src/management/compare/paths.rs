//! Requests for paths: their ends by GIDs and by LIDs, with every component and selector; and for paths between several
//! ports.

use rdmux_wire::mad::Method;
use rdmux_wire::sa::{
    MultiPathRecord, MultiPathRecordMask, PathRecord, PathRecordMask as Mask, Rate, Selector,
};
use rdmux_wire::{Gid, Lid, Pkey, ServiceId};

use super::facts::{Facts, Port};
use super::question::Question;

const BOTH: [Method; 2] = [Method::GET, Method::GET_TABLE];

/// Returns requests of PathRecords.
pub(super) fn questions(facts: &Facts) -> Vec<Question> {
    let mut all = ends(facts);
    all.extend(components(facts));
    all.extend(selectors(facts));
    all.extend(elsewhere(facts));
    all
}

fn ask(name: &str, method: Method, mask: Mask, record: &PathRecord) -> Question {
    Question::new(name, method, PathRecord::ATTR_ID).with(mask.bits(), &record.to_bytes())
}

/// Returns the path that most requests are about.
fn between(from: &Port, to: &Port) -> PathRecord {
    PathRecord {
        sgid: from.gid,
        dgid: to.gid,
        slid: from.lid,
        dlid: to.lid,
        ..PathRecord::default()
    }
}

/// Returns requests between ports of every kind, by each way to name them.
fn ends(facts: &Facts) -> Vec<Question> {
    let Facts { own, other, last, switch, .. } = facts;
    let mut pairs = vec![
        ("to another", own, other),
        ("from another", other, own),
        ("of others", other, last),
        ("far away", own, last),
        ("to oneself", own, own),
    ];
    if let Some(switch) = switch {
        pairs.extend([("to a switch", own, switch), ("from a switch", switch, last)]);
        pairs.push(("of a switch to itself", switch, switch));
    }
    let ways = [
        ("GIDs", Mask::SGID | Mask::DGID),
        ("LIDs", Mask::SLID | Mask::DLID),
        ("SGID and DLID", Mask::SGID | Mask::DLID),
        ("SLID and DGID", Mask::SLID | Mask::DGID),
        ("GIDs and LIDs", Mask::SGID | Mask::DGID | Mask::SLID | Mask::DLID),
        ("SGID", Mask::SGID),
        ("DGID", Mask::DGID),
        ("SLID", Mask::SLID),
        ("DLID", Mask::DLID),
        ("SGID and SLID", Mask::SGID | Mask::SLID),
        ("DGID and DLID", Mask::DGID | Mask::DLID),
    ];
    let mut all = Vec::new();
    for (pair, from, to) in pairs {
        for (way, mask) in ways {
            for method in BOTH {
                let name = format!("{pair}, by {way}");
                all.push(ask(&name, method, mask, &between(from, to)));
            }
        }
    }
    // Path bits of LIDs, also those that a port does not have.
    for bits in 0..4 {
        for (name, slid, dlid) in [("source", bits, 0), ("target", 0, bits), ("both", bits, bits)] {
            let mut path = between(own, other);
            path.slid.0 += slid;
            path.dlid.0 += dlid;
            for (way, mask) in [
                ("LIDs", Mask::SLID | Mask::DLID),
                ("GIDs and LIDs", Mask::SGID | Mask::DGID | Mask::SLID | Mask::DLID),
            ] {
                for method in BOTH {
                    let name = format!("path bits {bits} of {name}, by {way}");
                    all.push(ask(&name, method, mask, &path));
                }
            }
        }
    }
    all
}

/// Returns requests with each component in addition to the ends.
fn components(facts: &Facts) -> Vec<Question> {
    let ends = Mask::SGID | Mask::DGID;
    let base = between(&facts.own, &facts.other);
    let mut wanted: Vec<(String, Mask, PathRecord)> = Vec::new();
    let mut want = |name: &str, mask: Mask, change: &dyn Fn(&mut PathRecord)| {
        let mut record = base;
        change(&mut record);
        wanted.push((name.to_owned(), mask, record));
    };
    for reversible in [false, true] {
        let name = format!("reversible {reversible}");
        want(&name, Mask::REVERSIBLE, &|r| r.reversible = reversible);
    }
    for count in [0, 1, 2, 3, 4, 0x7f] {
        want(&format!("{count} paths"), Mask::NUMB_PATH, &|r| r.numb_path = count);
    }
    for key in [0xffff, 0x7fff, 0x8001, 0x0001, 0x8000, 0] {
        want(&format!("P_Key {key:#06x}"), Mask::PKEY, &|r| r.pkey = Pkey(key));
    }
    for sl in [0, 1, 7, 15] {
        want(&format!("service level {sl}"), Mask::SL, &|r| r.sl = sl);
    }
    for class in [0, 1, 0xfff] {
        want(&format!("class {class}"), Mask::QOS_CLASS, &|r| r.qos_class = class);
    }
    for raw in [false, true] {
        want(&format!("raw traffic {raw}"), Mask::RAW_TRAFFIC, &|r| r.raw_traffic = raw);
        let with_key = Mask::RAW_TRAFFIC | Mask::PKEY;
        want(&format!("raw traffic {raw} of a partition"), with_key, &|r| {
            (r.raw_traffic, r.pkey) = (raw, Pkey::DEFAULT);
        });
    }
    for value in [0, 1, 255] {
        want(&format!("hop limit {value}"), Mask::HOP_LIMIT, &|r| r.hop_limit = value);
        want(&format!("class of traffic {value}"), Mask::TCLASS, &|r| r.tclass = value);
        want(&format!("preference {value}"), Mask::PREFERENCE, &|r| r.preference = value);
        want(&format!("flow {value}"), Mask::FLOW_LABEL, &|r| r.flow_label = value.into());
    }
    let service = ServiceId(0x1000_0000_0123_4567);
    for (name, mask) in [
        ("all", Mask::SERVICE_ID_MSB | Mask::SERVICE_ID_LSB),
        ("one half", Mask::SERVICE_ID_MSB),
        ("the other half", Mask::SERVICE_ID_LSB),
    ] {
        want(&format!("{name} of a service's number"), mask, &|r| r.service_id = service);
    }
    let mut all = Vec::new();
    for (name, mask, record) in wanted {
        for method in BOTH {
            all.push(ask(&name, method, ends | mask, &record));
        }
    }
    // Many paths to all ports.
    for count in [0, 1, 5, 0x7f] {
        let record = PathRecord { numb_path: count, ..base };
        let name = format!("{count} paths to everywhere");
        all.push(ask(&name, Method::GET_TABLE, Mask::SGID | Mask::NUMB_PATH, &record));
    }
    all
}

/// Returns requests with selectors and values of MTU, rate and life time.
fn selectors(facts: &Facts) -> Vec<Question> {
    let ends = Mask::SGID | Mask::DGID;
    let base = between(&facts.own, &facts.other);
    let mut all = Vec::new();
    for selector in 0..4 {
        let selector = Selector(selector);
        for mtu in [0, 1, 3, 4, 5, 6, 7, 63] {
            let record = PathRecord { mtu_selector: selector, mtu, ..base };
            let mask = ends | Mask::MTU_SELECTOR | Mask::MTU;
            all.push(ask(&format!("MTU {mtu}, {selector}"), Method::GET, mask, &record));
        }
        for rate in [0, 1, 2, 3, 4, 7, 8, 10, 12, 15, 16, 17, 18, 20, 22, 23, 63] {
            let record = PathRecord { rate_selector: selector, rate: Rate(rate), ..base };
            let mask = ends | Mask::RATE_SELECTOR | Mask::RATE;
            all.push(ask(&format!("rate {rate}, {selector}"), Method::GET, mask, &record));
        }
        for life in [0, 0x11, 0x12, 0x13, 0x3f] {
            let (packet_life_time_selector, packet_life_time) = (selector, life);
            let record = PathRecord { packet_life_time_selector, packet_life_time, ..base };
            let mask = ends | Mask::PACKET_LIFE_TIME_SELECTOR | Mask::PACKET_LIFE_TIME;
            all.push(ask(&format!("life time {life}, {selector}"), Method::GET, mask, &record));
        }
    }
    // A value without its selector, or the other way round, is ignored.
    let record = PathRecord {
        mtu_selector: Selector(2),
        mtu: 1,
        rate_selector: Selector(2),
        rate: Rate(2),
        packet_life_time_selector: Selector(2),
        packet_life_time: 1,
        ..base
    };
    for (name, mask) in [
        ("MTU without selector", Mask::MTU),
        ("selector without MTU", Mask::MTU_SELECTOR),
        ("rate without selector", Mask::RATE),
        ("selector without rate", Mask::RATE_SELECTOR),
        ("life time without selector", Mask::PACKET_LIFE_TIME),
        ("selector without life time", Mask::PACKET_LIFE_TIME_SELECTOR),
    ] {
        all.push(ask(name, Method::GET, ends | mask, &record));
    }
    all
}

/// Returns requests to and from ports that do not exist or are no ports: groups, other subnets.
fn elsewhere(facts: &Facts) -> Vec<Question> {
    let Facts { own, other, free, .. } = facts;
    let base = between(own, other);
    let foreign = Gid::new(0xfec0_0000_0000_0001, other.guid);
    let unknown = Gid::new(Gid::DEFAULT_PREFIX, rdmux_wire::Guid(0xdead));
    let group =
        |text: &str| -> Gid { text.parse::<std::net::Ipv6Addr>().map_or(Gid::ZERO, Gid::from) };
    let broadcast = group("ff12:401b:ffff::ffff:ffff");
    let gids = [
        ("no GID", Gid::ZERO),
        ("an unknown GID", unknown),
        ("another subnet", foreign),
        ("the broadcast group", broadcast),
        ("a group that does not exist", group("ff12:401b:ffff::1234")),
        ("a group of another scope", group("ff1e:401b:ffff::ffff:ffff")),
    ];
    let lids = [
        ("no LID", Lid(0)),
        ("a free LID", *free),
        ("the permissive LID", Lid(0xffff)),
        ("the LID of a group", Lid(0xc000)),
        ("the LID of no group", Lid(0xd000)),
    ];
    let mut all = Vec::new();
    for method in BOTH {
        for (name, gid) in gids {
            let ends = Mask::SGID | Mask::DGID;
            let to = PathRecord { dgid: gid, ..base };
            all.push(ask(&format!("to {name}"), method, ends, &to));
            all.push(ask(&format!("to {name} from anywhere"), method, Mask::DGID, &to));
            let by_lid = Mask::SLID | Mask::DGID;
            all.push(ask(&format!("from a LID to {name}"), method, by_lid, &to));
            let from = PathRecord { sgid: gid, ..base };
            all.push(ask(&format!("from {name}"), method, ends, &from));
        }
        for (name, lid) in lids {
            let ends = Mask::SLID | Mask::DLID;
            let to = PathRecord { dlid: lid, ..base };
            all.push(ask(&format!("to {name}"), method, ends, &to));
            let from = PathRecord { slid: lid, ..base };
            all.push(ask(&format!("from {name}"), method, ends, &from));
        }
        // GID and LID of two different ports.
        let four = Mask::SGID | Mask::DGID | Mask::SLID | Mask::DLID;
        let mixed = PathRecord { slid: other.lid, ..base };
        all.push(ask("GID and LID of two sources", method, four, &mixed));
        let mixed = PathRecord { dlid: own.lid, ..base };
        all.push(ask("GID and LID of two targets", method, four, &mixed));
    }
    all
}

/// Returns requests for paths between several ports.
pub(super) fn several(facts: &Facts) -> Vec<Question> {
    use MultiPathRecordMask as Many;
    let Facts { own, other, last, .. } = facts;
    let counts = Many::SGID_COUNT | Many::DGID_COUNT;
    let ask = |name: &str,
               from: &[Gid],
               to: &[Gid],
               mask: Many,
               change: &dyn Fn(&mut MultiPathRecord)| {
        let mut gids = [Gid::ZERO; 11];
        for (place, gid) in gids.iter_mut().zip(from.iter().chain(to)) {
            *place = *gid;
        }
        let count = |gids: &[Gid]| u8::try_from(gids.len()).unwrap_or(u8::MAX);
        let (sgid_count, dgid_count) = (count(from), count(to));
        let mut record =
            MultiPathRecord { sgid_count, dgid_count, gids, ..MultiPathRecord::default() };
        change(&mut record);
        Question::new(name, Method::GET_MULTI, MultiPathRecord::ATTR_ID)
            .with(mask.bits(), &record.to_bytes())
    };
    let (a, b, c) = (own.gid, other.gid, last.gid);
    let as_it_is = |_: &mut MultiPathRecord| {};
    let mut all = vec![
        ask("one to one", &[a], &[b], counts, &as_it_is),
        ask("one to two", &[a], &[b, c], counts, &as_it_is),
        ask("two to one", &[a, b], &[c], counts, &as_it_is),
        ask("two to two", &[a, b], &[b, c], counts, &as_it_is),
        ask("to oneself", &[a], &[a], counts, &as_it_is),
        ask("from nothing", &[], &[b], counts, &as_it_is),
        ask("to nothing", &[a], &[], counts, &as_it_is),
        ask("without counts", &[a], &[b], Many::empty(), &as_it_is),
        ask("without one count", &[a], &[b], Many::SGID_COUNT, &as_it_is),
        ask("to an unknown GID", &[a], &[Gid::ZERO], counts, &as_it_is),
        ask("of too many", &[a; 6], &[b; 6], counts, &|r| (r.sgid_count, r.dgid_count) = (6, 6)),
    ];
    for count in [0, 1, 2, 4, 0x7f] {
        let mask = counts | Many::NUMB_PATH;
        all.push(ask(&format!("{count} paths"), &[a], &[b, c], mask, &|r| r.numb_path = count));
        all.push(ask(&format!("{count} paths"), &[a, b], &[b, c], mask, &|r| r.numb_path = count));
    }
    for reversible in [false, true] {
        let name = format!("reversible {reversible}");
        let mask = counts | Many::REVERSIBLE;
        all.push(ask(&name, &[a], &[b], mask, &|r| r.reversible = reversible));
    }
    for key in [0xffff, 0x7fff, 0x0001] {
        let name = format!("P_Key {key:#06x}");
        all.push(ask(&name, &[a], &[b], counts | Many::PKEY, &|r| r.pkey = Pkey(key)));
    }
    for selector in 0..4 {
        let selector = Selector(selector);
        let mask = counts | Many::MTU_SELECTOR | Many::MTU;
        all.push(ask(&format!("MTU {selector}"), &[a], &[b], mask, &|r| {
            (r.mtu_selector, r.mtu) = (selector, 4);
        }));
        let mask = counts | Many::RATE_SELECTOR | Many::RATE;
        all.push(ask(&format!("rate {selector}"), &[a], &[b], mask, &|r| {
            (r.rate_selector, r.rate) = (selector, Rate(7));
        }));
        let mask = counts | Many::INDEPENDENCE_SELECTOR;
        all.push(ask(&format!("independence {selector}"), &[a], &[b, c], mask, &|r| {
            r.independence_selector = selector.0;
        }));
    }
    for sl in [0, 3] {
        let name = format!("service level {sl}");
        all.push(ask(&name, &[a], &[b], counts | Many::SL, &|r| r.sl = sl));
    }
    all.push(ask("without RMPP", &[a], &[b], counts, &as_it_is).plain());
    all
}
