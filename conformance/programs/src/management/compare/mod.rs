//! Subnet administration compared with OpenSM's: the same requests go to both on the same fabric, first while the fabric's manager is
//! the master, then while OpenSM is. Each difference is a failure, unless [`differences`] names it.
//!
//! Answers to requests by components are also compared with the same manager's complete tables ([`own`]), and forwarding tables with
//! the switches ([`forwarding`]), so that an intended difference hides no other.
//!
//! Reading order: [`question`] defines requests and answers, [`asker`] sends them, [`records`], [`paths`], [`wrong`], [`forwarding`],
//! [`changes`], [`groups`] and [`partitions`] are the requests, [`differences`] lists the answers that may differ, and why.

mod asker;
mod changes;
mod differences;
mod facts;
mod forwarding;
mod groups;
mod own;
mod partitions;
mod paths;
mod question;
mod records;
mod wrong;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rdmux_fabric::proto::Snapshot;
use rdmux_wire::sa::PkeyTableRecord;
use rdmux_wire::{Lid, Pkey};

use self::asker::Asker;
use self::differences::Case;
use self::facts::Facts;
use self::own::Own;
use self::question::{Answer, Question};
use super::Ground;
use super::bring_up::all_is_active;
use super::ground::{self, HOSTS, Shown};
use super::opensm::{Conf, OpenSm};

/// A row: a subnet, and the configuration of both managers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Compare {
    /// The argument of `rdmux fabric up --shape`.
    pub(crate) shape: &'static str,
    /// LID mask control: each port has 2 to the power of this LIDs.
    pub(crate) lmc: u8,
    /// Their further configuration.
    pub(crate) also: Also,
}

/// The configuration of both managers apart from LMC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Also {
    /// No further configuration.
    Nothing,
    /// The virtual lane of each service level.
    Qos,
    /// Partitions from a file.
    Partitions,
    /// Partitions from a file, and the virtual lane of each service level, which they use.
    PartitionsAndQos,
}

impl Also {
    fn qos(self) -> bool {
        matches!(self, Self::Qos | Self::PartitionsAndQos)
    }

    fn partitions(self) -> bool {
        matches!(self, Self::Partitions | Self::PartitionsAndQos)
    }
}

/// The least number of requests of a row: fewer would mean that a part of the table is missing.
const FEWEST: usize = 400;

impl Compare {
    /// Returns the title of the row.
    pub(crate) fn title(&self) -> String {
        let lmc = if self.lmc > 0 { format!(" -l {}", self.lmc) } else { String::new() };
        let also = match self.also {
            Also::Nothing => "",
            Also::Qos => " -Q",
            Also::Partitions => " -P",
            Also::PartitionsAndQos => " -P -Q",
        };
        format!("opensm{lmc}{also}, and administration's answers beside its own on {}", self.shape)
    }

    /// Returns the options of `rdmux fabric up` for the manager. Writes the files that they name into `dir`.
    pub(crate) fn options(&self, dir: &Path) -> Result<Vec<String>> {
        let mut options = vec!["--sm-lmc".to_owned(), self.lmc.to_string()];
        if self.also.qos() {
            options.extend(["--sm-sl-to-vl", "default"].map(str::to_owned));
        }
        if self.also.partitions() {
            let file = dir.join("partitions.conf");
            fs::write(&file, partitions::file(self.shape, self.also.qos())?)?;
            options.extend(["--partitions".to_owned(), file.display().to_string()]);
        }
        Ok(options)
    }

    /// Returns the configuration of OpenSM.
    fn conf(&self) -> Result<Conf> {
        let mut conf = Conf::default()
            .with("sm_priority", 1)
            .with("lmc", self.lmc)
            .with("single_thread", "TRUE");
        if self.also.qos() {
            conf = conf.with("qos", "TRUE");
        }
        if self.also.partitions() {
            conf.partitions = Some(partitions::file(self.shape, self.also.qos())?);
        }
        Ok(conf)
    }

    /// Sends the requests to both, and compares.
    pub(crate) fn run(&self, ground: &Ground) -> Result<()> {
        ground.until("managed", || {
            let manager = ground.status()?.manager.context("the fabric has no manager")?;
            let swept = manager.state == "master" && manager.sweeps > 0 && !manager.sweeping;
            Ok(swept && all_is_active(&ground.show()?).is_ok())
        })?;
        let shown = ground.show()?;
        let facts = Facts::new(&shown, self.lmc)?;
        let own = shown.switches().chain(shown.adapters()).next().context("a node")?;
        let mut asker = Asker::open(ground, &shown, HOSTS[1], ground::lid(own)?)?;
        // The other requests are built from the contents of the tables.
        let tables = records::tables();
        let mut ours = asker.ask_all(&tables)?;
        let mut questions = records::questions(&tables, &ours);
        let by_components = questions.len();
        let mut counts = format!("{} tables, {by_components} by components", tables.len());
        let mut changes = changes::questions(&facts);
        let forwarding = forwarding::questions(&facts);
        let _ = write!(counts, ", {} for forwarding tables", forwarding.len());
        for (what, more) in [
            ("for paths", paths::questions(&facts)),
            ("between several ports", paths::several(&facts)),
            ("wrong", wrong::questions(&facts)),
        ] {
            let _ = write!(counts, ", {} {what}", more.len());
            questions.extend(more);
        }
        let mut others = Vec::new();
        if self.also.partitions() {
            let more = partitions::questions(&facts);
            let _ = write!(counts, ", {} within partitions", more.len());
            questions.extend(more);
            changes.extend(partitions::changes(&facts));
            others = partitions::by_others(&shown, &tables)?;
            let count: usize = others.iter().map(|(_, questions)| questions.len()).sum();
            let _ = write!(counts, ", {count} by others");
        }
        let _ = write!(counts, ", {} changes", changes.len());
        let ask = |asker: &mut Asker, shown: &Snapshot, manager: Lid| -> Result<Vec<Answer>> {
            let mut all = asker.ask_all(&questions)?;
            for (name, questions) in &others {
                all.extend(Asker::open(ground, shown, name, manager)?.ask_all(questions)?);
            }
            all.extend(forwarding::ask(ground, shown, &facts, asker, &forwarding)?);
            all.extend(asker.ask_in_order(&changes)?);
            Ok(all)
        };
        ours.extend(ask(&mut asker, &shown, ground::lid(own)?)?);
        drop(asker);

        // Without a switch the fabric's manager is on the first host's port.
        let host = HOSTS[usize::from(shown.switches().next().is_none())];
        let mut opensm = OpenSm::start(ground, host, "opensm", &self.conf()?)?;
        opensm.says("SUBNET UP", 1)?;
        let then = ground.show()?;
        ensure!(Facts::new(&then, self.lmc)? == facts, "OpenSM gave ports other LIDs");
        let manager = ground::lid(then.node(host)?)?;
        let mut asker = Asker::open(ground, &then, HOSTS[1], manager)?;
        let mut theirs = asker.ask_all(&tables)?;
        theirs.extend(ask(&mut asker, &then, manager)?);
        drop(asker);
        opensm.end()?;

        let count = tables.len();
        let others: Vec<Question> = others.into_iter().flat_map(|(_, all)| all).collect();
        let all = [&tables[..], &questions, &others, &forwarding, &changes].concat();
        let of = |answers: &'_ [Answer]| -> Vec<Answer> { answers[..count].to_vec() };
        let (our_tables, their_tables) = (of(&ours), of(&theirs));
        let both = Both {
            questions: &all,
            ours: &ours,
            theirs: &theirs,
            our_tables: Own { questions: &tables, answers: &our_tables },
            their_tables: Own { questions: &tables, answers: &their_tables },
            by_components: count..count + by_components,
            facts: &facts,
            qos: self.also.qos(),
        };
        both.compare(ground, &counts)
    }
}

/// The requests, and the answers of both.
struct Both<'a> {
    questions: &'a [Question],
    ours: &'a [Answer],
    theirs: &'a [Answer],
    /// The records of each kind.
    our_tables: Own<'a>,
    their_tables: Own<'a>,
    /// The range of the requests for records of a table by its components.
    by_components: Range<usize>,
    facts: &'a Facts,
    qos: bool,
}

impl Both<'_> {
    /// Returns whether rdmux's answer to a request by components matches its own table.
    fn is_own(&self, index: usize) -> bool {
        let (question, answer) = (&self.questions[index], &self.ours[index]);
        let asked = self.by_components.contains(&index)
            && !differences::depends_on_question(question)
            && self.our_tables.table(question).is_some();
        let counts = |record: &[u8]| differences::counts(self.facts, question, record);
        !asked || self.our_tables.says(question, answer, counts)
    }

    /// Returns the P_Keys of each port, by the LID of its node and its number, that any answer has shown.
    fn keys(&self) -> BTreeMap<(Lid, u8), Vec<Pkey>> {
        let mut all: BTreeMap<(Lid, u8), Vec<Pkey>> = BTreeMap::new();
        let tables = self.questions.iter().zip(self.ours);
        let tables = tables.filter(|(question, _)| question.attr_id == PkeyTableRecord::ATTR_ID);
        for record in tables.flat_map(|(_, answer)| answer.records()) {
            let Ok(record) = PkeyTableRecord::parse(record) else { continue };
            let keys = record.table.pkeys.into_iter().filter(|key| key.0 & 0x7fff != 0);
            all.entry((record.lid, record.port_num)).or_default().extend(keys);
        }
        all
    }

    /// Writes all differences to a log, and counts those without a name.
    fn compare(&self, ground: &Ground, counts: &str) -> Result<()> {
        let Self { questions, ours, theirs, .. } = self;
        ensure!(
            questions.len() == ours.len() && ours.len() == theirs.len(),
            "an answer is missing"
        );
        let (mut log, mut failures) = (String::new(), Vec::new());
        let mut named: BTreeMap<&str, usize> = BTreeMap::new();
        let keys = self.keys();
        for (index, question) in questions.iter().enumerate() {
            let (ours, theirs) = (ours[index].of(question), theirs[index].of(question));
            if !self.is_own(index) {
                failures.push(format!(
                    "{question}\n  the records differ from rdmux's own whole table\n"
                ));
            }
            if ours == theirs {
                continue;
            }
            let told = format!("{question}\n{}", question::difference(question, &theirs, &ours));
            let case = Case {
                question,
                ours: &ours,
                theirs: &theirs,
                came: &self.theirs[index],
                own: self.their_tables,
                keys: &keys,
                facts: self.facts,
                qos: self.qos,
            };
            match differences::name(&case) {
                Some(name) => *named.entry(name).or_default() += 1,
                None => failures.push(told),
            }
        }
        let _ = writeln!(log, "{} requests: {counts}", questions.len());
        for (name, count) in named {
            let _ = writeln!(log, "{count} differ: {name}");
        }
        for failure in &failures {
            let _ = writeln!(log, "\n{failure}");
        }
        let file = ground.log("answers");
        fs::write(&file, log)?;
        let count = questions.len();
        ensure!(count >= FEWEST, "only {count} requests were sent");
        let first = failures.first().map_or("", |first| first);
        ensure!(
            failures.is_empty(),
            "{} of {count} answers differ, all in {}: {first}",
            failures.len(),
            file.display()
        );
        Ok(())
    }
}
