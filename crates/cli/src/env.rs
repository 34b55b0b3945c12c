//! `rdmux env`: prints the variables that `rdmux run` sets, for users who want no wrapper.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};

use crate::Global;
use crate::run::variables::Variables;
use crate::run::{self, DeviceArgs, view};
use rdmux_command::library;
use rdmux_command::output;

/// What to print.
#[derive(Args)]
#[command(after_help = "In a shell: eval \"$(rdmux env)\"")]
pub(crate) struct EnvArgs {
    #[command(flatten)]
    device: DeviceArgs,
    /// Also print the variables that show programs the device under /sys/class/infiniband and /dev/infiniband
    #[arg(long, value_enum, value_name = "HOW", default_value_t)]
    view: View,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The views that variables can set up: a namespace has to be entered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum View {
    /// By a library that redirects paths
    Preload,
    /// Not at all
    #[default]
    None,
}

/// Runs `rdmux env`. Starts the service only for the files of a view: otherwise the library does.
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
        // The variable of an enclosing run may be for another host.
        View::None => variables.set(view::VARIABLE, ""),
    }
    if args.json {
        let text = |(name, value): (_, &OsStr)| {
            let value = value
                .to_str()
                .with_context(|| format!("the value of {name} is not UTF-8, as JSON requires"));
            value.map(|value| (name, value.to_owned()))
        };
        output::json(&variables.iter().map(text).collect::<Result<BTreeMap<_, _>>>()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    for (name, value) in variables.iter() {
        output::raw_line(&[b"export ", name.as_bytes(), b"=", &quoted(value)].concat());
    }
    Ok(ExitCode::SUCCESS)
}

/// Quotes a value for a shell, whatever it contains.
fn quoted(value: &OsStr) -> Vec<u8> {
    let parts: Vec<_> = value.as_bytes().split(|&byte| byte == b'\'').collect();
    [b"'", parts.join(&br"'\''"[..]).as_slice(), b"'"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_back_what_was_quoted() {
        let odd = b"a 'b' $c `d` \"e\" \\ \xe9";
        let script = [b"printf %s ".to_vec(), quoted(OsStr::from_bytes(odd))].concat();
        let mut shell = std::process::Command::new("sh");
        let output = shell.arg("-c").arg(OsStr::from_bytes(&script)).output().unwrap();
        assert_eq!(output.stdout, odd);
    }
}
