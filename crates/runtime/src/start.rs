//! A service as a process of its own, started by the client that needs it.
//!
//! The program is `rdmux`. It prints "ready" to its standard output once clients can connect, or
//! "error:" and the reason why they cannot ([`say`]). Its standard error is the log of the service.
//!
//! The client may be any program, which may wait for its children, have files open and have signals blocked. So a service
//! that a client starts runs itself once more, as an orphan and without anything inherited from the program ([`apart`]).

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use rdmux_link::inherited;
use rustix::process::{Resource, Rlimit};

use crate::{ServiceDir, UserDir, environment};

/// The environment variable by which a client requests the service that it starts to call [`apart`].
const APART: &str = "RDMUX_START_APART";
/// The word that the service prints before it runs itself again.
const LEAVES: &str = "apart";

/// Returns the program that runs services, if any: the one that `$RDMUX_DAEMON` names, else `given`, else the `rdmux`
/// beside this program, else the one in `$PATH`. If the environment is not [trusted](environment::is_trusted), it is `given`: a user
/// can choose the folder of a program, too, by a link.
pub fn program(given: Option<&Path>) -> Option<PathBuf> {
    if !environment::is_trusted() {
        return given.map(Path::to_owned);
    }
    if environment::path("RDMUX_DAEMON").is_some() {
        return program_of_environment();
    }
    if let Some(program) = given {
        return Some(program.to_owned());
    }
    let exe = std::env::current_exe().ok()?;
    let beside = exe.with_file_name("rdmux");
    if beside.is_file() {
        return Some(beside);
    }
    let path = environment::path("PATH")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join("rdmux"))
        .find(|p| p.is_file())
        .and_then(absolute)
}

/// Returns the program that `$RDMUX_DAEMON` names. A name without a directory is looked up in `$PATH`.
fn program_of_environment() -> Option<PathBuf> {
    let path = PathBuf::from(environment::path("RDMUX_DAEMON")?);
    if path.components().count() > 1 { file_of_environment("RDMUX_DAEMON") } else { Some(path) }
}

/// Returns a path of the file that a service can use, which is started in another directory.
fn absolute(path: PathBuf) -> Option<PathBuf> {
    std::path::absolute(path).ok()
}

/// Returns the absolute path of the file that an environment variable names; none under the conditions of [`environment::path`]. A relative
/// path begins at the directory in which the process was at the first such call, and so names one file also after chdir(2).
pub fn file_of_environment(name: &str) -> Option<PathBuf> {
    static FIRST: OnceLock<Option<PathBuf>> = OnceLock::new();
    let path = PathBuf::from(environment::path(name)?);
    match FIRST.get_or_init(|| std::env::current_dir().ok()) {
        Some(first) => absolute(first.join(path)),
        None => absolute(path),
    }
}

/// Runs a service and waits until it is ready.
///
/// # Errors
/// What happened, and what to do, as text.
pub fn spawn(
    program: &Path,
    arguments: &[&str],
    user: &UserDir,
    dir: &ServiceDir,
) -> Result<(), String> {
    let log = dir.open_log().map_err(|e| e.to_string())?;
    let is_trusted = environment::is_trusted();
    let mut child =
        command(program, arguments, user, is_trusted).stderr(log).spawn().map_err(|e| {
            let program = program.display();
            let advice = "; set RDMUX_DAEMON to the rdmux program";
            format!("cannot run {program}: {e}{}", if is_trusted { advice } else { "" })
        })?;
    until_ready(&mut child).map_err(|why| {
        let (program, log) = (program.display(), dir.log());
        if why.is_empty() {
            format!("{program} exited without an error message: see {}", log.display())
        } else {
            why
        }
    })
}

/// Returns the command that runs a service, with the environment of the program that needs it, if it is trusted, except variables for this
/// program alone.
fn command(program: &Path, arguments: &[&str], user: &UserDir, is_trusted: bool) -> Command {
    let mut command = Command::new(program);
    if is_trusted {
        from_root(&mut command);
    } else {
        command.env_clear().current_dir("/");
        // The service reads the configuration of its user.
        for name in ["HOME", "XDG_CONFIG_HOME"] {
            if let Some(path) = environment::folder_of_user(name) {
                command.env(name, path);
            }
        }
    }
    command
        .args(arguments)
        .env("RDMUX_RUNTIME_DIR", user.path())
        .env(APART, "1")
        .env_remove("LD_PRELOAD")
        .env_remove("RDMUX_HOST")
        .env_remove("RDMUX_DEVICE")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0);
    command
}

/// Makes a command run in the root directory, with absolute paths in the environment variables that name files.
pub fn from_root(command: &mut Command) -> &mut Command {
    for name in ["RDMUX_CONFIG", "RDMUX_RUNTIME_DIR", "RDMUX_ACM_DIR"] {
        if let Some(path) = file_of_environment(name) {
            command.env(name, path);
        }
    }
    if let Some(program) = program_of_environment() {
        command.env("RDMUX_DAEMON", program);
    }
    command.current_dir("/")
}

/// Waits until a started service prints to its standard output, a pipe, that it is ready.
///
/// # Errors
/// The reason that the service prints, which is empty if it ended without one. The process has been waited for then.
pub fn until_ready(child: &mut Child) -> Result<(), String> {
    let mut said = String::new();
    if let Some(stdout) = child.stdout.take() {
        let mut stdout = BufReader::new(stdout);
        // The pipe closes when the service is ready, or dead. There is no third case.
        let _ = stdout.read_line(&mut said);
        if said.trim() == LEAVES {
            // The first process is about to exit.
            let _ = child.wait();
            said.clear();
            let _ = stdout.read_line(&mut said);
        }
    }
    let said = said.trim();
    if said == "ready" {
        return Ok(());
    }
    // The service reported an error and is about to exit: leave no zombie.
    let _ = child.wait();
    Err(said.trim_start_matches("error: ").to_owned())
}

/// Runs this service again if a client started it, without anything inherited from that program: as
/// an orphan, with only the standard descriptors, and with no signal blocked. Returns true if so,
/// and the caller exits. Must be called before anything is opened.
pub fn apart() -> bool {
    if std::env::var_os(APART).is_none() {
        return false;
    }
    inherited::unblock_signals();
    if let Err(e) = inherited::close_descriptors_on_exec() {
        tracing::warn!("cannot close the descriptors inherited from the client: {e}");
    }
    let started = std::env::current_exe().and_then(|program| {
        let mut words = std::env::args_os();
        let mut command = Command::new(program);
        command.arg0(words.next().unwrap_or_default()).args(words).env_remove(APART);
        // Before the new process can print anything.
        say(LEAVES);
        command.spawn()
    });
    if let Err(e) = started {
        say(&format!("error: cannot start the service detached: {e}"));
    }
    true
}

/// Reports the result of the start to the process that started this one.
pub fn say(word: &str) {
    // That process may have died. Other clients are served nevertheless.
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{word}").and_then(|()| out.flush());
}

/// Raises the limit of open descriptors to the maximum: each client needs some.
pub fn raise_descriptor_limit() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(e) = rustix::process::setrlimit(Resource::Nofile, raised) {
        tracing::debug!("cannot raise the descriptor limit: {e}");
    }
}

#[cfg(test)]
mod tests {
    use rdmux_testing::temp_dir;

    use super::*;

    #[test]
    fn started_service_does_not_inherit_ld_preload_or_rdmux_variables() {
        let dir = temp_dir();
        let user = UserDir::at(dir.path()).unwrap();
        let command = command(Path::new("rdmux"), &[], &user, true);
        for name in ["LD_PRELOAD", "RDMUX_HOST", "RDMUX_DEVICE"] {
            let said = command.get_envs().find(|(of, _)| *of == name);
            assert_eq!(said, Some((name.as_ref(), None)));
        }
    }

    #[test]
    fn service_started_with_more_rights_does_not_inherit_the_environment() {
        let dir = temp_dir();
        let user = UserDir::at(dir.path()).unwrap();
        let output = command(Path::new("/usr/bin/env"), &[], &user, false).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let mut names: Vec<_> =
            said.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
        names.retain(|name| !["HOME", "XDG_CONFIG_HOME"].contains(name));
        names.sort_unstable();
        assert_eq!(names, ["RDMUX_RUNTIME_DIR", APART]);
    }

    #[test]
    fn relative_folders_of_the_environment_are_the_same_to_a_service() {
        const NAMES: [&str; 3] = ["RDMUX_CONFIG", "RDMUX_RUNTIME_DIR", "RDMUX_ACM_DIR"];
        const IN_CHILD: &str = "RDMUX_TEST_IN_CHILD";
        if std::env::var_os(IN_CHILD).is_some() {
            let folder = std::env::current_dir().unwrap().join("folder");
            let mut command = Command::new("ib_acm");
            from_root(&mut command);
            assert_eq!(command.get_current_dir(), Some(Path::new("/")));
            for name in NAMES {
                let said = command.get_envs().find(|(of, _)| *of == name);
                assert_eq!(said, Some((name.as_ref(), Some(folder.as_os_str()))));
            }
            return;
        }
        let dir = temp_dir();
        let test = "start::tests::relative_folders_of_the_environment_are_the_same_to_a_service";
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", test]).env(IN_CHILD, "1").current_dir(dir.path());
        let output = child.envs(NAMES.map(|name| (name, "folder"))).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
    }
}
