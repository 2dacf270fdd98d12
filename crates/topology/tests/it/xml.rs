//! Tests of XML exports of hwloc: what is read from them, and the errors for files that are none.

use corewise_topology::{CpuId, Topology, TopologyError};

const TWO_PUS: &str = r#"<object type="PU" os_index="0" cpuset="0x1"/>
<object type="PU" os_index="1" cpuset="0x2"/>"#;

/// Returns an export with these objects in its machine, which begins in line 2.
fn export(machine: &str, objects: &str) -> String {
    format!(
        "<topology version=\"2.0\">\n<object type=\"Machine\" {machine}>\n{objects}\n</object>\n</topology>\n"
    )
}

fn read(text: &str) -> Topology {
    Topology::from_xml_str(text, "machine.xml").unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Returns the position and the reason of the error.
fn refused(text: &str) -> (usize, usize, String) {
    match Topology::from_xml_str(text, "machine.xml") {
        Err(TopologyError::Xml { path, line, column, reason }) => {
            assert_eq!(path.to_str(), Some("machine.xml"));
            (line, column, reason)
        }
        other => panic!("{other:?}\n{text:.300}"),
    }
}

#[test]
fn the_tree_says_who_shares_a_core_a_cache_and_a_package() {
    let topology = read(&export(
        "",
        r#"<info name="Backend" value="a &quot;b&quot; &#38; c"/>
        <object type="Package"><object type="L3Cache" depth="3" cache_type="0">
          <object type="Group" kind="1"><object type="Die">
            <object type="L1iCache" cache_type="2"><object type="Core" os_index="7">
              <object type="PU" os_index="0"/><object type="PU" os_index="4"/>
            </object></object>
          </object></object>
          <object type="Core" os_index="7"><object type="PU" os_index="2"/></object>
        </object></object>
        <object type="Package"><object type="L2Cache"><object type="L1Cache" cache_type="1">
          <object type="Core"><object type="PU" os_index="3"/></object>
        </object></object></object>
        <object type="Package"><object type="PU" os_index="5"/><object type="PU" os_index="6"/></object>
        <object type="Bridge"><object type="PCIDev"><object type="OSDev" name="sda"/></object></object>
        <object type="Misc" name="note"/>"#,
    ));
    let facts: Vec<_> =
        topology.cpus().iter().map(|cpu| (cpu.cpu, cpu.core, cpu.package, cpu.llc)).collect();
    let dense = |cpu, core, package, llc| (CpuId::new(cpu), Some(core), Some(package), Some(llc));
    let wanted = [
        dense(0, 0, 0, 0),
        dense(2, 1, 0, 0),
        dense(3, 2, 1, 1),
        dense(4, 0, 0, 0),
        // No cores and no cache are reported: each PU is a core, the package stands for a cache.
        dense(5, 3, 2, 2),
        dense(6, 4, 2, 2),
    ];
    assert_eq!(facts, wanted);
    let levels: Vec<_> = topology.llcs().iter().map(|llc| llc.level).collect();
    assert_eq!(levels, [Some(3), Some(2), None]);
    assert_eq!(topology.nodes().len(), 1, "where no node is reported there is node 0");
    assert_eq!(topology.source().to_string(), "xml:machine.xml");
}

#[test]
fn a_machine_without_packages_is_one() {
    assert_eq!(read(&export("", TWO_PUS)).package_count(), 1);
}

#[test]
fn nodes_are_the_smallest_around_a_cpu_and_may_be_empty_or_behind_a_memory_cache() {
    let topology = read(&export(
        "",
        r#"<object type="NUMANode" os_index="9" cpuset="0xf"/>
        <object type="NUMANode" os_index="3" cpuset="0x0"/>
        <object type="Group"><object type="MemCache" cpuset="0x3" cache_type="0" depth="1">
          <object type="NUMANode" os_index="4" cpuset="0x3" complete_cpuset="0x23"/></object>
          <object type="NUMANode" os_index="5" cpuset="0x3"/>
          <object type="PU" os_index="0"/><object type="PU" os_index="1"/></object>
        <object type="PU" os_index="2"/><object type="PU" os_index="3"/>"#,
    ));
    let nodes: Vec<_> =
        topology.nodes().iter().map(|node| (node.node, node.cpus.to_string())).collect();
    let wanted = [(3, ""), (4, "0-1"), (5, ""), (9, "2-3")];
    assert_eq!(nodes, wanted.map(|(node, cpus)| (node, cpus.to_owned())));
}

#[test]
fn cpus_without_a_pu_are_offline_and_know_their_node() {
    let nodes = r#"<object type="NUMANode" os_index="0" cpuset="0x1" complete_cpuset="0x1"/>
        <object type="NUMANode" os_index="1" cpuset="0x2" complete_cpuset="0xa"/>"#;
    let text = export(
        r#"cpuset="0x3" complete_cpuset="0x8000000f,,0xb" allowed_cpuset="0x3""#,
        &format!("{nodes}{TWO_PUS}"),
    );
    let topology = read(&text);
    assert_eq!(topology.cpu_set().to_string(), "0-1,3,64-67,95");
    assert_eq!(topology.online().to_string(), "0-1");
    assert_eq!(topology.allowed().to_string(), "0-1");
    let offline = topology.cpu(CpuId::new(3)).unwrap();
    assert_eq!((offline.core, offline.llc, offline.node), (None, None, Some(1)));
    assert_eq!(topology.cpu(CpuId::new(95)).unwrap().node, None);
}

#[test]
fn the_allowed_cpuset_is_what_pods_are_made_of() {
    let topology = read(&export(r#"cpuset="0x3" allowed_cpuset="0x2""#, TWO_PUS));
    assert_eq!(topology.cpu_set().to_string(), "0-1");
    assert_eq!(topology.allowed().to_string(), "1");
    let everybody = read(&export(r#"cpuset="0x3""#, TWO_PUS));
    assert_eq!(everybody.allowed().to_string(), "0-1");
    let text = export(r#"cpuset="0x3" allowed_cpuset="0x0""#, TWO_PUS);
    let error = Topology::from_xml_str(&text, "machine.xml").unwrap_err();
    assert!(matches!(error, TopologyError::NoCpu { .. }), "{error}");
}

#[test]
fn versions_2_and_3_are_read_and_others_are_told_apart() {
    for version in ["2.0", "2.1", "2", "3.0"] {
        let text = export("", TWO_PUS).replace("2.0", version);
        assert_eq!(read(&text).cpus().len(), 2, "{version}");
    }
    let one =
        refused("<?xml version=\"1.0\"?>\n<topology>\n <object type=\"Machine\"/></topology>");
    assert_eq!((one.0, one.1), (2, 1));
    assert!(one.2.contains("export of hwloc 1") && one.2.contains("lstopo -i"), "{}", one.2);
    for version in ["1.11", "4.0", "", "two"] {
        let (line, _, reason) = refused(&export("", TWO_PUS).replace("2.0", version));
        assert_eq!(line, 1);
        assert!(reason.contains(&format!("'{version}'")), "{reason}");
    }
}

#[test]
fn a_byte_order_mark_and_a_document_type_are_no_harm() {
    let text = export("", TWO_PUS);
    let text = format!(
        "\u{feff}<?xml version=\"1.0\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n{text}"
    );
    assert_eq!(read(&text).cpus().len(), 2);
}

#[test]
fn a_file_that_is_not_an_export_is_refused_with_its_place() {
    let in_machine = |objects: &str| export("", objects);
    for (text, line, column, word) in [
        (String::new(), 1, 1, "no <topology>"),
        ("a letter\n".into(), 2, 1, "no <topology>"),
        ("<html><body/></html>".into(), 1, 1, "found <html>"),
        ("<topology version=\"2.0\">\n</topology>".into(), 2, 12, "no <topology>"),
        ("<topology version=\"2.0\">\n<object/></topology>".into(), 2, 1, "no type"),
        (
            "<topology version=\"2.0\"><object type=\"Core\"/></topology>".into(),
            1,
            25,
            "must be a Machine",
        ),
        (in_machine("<object type=\"Machine\"/>"), 3, 1, "inside another"),
        (
            in_machine("<info><object type=\"PU\" os_index=\"0\"/></info>"),
            3,
            7,
            "must be inside <topology>",
        ),
        (
            in_machine("</object></topology><topology version='2.0'><object type='Machine'>"),
            3,
            45,
            "second machine",
        ),
        (in_machine("  <object type=\"Pakage\"/>"), 3, 3, "unknown type of object 'Pakage'"),
        (in_machine("<object type=\"L6Cache\"/>"), 3, 1, "unknown type"),
        (in_machine("<object type=\"LéCache\"/>"), 3, 1, "unknown type"),
        (in_machine("<object type=\"L3Cache\" depth=\"2\"/>"), 3, 1, "depth or cache_type"),
        (in_machine("<object type=\"L3Cache\" cache_type=\"2\"/>"), 3, 1, "depth or cache_type"),
        (in_machine("<object type=\"L1iCache\" cache_type=\"0\"/>"), 3, 1, "depth or cache_type"),
        (in_machine("<object type=\"PU\"/>"), 3, 1, "no os_index"),
        (in_machine("<object type=\"PU\" os_index=\"-1\"/>"), 3, 1, "from 0 to 8191"),
        (in_machine("<object type=\"PU\" os_index=\"8192\"/>"), 3, 1, "from 0 to 8191"),
        (in_machine("<object type=\"PU\" os_index=\"1\" cpuset=\"0x1\"/>"), 3, 1, "PU 1 alone"),
        (in_machine("<object type=\"PU\" os_index=\"1\" cpuset=\"0x3\"/>"), 3, 1, "PU 1 alone"),
        (
            in_machine("<object type=\"PU\" os_index=\"1\" cpuset=\"zz\"/>"),
            3,
            1,
            "cpuset contains 'zz'",
        ),
        (in_machine("<object type=\"PU\" os_index=\"1\" cpuset=\"0xf...f\"/>"), 3, 1, "0xf...f"),
        (in_machine(&format!("{TWO_PUS}\n{TWO_PUS}")), 5, 1, "PU 0 is defined twice"),
        (export("cpuset=\"0x2\"", TWO_PUS), 3, 1, "not in the cpuset of the machine"),
        (
            export(&format!("cpuset=\"0x1{}\"", ",".repeat(256)), TWO_PUS),
            2,
            1,
            "highest CPU number is 8191",
        ),
        (export(&format!("cpuset=\"{}\"", ",".repeat(1 << 20)), TWO_PUS), 2, 1, "longer than"),
        (
            in_machine("<object type=\"PU\" os_index=\"0\"><object type=\"Core\"/></object>"),
            3,
            32,
            "must not be inside a PU",
        ),
        (in_machine("<object type=\"NUMANode\" os_index=\"0\"/>"), 3, 1, "no cpuset"),
        (
            in_machine(&"<object type=\"NUMANode\" os_index=\"0\" cpuset=\"0x1\"/>\n".repeat(2)),
            4,
            1,
            "node 0 is defined twice",
        ),
    ] {
        let (at_line, at_column, reason) = refused(&text);
        assert!(reason.contains(word), "{text:.300}: {reason}");
        assert_eq!((at_line, at_column), (line, column), "{text:.300}: {reason}");
    }
}

#[test]
fn an_export_without_a_cpu_is_refused_by_name() {
    let error = Topology::from_xml_str(&export("", ""), "machine.xml").unwrap_err().to_string();
    assert!(error.contains("xml:machine.xml has no CPU"), "{error}");
}

#[test]
fn malformed_xml_is_refused_with_its_line() {
    let whole = export("", TWO_PUS);
    for (text, line, word) in [
        (whole.replace("</topology>", ""), 7, "cut off"),
        (whole[..whole.len() - 3].to_owned(), 6, "well-formed"),
        (whole[..60].to_owned(), 3, "well-formed"),
        (whole.replace("</object>\n", "</objet>\n"), 5, "well-formed"),
        (whole.replace("os_index=\"1\"", "os_index=1"), 4, "well-formed"),
        (whole.replace("os_index=\"1\"", "os_index=\"1\" os_index=\"2\""), 4, "well-formed"),
        (whole.replace("0x2", "&two;"), 4, "cpuset"),
        (format!("{whole}</object>"), 7, "well-formed"),
    ] {
        let (at_line, _, reason) = refused(&text);
        assert!(reason.contains(word), "{text}: {reason}");
        assert_eq!(at_line, line, "{text}: {reason}");
    }
}

#[test]
fn entities_are_not_expanded_and_a_document_type_with_more_in_it_is_refused() {
    let mut laughs = String::from("<!DOCTYPE topology [\n<!ENTITY a0 \"ha\">\n");
    for n in 1..20 {
        laughs.push_str(&format!("<!ENTITY a{n} \"{}\">\n", format!("&a{};", n - 1).repeat(20)));
    }
    let text = format!("{laughs}]>\n{}", export("name=\"&a19;\"", TWO_PUS));
    let (line, _, reason) = refused(&text);
    assert!(line == 1 && reason.contains("document type"), "{line}: {reason}");

    let outside = "<!DOCTYPE topology [<!ENTITY f SYSTEM \"file:///etc/hostname\">]>";
    assert!(
        refused(&format!("{outside}{}", export("name=\"&f;\"", ""))).2.contains("document type")
    );
    let (_, _, reason) = refused(&export("name=\"&f;\"", TWO_PUS));
    assert!(reason.contains("'name'"), "{reason}");
}

#[test]
fn deep_wide_and_long_files_are_refused_without_ado() {
    let deep = |levels: usize| {
        let (open, close) = ("<object type=\"Group\">", "</object>");
        export("", &format!("{}{TWO_PUS}{}", open.repeat(levels), close.repeat(levels)))
    };
    assert_eq!(read(&deep(125)).cpus().len(), 2);
    for levels in [126, 200_000] {
        assert!(refused(&deep(levels)).2.contains("more than 128 deep"));
    }
    let deep_beside = export("", &"<info>".repeat(100_000));
    assert!(refused(&deep_beside).2.contains("more than 128 deep"));
    let many: String = (0..100_000).map(|n| format!(" a{n}=\"\"")).collect();
    assert!(refused(&export(&many, TWO_PUS)).2.contains("more than 64 attributes"));
    // Many elements without meaning are just read.
    let beside = "<info name=\"a\" value=\"b\"/>".repeat(100_000);
    assert_eq!(read(&export("", &format!("{beside}{TWO_PUS}"))).cpus().len(), 2);
}

#[test]
fn a_file_that_is_none_or_not_text_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("machine.xml");
    let error = |path: &std::path::Path| Topology::from_xml(path).unwrap_err().to_string();
    assert!(error(&path).contains("machine.xml"));
    assert!(error(folder.path()).contains("not a regular file"));
    std::fs::write(&path, b"\xff\xfe<topology/>").unwrap();
    assert!(error(&path).contains("machine.xml"));
    let long = std::fs::File::create(&path).unwrap();
    long.set_len((64 << 20) + 1).unwrap();
    assert!(error(&path).contains("longer than 64 MiB"), "{:.300}", error(&path));
    std::fs::write(&path, export("", TWO_PUS)).unwrap();
    assert_eq!(Topology::from_xml(&path).unwrap().cpus().len(), 2);
}
