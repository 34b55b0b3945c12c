//! The output of `ib_acme --help`.

/// All options, and the new commands.
pub(crate) const TEXT: &str = "\
ib_acme: asks an ACM service for paths, and writes its configuration

usage: ib_acme -d DESTINATION [-s SOURCE] [-f FORMAT] [-v] [-c] [-C N] [-S SERVICE]
       ib_acme -P [WHAT] | -e [N] [-S SERVICE]
       ib_acme -A [FILE] | -O [FILE] [-D DIRECTORY] [-V]
       ib_acme watch | flush | top [--help]

Ask:
   -d DESTINATION  whose path is sought; node[1-3,5,07-08] is a list
   -s SOURCE       where it starts; a list, too. Otherwise the service chooses
   -f FORMAT       what -d and -s are: i(p), n(ame), l(id), g(id), u(nspecified: by what they look like)
   -v              has subnet administration verify the path
   -c              only what the service has cached
   -C N            repeats it N times
   -P [WHAT]       counters of the service: nothing or `col`: in a row or a column; N: those of endpoint N;
                   all: those of each endpoint; s: those of the endpoint with the address of -s
   -e [N]          endpoint N of the service, or all
   -S SERVICE      which service: a host, or the path of a socket. Otherwise the one of this host
   --host NAME     the virtual host whose service it is; RDMUX_HOST says it too
   --json          the results as one JSON document

Write configuration files:
   -A [FILE]       names and addresses of this host's endpoints, into ibacm_addr.cfg unless FILE is given
   -O [FILE]       options for a subnet of this size, into ibacm_opts.cfg unless FILE is given
   -D DIRECTORY    where; otherwise where this host's service reads them
   -V              says more

New:
   watch           counters, as they grow
   flush           has a service forget what it has learned, all or of some destinations
   top             what a service has cached and shares with programs

Exit status: that of the last destination: 0, or 255 if it was not resolved; the errno if the service cannot be
connected to; 1 if the command line makes no sense.
";
