//! `-A` and `-O`: writes the files that a service reads at its start, for this host and its subnet.
//!
//! - [`ports`]: the host's ports
//! - [`addresses`]: names and addresses of its endpoints
//! - [`options`]: options for the size of the subnet

mod addresses;
mod options;
mod ports;

use std::fs;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::args::Options;
use crate::errno;
use crate::screen::Screen;
use crate::services;

/// The return value after a failure.
const FAILED: i32 = -1;

/// The name of the address file in messages.
const ADDRESSES: &str = "address configuration";

/// The mode of the files: anybody may read them, and their owner may write.
const MODE: u32 = 0o644;

/// Writes the files that the command line requests; the second only if the first was written.
///
/// # Errors
/// When the outcome cannot be printed.
pub(crate) fn files(options: &Options, screen: &mut Screen<'_>) -> io::Result<i32> {
    if options.addresses.is_none() && options.options.is_none() {
        return Ok(0);
    }
    let host = options.host.as_deref();
    let directory = match &options.directory {
        Some(directory) => directory.clone(),
        None => match services::places(host) {
            Ok(places) => places.config().to_owned(),
            Err(e) => {
                screen.failed(&format!("{e:#}"))?;
                return Ok(FAILED);
            }
        },
    };
    if let Some(file) = &options.addresses {
        let file = Target::new(&directory, file.as_ref(), "ibacm_addr.cfg", ADDRESSES);
        let text = || addresses::text(&ports::of_host(host)?, &ports::host_name(host)?);
        if !file.write(options.verbose, text, screen)? {
            return Ok(FAILED);
        }
    }
    if let Some(file) = &options.options {
        let file = Target::new(&directory, file.as_ref(), "ibacm_opts.cfg", "option configuration");
        // Without a device there is no subnet, and the options are for no particular size.
        let text =
            || Ok(options::text(ports::of_host(host).ok().and_then(|p| ports::subnet_size(&p))));
        if !file.write(options.verbose, text, screen)? {
            return Ok(FAILED);
        }
    }
    Ok(0)
}

/// A file to write.
struct Target {
    path: PathBuf,
    /// The file's name in messages.
    what: &'static str,
}

impl Target {
    fn new(directory: &Path, file: Option<&PathBuf>, usual: &str, what: &'static str) -> Self {
        let name = file.map_or(Path::new(usual), PathBuf::as_path);
        Self { path: directory.join(name), what }
    }

    /// Writes the file, and prints the outcome. Returns whether it was written.
    fn write(
        &self,
        is_verbose: bool,
        text: impl FnOnce() -> anyhow::Result<String>,
        screen: &mut Screen<'_>,
    ) -> io::Result<bool> {
        if is_verbose {
            screen.line(format_args!("Generating {}", self.path.display()))?;
        }
        let folder = folder_of(&self.path);
        if let Err(e) = fs::create_dir_all(folder) {
            let (folder, why) = (folder.display(), errno::text(&e));
            screen.failed(&format!("Failed to open directory {folder}: {why}"))?;
            return Ok(false);
        }
        let text = match text() {
            Ok(text) => text,
            Err(e) => {
                screen.failed(&format!("{e:#}"))?;
                return Ok(false);
            }
        };
        let written = match is_stream(&self.path) {
            true => screen.flush().and_then(|()| append(&self.path, &text, io::stdout().as_fd())),
            false => replace(&self.path, &text),
        };
        if let Err(e) = written {
            let (what, why) = (self.what, errno::text(&e));
            screen.failed(&format!("Failed to open {what} file: {why}"))?;
            return Ok(false);
        }
        if is_verbose && self.what == ADDRESSES {
            let mut entries =
                text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
            entries.try_for_each(|line| screen.line(line))?;
        }
        screen.generated(&self.path);
        Ok(true)
    }
}

/// Returns the folder that a file is in.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Returns whether a file cannot be replaced, but only written to: a device, a pipe, or an open file of a process behind a link, as
/// `/dev/stdout` is one.
fn is_stream(path: &Path) -> bool {
    let is_special = fs::metadata(path).is_ok_and(|of| !of.is_file() && !of.is_dir());
    is_special || fs::read_link(path).is_ok_and(|target| target.starts_with("/proc"))
}

/// Writes to the end of a file that exists. If it is the file that `output` writes to, the output continues behind the text.
fn append(path: &Path, text: &str, output: BorrowedFd<'_>) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().append(true).open(path)?;
    file.write_all(text.as_bytes())?;
    let id = |of: rustix::fs::Stat| (of.st_dev, of.st_ino);
    let is_output = match (rustix::fs::fstat(&file), rustix::fs::fstat(output)) {
        (Ok(file), Ok(output)) => id(file) == id(output),
        _ => false,
    };
    if is_output && file.metadata()?.is_file() {
        rustix::fs::seek(output, rustix::fs::SeekFrom::End(0))?;
    }
    Ok(())
}

/// Replaces a file atomically: a service that reads it meanwhile sees the old file or the new one. A symbolic link of that
/// name is replaced, not followed.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    // Errors of the replacement name the temporary file, and contain their number only in the text.
    let plain = |e: io::Error| {
        let text = e.to_string();
        let number = text.split_once("(os error ").and_then(|(_, rest)| rest.split(')').next());
        let number = number.and_then(|number| number.parse().ok());
        number.map_or(e, io::Error::from_raw_os_error)
    };
    let mut file = tempfile::NamedTempFile::new_in(folder_of(path)).map_err(plain)?;
    file.write_all(text.as_bytes())?;
    file.as_file().set_permissions(fs::Permissions::from_mode(MODE))?;
    file.persist(path).map_err(|e| e.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdmux_testing::temp_dir;
    use rustix::fs::OFlags;
    use std::io::Read as _;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};

    fn write(target: &Target, text: anyhow::Result<String>) -> (bool, String) {
        let mut out = Vec::new();
        let mut screen = Screen::new(&mut out, false, false);
        let written = target.write(true, || text, &mut screen).unwrap();
        (written, String::from_utf8(out).unwrap())
    }

    #[test]
    fn folders_that_are_made_can_be_entered_and_files_are_readable() {
        let dir = temp_dir();
        let folder = dir.path().join("new/rdma");
        let target = Target::new(&folder, None, "ibacm_addr.cfg", ADDRESSES);
        let path = folder.join("ibacm_addr.cfg");
        let (written, said) = write(&target, Ok("# what\na b 1 default\n".into()));
        assert!(written);
        assert_eq!(said, format!("Generating {}\na b 1 default\n", path.display()));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o644);
        assert_eq!(mode(&folder) & 0o500, 0o500);
        assert_eq!(fs::read_to_string(&path).unwrap(), "# what\na b 1 default\n");
    }

    #[test]
    fn absolute_file_needs_only_its_own_folder_which_is_created() {
        let dir = temp_dir();
        fs::write(dir.path().join("file"), "").unwrap();
        let path = dir.path().join("own/acm/x.cfg");
        for unused in ["file/rdma", "rdma"] {
            let target = Target::new(&dir.path().join(unused), Some(&path), "x", "option");
            let (written, said) = write(&target, Ok("x\n".into()));
            assert!(written, "{said}");
            assert_eq!(fs::read_to_string(&path).unwrap(), "x\n");
        }
        assert!(!dir.path().join("rdma").exists(), "a folder was created for nothing");
    }

    #[test]
    fn missing_folder_error_omits_the_temporary_file_name() {
        let dir = rdmux_testing::temp_dir();
        let e = replace(&dir.path().join("missing/x"), "").unwrap_err();
        assert_eq!(crate::errno::text(&e), "No such file or directory");
    }

    #[test]
    fn symbolic_link_of_the_name_is_replaced() {
        let dir = temp_dir();
        let victim = dir.path().join("victim");
        fs::write(&victim, "mine").unwrap();
        let target = Target::new(dir.path(), Some(&"a.cfg".into()), "ibacm_addr.cfg", "address");
        std::os::unix::fs::symlink(&victim, dir.path().join("a.cfg")).unwrap();
        assert!(write(&target, Ok("x\n".into())).0);
        assert_eq!(fs::read_to_string(&victim).unwrap(), "mine");
        assert_eq!(fs::read_to_string(dir.path().join("a.cfg")).unwrap(), "x\n");
    }

    #[test]
    fn fifo_gets_the_text_and_stays_also_behind_a_link() {
        let dir = temp_dir();
        let fifo = dir.path().join("fifo");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        std::os::unix::fs::symlink(&fifo, dir.path().join("link")).unwrap();
        // Linux opens a FIFO for both directions without waiting for a peer, and the text fits into its buffer.
        let mut reader = fs::OpenOptions::new();
        reader.read(true).write(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
        let mut reader = reader.open(&fifo).unwrap();
        for (name, text) in [("fifo", "one\n"), ("link", "two\n")] {
            let target = Target::new(dir.path(), Some(&name.into()), "ibacm_addr.cfg", ADDRESSES);
            assert!(write(&target, Ok(text.into())).0, "{name}");
            assert!(fs::symlink_metadata(&fifo).unwrap().file_type().is_fifo(), "{name}");
            let mut buffer = [0; 16];
            let n = reader.read(&mut buffer).unwrap();
            assert_eq!(&buffer[..n], text.as_bytes(), "{name}");
        }
        assert!(dir.path().join("link").is_symlink());
    }

    #[test]
    fn device_gets_the_text_and_the_link_to_it_stays() {
        let dir = temp_dir();
        let link = dir.path().join("null");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        let target = Target::new(dir.path(), Some(&"null".into()), "ibacm_opts.cfg", "option");
        assert!(write(&target, Ok("x\n".into())).0);
        assert_eq!(fs::read_link(&link).unwrap(), Path::new("/dev/null"));
    }

    #[test]
    fn link_to_an_open_file_of_a_process_stays_and_the_file_gets_the_text() {
        let dir = temp_dir();
        let mut opened = tempfile::tempfile_in(dir.path()).unwrap();
        opened.write_all(b"before\n").unwrap();
        // As /dev/stdout is one, after `>> FILE`.
        let of = format!("/proc/self/fd/{}", opened.as_raw_fd());
        let link = dir.path().join("stdout");
        std::os::unix::fs::symlink(&of, &link).unwrap();
        let target = Target::new(dir.path(), Some(&"stdout".into()), "ibacm_opts.cfg", "option");
        assert!(write(&target, Ok("x\n".into())).0);
        assert_eq!(fs::read_link(&link).unwrap(), Path::new(&of));
        assert_eq!(fs::read_to_string(&link).unwrap(), "before\nx\n");
    }

    #[test]
    fn output_continues_behind_a_text_that_was_appended_to_its_file() {
        let dir = temp_dir();
        let path = dir.path().join("out");
        let mut output = fs::File::create(&path).unwrap();
        output.write_all(b"before\n").unwrap();
        append(&path, "text\n", output.as_fd()).unwrap();
        output.write_all(b"after\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "before\ntext\nafter\n");
    }

    #[test]
    fn generated_file_write_error_names_the_path() {
        let dir = temp_dir();
        fs::write(dir.path().join("file"), "").unwrap();
        let folder = dir.path().join("file/rdma");
        let target = Target::new(&folder, None, "ibacm_addr.cfg", ADDRESSES);
        let (written, said) = write(&target, Ok(String::new()));
        assert!(!written);
        assert!(said.ends_with(&format!(
            "Failed to open directory {}: Not a directory\n",
            folder.display()
        )));
        fs::create_dir(dir.path().join("ibacm_addr.cfg")).unwrap();
        let target = Target::new(dir.path(), None, "ibacm_addr.cfg", ADDRESSES);
        let (written, said) = write(&target, Ok(String::new()));
        assert!(!written);
        assert!(
            said.contains("Failed to open address configuration file: Is a directory"),
            "{said}"
        );
        assert!(!write(&target, Err(anyhow::anyhow!("no device"))).0);
        let left = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(left, 2, "a temporary file was left");
    }
}
