//! A row of the table: rdmux's figure, the reference, and the goals of their ratio.

use serde::Serialize;

use super::super::stats::{Unit, median};
use super::spec::Row;

/// The results of several rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) least: f64,
    pub(super) most: f64,
    pub(super) rounds: usize,
}

impl Spread {
    /// Summarizes these rounds; zeros if there are none.
    pub(super) fn of(rounds: &[f64]) -> Self {
        let least = rounds.iter().copied().min_by(f64::total_cmp).unwrap_or_default();
        let most = rounds.iter().copied().max_by(f64::total_cmp).unwrap_or_default();
        Self { median: median(rounds), least, most, rounds: rounds.len() }
    }

    /// Formats the median, with the percentages by which the other rounds were below and above it.
    pub(super) fn show(&self, unit: Unit) -> String {
        let value = unit.show(self.median);
        if self.rounds < 2 || self.median <= 0.0 {
            return value;
        }
        let percent = |x: f64| (x / self.median - 1.0) * 100.0;
        format!("{value} ({:+.0} {:+.0} %)", percent(self.least), percent(self.most))
    }
}

/// How a ratio is computed, and whether more or less is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Ratio {
    /// rdmux divided by the reference; for times, where less is better.
    Less,
    /// rdmux divided by the reference; for rates, where more is better.
    More,
    /// The reference divided by rdmux: times, treated as rates.
    Inverse,
}

/// The goal that a row has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Met {
    No,
    AtLeast,
    Aim,
}

/// A row.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figure {
    pub(super) row: Row,
    pub(super) what: &'static str,
    pub(super) unit: Unit,
    pub(super) ours: Spread,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) peer: &'static str,
    pub(super) beside: Option<Spread>,
    /// The ratio of the medians; without a reference, rdmux's median itself.
    pub(super) ratio: f64,
    pub(super) direction: Ratio,
    pub(super) at_least: Option<f64>,
    pub(super) aim: Option<f64>,
    pub(super) met: Option<Met>,
    /// The components of the figure.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) parts: Vec<(&'static str, f64)>,
}

impl Figure {
    /// Computes a figure from the rounds of both; `peer` is empty if there is no reference.
    pub(super) fn new(row: Row, ours: &[f64], peer: &[f64]) -> Self {
        let spec = row.spec();
        let ours = Spread::of(ours);
        let beside = (!peer.is_empty()).then(|| Spread::of(peer));
        let ratio = match (beside, spec.ratio) {
            (None, _) => ours.median,
            (Some(peer), Ratio::Inverse) => peer.median / ours.median,
            (Some(peer), _) => ours.median / peer.median,
        };
        let mut this = Self {
            row,
            what: spec.what,
            unit: spec.unit,
            ours,
            peer: spec.peer,
            beside,
            ratio,
            direction: spec.ratio,
            at_least: spec.goals.map(|g| g.0),
            aim: spec.goals.map(|g| g.1),
            met: None,
            parts: Vec::new(),
        };
        this.met = spec.goals.map(|(at_least, aim)| match () {
            () if this.times_better_than(aim) >= 1.0 => Met::Aim,
            () if this.times_better_than(at_least) >= 1.0 => Met::AtLeast,
            () => Met::No,
        });
        this
    }

    /// Returns the factor by which the ratio is better than `goal`: below one it is worse.
    pub(super) fn times_better_than(&self, goal: f64) -> f64 {
        self.better(self.ratio, goal)
    }

    /// Returns the factor by which the aim is better than the minimum goal.
    pub(super) fn aim_beyond(&self) -> Option<f64> {
        Some(self.better(self.aim?, self.at_least?))
    }

    fn better(&self, a: f64, b: f64) -> f64 {
        if self.direction == Ratio::Less { b / a } else { a / b }
    }

    /// Formats the ratio or one of its goals; for a row without a reference, it is a value.
    pub(super) fn show(&self, ratio: f64) -> String {
        if self.beside.is_none() { self.unit.show(ratio) } else { format!("{ratio:.2}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn met(row: Row, ours: f64, peer: f64) -> Option<Met> {
        Figure::new(row, &[ours], &[peer]).met
    }

    #[test]
    fn lower_time_figures_are_better() {
        let figure = Figure::new(Row::SendLat, &[1.0, 1.2, 9.0], &[1.0]);
        assert_eq!((figure.ratio, figure.met), (1.2, Some(Met::AtLeast)));
        assert!((figure.times_better_than(1.5) - 1.25).abs() < 1e-9);
        assert!((figure.aim_beyond().unwrap() - 1.5 / 0.9).abs() < 1e-9);
        assert_eq!(met(Row::SendLat, 0.8, 1.0), Some(Met::Aim));
    }

    #[test]
    fn higher_rate_figures_are_better() {
        let all = [0.4, 0.5, 1.3].map(|ours| met(Row::Rate, ours, 1.0));
        assert_eq!(all, [Met::No, Met::AtLeast, Met::Aim].map(Some));
        assert_eq!(met(Row::UdpUcx, 1.0, 1.0), None);
    }

    #[test]
    fn times_can_be_compared_as_if_they_were_rates() {
        let figure = Figure::new(Row::LossLat, &[4.0], &[2.0]);
        assert_eq!((figure.ratio, figure.met), (0.5, Some(Met::AtLeast)));
    }

    #[test]
    fn without_a_peer_the_value_itself_is_judged() {
        let figure = Figure::new(Row::Memory, &[5000.0], &[]);
        assert_eq!((figure.met, figure.show(16384.0)), (Some(Met::AtLeast), "16384 B".to_owned()));
    }

    #[test]
    fn the_spread_is_in_percent() {
        let spread = Spread::of(&[0.9e-6, 1e-6, 1.2e-6]);
        assert_eq!(spread.show(Unit::Seconds), "1.00 us (-10 +20 %)");
        assert_eq!(Spread::of(&[2e-6]).show(Unit::Seconds), "2.00 us");
        assert_eq!(Spread::of(&[]).show(Unit::Seconds), "0 ns");
    }
}
