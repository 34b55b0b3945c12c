//! `rdmux run`, `env` and `doctor` from their users' point of view.

mod common;

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};

use common::{Net, compile, missing_here};
use serde_json::Value;

/// The files of the device that a program sees.
const FILES: [&str; 4] = [
    "/sys/class/infiniband",
    "/sys/class/infiniband/rdmux_roce0/ports/1/gid_attrs/types/0",
    "/sys/class/infiniband_verbs/uverbs0/ibdev",
    "/dev/infiniband/uverbs0",
];
const SEEN: &str = "/sys/class/infiniband: has rdmux_roce0\n\
    /sys/class/infiniband/rdmux_roce0/ports/1/gid_attrs/types/0: RoCE v2\n\
    /sys/class/infiniband_verbs/uverbs0/ibdev: rdmux_roce0\n\
    /dev/infiniband/uverbs0: device, read and write\n";

/// Sorts lines, because a directory lists them in any order.
fn sorted(bytes: &[u8]) -> String {
    let text = text(bytes);
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_by_key(|line| {
        FILES
            .iter()
            .position(|file| line.starts_with(&format!("{file}:")))
            .map(|at| (at, line.to_owned()))
    });
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_exit_status_is_the_programs() {
    let net = Net::new().hosts(&["one"]);
    let run = |args: &[&str]| net.run(&[&["--host", "one", "run"], args].concat());
    for (args, status) in [
        (&["--", "true"][..], 0),
        (&["--", "sh", "-c", "exit 77"], 77),
        (&["sh", "-c", "exit 1"], 1),
        (&["--", "no-such-program"], 127),
        (&["--", "/etc/passwd"], 126),
        (&["--device", "iw", "--", "true"], 0),
        (&["--device", "all", "--", "sh", "-c", "exit 77"], 77),
        (&["--device", "tokenring", "--", "true"], 2),
        (&[], 2),
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(status), "{args:?}: {}", text(&output.stderr));
        assert_eq!(output.stderr.is_empty(), status < 2 || status == 77, "{args:?}");
    }
}

#[test]
fn a_signal_ends_the_program_itself() {
    let net = Net::new().hosts(&["one"]);
    let output = net.run(&["--host", "one", "run", "--", "sh", "-c", "kill -TERM $$"]);
    assert_eq!(output.status.signal(), Some(15), "{}", text(&output.stderr));

    // There is no process in between: a signal to the started process reaches the program.
    let mut run = net.command(&["--host", "one", "run", "--", "sh", "-c", "echo $$; exec cat"]);
    let mut child = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut pid = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut pid).unwrap();
    assert_eq!(pid.trim(), child.id().to_string());
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
}

#[test]
fn the_program_gets_what_it_needs_to_find_the_library_and_the_host() {
    let net = Net::new().hosts(&["one"]);
    let script = r#"echo "$RDMUX_HOST"; echo "$LD_LIBRARY_PATH"; echo "$GREETING"; ls "${LD_LIBRARY_PATH%%:*}""#;
    let mut run = net.command(&["--host", "one", "run", "--", "sh", "-c", script]);
    run.env("LD_LIBRARY_PATH", "/nowhere").env("GREETING", "hello");
    let output = run.output().unwrap();
    let said = text(&output.stdout);
    let lines: Vec<_> = said.lines().collect();
    assert_eq!((lines[0], lines[2]), ("one", "hello"), "{said}");
    assert!(lines[1].ends_with(":/nowhere") && lines[1].starts_with('/'), "{said}");
    for name in ["libibverbs.so.1", "librdmacm.so.1", "libibumad.so.3"] {
        assert!(lines.contains(&name), "no {name}: {said}");
    }
}

#[test]
fn the_environment_works_without_the_wrapper() {
    let net = Net::new().hosts(&["one"]);
    let all: Value = serde_json::from_str(&net.ok(&["--host", "one", "env", "--json"])).unwrap();
    assert_eq!(all["RDMUX_HOST"], "one");
    assert_eq!(all.get("LD_PRELOAD"), None);

    let rdmux = env!("CARGO_BIN_EXE_rdmux");
    let script = format!("eval \"$('{rdmux}' env --view preload)\"; \"$@\"");
    let Some(look) = compile(&net, "look.c", &[]) else { return };
    let mut shell = Command::new("sh");
    shell.args(["-c", &script, "sh"]).arg(look).args(FILES);
    shell.env("RDMUX_RUNTIME_DIR", net.path()).env("RDMUX_HOST", "one");
    let output = shell.output().unwrap();
    assert_eq!(sorted(&output.stdout), SEEN, "{}", text(&output.stderr));
}

#[test]
fn a_c_program_gets_the_library_and_its_device() {
    let net = Net::new().hosts(&["one"]);
    let Some(program) = compile(&net, "devices.c", &["ibverbs", "rdmacm"]) else { return };
    let said = net.ok(&["--host", "one", "run", "--", program.to_str().unwrap()]);
    assert!(said.contains("device rdmux_roce0\n") && said.contains("channel yes\n"), "{said}");
    assert!(!said.contains("rdmux_iw0"), "{said}");
    let libraries: Vec<_> =
        said.lines().filter(|l| l.starts_with("library ") && l.contains(".so")).collect();
    assert!(libraries.len() == 1 && libraries[0].contains("librdmux_capi.so"), "{said}");

    let with =
        |kind| net.ok(&["--host", "one", "run", "--device", kind, "--", program.to_str().unwrap()]);
    let iw = with("iw");
    assert!(iw.contains("device rdmux_iw0\n") && iw.contains("channel yes\n"), "{iw}");
    assert!(!iw.contains("rdmux_roce0"), "{iw}");
    let all = with("all");
    let devices: Vec<_> = all.lines().filter(|line| line.starts_with("device")).collect();
    assert_eq!(devices, ["device rdmux_roce0", "device rdmux_iw0"]);
}

#[test]
fn unknown_rdmux_device_kind_is_refused() {
    let net = Net::new().hosts(&["one"]);
    let output = net
        .command(&["--host", "one", "devices"])
        .env("RDMUX_DEVICE", "tokenring")
        .output()
        .unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("tokenring") && said.contains("roce, iw, ib or all"), "{said}");
}

#[test]
fn the_header_is_that_of_the_library() {
    let net = Net::new().hosts(&["one"]);
    let Some(program) = compile(&net, "version.c", &[]) else { return };
    net.ok(&["--host", "one", "run", "--", program.to_str().unwrap()]);
}

/// Runs the C program that inspects the device's files.
fn look(net: &Net, before: &[&str], how: &str) -> Option<Output> {
    let program = compile(net, "look.c", &[])?;
    let rdmux = env!("CARGO_BIN_EXE_rdmux");
    let run = ["--host", "one", "run", "--view", how, "--", program.to_str().unwrap()];
    let line = [before, &[rdmux], &run, &FILES].concat();
    let mut command = Command::new(line[0]);
    command.args(&line[1..]).env("RDMUX_RUNTIME_DIR", net.path()).env_remove("RDMUX_HOST");
    Some(command.output().unwrap())
}

#[test]
fn device_is_visible_in_sysfs_of_namespace_and_preload_views() {
    let net = Net::new().hosts(&["one"]);
    for how in ["auto", "preload"] {
        let Some(output) = look(&net, &[], how) else { return };
        assert_eq!(sorted(&output.stdout), SEEN, "{how}: {}", text(&output.stderr));
    }
    let output = look(&net, &[], "none").unwrap();
    let said = text(&output.stdout);
    assert!(said.lines().all(|l| !l.contains("has rdmux") && !l.contains("RoCE")), "{said}");

    let output = look(&net, &[], "namespace").unwrap();
    match output.status.code() {
        Some(0) => assert_eq!(sorted(&output.stdout), SEEN),
        _ => missing_here(&text(&output.stderr)),
    }
}

#[test]
fn a_library_whose_path_has_a_space_is_preloaded() {
    let net = Net::new().hosts(&["one"]);
    let Some(look) = compile(&net, "look.c", &[]) else { return };
    let found = rdmux_command::library::find().unwrap().object;
    let odd = net.path().join("a b:c");
    std::fs::create_dir(&odd).unwrap();
    for name in ["librdmux_capi.so", "librdmux_view.so"] {
        std::os::unix::fs::symlink(found.with_file_name(name), odd.join(name)).unwrap();
    }
    let mut run = net.command(&["--host", "one", "run", "--view", "preload", "--"]);
    let output = run.arg(look).args(FILES).env("RDMUX_LIB_DIR", odd).output().unwrap();
    assert_eq!((sorted(&output.stdout), text(&output.stderr)), (SEEN.to_owned(), String::new()));
}

#[test]
fn the_files_show_the_devices_that_the_library_lists() {
    let net = Net::new().hosts(&["one"]);
    let list = "ls /sys/class/infiniband /sys/class/infiniband_verbs /dev/infiniband";
    let seen = |view: &str, args: &[&str]| {
        let run = ["--host", "one", "run", "--view", view];
        net.run(&[&run, args, &["--", "sh", "-c", list]].concat())
    };
    let iw = ["rdmux_iw0", "uverbs1"];
    let roce = ["rdmux_roce0", "uverbs0"];
    for view in ["namespace", "preload"] {
        for (args, here, not) in [
            (&[][..], &[roce][..], &[iw][..]),
            (&["--device", "iw"], &[iw], &[roce]),
            (&["--device", "all"], &[iw, roce], &[]),
        ] {
            let output = seen(view, args);
            if view == "namespace" && output.status.code() == Some(125) {
                missing_here(&text(&output.stderr));
                continue;
            }
            let said = text(&output.stdout);
            assert!(output.status.success(), "{}", text(&output.stderr));
            assert!(here.iter().flatten().all(|name| said.contains(name)), "{args:?} {said}");
            assert!(!not.iter().flatten().any(|name| said.contains(name)), "{args:?} {said}");
        }
    }
}

#[test]
fn program_not_known_to_read_sysfs_sees_the_device_in_its_namespace() {
    let net = Net::new().hosts(&["one"]);
    // A program that is started by another, and whose own file does not name the directories.
    let script = net.path().join("look.sh");
    std::fs::write(&script, "d=infini\nls /sys/class/${d}band\n").unwrap();
    let script = script.to_str().unwrap();
    let run = |args: &[&str]| net.run(&[&["--host", "one", "run"], args].concat());
    let may = run(&["--view", "namespace", "--", "true"]);
    if may.status.code() == Some(125) {
        return missing_here(&text(&may.stderr));
    }
    let output = run(&["--", "sh", script]);
    assert_eq!(text(&output.stdout), "rdmux_roce0\n", "{}", text(&output.stderr));
    let output = run(&["--view", "none", "--", "sh", script]);
    assert!(!text(&output.stdout).contains("rdmux"), "{}", text(&output.stdout));
}

#[test]
fn view_library_is_preloaded_with_a_notice_when_namespaces_are_not_permitted() {
    let net = Net::new().hosts(&["one"]);
    let Some(forbid) = compile(&net, "forbid.c", &[]) else { return };
    let forbid = forbid.to_str().unwrap();
    let output = look(&net, &[forbid], "auto").unwrap();
    assert_eq!(sorted(&output.stdout), SEEN);
    let said = text(&output.stderr);
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("librdmux_view.so") && said.contains("not permitted"), "{said}");

    let output = look(&net, &[forbid], "namespace").unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(text(&output.stderr).contains("--view preload"), "{}", text(&output.stderr));
}

#[test]
fn all_programs_of_a_host_share_one_namespace_and_those_of_others_the_user_namespace() {
    let net = Net::new().hosts(&["one", "two"]);
    let run = |args: &[&str]| {
        net.command(&[&["--host", "one", "run", "--view", "namespace", "--"], args].concat())
    };
    let output = run(&["readlink", "/proc/self/ns/user", "/proc/self/ns/mnt"]).output().unwrap();
    if output.status.code() == Some(125) {
        return missing_here(&text(&output.stderr));
    }
    let again = run(&["readlink", "/proc/self/ns/user", "/proc/self/ns/mnt"]).output().unwrap();
    assert_eq!(text(&again.stdout), text(&output.stdout));
    // Other devices have other files, but the same user namespace.
    let mut iw = run(&["readlink", "/proc/self/ns/user", "/proc/self/ns/mnt"]);
    let iw = text(&iw.env("RDMUX_DEVICE", "iw").output().unwrap().stdout);
    let of = |said: &str| said.lines().map(str::to_owned).collect::<Vec<_>>();
    let (iw, first) = (of(&iw), of(&text(&output.stdout)));
    assert_eq!(iw[0], first[0]);
    assert_ne!(iw[1], first[1]);
    let two = ["--host", "two", "run", "--view", "namespace", "--", "readlink"];
    let two = net.ok(&[&two[..], &["/proc/self/ns/user", "/proc/self/ns/mnt"]].concat());
    assert_eq!(of(&two)[0], first[0]);
    assert!(of(&two)[1] != first[1] && of(&two)[1] != iw[1]);
    let rdmux = env!("CARGO_BIN_EXE_rdmux");
    let nested =
        ["--view", "namespace", "--", "readlink", "/proc/self/ns/user", "/proc/self/ns/mnt"];
    let nested = run(&[&[rdmux, "run"], &nested[..]].concat()).output().unwrap();
    assert_eq!(text(&nested.stdout), text(&output.stdout), "{}", text(&nested.stderr));

    // So they may copy each other's memory, as far as processes of this user may at all.
    let Some(copy) = compile(&net, "copy.c", &[]) else { return };
    let copy = copy.to_str().unwrap();
    let mut server = run(&[copy]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut place = String::new();
    BufReader::new(server.stdout.as_mut().unwrap()).read_line(&mut place).unwrap();
    let (pid, address) = place.trim().split_once(' ').unwrap();
    let copied = run(&[copy, pid, address]).output().unwrap();
    let plain = Command::new(copy).args([pid, address]).output().unwrap();
    assert_eq!(text(&copied.stdout), text(&plain.stdout), "{}", text(&copied.stderr));
    drop(server.stdin.take());
    assert!(server.wait().unwrap().success());
}

#[test]
fn a_namespace_leaves_terminals_shared_memory_and_the_directory_as_they_were() {
    let net = Net::new().hosts(&["one"]);
    let script = "pwd; test -c /dev/null && echo x > /dev/null && head -c 1 /dev/zero | wc -c; \
        echo shared > /dev/shm/rdmux-$$ && cat /dev/shm/rdmux-$$ && rm /dev/shm/rdmux-$$; \
        test -e /dev/pts && test -d /sys/class/net/lo/ && echo all";
    let mut run =
        net.command(&["--host", "one", "run", "--view", "namespace", "--", "sh", "-c", script]);
    let output = run.current_dir(net.path()).output().unwrap();
    if output.status.code() == Some(125) {
        return missing_here(&text(&output.stderr));
    }
    let here = net.path().canonicalize().unwrap();
    let expected = format!("{}\n1\nshared\nall\n", here.display());
    assert_eq!(text(&output.stdout), expected, "{}", text(&output.stderr));
}

#[test]
fn a_namespace_keeps_a_directory_that_no_path_leads_to() {
    let net = Net::new().hosts(&["one"]);
    let may = net.run(&["--host", "one", "run", "--view", "namespace", "--", "true"]);
    if may.status.code() == Some(125) {
        return missing_here(&text(&may.stderr));
    }
    // The path of the first is known, but too long for chdir(2).
    let deep =
        r#"n=$(printf %0200d 0); for i in $(seq 25); do mkdir $n && cd -P $n || exit 1; done"#;
    let gone = "mkdir gone && cd -P gone && rmdir ../gone";
    for way in [deep, gone] {
        for view in ["auto", "namespace"] {
            let here = rdmux_testing::temp_dir();
            let script =
                format!(r#"{way}; stat -c %d:%i . && "$0" run --view {view} -- stat -c %d:%i ."#);
            let mut shell = Command::new("sh");
            shell.args(["-c", &script, env!("CARGO_BIN_EXE_rdmux")]).current_dir(here.path());
            shell.env("RDMUX_RUNTIME_DIR", net.path()).env("RDMUX_HOST", "one");
            let output = shell.output().unwrap();
            let said = text(&output.stdout);
            let lines: Vec<_> = said.lines().collect();
            assert!(output.status.success(), "{view}, {way}: {}", text(&output.stderr));
            assert!(lines.len() == 2 && lines[0] == lines[1], "{view}, {way}: {said}");
        }
    }
}

#[test]
fn in_a_chroot_no_program_runs_in_the_root_of_a_view() {
    let net = Net::new().hosts(&["one"]);
    // A root whose directories are those of the machine. The view is created outside of it, in the same user
    // namespace.
    let script = r#"
        "$0" run --view namespace -- true || exit 125
        mkdir "$1" && mount -t tmpfs root "$1" || exit 125
        for d in /*; do
            if [ -L "$d" ]; then cp -P "$d" "$1"
            elif [ -d "$d" ]; then mkdir "$1$d" && mount --rbind "$d" "$1$d" || exit 125
            fi
        done
        for view in auto namespace none; do
            chroot "$1" "$0" run --view $view -- echo ran $view || echo $view $?
        done"#;
    let mut shell = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        shell.args(["--user", "--map-root-user"]);
    }
    shell.args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_rdmux")]);
    shell.arg(net.path().join("root"));
    shell.env("RDMUX_RUNTIME_DIR", net.path()).env("RDMUX_HOST", "one");
    let output = shell.output().unwrap();
    let said = text(&output.stderr);
    if !output.status.success() {
        return missing_here(&said);
    }
    assert_eq!(text(&output.stdout), "auto 125\nnamespace 125\nran none\n", "{said}");
    let why = |line: &&str| line.contains("chroot") && line.contains("--view preload");
    assert_eq!(said.lines().filter(why).count(), 2, "{said}");
}

#[test]
fn a_run_within_another_sees_its_own_host() {
    const GID: &str = "/sys/class/infiniband/rdmux_roce0/ports/1/gids/0";
    let net = Net::new().hosts(&["one", "two"]);
    let rdmux = env!("CARGO_BIN_EXE_rdmux");
    let seen = |before: &[&str], view: &str| {
        let run = ["--host", "two", "run", "--view", view, "--", "cat", GID];
        net.run(&[before, &run].concat())
    };
    let within = ["--host", "one", "run", "--view", "preload", "--", rdmux];
    let own = seen(&[], "preload");
    assert!(own.status.success(), "{}", text(&own.stderr));
    for view in ["preload", "namespace", "none"] {
        let (alone, within) = (seen(&[], view), seen(&within, view));
        if view == "namespace" && alone.status.code() == Some(125) {
            missing_here(&text(&alone.stderr));
            continue;
        }
        assert_eq!(text(&within.stdout), text(&alone.stdout), "{view}: {}", text(&within.stderr));
        assert_eq!(within.status.code(), alone.status.code(), "{view}");
        assert!(view == "none" || alone.stdout == own.stdout, "{view}");
    }
}

#[test]
fn the_environment_of_a_host_within_a_run_of_another_is_that_hosts() {
    const GID: &str = "/sys/class/infiniband/rdmux_roce0/ports/1/gids/0";
    let net = Net::new().hosts(&["one", "two"]);
    let rdmux = env!("CARGO_BIN_EXE_rdmux");
    for view in ["preload", "none"] {
        let script = format!("eval \"$('{rdmux}' --host two env --view {view})\"; cat {GID}");
        let within = ["--host", "one", "run", "--view", "preload", "--", "sh", "-c", &script];
        let within = net.run(&within);
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).env("RDMUX_RUNTIME_DIR", net.path());
        let alone = shell.output().unwrap();
        assert_eq!(text(&within.stdout), text(&alone.stdout), "{view}: {}", text(&within.stderr));
        assert_eq!(within.status.code(), alone.status.code(), "{view}");
        assert!(view == "none" || alone.status.success(), "{}", text(&alone.stderr));
    }
}

#[test]
fn an_empty_name_of_a_view_redirects_nothing() {
    let net = Net::new().hosts(&["one"]);
    let all = net.ok(&["--host", "one", "env", "--view", "preload", "--json"]);
    let all: Value = serde_json::from_str(&all).unwrap();
    let mut cat = Command::new("cat");
    cat.arg("/etc/hosts").env("LD_PRELOAD", all["LD_PRELOAD"].as_str().unwrap());
    let output = cat.env("RDMUX_VIEW", "").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stdout, std::fs::read("/etc/hosts").unwrap());
}

#[test]
fn invalid_rdmux_variables_make_run_exit_with_125() {
    let net = Net::new().hosts(&["one"]);
    for (variable, value) in [
        ("RDMUX_LOSS", "abc"),
        ("RDMUX_PATIENCE", "long"),
        ("RDMUX_CROSS_MEMORY", "of"),
        ("RDMUX_HOST_RINGS", "no"),
        ("RDMUX_PEER_TO_PEER", "yes"),
    ] {
        let mut run = net.command(&["--host", "one", "run", "--", "true"]);
        let output = run.env(variable, value).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{variable}: {said}");
        assert!(said.contains(&format!("{variable}=\"{value}\" is n")), "{said}");
    }
}

#[test]
fn the_doctor_tells_what_is_wrong() {
    let net = Net::new().hosts(&["one"]);
    let all: Value = serde_json::from_str(&net.ok(&["--host", "one", "doctor", "--json"])).unwrap();
    let state = |all: &Value, name: &str| {
        let check = all.as_array().unwrap().iter().find(|check| check["name"] == name);
        check.unwrap_or_else(|| panic!("no {name}: {all}"))["state"].as_str().unwrap().to_owned()
    };
    for name in ["service", "C library", "offload"] {
        assert_eq!(state(&all, name), "ok", "{all}");
    }

    let mut lost = net.command(&["--host", "one", "doctor", "--json"]);
    let lost = lost.env("RDMUX_LIB_DIR", net.path()).output().unwrap();
    let lost: Value = serde_json::from_slice(&lost.stdout).unwrap();
    assert_eq!(state(&lost, "C library"), "warn");

    // Another service, of another directory, finds the address of the first one in use.
    let other = Net::new();
    let two = ["--host", "two", "doctor"];
    let registry = format!("two {}\n", net.address(1));
    std::fs::write(other.path().join("registry"), registry).unwrap();
    let said = other.run(&two);
    assert_eq!(said.status.code(), Some(1));
    let said = text(&said.stdout);
    assert!(said.contains("FAIL  service") && said.contains("in use"), "{said}");
}

#[test]
fn the_doctor_tells_which_foreign_program_has_the_port() {
    let net = Net::new();
    let registry = format!("one {} assigned\n", net.address(1));
    std::fs::write(net.path().join("registry"), registry).unwrap();
    let _holder = std::net::UdpSocket::bind((&*net.address(1), 4791)).unwrap();
    let said = net.run(&["--host", "one", "doctor"]);
    let said = text(&said.stdout);
    let own = format!("(process {}) holds the port: end it", std::process::id());
    assert!(said.contains(&own) && !said.contains("a host of"), "{said}");
}
