//! ACM at the size of large clusters, as a table, JSON and a plot.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use rdmux_sim::acm_scale::{Setup, plot, run, table};

/// Simulates endpoints that all resolve all others at once, with the machine of the ACM service, beside subnet administration alone.
#[derive(Debug, Parser)]
#[command(name = "rdmux-acm-scale", version)]
struct Args {
    /// How many endpoints, 2 to 65,536; several numbers are runs of their own.
    #[arg(long, value_delimiter = ',', default_value = "1024,2048,4096,8192,16384,32768,65536")]
    endpoints: Vec<u32>,
    /// How many of them have a machine of their own; each stands for as many others as there are for it.
    #[arg(long, default_value_t = 512)]
    sample: u32,
    /// Runs sizes up to this one with a machine for every endpoint, too.
    #[arg(long, default_value_t = 0)]
    exact: u32,
    /// Chances, in percent, that a delivery is lost; several are runs of their own.
    #[arg(long, value_delimiter = ',', default_value = "0")]
    loss: Vec<f64>,
    /// Receive buffers of an endpoint.
    #[arg(long, default_value_t = 1024)]
    recv_depth: u32,
    /// Chooses everything that is left to chance.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Writes the outcomes to this file as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Draws them to this file as SVG.
    #[arg(long)]
    svg: Option<PathBuf>,
}

fn main() -> ExitCode {
    match simulate(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rdmux-acm-scale: {error}");
            ExitCode::FAILURE
        }
    }
}

fn simulate(args: &Args) -> Result<(), Box<dyn std::error::Error>> {
    let mut outcomes = Vec::new();
    for &endpoints in &args.endpoints {
        for &loss in &args.loss {
            let exact = (endpoints <= args.exact).then_some(endpoints);
            for sample in exact.into_iter().chain([args.sample.min(endpoints)]) {
                let setup = Setup {
                    endpoints,
                    sample,
                    loss_ppm: ppm(loss),
                    recv_depth: args.recv_depth,
                    seed: args.seed,
                    ..Setup::default()
                };
                let outcome = run(&setup);
                eprintln!("{endpoints} endpoints, {sample} simulated: {:.1?}", outcome.cpu);
                outcomes.push(outcome);
            }
        }
    }
    println!("{}", table(&outcomes));
    if let Some(file) = &args.json {
        std::fs::write(file, serde_json::to_string_pretty(&outcomes)? + "\n")?;
    }
    if let Some(file) = &args.svg {
        plot(&outcomes, file)?;
    }
    Ok(())
}

/// Percent as parts in a million.
fn ppm(percent: f64) -> u32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is clamped")]
    let ppm = (percent.clamp(0.0, 100.0) * 10_000.0).round() as u32;
    ppm
}
