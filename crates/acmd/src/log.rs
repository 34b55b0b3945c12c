//! The log: a file opened for appending, or standard error.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::OFlags;
use rustix::io::Errno;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry, reload};

/// The target of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// A file.
    File(PathBuf),
}

/// The log of this process, which a reload of the options may change.
pub(crate) struct Log {
    output: Output,
    filter: reload::Handle<EnvFilter, Registry>,
}

impl Log {
    /// Starts logging to standard error.
    pub(crate) fn begin() -> Self {
        let output = Output::default();
        let (filter, handle) = reload::Layer::new(filter(0));
        let lines = tracing_subscriber::fmt::layer().with_ansi(false).with_writer(output.clone());
        // In tests a subscriber may be set already.
        let _ = tracing_subscriber::registry().with(filter).with(lines).try_init();
        Self { output, filter: handle }
    }

    /// Applies the options. A file is opened again, because it may have been moved away. It is opened for appending, created with mode
    /// 0640, and a symbolic link is not followed. If that fails, the log goes to standard error.
    pub(crate) fn follow(&self, target: &Target, level: u8) {
        let _ = self.filter.reload(filter(level));
        let path = match target {
            Target::Stdout => return self.output.set(Sink::Stdout),
            Target::Stderr => return self.output.set(Sink::Stderr),
            Target::File(path) => path,
        };
        match open(path) {
            Ok(file) => self.output.set(Sink::File(file)),
            Err(e) => {
                self.output.set(Sink::Stderr);
                let path = path.display();
                tracing::warn!("cannot open the log {path}: {e}; logging to standard error");
            }
        }
    }
}

/// Opens a log file for appending. Does not follow a symbolic link, and does not wait for the reader of a FIFO.
pub(crate) fn open(path: &std::path::Path) -> io::Result<File> {
    // A terminal must not become the service's own. Regular files ignore NONBLOCK.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o640)
        .custom_flags(flags.bits().cast_signed())
        .open(path)
        .map_err(|e| if is_fifo(&e) { not_regular() } else { e })?;
    // A FIFO or a terminal could block the service later.
    if file.metadata()?.is_file() { Ok(file) } else { Err(not_regular()) }
}

/// Returns whether open(2) reports a FIFO without a reader.
fn is_fifo(e: &io::Error) -> bool {
    Errno::from_io_error(e) == Some(Errno::NXIO)
}

fn not_regular() -> io::Error {
    io::Error::other("it is not a regular file")
}

/// Returns the filter of a `log_level`, which `$RUST_LOG` overrides.
fn filter(level: u8) -> EnvFilter {
    let level = match level {
        0 => LevelFilter::INFO,
        1 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let own = |name: &str| format!("{name}={level}").parse();
    let filter =
        EnvFilter::builder().with_default_directive(LevelFilter::WARN.into()).from_env_lossy();
    if std::env::var_os(EnvFilter::DEFAULT_ENV).is_some_and(|value| !value.is_empty()) {
        return filter;
    }
    ["rdmux_acmd", "rdmux_acm"]
        .iter()
        .filter_map(|name| own(name).ok())
        .fold(filter, EnvFilter::add_directive)
}

/// The destination of log lines.
#[derive(Default)]
enum Sink {
    #[default]
    Stderr,
    Stdout,
    File(File),
}

/// The writer of log lines.
#[derive(Clone, Default)]
struct Output(Arc<Mutex<Sink>>);

impl Output {
    fn set(&self, sink: Sink) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = sink;
    }
}

impl Write for Output {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // A full disk, or a reader that is gone, must not end the service.
        let _ = match &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Sink::File(file) => file.write_all(line),
            Sink::Stderr => io::stderr().write_all(line),
            Sink::Stdout => io::stdout().write_all(line).and_then(|()| io::stdout().flush()),
        };
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Output {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use rdmux_testing::temp_dir;
    use rustix::fs::Mode;

    use super::*;

    #[test]
    fn log_is_appended_to_and_no_link_is_followed() {
        let dir = temp_dir();
        let (path, link) = (dir.path().join("ibacm.log"), dir.path().join("link"));
        open(&path).unwrap().write_all(b"one\n").unwrap();
        open(&path).unwrap().write_all(b"two\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\ntwo\n");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o137, 0);
        symlink(&path, &link).unwrap();
        assert!(open(&link).is_err());
        let error = open("/dev/null".as_ref()).unwrap_err();
        assert_eq!(error.to_string(), not_regular().to_string());
    }

    #[test]
    fn fifo_is_refused_at_once_with_and_without_a_reader() {
        let dir = temp_dir();
        let path = dir.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
        let refused = || open(&path).unwrap_err().to_string();
        assert_eq!(refused(), not_regular().to_string());
        let _reader = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        assert_eq!(refused(), not_regular().to_string());
    }

    #[test]
    fn output_without_a_file_takes_lines_and_with_one_writes_them() {
        let dir = temp_dir();
        let path = dir.path().join("ibacm.log");
        let output = Output::default();
        output.set(Sink::File(open(&path).unwrap()));
        output.make_writer().write_all(b"line\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "line\n");
    }
}
