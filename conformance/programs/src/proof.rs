//! Checks of programs' output: an exit status of 0 is not enough.

use std::fmt;

use anyhow::{Context, Result, bail, ensure};

use crate::stage::Scene;

/// perftest's failure to calibrate its clock: it found no line through its measurements, and continues with a clock of
/// frequency 0, so that all its results are 0, infinite or not a number. This happens if it loses the processor
/// meanwhile, and is no evidence about the tested stack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uncalibrated;

impl fmt::Display for Uncalibrated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("perftest could not calibrate its clock")
    }
}

impl Uncalibrated {
    /// Returns whether the output has the line that reports this.
    pub(crate) fn is_said_in(output: &str) -> bool {
        output.lines().any(|l| l.starts_with("Correlation coefficient r^2:") && l.contains(" < "))
    }
}

/// The output of a row's programs.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) server: String,
    pub(crate) clients: Vec<String>,
}

/// A required content of the output.
#[derive(Clone, Debug)]
pub(crate) enum Proof {
    /// Every client prints this.
    Client(String),
    /// The server prints this.
    Server(String),
    /// Every client prints so many lines with this.
    ClientLines(&'static str, usize),
    /// perftest's table: so many lines, each with plausible numbers, and with this many
    /// iterations if the test counts them.
    Perftest { lines: usize, iterations: Option<u64> },
    /// `name = 1.23 unit` for this name, above zero.
    Figure(&'static str),
    /// At least this many bytes crossed the wire between the sides, by the counters of its interfaces.
    Crossed(u64),
}

impl Proof {
    /// Checks for it.
    ///
    /// # Errors
    /// When it is missing.
    pub(crate) fn check(&self, scene: &Scene, said: &Said) -> Result<()> {
        match self {
            Self::Server(text) => {
                contains("the server", &said.server, &scene.fill(&scene.server, text))
            }
            Self::Client(text) => {
                let text = scene.fill(&scene.client, text);
                said.clients.iter().try_for_each(|c| contains("a client", c, &text))
            }
            Self::ClientLines(text, wanted) => said.clients.iter().try_for_each(|c| {
                let n = c.lines().filter(|l| l.contains(text)).count();
                ensure!(n == *wanted, "{n} lines with {text:?}, not {wanted}");
                Ok(())
            }),
            Self::Perftest { lines, iterations } => {
                said.clients.iter().try_for_each(|c| perftest(c, *lines, *iterations))
            }
            Self::Crossed(bytes) => {
                let crossed = scene.crossed()?;
                ensure!(crossed >= *bytes, "{crossed} bytes crossed the wire, not {bytes}");
                Ok(())
            }
            Self::Figure(name) => said.clients.iter().try_for_each(|c| figure(c, name)),
        }
    }
}

fn contains(who: &str, output: &str, text: &str) -> Result<()> {
    ensure!(output.contains(text), "{who} does not print {text:?}");
    Ok(())
}

/// Checks perftest's table, which begins with a line of column names, `#bytes #iterations …`. The lines below it
/// are numbers, up to one that is not.
fn perftest(output: &str, wanted: usize, iterations: Option<u64>) -> Result<()> {
    let mut lines = output.lines().skip_while(|l| !l.trim_start().starts_with("#bytes"));
    let head = lines.next().context("the output has no table")?;
    let numbers = |line: &str| -> Option<Vec<f64>> {
        let words: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
        words.ok().filter(|w| w.len() >= 3)
    };
    let rows: Vec<Vec<f64>> =
        lines.filter(|l| !l.trim_start().starts_with('#')).map_while(numbers).collect();
    ensure!(rows.len() == wanted, "{} lines in the table, not {wanted}", rows.len());
    // Messages per second have more digits than bytes per second; latency for a time has fewer columns.
    let measure = match head {
        h if h.contains("MsgRate") || h.contains("t_typical") => 4,
        _ => 2,
    };
    for row in rows {
        let line = row.iter().map(f64::to_string).collect::<Vec<_>>().join(" ");
        // After the average it prints a deviation, which is not a number if rounding makes a square negative.
        let sensible = row.iter().take(measure + 1).all(|n| n.is_finite() && *n >= 0.0);
        ensure!(sensible, "{line:?}: not plausible numbers");
        #[expect(clippy::cast_precision_loss, reason = "iterations are few")]
        let counted = iterations.is_none_or(|n| row[1] == n as f64);
        ensure!(counted && row[1] > 0.0, "{line:?}: {} iterations", row[1]);
        ensure!(row.get(measure).is_some_and(|n| *n > 0.0), "{line:?}: nothing measured");
    }
    Ok(())
}

/// Checks a figure in qperf's format: `    bw  =  5.25 GB/sec`.
fn figure(output: &str, name: &str) -> Result<()> {
    for line in output.lines() {
        if let Some((what, value)) = line.split_once('=')
            && what.trim() == name
        {
            let number = value.split_whitespace().next().context("the output has no figure")?;
            let number: f64 = number.replace(',', "").parse().with_context(|| line.to_owned())?;
            ensure!(number > 0.0, "{}", line.trim());
            return Ok(());
        }
    }
    bail!("the output has no figure {name}")
}

#[cfg(test)]
mod tests {
    use super::{Uncalibrated, figure, perftest};

    const BANDWIDTH: &str = "\
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      1000             6034.00            6029.63\t\t   0.096474
---------------------------------------------------------------------------------------
";
    const LATENCY: &str = "\
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] 
 2       1000          0.66           5.17         0.70     \t       0.70        \t0.06   \t\t0.83    \t\t5.17   
";

    #[test]
    fn tables_of_perftest() {
        perftest(BANDWIDTH, 1, Some(1000)).unwrap();
        perftest(LATENCY, 1, Some(1000)).unwrap();
        assert!(perftest(BANDWIDTH, 2, Some(1000)).is_err());
        assert!(perftest(BANDWIDTH, 1, Some(999)).is_err());
        assert!(perftest(&BANDWIDTH.replace("0.096474", "0.000000"), 1, None).is_err());
        assert!(perftest(&BANDWIDTH.replace("6029.63", "-nan"), 1, None).is_err());
        assert!(perftest("nothing", 1, None).is_err());
    }

    /// The end of the output of ib_send_lat of perftest 4.5, first its table and then its standard error.
    const UNCALIBRATED: &str = "\
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] 
 2       1000          inf            inf          inf     \t       inf        \t-nan   \t\tinf    \t\tinf   
---------------------------------------------------------------------------------------
Correlation coefficient r^2: 0.69636 < 0.9
";

    #[test]
    fn uncalibrated_clock_of_perftest_is_recognized() {
        assert!(perftest(UNCALIBRATED, 1, Some(1000)).is_err());
        assert!(Uncalibrated::is_said_in(UNCALIBRATED));
        assert!(!Uncalibrated::is_said_in(LATENCY));
        assert!(!Uncalibrated::is_said_in(&BANDWIDTH.replace("6029.63", "-nan")));
    }

    #[test]
    fn qperf_figures_are_parsed_and_zero_is_an_error() {
        figure("rc_bw:\n    bw  =  5.25 GB/sec\n", "bw").unwrap();
        figure("ver:\n    msg_rate  =  1,234 /sec\n", "msg_rate").unwrap();
        assert!(figure("rc_bw:\n    bw  =  0 GB/sec\n", "bw").is_err());
        assert!(figure("rc_bw:\n", "bw").is_err());
    }
}
