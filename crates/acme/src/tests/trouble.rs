//! Defects and omissions of ib_acme of rdma-core, and misbehaving services.

use rdmux_testing::temp_dir;
use rdmux_wire::Lid;
use rdmux_wire::acm::Address;
use rdmux_wire::acm::client::{Answer, Paths, Query, Status};
use rdmux_wire::sa::{PathRecord, Rate};

use super::run;
use super::service::{Scripted, answer, bytes, failed, path};

#[test]
fn connection_that_is_closed_is_an_error_and_no_crash() {
    let service = Scripted::new(|_| None);
    let expected = "Service: SVC\nDestination: n\nib_acm_resolve_name failed: Connection reset by peer\n\nreturn status 0xffffffff\n";
    assert_eq!(run(&service, "-S SVC -f n -d n"), (255, expected.to_owned()));
    assert_eq!(run(&service, "-S SVC -e").1.matches("Connection reset by peer").count(), 1);
    let said = run(&service, "-S SVC -P").1;
    assert!(
        said.starts_with("SVC: Failed to query perf data: Connection reset by peer\n"),
        "{said}"
    );
}

#[test]
fn half_an_answer_is_an_error_and_the_next_question_goes_over_another_connection() {
    let service = Scripted::new(|request| match request.query {
        Query::Resolve { .. } => {
            let mut half = bytes(request, answer(&request.query));
            // By its length field the message is complete.
            half.truncate(50);
            half[6..8].copy_from_slice(&50u16.to_ne_bytes());
            Some(half)
        }
        _ => Some(bytes(request, answer(&request.query))),
    });
    let (status, said) = run(&service, "-S SVC -f n -d n -P");
    assert_eq!(status, 255);
    assert!(said.contains("ib_acm_resolve_name failed: "), "{said}");
    assert!(said.contains("SVC,1,22,333"), "{said}");
}

#[test]
fn answer_to_another_question_is_an_error() {
    let service = Scripted::new(|request| Some(bytes(request, Answer::Flushed(1))));
    assert_eq!(run(&service, "-S SVC -f n -d n").0, 255);
    let (status, said) = run(&service, "-S SVC -P all -e");
    assert_eq!(status, 0);
    assert!(said.contains("the answer has no counters"), "{said}");
    assert!(said.contains("the answer does not describe an endpoint"), "{said}");
}

#[test]
fn control_characters_of_a_service_do_not_reach_the_terminal() {
    let service = Scripted::new(|request| {
        let source = Address::name("a\u{1b}[2Jb");
        Some(bytes(request, Answer::Paths(Paths::one(path(), source))))
    });
    let (_, said) = run(&service, "-S SVC -f n -d n");
    assert!(!said.contains('\u{1b}'), "{said}");
    assert!(said.contains("Source: a\\u{1b}[2Jb\n"), "{said}");
}

#[test]
fn names_that_the_system_does_not_know_and_format_u_are_names() {
    let service = Scripted::well();
    assert_eq!(run(&service, "-S SVC -f u -d no-such-name.invalid").0, 0);
    let dest = Address::name("no-such-name.invalid").unwrap();
    let expected = Query::Resolve { source: None, dest, cached_only: false };
    assert_eq!(service.asked(), [expected]);
}

#[test]
fn numeric_destinations_are_lids_and_invalid_lids_exit_with_255() {
    let service = Scripted::well();
    assert_eq!(run(&service, "-S SVC -d 0x11").0, 0);
    assert_eq!(run(&service, "-S SVC -f l -d 70000").0, 255);
    assert_eq!(run(&service, "-S SVC -f l -d zz").0, 255);
    let record =
        PathRecord { dlid: Lid(17), reversible: true, numb_path: 1, ..PathRecord::default() };
    assert_eq!(service.asked(), [Query::ResolvePath { path: record, cached_only: false }]);
}

#[test]
fn verification_fails_when_subnet_administration_knows_another_path() {
    let service = Scripted::new(|request| {
        let known = match request.query {
            Query::QuerySa { path } => PathRecord { dlid: Lid(9), ..path },
            _ => path(),
        };
        Some(bytes(request, Answer::Paths(Paths::one(known, None))))
    });
    let (status, said) = run(&service, "-S SVC -f n -d n -v");
    assert_eq!(status, 255);
    assert!(said.contains("SA verification: failed dlid is 9, not 7\n\n"), "{said}");
}

/// Subnet administration that requires an exactly requested rate to be that of its own path, which is faster than a group's.
#[test]
fn path_that_is_slower_than_that_of_subnet_administration_is_verified_by_its_ends() {
    type Change = fn(PathRecord) -> PathRecord;
    let faster: Change = |path| PathRecord { mtu: 5, rate: Rate(16), ..path };
    let other: Change = |path| PathRecord { sl: 2, ..path };
    let smaller: Change = |path| PathRecord { mtu: 3, rate: Rate(16), ..path };
    // The code of 5 Gb/s is larger than that of 10 Gb/s.
    let slower: Change = |path| PathRecord { rate: Rate(5), ..path };
    for (known, status, said) in [
        (faster, 0, "success (mtu is 5, not 4; rate is 16, not 3)"),
        (other, 255, "failed sl is 2, not 3"),
        (smaller, 255, "failed mtu is 3, not 4"),
        (slower, 255, "failed rate is 5, not 3"),
    ] {
        let found = PathRecord { rate: Rate(3), ..path() };
        let service = Scripted::new(move |request| {
            let path = match request.query {
                Query::QuerySa { path } if path.rate.0 != 0 => {
                    return Some(failed(request, Status::NO_DATA));
                }
                Query::QuerySa { .. } => known(found),
                _ => found,
            };
            Some(bytes(request, Answer::Paths(Paths::one(path, None))))
        });
        let (code, text) = run(&service, "-S SVC -f n -d n -v");
        assert_eq!(code, status, "{text}");
        assert!(text.contains(&format!("\nSA verification: {said}\n\n")), "{text}");
        let PathRecord { dgid, sgid, dlid, slid, pkey, .. } = found;
        let (reversible, numb_path) = (true, 1);
        let ends = PathRecord { reversible, numb_path, pkey, ..PathRecord::default() };
        let ends = PathRecord { dgid, sgid, dlid, slid, ..ends };
        assert_eq!(service.asked().last(), Some(&Query::QuerySa { path: ends }));
        let document: serde_json::Value =
            serde_json::from_str(&run(&service, "--json -S SVC -f n -d n -v").1).unwrap();
        let row = &document["services"][0]["paths"][0];
        assert_eq!(row["verified"], status == 0, "{row}");
        assert_eq!(row["differs"].is_array(), status == 0, "{row}");
    }
    // Without a path between the ends, the first failure is reported.
    let service = Scripted::new(|request| match request.query {
        Query::QuerySa { .. } => Some(failed(request, Status::NO_DATA)),
        _ => Some(bytes(request, answer(&request.query))),
    });
    let (status, said) = run(&service, "-S SVC -f n -d n -v");
    assert_eq!((status, service.asked().len()), (255, 3));
    assert!(said.contains("SA verification: failed No data available\n\n"), "{said}");
}

#[test]
fn verification_that_fails_has_the_errno_and_the_other_destinations_go_on() {
    let service = Scripted::new(|request| match request.query {
        Query::QuerySa { .. } => Some(failed(request, Status::TIMED_OUT)),
        _ => Some(bytes(request, answer(&request.query))),
    });
    let (status, said) = run(&service, "-S SVC -f n -d n[1-2] -v");
    assert_eq!(status, 255);
    assert_eq!(said.matches("SA verification: failed Connection timed out\n\n").count(), 2);
    assert!(said.ends_with("\n\nreturn status 0xffffffff\n"), "{said}");
}

#[test]
fn invalid_range_lists_exit_with_255_and_send_no_query() {
    let service = Scripted::well();
    for line in
        ["-d n[3-1]", "-d n[a]", "-d n -s s[]", "-d n[1-1000] -s s[1-1000]", "-d n[1-9999999]"]
    {
        let (status, said) = run(&service, &format!("-S SVC -f n {line}"));
        assert_eq!(status, 255, "{line}");
        assert!(said.starts_with("Unable to parse "), "{said}");
    }
    assert_eq!(run(&service, "-S SVC[x] -P").0, 255);
    assert_eq!(service.asked(), []);
}

#[test]
fn json_output_is_one_document_with_paths_counters_and_endpoints() {
    let service = Scripted::well();
    let (status, said) = run(&service, "--json -S SVC -f n -d n[1-2] -v -P all -e 1");
    assert_eq!(status, 0);
    let document: serde_json::Value = serde_json::from_str(&said).unwrap();
    let svc = &document["services"][0];
    assert_eq!(svc["service"], "SVC");
    assert_eq!(svc["paths"][1]["destination"], "n2");
    assert_eq!(svc["paths"][1]["path"]["dlid"], 7);
    assert_eq!(svc["paths"][1]["verified"], true);
    assert_eq!(svc["counters"][1]["endpoint"], 2);
    assert_eq!(svc["counters"][1]["resolve_count"], 22);
    assert_eq!(svc["endpoints"][1]["guid"], "0x1122334455667788");
    assert_eq!(document["status"], 0);
    let (status, said) = run(&service, "--json -S SVC-gone -P");
    let document: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        (status, &document["services"][0]["error"]),
        (2, &"No such file or directory".into())
    );
}

#[test]
fn watch_prints_counters_n_times() {
    let service = Scripted::well();
    let (status, said) = run(&service, "watch -S SVC -n 3 -i 0");
    assert_eq!((status, said.lines().count()), (0, 4), "{said}");
    assert!(said.lines().nth(3).unwrap().starts_with('+'), "{said}");
    let (status, said) = run(&service, "watch -S SVC -n 2 -i 0 --all --json");
    assert_eq!(status, 0);
    let last: serde_json::Value = serde_json::from_str(said.lines().nth(1).unwrap()).unwrap();
    assert_eq!((&last["counters"]["claims"], &last["growth"]["claims"]), (&5.into(), &0.into()));
    assert_eq!(run(&service, "watch -S SVC -i nan").0, 2);
}

#[test]
fn flush_counts_what_was_forgotten() {
    let service = Scripted::well();
    assert_eq!(run(&service, "flush -S SVC"), (0, "SVC: 3 entries flushed\n".to_owned()));
    let expected = (0, "SVC: 6 entries flushed\n".to_owned());
    assert_eq!(run(&service, "flush -S SVC -f n -d n[1-2]"), expected);
    let name = |name| Query::Flush(Address::name(name));
    assert_eq!(service.asked(), [Query::Flush(None), name("n1"), name("n2")]);
    // The service closes the connection, as ibacm does with requests that it does not know.
    assert_eq!(run(&Scripted::new(|_| None), "flush -S SVC").0, 1);
}

#[test]
fn command_may_stand_after_the_options_that_choose_service_and_output() {
    let service = Scripted::well();
    let flushed = (0, "SVC: 3 entries flushed\n".to_owned());
    let json = (0, "{\n  \"flushed\": 3,\n  \"service\": \"SVC\"\n}\n".to_owned());
    for (line, expected) in [
        ("-S SVC flush", &flushed),
        ("-SSVC flush -d n -f n", &flushed),
        ("--service SVC --host=a flush", &flushed),
        ("--host a --json flush --service=SVC", &json),
        ("--json --service=SVC flush", &json),
    ] {
        assert_eq!(&run(&service, line), expected, "{line}");
    }
    let asked = service.asked();
    // As in rdma-core, a word after other options, or that is an argument, is no command.
    for (line, destination) in [
        ("-f n -d n -S SVC top", "n"),
        ("-c flush -f n -d n -S SVC", "n"),
        ("-S SVC -f n -d top", "top"),
    ] {
        let expected = format!("Service: SVC\nDestination: {destination}\n");
        let (status, said) = run(&service, line);
        assert!(status == 0 && said.starts_with(&expected), "{line}: {said}");
    }
    assert!(service.asked().iter().skip(asked.len()).all(|q| matches!(q, Query::Resolve { .. })));
}

#[test]
fn top_is_for_services_that_share_their_cache() {
    let service = Scripted::well();
    assert_eq!(run(&service, "top -S SVC"), (1, String::new()));
}

#[test]
fn options_are_written_without_a_word_and_not_if_asking_failed() {
    let (service, dir) = (Scripted::well(), temp_dir());
    let folder = dir.path().display();
    let file = dir.path().join("ibacm_opts.cfg");
    let failed = run(&service, &format!("-S SVC -f i -d foo -O -D {folder}"));
    assert_eq!((failed.0, file.exists()), (255, false));
}
