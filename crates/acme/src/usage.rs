//! The output of `ib_acme --help`.

/// The help text: all options, and the new commands.
pub(crate) const TEXT: &str = "\
ib_acme: asks an ACM service for paths, and writes its configuration

usage: ib_acme -d DESTINATION [-s SOURCE] [-f FORMAT] [-v] [-c] [-C N] [-S SERVICE]
       ib_acme -P [WHAT] | -e [N] [-S SERVICE]
       ib_acme -A [FILE] | -O [FILE] [-D DIRECTORY] [-V]
       ib_acme watch | flush | top [--help]

Ask:
   -d DESTINATION  destination of the path; node[1-3,5,07-08] is a list
   -s SOURCE       source of the path, or a list; without it the service chooses
   -f FORMAT       format of -d and -s: i(p), n(ame), l(id), g(id), u(nspecified: detected from the text)
   -v              has subnet administration verify the path
   -c              returns only paths that the service has cached
   -C N            repeats the requests N times
   -P [WHAT]       counters of the service, in a row, or with `col` in a column; N: those of endpoint N;
                   all: those of each endpoint; s: those of the endpoint with the address of -s
   -e [N]          endpoint N of the service, or all
   -S SERVICE      the service: a host, or the path of a socket; without it that of this host
   --host NAME     the service's virtual host; without it that of RDMUX_HOST
   --json          prints the results as one JSON document

Write configuration files:
   -A [FILE]       names and addresses of this host's endpoints, into ibacm_addr.cfg unless FILE is given
   -O [FILE]       options for a subnet of this size, into ibacm_opts.cfg unless FILE is given
   -D DIRECTORY    directory of the files; without it the one from which this host's service reads them
   -V              prints details

Commands that ibacm's ib_acme does not have; -S, --host and --json may also come before them:
   watch           shows the counters and their growth
   flush           makes a service forget learned entries, all or those of some destinations
   top             shows the cache that a service shares with programs

Exit status: that of the last destination: 0, or 255 if it was not resolved; the errno if the service cannot be
connected to; 1 if the command line is invalid. That of watch, flush and top: 0; 1 after a failure; 2 if the command
line is invalid.
";
