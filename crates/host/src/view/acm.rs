//! The files of the host's ACM service in a view: those in `/run`, `/etc/rdma` and `/var/log`.
//!
//! Programs create some of these files themselves: Debian's ibacm its socket, its lock and its log, and its ib_acme the configuration.
//! So the host's folders replace the machine's, and the machine's other entries are mounted into them again.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use rdmux_acm_client::Places;

/// The machine's directory within the one that replaces it.
const SYSTEM: &str = ".system";

/// Mounts the host's files. If that fails, programs see the machine's. That is no error, because few programs need ACM.
pub(super) fn cover(tree: &Path, acm: &Places) {
    let parts = [
        ("/run", cover_run(acm)),
        ("/etc/rdma", cover_configuration(acm)),
        ("/var/log/ibacm.log", cover_log(tree, acm)),
    ];
    for (path, covered) in parts {
        if let Err(e) = covered {
            tracing::debug!("cannot mount the ACM service's files at {path}: {e}");
        }
    }
}

/// Replaces `/run` by the service's folder, with the rest of `/run` in it, so that `/run/ibacm.sock` is created there.
fn cover_run(acm: &Places) -> io::Result<()> {
    let (run, stage) = (Path::new("/run"), acm.runtime());
    if fs::symlink_metadata(run)?.is_dir() {
        make_private(stage)?;
        // Programs that become other users look into /run, too. Only the owner can enter the folders above it.
        fs::set_permissions(stage, fs::Permissions::from_mode(0o755))?;
        rustix::mount::mount_bind(stage, stage)?;
        fill(stage, run, |name| name.as_encoded_bytes().starts_with(b"ibacm"))?;
        rustix::mount::mount_move(stage, run)?;
    }
    Ok(())
}

fn cover_configuration(acm: &Places) -> io::Result<()> {
    let system = Places::of_system();
    if system.config().is_dir() {
        make_private(acm.config())?;
        rustix::mount::mount_bind(acm.config(), system.config())?;
    }
    Ok(())
}

/// Mounts the log over the machine's log file. If the machine has none, none must be created, so `/var/log` becomes a folder of the host
/// in which the log is a link.
fn cover_log(tree: &Path, acm: &Places) -> io::Result<()> {
    let (log, ours) = (Places::of_system().log(), acm.log());
    let Some(folder) = log.parent().filter(|folder| folder.is_dir()) else { return Ok(()) };
    make_private(acm.runtime())?;
    touch(&ours)?;
    if log.is_file() {
        return Ok(rustix::mount::mount_bind(&ours, &log)?);
    }
    let (stage, name) = (tree.with_file_name("log"), log.file_name().unwrap_or_default());
    make_private(&stage)?;
    // Programs that become other users look into it, too.
    fs::set_permissions(&stage, fs::Permissions::from_mode(0o755))?;
    rustix::mount::mount_bind(&stage, &stage)?;
    fill(&stage, folder, |other| other == name)?;
    link(&stage.join(name), &ours)?;
    Ok(rustix::mount::mount_move(&stage, folder)?)
}

/// Shows the entries of a machine's directory in another one, which is a mount by now, except those that are left out: directories are
/// mounted again under their names, links are copied, and files are links into [`SYSTEM`].
fn fill(stage: &Path, system: &Path, leave: impl Fn(&std::ffi::OsStr) -> bool) -> io::Result<()> {
    let all = stage.join(SYSTEM);
    make_private(&all)?;
    rustix::mount::mount_bind_recursive(system, &all)?;
    for entry in fs::read_dir(system)? {
        let entry = entry?;
        let (name, kind) = (entry.file_name(), entry.file_type()?);
        if leave(&name) || name == SYSTEM {
            continue;
        }
        let (here, there) = (stage.join(&name), all.join(&name));
        if kind.is_dir() {
            make_private(&here)?;
            // Mounted from the copy, because the stage may lie below the directory that it replaces, and has mounts by
            // now.
            rustix::mount::mount_bind_recursive(&there, &here)?;
        } else if kind.is_symlink() {
            link(&here, &fs::read_link(entry.path())?)?;
        } else {
            link(&here, &Path::new(SYSTEM).join(&name))?;
        }
    }
    Ok(())
}

/// Makes a link, replacing one that an earlier view has left.
fn link(path: &Path, to: &Path) -> io::Result<()> {
    match fs::read_link(path) {
        Ok(old) if old == to => return Ok(()),
        Ok(_) => fs::remove_file(path)?,
        Err(_) => {}
    }
    match symlink(to, path) {
        // The host's own file of that name takes precedence.
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

fn make_private(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Creates an empty file unless it exists. Does not follow links.
fn touch(path: &Path) -> io::Result<()> {
    let flags = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o640).custom_flags(flags);
    options.open(path).map(drop)
}

#[cfg(test)]
mod tests {
    use rdmux_testing::temp_dir;

    use super::*;

    #[test]
    fn link_replaces_an_older_one_and_nothing_else() {
        let dir = temp_dir();
        let path = dir.path().join("link");
        link(&path, Path::new("a")).unwrap();
        link(&path, Path::new("b")).unwrap();
        assert_eq!(fs::read_link(&path).unwrap(), Path::new("b"));
        let file = dir.path().join("file");
        fs::write(&file, "kept").unwrap();
        link(&file, Path::new("a")).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
    }

    #[test]
    fn touch_keeps_existing_file_and_does_not_follow_symlinks() {
        let dir = temp_dir();
        let file = dir.path().join("file");
        touch(&file).unwrap();
        fs::write(&file, "kept").unwrap();
        touch(&file).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
        symlink(&file, dir.path().join("link")).unwrap();
        assert!(touch(&dir.path().join("link")).is_err());
    }
}
