//! Forwarding tables: requests for their records by switch, block and position, while a group has members. The records of either
//! manager are compared with the switches.

use anyhow::{Context, Result, ensure};
use rdmux_fabric::proto::{Snapshot, SwitchTables};
use rdmux_wire::mad::Method;
use rdmux_wire::sa::{
    JoinState, LinearForwardingTableRecord as Linear,
    LinearForwardingTableRecordMask as LinearMask, McMemberRecord, McMemberRecordMask,
    MulticastForwardingTableRecord as Multicast,
    MulticastForwardingTableRecordMask as MulticastMask,
};
use rdmux_wire::{Lid, Pkey, Qkey};

use super::super::ground::{self, Ground};
use super::asker::Asker;
use super::facts::{Facts, Port};
use super::groups::{CREATE, JOIN, gid};
use super::own::Own;
use super::question::{Answer, Question};

/// Returns the requests that create the group, whose members are the requester's port and another one, and those that end it.
fn group(facts: &Facts) -> [Vec<Question>; 2] {
    let ask = |name: &str, method: Method, mask: McMemberRecordMask| -> Vec<Question> {
        let of = |port: &Port| {
            let member = McMemberRecord {
                mgid: gid("ff12:c0de::33"),
                port_gid: port.gid,
                qkey: Qkey(0x33),
                pkey: Pkey::DEFAULT,
                join_state: JoinState::FULL_MEMBER,
                ..McMemberRecord::default()
            };
            Question::new(format!("a group for tables, {name}"), method, McMemberRecord::ATTR_ID)
                .with(mask.bits(), &member.to_bytes())
        };
        [&facts.own, &facts.other].map(of).into()
    };
    [ask("joined", Method::SET, CREATE), ask("left", Method::DELETE, JOIN)]
}

/// Returns requests by each component and by several, right and wrong.
pub(super) fn questions(facts: &Facts) -> Vec<Question> {
    let mut all = vec![
        Question::new("all", Method::GET_TABLE, Linear::ATTR_ID),
        Question::new("all", Method::GET_TABLE, Multicast::ATTR_ID),
    ];
    let first = facts.switches.first().map(|port| port.lid);
    let last = facts.switches.last().map(|port| port.lid);
    let lids =
        [first, last, Some(facts.own.lid), Some(facts.free), Some(Lid(0)), Some(Lid(0xc000))];
    for lid in lids.into_iter().flatten() {
        for block_num in [0, 1, 2, 511, 512, 767, 0xffff] {
            let record = Linear { lid, block_num, ..Linear::default() }.to_bytes();
            for mask in [LinearMask::LID, LinearMask::BLOCK_NUM, LinearMask::all()] {
                for method in [Method::GET, Method::GET_TABLE] {
                    let name = format!("block {block_num} of LID {}", lid.0);
                    all.push(
                        Question::new(name, method, Linear::ATTR_ID).with(mask.bits(), &record),
                    );
                }
            }
            for position in [0, 1, 2, 3, 15] {
                let block_num = block_num & 0x1ff;
                let record = Multicast { lid, block_num, position, ..Multicast::default() };
                let record = record.to_bytes();
                let (block, place) = (MulticastMask::BLOCK_NUM, MulticastMask::POSITION);
                for mask in
                    [place, block, block | place, MulticastMask::LID | place, MulticastMask::all()]
                {
                    for method in [Method::GET, Method::GET_TABLE] {
                        let name = format!("block {block_num}, {position} of LID {}", lid.0);
                        let question = Question::new(name, method, Multicast::ATTR_ID);
                        all.push(question.with(mask.bits(), &record));
                    }
                }
            }
        }
    }
    all
}

/// Sends the requests while the group has members.
pub(super) fn ask(
    ground: &Ground,
    shown: &Snapshot,
    facts: &Facts,
    asker: &mut Asker,
    questions: &[Question],
) -> Result<Vec<Answer>> {
    if facts.switches.is_empty() {
        return asker.ask_all(questions);
    }
    let [join, leave] = group(facts);
    let joined = asker.ask_in_order(&join)?;
    let record = joined
        .first()
        .and_then(|answer| answer.records().first())
        .context("the join's answer has no group")?;
    let mlid = McMemberRecord::parse(record)?.mlid;
    let is_there = |tables: &SwitchTables| tables.multicast.iter().any(|(lid, _)| *lid == mlid);
    ground.until("in the tables of a switch", || {
        Ok(ground.tables()?.switches.iter().any(is_there))
    })?;
    let answers = asker.ask_all(questions)?;
    check(ground, shown, questions, &answers)?;
    asker.ask_in_order(&leave)?;
    ground.until("out of the tables", || Ok(!ground.tables()?.switches.iter().any(is_there)))?;
    Ok(answers)
}

/// Checks that the records match the switches.
fn check(
    ground: &Ground,
    shown: &Snapshot,
    questions: &[Question],
    answers: &[Answer],
) -> Result<()> {
    let tables = ground.tables()?;
    let (mut linear, mut multicast) = (0, 0);
    // The first two requests are for all records.
    let own = Own { questions: &questions[..2], answers: &answers[..2] };
    for (question, answer) in questions.iter().zip(answers) {
        ensure!(
            own.says(question, answer, |_| u64::MAX),
            "{question}: the records differ from those in the whole table"
        );
        for record in answer.records() {
            let of = |lid: Lid| {
                let mut all = tables.switches.iter();
                let found = all.find(|switch| {
                    let node = shown.nodes.get(switch.node as usize);
                    node.and_then(|node| ground::lid(node).ok()) == Some(lid)
                });
                found.with_context(|| format!("{question}: LID {} belongs to no switch", lid.0))
            };
            if question.attr_id == Linear::ATTR_ID {
                let record = Linear::parse(record)?;
                let switch = of(record.lid)?;
                for (lid, port) in (record.block_num * 64..).zip(record.table.ports) {
                    let has = switch.port(Lid(lid)).unwrap_or(0xff);
                    ensure!(
                        port == has,
                        "{question}: the switch forwards LID {lid} to port {has}, the record says {port}"
                    );
                    linear += usize::from(has != 0xff);
                }
            } else {
                let record = Multicast::parse(record)?;
                let switch = of(record.lid)?;
                for (mlid, mask) in (0xc000 + record.block_num * 32..).zip(record.table.port_masks)
                {
                    let entry = switch.multicast.iter().find(|(lid, _)| lid.0 == mlid);
                    let ports = entry.map_or(&[][..], |(_, ports)| ports);
                    let bits = ports.iter().filter(|port| **port / 16 == record.position);
                    let has = bits.fold(0, |mask, port| mask | 1 << (port % 16));
                    ensure!(
                        mask == has,
                        "{question}: the switch forwards {mlid:#x} to ports {has:#x}, the record says {mask:#x}"
                    );
                    multicast += usize::from(has != 0);
                }
            }
        }
    }
    ensure!(
        linear > 0 && multicast > 0,
        "the tables are empty: {linear} unicast and {multicast} multicast entries"
    );
    Ok(())
}
