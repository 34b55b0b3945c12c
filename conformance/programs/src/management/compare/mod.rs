//! Subnet administration beside OpenSM's: the same questions are put to both on the same fabric, first while the fabric's manager is
//! the master, then while OpenSM is. Each difference is a failure, unless it is one of those that [`differences`] names.
//!
//! Reading order: [`question`] is what is asked and answered, [`asker`] asks, [`records`], [`paths`], [`wrong`] and [`changes`] are
//! the questions, [`differences`] says which answers may differ, and why.

mod asker;
mod changes;
mod differences;
mod facts;
mod paths;
mod question;
mod records;
mod wrong;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result, ensure};

use self::asker::Asker;
use self::facts::Facts;
use self::question::{Answer, Question};
use super::Ground;
use super::bring_up::all_is_active;
use super::ground::{self, HOSTS, Shown};
use super::opensm::{Conf, OpenSm};

/// A row: a subnet whose ports have so many LIDs each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Compare {
    /// What `rdmux fabric up --shape` takes.
    pub(crate) shape: &'static str,
    /// Each port has 2 to the power of this LIDs.
    pub(crate) lmc: u8,
}

/// The fewest questions that a row has: fewer would show that a part of the table is gone.
const FEWEST: usize = 400;

impl Compare {
    /// How the row is called.
    pub(crate) fn title(&self) -> String {
        let lmc = if self.lmc > 0 { format!(" -l {}", self.lmc) } else { String::new() };
        format!("opensm{lmc}, and administration's answers beside its own on {}", self.shape)
    }

    /// The options of `rdmux fabric up` for the manager.
    pub(crate) fn options(&self) -> [String; 2] {
        ["--sm-lmc".to_owned(), self.lmc.to_string()]
    }

    /// Asks both, and compares.
    pub(crate) fn run(&self, ground: &Ground) -> Result<()> {
        ground.until("managed", || {
            let manager = ground.status()?.manager.context("the fabric has no manager")?;
            let swept = manager.state == "master" && manager.sweeps > 0 && !manager.sweeping;
            Ok(swept && all_is_active(&ground.show()?).is_ok())
        })?;
        let shown = ground.show()?;
        let facts = Facts::new(&shown, self.lmc)?;
        let own = shown.switches().chain(shown.adapters()).next().context("a node")?;
        let mut asker = Asker::open(ground, &shown, ground::lid(own)?)?;
        // What the tables of records have is what the other questions ask for.
        let tables = records::tables();
        let mut ours = asker.ask_all(&tables)?;
        let mut questions = records::questions(&tables, &ours);
        let mut counts = format!("{} tables, {} by components", tables.len(), questions.len());
        let changes = changes::questions(&facts);
        for (what, more) in [
            ("for paths", paths::questions(&facts)),
            ("between several ports", paths::several(&facts)),
            ("wrong", wrong::questions(&facts)),
        ] {
            let _ = write!(counts, ", {} {what}", more.len());
            questions.extend(more);
        }
        let _ = write!(counts, ", {} changes", changes.len());
        ours.extend(asker.ask_all(&questions)?);
        ours.extend(asker.ask_in_order(&changes)?);
        drop(asker);

        let conf = Conf::default()
            .with("sm_priority", 1)
            .with("lmc", self.lmc)
            .with("single_thread", "TRUE");
        // Without a switch the fabric's manager is on the first host's port.
        let host = HOSTS[usize::from(shown.switches().next().is_none())];
        let mut opensm = OpenSm::start(ground, host, "opensm", &conf)?;
        opensm.says("SUBNET UP", 1)?;
        let then = ground.show()?;
        ensure!(Facts::new(&then, self.lmc)? == facts, "OpenSM gives ports other LIDs");
        let mut asker = Asker::open(ground, &then, ground::lid(then.node(host)?)?)?;
        let mut theirs = asker.ask_all(&tables)?;
        theirs.extend(asker.ask_all(&questions)?);
        theirs.extend(asker.ask_in_order(&changes)?);
        drop(asker);
        opensm.end()?;

        let all: Vec<&Question> = tables.iter().chain(&questions).chain(&changes).collect();
        self.compare(ground, &counts, &all, (&ours, &theirs))
    }

    /// Writes all differences to a log, and counts those that have no name.
    fn compare(
        &self,
        ground: &Ground,
        counts: &str,
        questions: &[&Question],
        (ours, theirs): (&[Answer], &[Answer]),
    ) -> Result<()> {
        ensure!(
            questions.len() == ours.len() && ours.len() == theirs.len(),
            "an answer is missing"
        );
        let (mut log, mut failures) = (String::new(), Vec::new());
        let mut named: BTreeMap<&str, usize> = BTreeMap::new();
        for ((question, ours), theirs) in questions.iter().zip(ours).zip(theirs) {
            let (ours, theirs) = (ours.of(question), theirs.of(question));
            if ours == theirs {
                continue;
            }
            let told = format!("{question}\n{}", question::difference(question, &theirs, &ours));
            match differences::name(question, &ours, &theirs, self.lmc) {
                Some(name) => *named.entry(name).or_default() += 1,
                None => failures.push(told),
            }
        }
        let _ = writeln!(log, "{} questions: {counts}", questions.len());
        for (name, count) in named {
            let _ = writeln!(log, "{count} differ: {name}");
        }
        for failure in &failures {
            let _ = writeln!(log, "\n{failure}");
        }
        let file = ground.log("answers");
        fs::write(&file, log)?;
        let count = questions.len();
        ensure!(count >= FEWEST, "{count} questions");
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
