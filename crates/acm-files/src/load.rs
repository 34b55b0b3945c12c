//! All files of a service at once.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use crate::Report;
use crate::addresses::{self, Assignments};
use crate::hosts::{self, Hosts};
use crate::open::{OpenError, open};
use crate::options::{self, Options};
use crate::problem::Reporter;
use crate::routes::{self, DumpedPort, Routes};

/// What the files say, and what is wrong with them.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Files {
    /// The options; the defaults without a file.
    pub options: Options,
    /// The addresses of endpoints, or none when there is no file, so that one can be made.
    pub assignments: Option<Assignments>,
    /// The addresses to begin with, when an option says so.
    pub hosts: Hosts,
    /// Every problem of them.
    pub report: Report,
}

/// Reads the options file, the address file, and the hosts file if an option wants it. The first two need not exist. Files that
/// [`open`] refuses count as empty, and are in the report.
pub fn load(options: &Path, addresses: &Path) -> Files {
    let mut report = Report::default();
    let mut read = |path: &Path, is_needed| opened(path, is_needed, &mut report);
    let (options_file, addresses_file) = (read(options, false), read(addresses, false));
    let mut files = Files::default();
    if let Some(file) = options_file {
        let (found, problems) = options::parse(&options.display().to_string(), file);
        files.options = found;
        report.append(problems);
    }
    if let Some(file) = addresses_file {
        let takes_ips = files.options.support_ips_in_addr_cfg;
        let name = addresses.display().to_string();
        let (found, problems) = addresses::parse(&name, file, takes_ips);
        files.assignments = Some(found);
        report.append(problems);
    }
    if files.options.preloads_addresses {
        let path = data_file(files.options.addr_data_file.as_ref(), options, "ibacm_hosts.data");
        if let Some(file) = opened(&path, true, &mut report) {
            let (found, problems) = hosts::parse(&path.display().to_string(), file);
            files.hosts = found;
            report.append(problems);
        }
    }
    Files { report, ..files }
}

/// Reads the routes of local ports, if an option wants them. `path` is that of the options file.
pub fn load_routes(options: &Options, path: &Path, local: &[DumpedPort]) -> (Routes, Report) {
    let mut report = Report::default();
    if !options.preloads_routes {
        return (Routes::default(), report);
    }
    let path = data_file(options.route_data_file.as_ref(), path, "ibacm_route.data");
    match opened(&path, true, &mut report) {
        Some(file) => routes::parse(&path.display().to_string(), file, local),
        None => (Routes::default(), report),
    }
}

fn data_file(path: Option<&PathBuf>, options: &Path, name: &str) -> PathBuf {
    path.cloned().unwrap_or_else(|| options.with_file_name(name))
}

fn opened(path: &Path, is_needed: bool, report: &mut Report) -> Option<BufReader<File>> {
    match open(path) {
        Ok(file) => Some(BufReader::new(file)),
        Err(OpenError::Missing(_)) if !is_needed => None,
        Err(error) => {
            let name = path.display().to_string();
            let mut problems = Reporter::new(&name);
            problems.error(0, format!("it is not read: {error}"));
            report.append(problems.finish());
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rdmux_testing::temp_dir;
    use rdmux_wire::{Guid, Lid};

    use super::*;

    #[test]
    fn no_files_are_the_defaults() {
        let dir = temp_dir();
        let files = load(&dir.path().join("opts"), &dir.path().join("addr"));
        assert_eq!(files, Files::default());
    }

    #[test]
    fn all_files_are_read_and_their_problems_told_together() {
        let dir = temp_dir();
        let path = |name: &str| dir.path().join(name);
        let text = "support_ips_in_addr_cfg 1\naddr_preload acm_hosts\nroute_preload opensm_full_v1\nretries x\n";
        fs::write(path("opts"), text).unwrap();
        fs::write(path("addr"), "10.0.0.1 ibv0 1 default\nnode1\n").unwrap();
        fs::write(path("ibacm_hosts.data"), "node2 fe80::2\nnode3\n").unwrap();
        let files = load(&path("opts"), &path("addr"));
        assert_eq!(files.assignments.unwrap().all.len(), 1);
        assert_eq!(files.hosts.len(), 1);
        let lines: Vec<u32> = files.report.problems().iter().map(|problem| problem.line).collect();
        assert_eq!(lines, [4, 2, 2], "{}", files.report);

        let local = DumpedPort { guid: Guid(1), base_lid: Lid(1) };
        let (routes, report) = load_routes(&files.options, &path("opts"), &[local]);
        assert_eq!((routes, report.errors()), (Routes::default(), 1));
        fs::write(path("ibacm_route.data"), "Switch 0x1, base LID 1\n2 : 0 : 4 : 3\n").unwrap();
        let (routes, report) = load_routes(&files.options, &path("opts"), &[local]);
        assert_eq!((routes.of[&local].len(), report.is_clean()), (1, true));
        assert_eq!(load_routes(&Options::default(), &path("opts"), &[local]).0, Routes::default());
    }

    #[test]
    fn file_behind_a_link_counts_as_empty_and_is_told() {
        let dir = temp_dir();
        let (real, link) = (dir.path().join("real"), dir.path().join("opts"));
        fs::write(&real, "retries 9\n").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let files = load(&link, &dir.path().join("addr"));
        assert_eq!(files.options, Options::default());
        assert!(files.report.to_string().contains("is a symbolic link"), "{}", files.report);
    }
}
