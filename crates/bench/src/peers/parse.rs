//! Parses the output of programs to figures in SI units.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// The "MB" of perftest and UCX.
const MIB: f64 = (1 << 20) as f64;
const MICROSECOND: f64 = 1e-6;

/// Parses the output of perftest's `ib_*_lat`: the average time one way, in seconds.
pub(crate) fn perftest_latency(output: &str) -> Result<f64> {
    Ok(perftest(output, "t_avg[usec]", 5)? * MICROSECOND)
}

/// Parses the output of perftest's `ib_*_bw`: the average in bytes per second. Its peak may be 0.00, because it is
/// not measured with few messages.
pub(crate) fn perftest_bandwidth(output: &str) -> Result<f64> {
    Ok(perftest(output, "BW average[M", 3)? * MIB)
}

/// Parses the output of perftest's `ib_*_bw`: messages per second.
pub(super) fn perftest_messages(output: &str) -> Result<f64> {
    Ok(perftest(output, "MsgRate[Mpps]", 4)? * 1e6)
}

/// Returns a column of the only row. Headings contain blanks, so columns are numbered; `heading` checks that it is
/// the expected table.
fn perftest(output: &str, heading: &str, column: usize) -> Result<f64> {
    let mut lines = output.lines().skip_while(|l| !l.trim_start().starts_with("#bytes"));
    let header = lines.next().context("there is no table")?;
    ensure!(header.contains(heading), "the table has no column {heading}");
    let row = lines.next().context("the table has no row")?;
    positive(row.split_whitespace().nth(column), heading)
}

/// Parses the output of `ucx_perftest -f -v` with a latency test: overall seconds one way.
pub(super) fn ucx_latency(output: &str) -> Result<f64> {
    Ok(ucx(output, "overall_lat")? * MICROSECOND)
}

/// Parses the output of `ucx_perftest -f -v` with a bandwidth test: overall bytes per second.
pub(super) fn ucx_bandwidth(output: &str) -> Result<f64> {
    Ok(ucx(output, "overall_bw")? * MIB)
}

/// Parses the output of `ucx_perftest -f -v` with a bandwidth test: overall messages per second.
pub(super) fn ucx_messages(output: &str) -> Result<f64> {
    ucx(output, "overall_mr")
}

/// Returns a column of the only row of comma-separated values, which may follow warnings.
fn ucx(output: &str, name: &str) -> Result<f64> {
    let mut lines = output.lines().skip_while(|l| !l.starts_with("iterations,"));
    let header = lines.next().context("there is no table")?;
    let column = header.split(',').position(|h| h.trim() == name);
    let column = column.with_context(|| format!("the table has no column {name}"))?;
    positive(lines.next().and_then(|row| row.split(',').nth(column)), name)
}

/// Parses the output of `iperf3 --json`: the bytes per second at the receiver.
pub(super) fn iperf3(output: &str) -> Result<f64> {
    let all: Value = serde_json::from_str(output).context("the output is not JSON")?;
    if let Some(why) = all["error"].as_str() {
        anyhow::bail!("{why}");
    }
    let bits = all["end"]["sum_received"]["bits_per_second"].as_f64();
    Ok(bits.context("the output has no end.sum_received.bits_per_second")? / 8.0)
}

/// Parses the output of `cmtime`: the seconds per connection, all steps together.
pub(super) fn cmtime(output: &str) -> Result<f64> {
    const STEPS: [&str; 7] = [
        "create id",
        "resolve addr",
        "resolve route",
        "create qp",
        "connect",
        "disconnect",
        "destroy",
    ];
    let rows: Vec<_> = output.lines().filter_map(|l| l.split_once(':')).collect();
    let step = |name: &&str| {
        let row = rows.iter().find(|(step, _)| step.trim_end() == *name);
        let (_, values) = row.with_context(|| format!("the output has no step {name}"))?;
        // Columns may be joined; the last one is separate.
        positive(values.split_whitespace().last(), name)
    };
    let micros = STEPS.iter().map(step).sum::<Result<f64>>()?;
    Ok(micros * MICROSECOND)
}

fn positive(word: Option<&str>, name: &str) -> Result<f64> {
    let value: f64 = word.with_context(|| format!("the output has no {name}"))?.trim().parse()?;
    ensure!(value.is_finite() && value > 0.0, "{name} is {value}");
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a / b - 1.0).abs() < 1e-6
    }

    #[test]
    fn latencies_of_perftest() {
        let text = include_str!("samples/ib_send_lat.txt");
        assert!(near(perftest_latency(text).unwrap(), 23.84e-6));
        let e = perftest_bandwidth(text).unwrap_err();
        assert!(e.to_string().contains("BW average"), "{e}");
    }

    #[test]
    fn bandwidths_of_perftest_have_no_need_of_a_peak() {
        let text = include_str!("samples/ib_write_bw.txt");
        assert!(near(perftest_bandwidth(text).unwrap(), 35.71 * MIB));
        assert!(near(perftest_messages(text).unwrap(), 571.0));
        let peakless = text.replace("37.93", " 0.00");
        assert!(near(perftest_bandwidth(&peakless).unwrap(), 35.71 * MIB));
        let gibberish = text.replace("35.71", "-nan ");
        assert!(perftest_bandwidth(&gibberish).is_err());
        assert!(perftest_bandwidth("Couldn't connect to 127.0.0.1:18515").is_err());
    }

    #[test]
    fn tables_of_ucx() {
        let text = include_str!("samples/ucx_tag_bw.txt");
        assert!(near(ucx_bandwidth(text).unwrap(), 51.77 * MIB));
        assert!(near(ucx_messages(text).unwrap(), 6_785_000.0));
        let warned = format!("[1.2] parser.c:2 UCX  WARN  unused variable\n{text}");
        assert!(near(ucx_latency(&warned).unwrap(), 0.147e-6));
        assert!(ucx_latency("iterations,50.0_percentile_lat\n").is_err());
        assert!(ucx_latency("").is_err());
    }

    #[test]
    fn documents_of_iperf3() {
        let text = include_str!("samples/iperf3.json");
        assert!(near(iperf3(text).unwrap(), 21_130_615_185.689_247 / 8.0));
        let e = iperf3(r#"{"error": "unable to connect to server"}"#).unwrap_err();
        assert_eq!(e.to_string(), "unable to connect to server");
        assert!(iperf3("iperf3: error").is_err());
    }

    #[test]
    fn all_steps_of_cmtime_count() {
        let text = include_str!("samples/cmtime.txt");
        let all = 18.30 + 56.95 + 37.53 + 255.17 + 1506.04 + 830.06 + 17.30;
        assert!(near(cmtime(text).unwrap(), all * MICROSECOND));
        // The output when the server was not running.
        let failed =
            text.replace("connect      :      150.60     115.26   17044.00    1506.04", "");
        assert!(cmtime(&failed).is_err());
        let touching = "connect      :        0.00       0.001000000000.00       0.00";
        let failed =
            text.replace("connect      :      150.60     115.26   17044.00    1506.04", touching);
        assert!(cmtime(&failed).unwrap_err().to_string().contains("connect is 0"));
    }
}
