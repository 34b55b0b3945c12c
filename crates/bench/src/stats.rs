//! Rounds, medians and goals.

use serde::Serialize;

/// Returns the median; for an even number of values the mean of the middle two. Zero if there are none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut v = values.to_vec();
    v.sort_by(f64::total_cmp);
    match v.len() {
        0 => 0.0,
        n if n % 2 == 1 => v[n / 2],
        n => f64::midpoint(v[n / 2 - 1], v[n / 2]),
    }
}

/// The goal of a ratio.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Goal {
    /// At least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
}

impl Goal {
    /// Returns whether `ratio` meets it.
    pub(crate) fn met(self, ratio: f64) -> bool {
        match self {
            Self::AtLeast(x) => ratio >= x,
            Self::AtMost(x) => ratio <= x,
        }
    }
}

impl std::fmt::Display for Goal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AtLeast(x) => write!(f, ">= {x:.2}"),
            Self::AtMost(x) => write!(f, "<= {x:.2}"),
        }
    }
}

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unit {
    /// Bytes per second.
    BytesPerSecond,
    /// Seconds, one way.
    Seconds,
    /// Connections per second.
    PerSecond,
    /// Messages a second.
    Messages,
    /// Bytes.
    Bytes,
    /// Objects.
    Count,
    /// Processors in use.
    Processors,
}

impl Unit {
    /// Formats a value for people.
    pub(crate) fn show(self, value: f64) -> String {
        match self {
            Self::BytesPerSecond => rdmux_command::output::rate(value),
            Self::Seconds => {
                rdmux_command::output::time(std::time::Duration::from_secs_f64(value.max(0.0)))
            }
            Self::PerSecond => format!("{value:.0}/s"),
            Self::Messages => format!("{:.3} M/s", value / 1e6),
            Self::Bytes if value >= 1e6 => format!("{:.1} MB", value / 1e6),
            Self::Bytes => format!("{value:.0} B"),
            Self::Count => format!("{value:.0}"),
            Self::Processors => format!("{:.2} %", value * 100.0),
        }
    }
}

/// A figure, with its reference.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    /// The name of the measurement.
    pub(crate) name: &'static str,
    /// The unit of both values.
    pub(crate) unit: Unit,
    /// rdmux's value: the median of the rounds.
    pub(crate) value: f64,
    /// The reference.
    pub(crate) peer: Option<Peer>,
    /// rdmux's value divided by the reference's; for connections the ratio of their times, where less is better.
    pub(crate) ratio: Option<f64>,
    /// The goal of the ratio.
    pub(crate) goal: Option<Goal>,
    /// The upper limit of the value.
    pub(crate) limit: Option<f64>,
    /// Whether the goal or the limit is met.
    pub(crate) met: Option<bool>,
    /// The number of rounds.
    pub(crate) rounds: usize,
}

/// The reference of a figure.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Peer {
    /// Its name.
    pub(crate) name: &'static str,
    /// Its value: the median of the rounds.
    pub(crate) value: f64,
}

impl Figure {
    /// Returns a figure without a reference.
    pub(crate) fn alone(name: &'static str, unit: Unit, values: &[f64]) -> Self {
        let (value, rounds) = (median(values), values.len());
        let (peer, ratio, goal, limit, met) = (None, None, None, None, None);
        Self { name, unit, value, peer, ratio, goal, limit, met, rounds }
    }

    /// Adds a reference. The ratio is rdmux's value divided by the reference's, except for rates of connections,
    /// where it is the ratio of the times per connection.
    pub(crate) fn beside(mut self, name: &'static str, values: &[f64]) -> Self {
        let value = median(values);
        self.peer = Some(Peer { name, value });
        self.ratio = Some(match self.unit {
            Unit::PerSecond => value / self.value,
            _ => self.value / value,
        });
        self
    }

    /// Sets an upper limit, for a figure without a reference.
    pub(crate) fn with_limit(mut self, limit: f64) -> Self {
        self.limit = Some(limit);
        self.met = Some(self.value <= limit);
        self
    }

    /// Sets the goal of the ratio.
    pub(crate) fn with_goal(mut self, goal: Goal) -> Self {
        self.goal = Some(goal);
        self.met = self.ratio.map(|r| goal.met(r));
        self
    }

    /// Formats a value for people.
    pub(crate) fn show(&self, value: f64) -> String {
        self.unit.show(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_ignores_the_outlier() {
        assert!((median(&[1.0, 100.0, 2.0]) - 2.0).abs() < f64::EPSILON);
        assert!((median(&[1.0, 2.0, 3.0, 100.0]) - 2.5).abs() < f64::EPSILON);
    }

    #[test]
    fn a_ratio_of_connections_is_of_time_and_one_of_bandwidth_is_not() {
        let slow = Figure::alone("c", Unit::PerSecond, &[100.0])
            .beside("TCP", &[1000.0])
            .with_goal(Goal::AtMost(9.0));
        assert_eq!((slow.ratio, slow.met), (Some(10.0), Some(false)));
        let fast = Figure::alone("w", Unit::BytesPerSecond, &[3e9])
            .beside("TCP", &[2e9])
            .with_goal(Goal::AtLeast(1.0));
        assert_eq!((fast.ratio, fast.met), (Some(1.5), Some(true)));
    }
}
