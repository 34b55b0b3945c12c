//! Sends requests to the current master manager.

use std::collections::HashMap;

use anyhow::{Context, Result, ensure};
use rdmux_fabric::proto::Snapshot;
use rdmux_wire::Lid;
use rdmux_wire::mad::MadHeader;

use super::super::client::Client;
use super::super::ground::Ground;
use super::question::{Answer, Question};

/// The timeout of an answer, and of one that is not expected.
const ANSWER_MS: u32 = 20_000;
const SILENCE_MS: u32 = 1_500;
/// How many expected answers may be lost before administration counts as dead.
const LOST: usize = 16;
/// How many requests are outstanding at a time.
const WINDOW: usize = 64;

/// A port, with an agent that receives answers.
pub(super) struct Asker {
    client: Client,
    next: u32,
}

impl Asker {
    /// Opens the port of an adapter with this name, to send requests to the manager with this LID.
    pub(super) fn open(ground: &Ground, shown: &Snapshot, own: &str, manager: Lid) -> Result<Self> {
        Ok(Self { client: Client::to(ground, shown, own, manager)?, next: 1 })
    }

    /// Sends requests that change nothing, many at a time.
    pub(super) fn ask_all(&mut self, questions: &[Question]) -> Result<Vec<Answer>> {
        self.ask(questions, WINDOW)
    }

    /// Sends one request after the other.
    pub(super) fn ask_in_order(&mut self, questions: &[Question]) -> Result<Vec<Answer>> {
        self.ask(questions, 1)
    }

    fn ask(&mut self, questions: &[Question], window: usize) -> Result<Vec<Answer>> {
        let mut answers: Vec<Option<Answer>> = vec![None; questions.len()];
        let mut outstanding: HashMap<u32, usize> = HashMap::new();
        let mut waiting = questions.iter().enumerate();
        let mut lost = 0;
        loop {
            while outstanding.len() < window {
                let Some((index, question)) = waiting.next() else { break };
                outstanding.insert(self.next, index);
                self.send(question)?;
            }
            if outstanding.is_empty() {
                break;
            }
            let came = self.client.receive()?;
            let header = MadHeader::parse(&came.data)?;
            let [_, _, _, _, low @ ..] = header.tid.to_be_bytes();
            // A Report has a transaction ID of its own.
            let Some(index) = outstanding.remove(&u32::from_be_bytes(low)) else { continue };
            let answered = came.status == 0;
            lost += usize::from(!answered && !questions[index].silent);
            ensure!(lost <= LOST, "subnet administration no longer answers: {}", questions[index]);
            answers[index] =
                Some(if answered { Answer::parse(&came.data)? } else { Answer::Silence });
        }
        answers.into_iter().collect::<Option<_>>().context("an answer is missing")
    }

    fn send(&mut self, question: &Question) -> Result<()> {
        let data = question.mad(self.next.into());
        self.next += 1;
        self.client.send(data, if question.silent { SILENCE_MS } else { ANSWER_MS })
    }
}
