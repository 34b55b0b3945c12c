//! The command line: the options of ibacm(1), and additional ones.

use std::path::PathBuf;

use clap::Parser;

/// Resolves names and addresses to paths for programs of this host, and answers other hosts' questions.
#[derive(Parser, Clone, Debug, Default)]
#[command(
    name = "ib_acm",
    version,
    args_override_self = true,
    after_help = "Without -P the service moves to the background once clients can connect.\n\n\
        Files: the socket ibacm-unix.sock, ibacm.pid and ibacm.log are in the host's folder below the runtime directory, \
        which is under /run in `rdmux run`; options and addresses are in rdmux/acm/HOST of the user's \
        configuration directory, which is under /etc/rdma in `rdmux run`. The service reads these files again on SIGHUP and when they change.\n\
        Environment: RDMUX_HOST names the virtual host, RDMUX_DEVICE the kind of device (default: all), RDMUX_ACM_DIR another folder \
        for socket, lock and log, RUST_LOG filters the log.\n\n\
        Exit status: 0 on success, 1 on failure, 2 if the command line is invalid."
)]
pub struct Args {
    /// Run in the background, which is the default
    #[arg(short = 'D')]
    pub daemon: bool,
    /// Run in the foreground, also with -D
    #[arg(short = 'P')]
    pub foreground: bool,
    /// File with names and addresses of endpoints, instead of ibacm_addr.cfg
    #[arg(short = 'A', value_name = "FILE")]
    pub addresses: Option<PathBuf>,
    /// File with options, instead of ibacm_opts.cfg
    #[arg(short = 'O', value_name = "FILE")]
    pub options: Option<PathBuf>,
    /// Run in the foreground on the sockets that systemd passes, and notify systemd when clients can connect
    #[arg(long)]
    pub systemd: bool,
    /// Print the options and addresses that the files set, and the invalid lines; do not start
    #[arg(long, conflicts_with_all = ["daemon", "foreground", "systemd"])]
    pub check: bool,
    /// Run in the foreground, print "ready" on standard output, and exit some seconds after the last client has disconnected
    #[arg(long, hide = true)]
    pub on_demand: bool,
    /// The virtual host to serve; without it the default host, which has the machine's own addresses
    #[arg(long, value_name = "NAME", env = "RDMUX_HOST")]
    pub host: Option<String>,
}

impl Args {
    /// Returns whether this process is to start the service in the background and exit.
    pub fn goes_to_background(&self) -> bool {
        !(self.foreground || self.systemd || self.check || self.on_demand)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_ibacm_are_taken_and_the_background_is_the_default() {
        let parse = |words: &[&str]| Args::try_parse_from(words);
        let args = parse(&["ibacm", "-D", "-A", "a.cfg", "-Oo.cfg"]).unwrap();
        assert_eq!((args.addresses, args.options), (Some("a.cfg".into()), Some("o.cfg".into())));
        assert!(args.daemon && parse(&["ib_acm"]).unwrap().goes_to_background());
        for words in [["ibacm", "-P"], ["ibacm", "--systemd"], ["ib_acm", "--check"]] {
            assert!(!parse(&words).unwrap().goes_to_background(), "{words:?}");
        }
        for words in [["ibacm", "-D", "-P"], ["ibacm", "-P", "-D"], ["ibacm", "-P", "-P"]] {
            assert!(!parse(&words).unwrap().goes_to_background(), "{words:?}");
        }
        assert_eq!(parse(&["ibacm", "-Aa", "-Ab"]).unwrap().addresses, Some("b".into()));
    }
}
