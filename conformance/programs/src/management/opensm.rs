//! OpenSM, with its files and its log.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::{Ground, TIMEOUT};
use crate::process::Process;

/// The name of its configuration file.
const CONF: &str = "opensm.conf";

/// The configuration of a manager. Other options have OpenSM's defaults.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conf {
    /// Lines of its configuration file: an option and its value.
    pub(crate) lines: Vec<(&'static str, String)>,
    /// The text of its partitions file.
    pub(crate) partitions: Option<String>,
    /// The text of its file for torus-2QoS.
    pub(crate) torus: Option<String>,
    /// The text of its file of root switches.
    pub(crate) roots: Option<String>,
}

impl Conf {
    /// Adds an option.
    pub(crate) fn with(mut self, option: &'static str, value: impl ToString) -> Self {
        self.lines.push((option, value.to_string()));
        self
    }
}

/// A running manager. It is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct OpenSm {
    process: Process,
    /// The directory of its files.
    dir: PathBuf,
    log: PathBuf,
}

impl OpenSm {
    /// Starts an OpenSM on a host, with files of its own.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn start(ground: &Ground, host: &str, role: &str, conf: &Conf) -> Result<Self> {
        let dir = ground.dir().join(role);
        fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        let log = ground.log(&format!("{role}-log"));
        // OpenSM would append to an existing file.
        let _ = fs::remove_file(&log);
        let file = dir.join(CONF);
        fs::write(&file, conf.write(&dir, &log)?)?;
        let shown = dir.display();
        let line = format!(
            "OSM_TMP_DIR={shown} OSM_CACHE_DIR={shown} opensm -F {} -f {}",
            file.display(),
            log.display()
        );
        Ok(Self { process: ground.start(host, role, &line)?, dir, log })
    }

    /// Gives OpenSM another configuration, and makes it read this and sweep the subnet.
    ///
    /// # Errors
    /// When it has ended.
    pub(crate) fn reconfigure(&self, conf: &Conf) -> Result<()> {
        fs::write(self.dir.join(CONF), conf.write(&self.dir, &self.log)?)?;
        self.process.signal(Signal::HUP)
    }

    /// Waits until OpenSM has reported so many times that the subnet is up.
    ///
    /// # Errors
    /// When it does not, or has logged an error.
    pub(crate) fn subnet_is_up(&mut self, times: usize) -> Result<()> {
        self.says("SUBNET UP", times)?;
        self.has_no_complaint()
    }

    /// Waits until OpenSM has logged a text so many times.
    ///
    /// # Errors
    /// When it does not.
    pub(crate) fn says(&mut self, what: &str, times: usize) -> Result<()> {
        let log = self.log.clone();
        let logged = |_: &Process| Ok(count(&log, what) >= times);
        let outcome = self.process.until(what, TIMEOUT, logged);
        outcome.with_context(|| format!("its log ends with {:?}", last(&text(&self.log))))
    }

    /// Returns how often it has logged a text.
    pub(crate) fn said(&self, what: &str) -> usize {
        count(&self.log, what)
    }

    /// Checks that OpenSM has logged no error.
    ///
    /// # Errors
    /// When there is an error in its log.
    pub(crate) fn has_no_complaint(&self) -> Result<()> {
        has_no_complaint(&self.log)
    }

    /// Stops OpenSM and waits for its end.
    ///
    /// # Errors
    /// When it does not exit successfully, or has logged an error.
    pub(crate) fn stop(self) -> Result<()> {
        let log = self.log.clone();
        self.end()?;
        has_no_complaint(&log)
    }

    /// Stops an OpenSM that may have logged errors.
    ///
    /// # Errors
    /// When it does not exit successfully.
    pub(crate) fn end(mut self) -> Result<()> {
        self.process.stop(Signal::TERM, TIMEOUT)
    }

    /// Kills OpenSM, so that it cannot hand over.
    ///
    /// # Errors
    /// When it had ended before.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.process.kill(TIMEOUT)
    }
}

impl Conf {
    fn write(&self, dir: &Path, log: &Path) -> Result<String> {
        let mut text = String::new();
        let mut line = |option: &str, value: &str| text += &format!("{option} {value}\n");
        line("log_file", &log.display().to_string());
        line("force_log_flush", "TRUE");
        // The contents of answers are compared, not their speed: the machine may be busy.
        line("transaction_timeout", "5000");
        let partitions = dir.join("partitions.conf");
        if let Some(all) = &self.partitions {
            fs::write(&partitions, all)?;
        }
        line("partition_config_file", &partitions.display().to_string());
        if let Some(torus) = &self.torus {
            let file = dir.join("torus-2QoS.conf");
            fs::write(&file, torus)?;
            line("torus_config", &file.display().to_string());
        }
        if let Some(roots) = &self.roots {
            let file = dir.join("roots");
            fs::write(&file, roots)?;
            line("root_guid_file", &file.display().to_string());
        }
        for (option, value) in &self.lines {
            line(option, value);
        }
        Ok(text)
    }
}

/// Returns whether a line reports an error: they have numbers, as in `ERR 3110:`.
fn is_complaint(line: &str) -> bool {
    line.contains(": ERR ")
}

fn has_no_complaint(log: &Path) -> Result<()> {
    let log = text(log);
    let error = log.lines().find(|line| is_complaint(line));
    ensure!(error.is_none(), "OpenSM logged an error: {}", error.unwrap_or_default());
    Ok(())
}

/// Returns the text of a log, if it exists.
fn text(log: &Path) -> String {
    String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned()
}

fn count(log: &Path, what: &str) -> usize {
    text(log).matches(what).count()
}

fn last(log: &str) -> &str {
    log.lines().last().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::is_complaint;

    #[test]
    fn opensm_complaints_are_lines_with_an_err_number() {
        let line = "Nov 23 06:00:00 111111 [7F1] 0x01 -> log_trap_info: ERR 3110: no such port";
        assert!(is_complaint(line));
        assert!(!is_complaint("Nov 23 06:00:00 111111 [7F1] 0x80 -> SUBNET UP"));
        assert!(!is_complaint("-> osm_pr_rcv_process: 2 ERRors are none"));
    }
}
