//! The location of the C library, and the directory in which programs find it.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use rdmux_host::HostDir;

/// The shared object that contains all C libraries.
const OBJECT: &str = "librdmux_capi.so";
/// The shared object that redirects paths.
const VIEW: &str = "librdmux_view.so";
/// The names under which programs load it: as they are linked, and for dlopen(3).
pub const NAMES: [&str; 6] = [
    "libibverbs.so.1",
    "librdmacm.so.1",
    "libibumad.so.3",
    "libibverbs.so",
    "librdmacm.so",
    "libibumad.so",
];

/// The C library's files.
#[derive(Debug)]
pub struct Library {
    /// The shared object.
    pub object: PathBuf,
}

/// Finds the library: in `$RDMUX_LIB_DIR` if that is set; otherwise where cargo builds it for this program, beside
/// this program, or where `cargo xtask install` puts it.
pub fn find() -> Result<Library> {
    let places = match std::env::var_os("RDMUX_LIB_DIR").filter(|v| !v.is_empty()) {
        Some(dir) => vec![std::path::absolute(dir)?],
        None => {
            let exe = std::env::current_exe().context("cannot find this program's own file")?;
            places(&exe)
        }
    };
    let found = places.iter().map(|dir| dir.join(OBJECT)).find(|object| object.is_file());
    let Some(object) = found else {
        let all: Vec<_> = places.iter().map(|p| p.display().to_string()).collect();
        bail!(
            "there is no {OBJECT} in {}: build it with `cargo build`, or set RDMUX_LIB_DIR to its \
             folder",
            all.join(", ")
        );
    };
    Ok(Library { object })
}

/// Returns the directories to search. `deps` is first, because cargo does not replace a copy beside the program that
/// an earlier build of only the library has left.
fn places(exe: &Path) -> Vec<PathBuf> {
    let dir = exe.parent().unwrap_or(Path::new("/"));
    let installed = dir.parent().unwrap_or(Path::new("/")).join("lib/rdmux");
    vec![dir.join("deps"), dir.to_owned(), installed]
}

impl Library {
    /// Returns the library that redirects paths, under a path for the loader: if its own path has a character that separates
    /// entries of `LD_PRELOAD`, a link to it in the host's runtime directory.
    pub fn view(&self, host: &HostDir) -> Result<PathBuf> {
        let view = self.object.with_file_name(VIEW);
        if !view.is_file() {
            bail!("there is no {}: build it with `cargo build`", view.display());
        }
        if !has_any(&view, PRELOAD_SEPARATORS) {
            return Ok(view);
        }
        let folder = self.links(host, &[VIEW], &view)?;
        checked(folder.join(VIEW), "LD_PRELOAD", PRELOAD_SEPARATORS)
    }

    /// Returns the directory that has the library under the names that programs load: its own if it is installed,
    /// otherwise one with links in the host's runtime directory. Builds in different places do not share it, so that
    /// a program keeps the library that it was started with.
    pub fn folder(&self, host: &HostDir) -> Result<PathBuf> {
        if let Some(own) = self.object.parent()
            && !has_any(own, PATH_SEPARATORS)
            && NAMES.iter().all(|name| same(&own.join(name), &self.object))
        {
            return Ok(own.to_owned());
        }
        let folder = self.links(host, &NAMES, &self.object)?;
        checked(folder, "LD_LIBRARY_PATH", PATH_SEPARATORS)
    }

    /// Creates a directory of links in the host's runtime directory, with these among them.
    fn links(&self, host: &HostDir, names: &[&str], to: &Path) -> Result<PathBuf> {
        let mut hasher = DefaultHasher::new();
        self.object.hash(&mut hasher);
        let folder = host.path().join("lib").join(format!("{:016x}", hasher.finish()));
        let make = || -> io::Result<()> {
            fs::create_dir_all(&folder)?;
            names.iter().try_for_each(|name| link(&folder.join(name), to))
        };
        make().with_context(|| format!("cannot create links in {}", folder.display()))?;
        Ok(folder)
    }
}

/// The separators of the loader's lists (ld.so(8)), which cannot be escaped.
const PRELOAD_SEPARATORS: &[u8] = b" :";
const PATH_SEPARATORS: &[u8] = b":;";

fn has_any(path: &Path, separators: &[u8]) -> bool {
    path.as_os_str().as_encoded_bytes().iter().any(|byte| separators.contains(byte))
}

/// Checks that a path can be an entry of a loader variable.
fn checked(path: PathBuf, variable: &str, separators: &[u8]) -> Result<PathBuf> {
    if has_any(&path, separators) {
        bail!(
            "{} cannot be in {variable}, where {:?} separates entries: set RDMUX_RUNTIME_DIR to a folder without it",
            path.display(),
            String::from_utf8_lossy(separators)
        );
    }
    Ok(path)
}

/// Returns whether two paths refer to one file.
fn same(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

/// Creates a link unless it exists. Other processes may be creating it, too: once it exists, it is never absent.
fn link(path: &Path, to: &Path) -> io::Result<()> {
    if fs::read_link(path).is_ok_and(|old| old == to) {
        return Ok(());
    }
    let new = path.with_added_extension(std::process::id().to_string());
    symlink(to, &new)?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_looked_for_where_cargo_and_install_put_it() {
        let places = places(Path::new("/usr/bin/rdmux"));
        assert_eq!(places, ["/usr/bin/deps", "/usr/bin", "/usr/lib/rdmux"].map(PathBuf::from));
    }
}
