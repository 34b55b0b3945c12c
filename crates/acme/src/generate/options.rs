//! `ibacm_opts.cfg`: options for a subnet of a certain size.

use rdmux_acm_files::options::{Options, write};

/// Returns the text of the file, for a subnet of this many endpoints if that is known. The matching address file
/// contains IP addresses.
pub(super) fn text(endpoints: Option<usize>) -> String {
    let fitted = |endpoints| Options::fitted(u32::try_from(endpoints).unwrap_or(u32::MAX));
    let options = endpoints.map_or_else(Options::default, fitted);
    write(&Options { support_ips_in_addr_cfg: true, ..options })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmux_acm_files::options::parse;

    #[test]
    fn generated_options_parse_and_fit_the_subnet_size() {
        for size in [None, Some(0), Some(2), Some(4096), Some(65536)] {
            let text = text(size);
            let (read, report) = parse("x", text.as_bytes());
            assert!(report.problems().is_empty(), "{report:?}");
            assert!(read.support_ips_in_addr_cfg);
            if let Some(size) = size {
                let fitted = Options::fitted(size.try_into().unwrap());
                assert_eq!(read.machine.recv_depth, fitted.machine.recv_depth);
                assert_eq!(read.machine.sa_depth, fitted.machine.sa_depth);
            }
        }
    }

    #[test]
    fn ibacm_reads_every_line() {
        for size in [None, Some(65536)] {
            for line in text(size).lines() {
                let words: Vec<_> = line.split_whitespace().collect();
                let is_option = words.len() == 2 && words.iter().all(|word| word.len() <= 31);
                assert!(line.len() <= 119, "{line}");
                assert!(line.is_empty() || line.starts_with('#') || is_option, "{line}");
            }
        }
    }
}
