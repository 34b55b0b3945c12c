//! Parsing of `partitions.conf`, and the resulting P_Key tables and groups.

use super::*;
use alloc::string::ToString;
use alloc::vec;

fn parse(text: &str) -> Partitions {
    Partitions::parse("p.conf", text).unwrap_or_else(|e| panic!("{e}"))
}

fn adapter(guid: u64) -> EndPort {
    EndPort { guid: Guid(guid), kind: NodeType::CA, is_manager: false }
}

fn keys(text: &str, port: EndPort) -> Vec<u16> {
    parse(text).table_for(&port).iter().map(|key| key.0).collect()
}

fn gid(text: &str) -> Gid {
    text.parse::<core::net::Ipv6Addr>().expect("an address").into()
}

#[test]
fn without_a_file_all_are_full_members_and_the_broadcast_group_exists() {
    let partitions = Partitions::default();
    assert_eq!(partitions.table_for(&adapter(1)), [Pkey::DEFAULT]);
    let groups: Vec<_> = partitions.groups().collect();
    let expected = PartitionGroup {
        mgid: gid("ff12:401b:ffff::ffff:ffff"),
        pkey: Pkey::DEFAULT,
        qkey: Qkey(0x0b1b),
        mtu: Mtu::M2048,
        rate: Rate::GBPS_10,
        sl: 0,
        tclass: 0,
        flow_label: 0,
    };
    assert_eq!(groups, [&expected]);
}

#[test]
fn without_a_rule_for_the_default_partition_only_the_manager_is_a_full_member() {
    for text in ["", "# nothing\n", "A=0x10: 0x5;"] {
        assert_eq!(keys(text, adapter(1)), [0x7fff], "{text}");
        assert_eq!(keys(text, EndPort { is_manager: true, ..adapter(1) }), [0xffff], "{text}");
        assert_eq!(parse(text).groups().count(), 0, "{text}");
    }
}

/// The examples of `opensm(8)`.
#[test]
fn examples_of_the_manual_page_are_read() {
    let text = "
        Default=0x7fff : ALL, SELF=full ;
        Default=0x7fff : ALL, ALL_SWITCHES=full, SELF=full ;
        NewPartition , ipoib : 0x123456=full, 0x3456789034=limi, 0x2134af2306 ;
        YetAnotherOne = 0x300 : SELF=full ;
        YetAnotherOne = 0x300 : ALL=limited ;
        ShareIO = 0x80 , defmember=full : 0x123451, 0x123452;
        # 0x123453, 0x123454 will be limited
        ShareIO = 0x80 : 0x123453, 0x123454, 0x123455=full;
        ShareIO = 0x80 : defmember=limited : 0x123456, 0x123457, 0x123458=full;
        ShareIO = 0x80 , defmember=full : 0x123459, 0x12345a;
        ShareIO = 0x80 , defmember=full : 0x12345b, 0x12345c=limited, 0x12345d;
    ";
    let expected = [
        (0x123456, vec![0x7fff, 0x8001, 0x0080, 0x0300]),
        (0x3456789034, vec![0x7fff, 0x0001, 0x0300]),
        (0x2134af2306, vec![0x7fff, 0x0001, 0x0300]),
        (0x123451, vec![0x7fff, 0x8080, 0x0300]),
        (0x123453, vec![0x7fff, 0x0080, 0x0300]),
        (0x123455, vec![0x7fff, 0x8080, 0x0300]),
        (0x123457, vec![0x7fff, 0x0080, 0x0300]),
        (0x123458, vec![0x7fff, 0x8080, 0x0300]),
        (0x12345a, vec![0x7fff, 0x8080, 0x0300]),
        (0x12345c, vec![0x7fff, 0x0080, 0x0300]),
        (0x12345d, vec![0x7fff, 0x8080, 0x0300]),
        (0x1, vec![0x7fff, 0x0300]),
    ];
    for (guid, table) in expected {
        assert_eq!(keys(text, adapter(guid)), table, "{guid:#x}");
    }
    let switch = EndPort { kind: NodeType::SWITCH, ..adapter(1) };
    assert_eq!(keys(text, switch), [0xffff, 0x0300]);
    let partitions = parse(text);
    assert_eq!(partitions.get(Pkey(0x8080)).expect("it is there").name, "ShareIO");
    assert_eq!(partitions.groups().count(), 1, "of NewPartition");
}

#[test]
fn groups_of_the_manual_page_are_read() {
    let text = "Default=0x7fff,ipoib:
               mgid=ff12:401b::0707,sl=1 # random IPv4 group
               mgid=ff12:601b::16    # MLDv2-capable routers
               mgid=ff12:401b::16    # IGMP
               mgid=ff12:601b::2     # All routers
               mgid=ff12::1,sl=1,Q_Key=0xDEADBEEF,rate=3,mtu=2 # random group
               ALL=full;";
    let partitions = parse(text);
    let groups: Vec<_> = partitions.groups().collect();
    let gids = [
        "ff12:401b:ffff::ffff:ffff",
        "ff12:401b:ffff::707",
        "ff12:601b:ffff::16",
        "ff12:401b:ffff::16",
        "ff12:601b:ffff::2",
        "ff12::1",
    ];
    assert!(groups.iter().map(|group| group.mgid).eq(gids.map(gid)));
    assert_eq!((groups[1].sl, groups[1].qkey), (1, Qkey(0x0b1b)));
    assert_eq!((groups[5].sl, groups[5].qkey), (1, Qkey(0xdead_beef)));
    assert_eq!((groups[5].mtu, groups[5].rate), (Mtu::M512, Rate::GBPS_10));
    assert_eq!(partitions.table_for(&adapter(1)), [Pkey::DEFAULT]);
}

#[test]
fn ipoib_broadcast_group_has_the_partitions_parameters_for_each_scope() {
    let text = "A=0x8010,ipoib,rate=7,mtu=5,sl=3,scope=2,scope=5,Q_Key=9,TClass=4,FlowLabel=77:;";
    let partitions = parse(text);
    let groups: Vec<_> = partitions.groups().copied().collect();
    assert_eq!(groups.len(), 2);
    assert_eq!(groups[1].mgid, gid("ff15:401b:8010::ffff:ffff"));
    let PartitionGroup { pkey, qkey, mtu, rate, sl, tclass, flow_label, .. } = groups[0];
    assert_eq!((pkey, qkey, mtu, rate), (Pkey(0x8010), Qkey(9), Mtu::M4096, Rate::GBPS_40));
    assert_eq!((sl, tclass, flow_label), (3, 4, 77));
    assert_eq!(partitions.get(Pkey(0x10)).expect("it is there").sl, Some(3));
}

#[test]
fn of_several_rules_for_a_port_the_last_one_counts() {
    assert_eq!(keys("A=3: ALL=full, 0x9=limited;", adapter(9)), [0x7fff, 0x0003]);
    assert_eq!(keys("A=3: 0x9=limited, ALL=full;", adapter(9)), [0x7fff, 0x8003]);
    assert_eq!(keys("A=3: ALL=full, 0x9=both;", adapter(9)), [0x7fff, 0x8003, 0x0003]);
    assert_eq!(keys("A=3: 0x9=full, ALL_CAS; A=3: ALL=full;", adapter(9)), [0x7fff, 0x8003]);
    assert_eq!(keys("A=3: ALL=full, ALL_CAS, ALL=full, 0x9;", adapter(9)), [0x7fff, 0x0003]);
    let kinds = "A=3: ALL_CAS=full; B=4: ALL_ROUTERS; C=5: ALL_SWITCHES;";
    assert_eq!(keys(kinds, adapter(9)), [0x7fff, 0x8003]);
    assert_eq!(keys(kinds, EndPort { kind: NodeType::ROUTER, ..adapter(9) }), [0x7fff, 4]);
}

#[test]
fn the_manager_is_a_full_member_of_the_default_partition_whatever_rules_say() {
    let manager = EndPort { is_manager: true, ..adapter(9) };
    assert_eq!(keys("Default=0x7fff: ALL=limited; A=3: 0x9;", manager), [0xffff, 3]);
    assert_eq!(keys("Default=0x7fff: SELF=both;", manager), [0xffff, 0x7fff]);
}

#[test]
fn the_service_level_of_a_partition_is_that_of_its_last_definition() {
    let sl = |text: &str| parse(text).get(Pkey(3)).expect("it is there").sl;
    assert_eq!(sl("A=3,sl=2: ALL; A=3,sl=5:;"), Some(5));
    assert_eq!(sl("A=3,sl=2: ALL; A=3: 0x9;"), None);
}

#[test]
fn mgid_groups_inherit_the_partitions_parameters_and_scope_2() {
    let text = "A=3,rate=7,mtu=5,sl=1,Q_Key=9,TClass=4,FlowLabel=6:
        mgid=ff15:c0de::1
        mgid=ff12:401b::1
        mgid=ff1e:c0de::2,scope=5,scope=14,rate=3,mtu=2,sl=0,Q_Key=8,TClass=7,FlowLabel=5
        mgid=ff12:401b:ffff::ffff:ffff # the key is replaced
        ;
        B=4,scope=5: mgid=ff12:c0de::3;";
    let partitions = parse(text);
    let groups: Vec<_> = partitions.groups().copied().collect();
    let gids = [
        "ff12:c0de::1",
        "ff12:401b:8003::1",
        "ff15:c0de::2",
        "ff1e:c0de::2",
        "ff12:401b:8003::ffff:ffff",
        "ff15:c0de::3",
    ];
    assert!(groups.iter().map(|group| group.mgid).eq(gids.map(gid)));
    let inherited = PartitionGroup {
        mgid: gid("ff12:c0de::1"),
        pkey: Pkey(0x8003),
        qkey: Qkey(9),
        mtu: Mtu::M4096,
        rate: Rate::GBPS_40,
        sl: 1,
        // Only this is not inherited.
        tclass: 0,
        flow_label: 6,
    };
    assert_eq!(groups[0], inherited);
    let PartitionGroup { qkey, mtu, rate, sl, tclass, flow_label, .. } = groups[3];
    assert_eq!((qkey, mtu, rate), (Qkey(8), Mtu::M512, Rate::GBPS_10));
    assert_eq!((sl, tclass, flow_label), (0, 7, 5));
    let limits = groups.iter().map(PartitionGroup::hop_limit);
    assert!(limits.eq([0, 0, 255, 255, 0, 255]), "beyond the link packets pass routers");
}

#[test]
fn first_definition_of_a_duplicate_mgid_is_used() {
    let text = "B=4,ipoib: mgid=ff12:c0de::1,sl=1\n;
        A=3,ipoib,rate=7: mgid=ff12:c0de::1,sl=2\n; A=3,ipoib,rate=2:;";
    let partitions = parse(text);
    let groups: Vec<_> = partitions.groups().map(|g| (g.pkey.0, g.sl, g.rate.0)).collect();
    assert_eq!(groups, [(0x8004, 0, 3), (0x8004, 1, 3), (0x8003, 0, 7)], "in the file's order");
}

#[test]
fn indx0_partition_is_at_pkey_index_0_before_the_default_one() {
    assert_eq!(keys("A=3: ALL; B=2, indx0: ALL=full;", adapter(9)), [0x8002, 0x7fff, 3]);
}

#[test]
fn partitions_without_a_key_get_the_lowest_free_one() {
    let partitions = parse("A=1:; B:; =2:; C: ALL;");
    let names: Vec<_> = partitions.iter().map(|(key, p)| (key.0, p.name.as_str())).collect();
    let expected = [(0x8001, "A"), (0x8002, "B"), (0x8003, "C"), (0xffff, "Default")];
    assert_eq!(names, expected);
}

#[test]
fn definition_without_a_pkey_means_a_number_or_a_known_name_as_in_opensm() {
    let cases: [(&str, &[u16]); 8] = [
        ("0x10, ipoib: ALL=full;", &[0x7fff, 0x8010]),
        ("16: ALL=full; A: ALL;", &[0x7fff, 0x0001, 0x8010]),
        ("0x8010: ALL;", &[0x7fff, 0x0010]),
        ("Default: ALL=full;", &[0xffff]),
        ("A: 0x1; B: 0x1; A: 0x1=full;", &[0x7fff, 0x8001, 0x0002]),
        ("A=0x30: 0x1; A: 0x1=full;", &[0x7fff, 0x8030]),
        ("A: 0x1; A=0x30: 0x1;", &[0x7fff, 0x0001, 0x0030]),
        (": 0x1; : 0x1=full;", &[0x7fff, 0x0001, 0x8002]),
    ];
    for (text, table) in cases {
        assert_eq!(keys(text, adapter(1)), table, "{text}");
    }
    let groups = parse("0x10, ipoib: ALL=full;");
    assert!(groups.groups().map(|group| group.pkey).eq([Pkey(0x8010)]));
}

#[test]
fn errors_name_file_line_and_token() {
    let cases = [
        ("A=0: ALL;", "p.conf:1: `0`", Rule::Pkey),
        ("A=0x8000:;", "p.conf:1: `0x8000`", Rule::Pkey),
        ("A=x:;", "p.conf:1: `x`", Rule::Pkey),
        ("\n1 A: ALL;", "p.conf:2: `1 A`", Rule::Pkey),
        ("0x8000: ALL;", "p.conf:1: `0x8000`", Rule::Pkey),
        ("A=1\n ipoib: ALL;", "p.conf:2: `ipoib`", Rule::Definition),
        ("A=1,\n\n wrong: ALL;", "p.conf:3: `wrong`", Rule::Flag),
        ("A=1,ipoib", "p.conf:1: the file ends", Rule::Definition),
        ("A=1,rate=1:;", "p.conf:1: `1`", Rule::Rate),
        ("A=1,mtu=6:;", "p.conf:1: `6`", Rule::Mtu),
        ("A=1,sl=16:;", "p.conf:1: `16`", Rule::ServiceLevel),
        ("A=1,scope=0:;", "p.conf:1: `0`", Rule::Scope),
        ("A=1,Q_Key=0x100000000:;", "p.conf:1: `0x100000000`", Rule::Qkey),
        ("A=1,TClass=256:;", "p.conf:1: `256`", Rule::Tclass),
        ("A=1,FlowLabel=0x100000:;", "p.conf:1: `0x100000`", Rule::FlowLabel),
        ("A=1,defmember=none:;", "p.conf:1: `none`", Rule::Membership),
        ("A=1: ALL=;", "p.conf:1: `;`", Rule::Membership),
        ("# first\nA=1: ALL,\n 0x5=full, all;", "p.conf:3: `all`", Rule::Port),
        ("A=1: : ALL;", "p.conf:1: `:`", Rule::Port),
        ("A=1: ALL", "p.conf:1: the file ends", Rule::Semicolon),
        ("A=1: mgid=fe80::1;", "p.conf:1: `fe80::1`", Rule::Mgid),
        ("A=1: mgid=;", "p.conf:1: `;`", Rule::Mgid),
        ("A=1: mgid=ff12::1,ipoib;", "p.conf:1: `ipoib`", Rule::GroupFlag),
        ("A=1: mgid=ff12:401b:8002::1;", "p.conf:1: `ff12:401b:8002::1`", Rule::MgidPkey),
        ("A=1: mgid=ff12:401b::1,mtu=5\n;", "p.conf:1: `ff12:401b::1`", Rule::NotAsBroadcast),
        ("A=\u{e9}: ALL;", "p.conf:1: `\u{e9}`", Rule::Pkey),
    ];
    for (text, start, rule) in cases {
        let error = Partitions::parse("p.conf", text).expect_err(text);
        assert_eq!(error.rule, rule, "{text}: {error}");
        assert!(error.to_string().starts_with(start), "{text}: {error}");
    }
}
