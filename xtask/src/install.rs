//! `cargo xtask install`: the command, the C libraries, their headers and pkg-config file under a prefix.
//!
//! ```text
//! bin/rdmux
//! bin/ib_acme
//! bin/ib_acm                          and bin/ibacm, a link to it
//! lib/rdmux/librdmux_capi.so          and links by the names that programs ask for
//! lib/rdmux/librdmux_view.so
//! lib/rdmux/libibacm.so.1             and a link for the linker
//! lib/rdmux/installed                 the list of all files, which --uninstall uses
//! lib/pkgconfig/rdmux.pc
//! lib/pkgconfig/ibacm.pc
//! include/rdmux/acm.h
//! include/rdmux/rdmux.h
//! include/rdmux/iwarp.h
//! include/rdmux/cm.h
//! include/rdmux/multicast.h
//! include/rdmux/xrc.h
//! ```
//!
//! The libraries are in a folder of their own, which the loader does not search by default: other programs keep using the
//! distribution's libraries.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::report::Report;
use crate::sh;

const OBJECT: &str = "librdmux_capi.so";
/// Names of the shared object: sonames, names for dlopen(3) and the linker, and for `-lrdmux`.
const LINKS: [&str; 7] = [
    "libibverbs.so.1",
    "librdmacm.so.1",
    "libibumad.so.3",
    "libibverbs.so",
    "librdmacm.so",
    "libibumad.so",
    "librdmux.so",
];
/// The ACM library, a separate shared object.
const ACM: &str = "libibacm.so.1";
/// The name for the linker.
const ACM_LINK: &str = "libibacm.so";
const LIB: &str = "lib/rdmux";
const LIST: &str = "lib/rdmux/installed";
/// The mode of programs, shared objects and folders.
const PROGRAM_MODE: u32 = 0o755;
/// The mode of other files.
const FILE_MODE: u32 = 0o644;

/// The place to install to or uninstall from.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder that has `bin`, `lib` and `include`
    #[arg(long, value_name = "DIR", default_value = "/usr/local")]
    prefix: PathBuf,
    /// Install below this folder, for packaging; the prefix is the place of the files in use
    #[arg(long, value_name = "DIR")]
    destdir: Option<PathBuf>,
    /// Remove the installed files instead
    #[arg(long)]
    uninstall: bool,
}

/// Installs or uninstalls.
pub(crate) fn run(args: &Args, report: &mut Report) {
    report.heading(if args.uninstall { "uninstall" } else { "install" });
    let go = || -> Result<()> {
        let prefix = std::path::absolute(&args.prefix)?;
        let place = Place { root: rooted(args.destdir.as_deref(), &prefix)?, prefix };
        if args.uninstall { place.uninstall() } else { place.install(&build()?) }
    };
    report.check("install", go());
}

/// Returns the prefix below the packaging folder.
fn rooted(destdir: Option<&Path>, prefix: &Path) -> Result<PathBuf> {
    Ok(match destdir {
        None => prefix.to_owned(),
        Some(dir) => std::path::absolute(dir)?.join(prefix.strip_prefix("/")?),
    })
}

/// Builds everything. Returns cargo's output folder.
fn build() -> Result<PathBuf> {
    sh::run(sh::cargo().args(["build", "--quiet", "--release", "-p", "rdmux-cli"]))?;
    Ok(sh::target_dir().join("release"))
}

/// A prefix.
struct Place {
    /// The prefix where files are used.
    prefix: PathBuf,
    /// The folder where files are written.
    root: PathBuf,
}

impl Place {
    fn install(&self, built: &Path) -> Result<()> {
        if self.root.join(LIST).exists() {
            self.uninstall().context("removing the previous installation")?;
        }
        let capi = sh::root().join("crates/capi");
        let ibacm = sh::root().join("crates/ibacm");
        let files = [
            (built.join("rdmux"), "bin/rdmux".to_owned()),
            (built.join("ib_acme"), "bin/ib_acme".to_owned()),
            (built.join("ib_acm"), "bin/ib_acm".to_owned()),
            (built.join("deps").join(OBJECT), format!("{LIB}/{OBJECT}")),
            (built.join("deps/librdmux_view.so"), format!("{LIB}/librdmux_view.so")),
            (built.join("deps/librdmux_ibacm.so"), format!("{LIB}/{ACM}")),
            (ibacm.join("include/rdmux/acm.h"), "include/rdmux/acm.h".to_owned()),
            (capi.join("include/rdmux/rdmux.h"), "include/rdmux/rdmux.h".to_owned()),
            (capi.join("include/rdmux/xrc.h"), "include/rdmux/xrc.h".to_owned()),
            (capi.join("include/rdmux/iwarp.h"), "include/rdmux/iwarp.h".to_owned()),
            (capi.join("include/rdmux/cm.h"), "include/rdmux/cm.h".to_owned()),
            (capi.join("include/rdmux/multicast.h"), "include/rdmux/multicast.h".to_owned()),
        ];
        let links = LINKS.map(|name| (format!("{LIB}/{name}"), OBJECT)).into_iter();
        let links: Vec<_> = links
            .chain([(format!("{LIB}/{ACM_LINK}"), ACM), ("bin/ibacm".to_owned(), "ib_acm")])
            .collect();
        let templates = [(&capi, "rdmux.pc"), (&ibacm, "ibacm.pc")];
        let templates = templates.map(|(folder, name)| {
            (folder.join(format!("{name}.in")), format!("lib/pkgconfig/{name}"))
        });
        // Each file is listed before it is written, so that an aborted installation can be undone, and nothing else is removed.
        let mut list = Vec::new();
        let mut begin = |to: &str| {
            list.push(to.to_owned());
            self.write(LIST, &format!("{}\n{LIST}\n", list.join("\n")))
        };
        for (from, to) in &files {
            begin(to)?;
            let path = self.fresh(to)?;
            fs::copy(from, &path).with_context(|| format!("copying {}", from.display()))?;
            let mode = if to.starts_with("include/") { FILE_MODE } else { PROGRAM_MODE };
            set_mode(&path, mode)?;
        }
        for (to, object) in &links {
            begin(to)?;
            symlink(object, self.fresh(to)?).with_context(|| to.clone())?;
        }
        for (template, to) in &templates {
            begin(to)?;
            self.write(to, &filled(&fs::read_to_string(template)?, &self.prefix)?)?;
        }
        let files = list.len() + 1;
        println!("{files} files below {}", self.root.display());
        Ok(())
    }

    /// Writes a text file.
    fn write(&self, file: &str, text: &str) -> Result<()> {
        let path = self.fresh(file)?;
        fs::write(&path, text).with_context(|| file.to_owned())?;
        set_mode(&path, FILE_MODE)
    }

    /// Returns the path for a new file, in an existing folder. An existing file, which programs may have mapped, is not
    /// overwritten but replaced.
    fn fresh(&self, file: &str) -> Result<PathBuf> {
        let path = self.root.join(file);
        if let Some(folder) = path.parent() {
            make_folders(folder)?;
        }
        gone(fs::remove_file(&path)).with_context(|| path.display().to_string())?;
        Ok(path)
    }

    /// Removes the listed files, and the folders of the installation that are then empty.
    fn uninstall(&self) -> Result<()> {
        let list = self.root.join(LIST);
        let files = fs::read_to_string(&list)
            .with_context(|| format!("nothing is installed here: {}", list.display()))?;
        for file in files.lines() {
            ensure!(!file.split('/').any(|part| part == ".."), "{}: {file}", list.display());
            let path = self.root.join(file);
            gone(fs::remove_file(&path)).with_context(|| path.display().to_string())?;
        }
        for folder in [LIB, "include/rdmux"] {
            // A folder with foreign files stays.
            let _ = fs::remove_dir(self.root.join(folder));
        }
        println!("{} files removed from {}", files.lines().count(), self.root.display());
        Ok(())
    }
}

/// Creates a folder with its missing parents.
fn make_folders(folder: &Path) -> Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    if let Some(above) = folder.parent() {
        make_folders(above)?;
    }
    fs::create_dir(folder).with_context(|| folder.display().to_string())?;
    set_mode(folder, PROGRAM_MODE)
}

/// Makes an installed file accessible to all users, whatever the installer's umask is.
fn set_mode(path: &Path, mode: u32) -> Result<()> {
    let set = fs::set_permissions(path, Permissions::from_mode(mode));
    set.with_context(|| path.display().to_string())
}

/// Ignores the error of removing a file that does not exist.
fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Returns the contents of the pkg-config file.
fn filled(template: &str, prefix: &Path) -> Result<String> {
    let prefix = prefix.to_str().context("the prefix is not UTF-8")?;
    let text = template
        .replace("@prefix@", prefix)
        .replace("@version@", env!("CARGO_PKG_VERSION"))
        .replace("@url@", env!("CARGO_PKG_REPOSITORY"));
    if let Some(left) = text.lines().find(|line| line.contains('@')) {
        bail!("a placeholder is left in a pkg-config file: {left}");
    }
    Ok(text)
}

/// Installs below the target folder, builds and runs a C program as a user would, and uninstalls.
pub(crate) fn check(report: &mut Report) {
    report.heading("installation");
    if !sh::have("pkg-config") {
        return report.skip("installation", "no pkg-config");
    }
    let prefix = sh::target_dir().join("installed");
    let place = Place { root: prefix.clone(), prefix };
    let built = match sh::build(&["rdmux", "ib_acme", "ib_acm"]) {
        Ok(built) => built,
        Err(e) => return report.fail("installation", &format!("{e:#}")),
    };
    let work = sh::target_dir().join("installed.test");
    report.check("installation", try_out(&place, &built, &work));
    let acm = "installation of libibacm";
    if Path::new("/usr/include/infiniband/sa.h").is_file() {
        report.check(acm, try_out_acm(&place, &built, &work));
    } else {
        report.skip(acm, "no headers (libibverbs-dev)");
    }
}

const PROGRAM: &str = r#"
#include <rdmux/rdmux.h>
#include <stdio.h>
int main(void)
{
    puts(rdmux_version_string());
    return rdmux_version() != RDMUX_VERSION;
}
"#;

/// Compiles a C program with the flags of an installed package.
fn compile(place: &Place, package: &str, cc: &mut Command, program: &Path) -> Result<()> {
    let mut pkg_config = sh::command("pkg-config");
    pkg_config.args(["--cflags", "--libs", package]);
    let flags = sh::output(pkg_config.env("PKG_CONFIG_PATH", place.prefix.join("lib/pkgconfig")))?;
    cc.args(["-Wall", "-Wextra", "-Werror", "-o"]).arg(program);
    sh::run(cc.args(flags.split_whitespace()))
}

/// Compiles the test of libibacm, which calls all of its functions, and has it list its rows.
fn try_out_acm(place: &Place, built: &Path, work: &Path) -> Result<()> {
    place.install(built)?;
    fs::create_dir_all(work)?;
    let program = work.join("acm");
    let sources = sh::root().join("conformance/c");
    let mut cc = sh::command("cc");
    cc.args(["-std=gnu11", "-pthread"]).arg(sources.join("acm.c")).arg(sources.join("check.c"));
    compile(place, "ibacm", &mut cc, &program)?;
    // It was linked with a path to the library.
    let mut list = sh::command(&program);
    let rows = sh::output(list.arg("--list").env_remove("LD_LIBRARY_PATH"))?;
    ensure!(!rows.is_empty(), "the program has no rows");
    place.uninstall()
}

fn try_out(place: &Place, built: &Path, work: &Path) -> Result<()> {
    place.install(built)?;
    fs::create_dir_all(work)?;
    let (source, program) = (work.join("version.c"), work.join("version"));
    fs::write(&source, PROGRAM)?;
    let mut cc = sh::command("cc");
    compile(place, "rdmux", cc.args(["-std=c99", "-pedantic"]).arg(&source), &program)?;

    // Run the program directly, since it was linked with a path to the library, and under the installed command, which must
    // find the installed library.
    let rdmux = place.prefix.join("bin/rdmux");
    let runtime = work.join("run");
    let alone = sh::output(&mut sh::command(&program))?;
    let mut under = sh::command(&rdmux);
    under.args(["--host", "installed", "run", "--view", "none", "--"]).arg(&program);
    let under = sh::output(under.env("RDMUX_RUNTIME_DIR", &runtime));
    let mut down = sh::command(&rdmux);
    let down = sh::output(down.args(["host", "down"]).env("RDMUX_RUNTIME_DIR", &runtime));
    let under = under?;
    down?;
    for said in [&alone, &under] {
        ensure!(said == env!("CARGO_PKG_VERSION"), "the program printed {said}");
    }

    place.uninstall()?;
    ensure!(!place.root.join(LIB).exists(), "files are left in {LIB}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a test folder with what cargo would have built.
    fn work(name: &str) -> (PathBuf, PathBuf) {
        let work = sh::target_dir().join(format!("install.test.{name}.{}", std::process::id()));
        let built = work.join("built");
        fs::create_dir_all(built.join("deps")).unwrap();
        let objects = [OBJECT, "librdmux_view.so", "librdmux_ibacm.so"];
        for file in ["rdmux", "ib_acme", "ib_acm"] {
            fs::write(built.join(file), file).unwrap();
        }
        for file in objects {
            fs::write(built.join("deps").join(file), file).unwrap();
        }
        (work, built)
    }

    #[test]
    fn what_is_installed_is_for_all_whatever_the_umask_is() {
        const INNER: &str = "RDMUX_TEST_UMASK";
        if std::env::var_os(INNER).is_none() {
            // All threads share the umask, so a separate process is used.
            let test = "install::tests::what_is_installed_is_for_all_whatever_the_umask_is";
            let mut inner = Command::new("sh");
            inner.args(["-c", r#"umask 077; exec "$0" --exact "$1""#]).env(INNER, "");
            let output = inner.arg(std::env::current_exe().unwrap()).arg(test).output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && said.contains("1 passed"), "{said}");
            return;
        }
        let (work, built) = work("umask");
        let root = work.join("root");
        let place = Place { prefix: "/usr".into(), root: root.clone() };
        place.install(&built).unwrap();
        let mut found = vec![root.clone()];
        while let Some(path) = found.pop() {
            let metadata = fs::symlink_metadata(&path).unwrap();
            let below = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
            let mode = metadata.permissions().mode() & 0o777;
            if metadata.is_dir() {
                found.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
                assert_eq!(mode, 0o755, "{below}");
            } else if metadata.is_file() {
                let program = below.starts_with("bin/") || below.contains(".so");
                assert_eq!(mode, if program { 0o755 } else { 0o644 }, "{below}");
            }
        }
        place.uninstall().unwrap();
        fs::remove_dir_all(work).unwrap();
    }

    #[test]
    fn an_installation_that_fails_can_be_undone() {
        let (work, built) = work("fails");
        let place = Place { prefix: "/usr".into(), root: work.join("root") };
        fs::remove_file(built.join("deps/librdmux_ibacm.so")).unwrap();
        place.install(&built).unwrap_err();
        assert!(place.root.join("bin/rdmux").exists());
        place.uninstall().unwrap();
        assert!(!place.root.join("bin/rdmux").exists() && !place.root.join(LIB).exists());
        fs::remove_dir_all(work).unwrap();
    }

    #[test]
    fn a_package_is_written_elsewhere_than_it_is_used() {
        let prefix = Path::new("/usr");
        assert_eq!(rooted(None, prefix).unwrap(), Path::new("/usr"));
        assert_eq!(rooted(Some(Path::new("/tmp/p")), prefix).unwrap(), Path::new("/tmp/p/usr"));
        let text = filled("prefix=@prefix@\nVersion: @version@\n", prefix).unwrap();
        assert!(text.starts_with("prefix=/usr\nVersion: 0."), "{text}");
        assert!(filled("x=@unknown@", prefix).is_err());
    }
}
