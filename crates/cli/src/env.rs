//! `rdmux env`: what `rdmux run` sets, for those who want no wrapper.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::Global;
use crate::run::variables::Variables;
use crate::run::{self, DeviceArgs, view};
use rdmux_command::library;
use rdmux_command::output;
use rdmux_command::say;

/// What to print.
#[derive(Args)]
#[command(after_help = "In a shell: eval \"$(rdmux env)\"")]
pub(crate) struct EnvArgs {
    #[command(flatten)]
    device: DeviceArgs,
    /// Also what shows programs the device under /sys/class/infiniband and /dev/infiniband
    #[arg(long, value_enum, value_name = "HOW", default_value_t)]
    view: View,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What variables can do for that: a namespace is entered, not named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum View {
    /// By a library that redirects paths
    Preload,
    /// Not at all
    #[default]
    None,
}

/// Runs `rdmux env`. The service is not started but for the files of a view: the library does that.
pub(crate) fn run(global: &Global, args: &EnvArgs) -> Result<ExitCode> {
    let devices = args.device.choice()?;
    let (host, options, library) = (global.host_name()?, run::connect_options()?, library::find()?);
    let mut variables = Variables::new(&options, &host, devices, &library)?;
    match args.view {
        View::Preload => {
            options.devices(&host)?;
            let place = view::Place { options: &options, host: &host, devices };
            view::preload(&place, &library, &mut variables)?;
        }
        // That of a run around this one may be another host's.
        View::None => variables.set(view::VARIABLE, ""),
    }
    if args.json {
        let all: BTreeMap<_, _> =
            variables.iter().map(|(name, value)| (name, value.to_string_lossy())).collect();
        output::json(&all)?;
        return Ok(ExitCode::SUCCESS);
    }
    for (name, value) in variables.iter() {
        say!("export {name}={}", quoted(value));
    }
    Ok(ExitCode::SUCCESS)
}

/// A value as a shell takes it, whatever is in it.
fn quoted(value: &OsStr) -> String {
    format!("'{}'", value.to_string_lossy().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_back_what_was_quoted() {
        let odd = "a 'b' $c `d` \"e\" \\";
        let script = format!("printf %s {}", quoted(OsStr::new(odd)));
        let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), odd);
    }
}
