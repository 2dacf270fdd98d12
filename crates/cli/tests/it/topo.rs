//! `corewise topo`: the JSON for programs, the text for people, and every source.
#![allow(missing_docs, clippy::unwrap_used)]

use crate::common::Folder;
use serde_json::{Value, json};

/// Returns the JSON of `corewise topo ARGS`.
#[track_caller]
fn topo(folder: &Folder, args: &[&str]) -> Value {
    folder.corewise([&["topo", "--json"], args].concat()).ok().json()
}

/// Place of a CPU: its core, package, L3 and node.
type At = (u32, u32, u32, u32);

/// Writes a saved sysfs tree.
fn sysfs(folder: &Folder, cpus: &[At], online: &str) -> String {
    let list = |keep: &dyn Fn(&At) -> bool| {
        let members = cpus.iter().enumerate().filter(|(_, cpu)| keep(cpu));
        members.map(|(index, _)| index.to_string()).collect::<Vec<_>>().join(",")
    };
    let root = "saved/devices/system";
    let last = cpus.len() - 1;
    folder.write(&format!("{root}/cpu/possible"), format!("0-{last}\n"));
    folder.write(&format!("{root}/cpu/present"), format!("0-{last}\n"));
    folder.write(&format!("{root}/cpu/online"), format!("{online}\n"));
    folder.write(&format!("{root}/cpu/isolated"), "\n");
    for (cpu, of) in cpus.iter().enumerate() {
        let (core, package, l3, node) = *of;
        let dir = format!("{root}/cpu/cpu{cpu}");
        let siblings = list(&|other| (other.0, other.1) == (core, package));
        folder.write(&format!("{dir}/topology/core_id"), format!("{core}\n"));
        folder.write(&format!("{dir}/topology/physical_package_id"), format!("{package}\n"));
        folder.write(&format!("{dir}/topology/thread_siblings_list"), format!("{siblings}\n"));
        folder.write(&format!("{dir}/topology/core_cpus_list"), format!("{siblings}\n"));
        folder.write(&format!("{dir}/cache/index3/level"), "3\n");
        folder.write(&format!("{dir}/cache/index3/type"), "Unified\n");
        let shared = list(&|other| other.2 == l3);
        folder.write(&format!("{dir}/cache/index3/shared_cpu_list"), format!("{shared}\n"));
        let members = list(&|other| other.3 == node);
        folder.write(&format!("{root}/node/node{node}/cpulist"), format!("{members}\n"));
    }
    let mut nodes: Vec<u32> = cpus.iter().map(|cpu| cpu.3).collect();
    nodes.dedup();
    let nodes = nodes.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    folder.write(&format!("{root}/node/online"), format!("{nodes}\n"));
    folder.write(&format!("{root}/node/possible"), format!("{nodes}\n"));
    format!("sysfs:{}", folder.join("saved").display())
}

#[test]
fn the_json_of_this_machine_has_the_promised_shape() {
    let folder = Folder::new();
    let json = topo(&folder, &[]);
    assert_eq!(json["source"], "live");
    assert_eq!(json["cache_shard_size"], 8);
    let cpus = json["cpus"].as_array().unwrap();
    assert!(!cpus.is_empty());
    for cpu in cpus {
        for key in ["cpu", "core", "package", "llc", "node", "online"] {
            assert!(cpu.get(key).is_some(), "no {key} in {cpu}");
        }
        assert!(cpu["cpu"].is_u64() && cpu["online"].is_boolean());
    }
    for node in json["nodes"].as_array().unwrap() {
        assert!(node["node"].is_u64() && node["cpus"].is_string(), "{node}");
    }
    for scope in ["cpu", "smt", "cache", "cache_shard", "numa", "system"] {
        let pods = json["scopes"][scope].as_array().unwrap();
        assert!(!pods.is_empty(), "{scope}");
        for (index, pod) in pods.iter().enumerate() {
            assert_eq!(pod["pod"], index, "{scope}");
            assert!(pod["cpus"].is_string() && pod.get("node").is_some(), "{scope}: {pod}");
        }
    }
}

#[test]
fn the_shard_size_is_the_users_choice() {
    let folder = Folder::new();
    let from = ["--from", "synthetic:l3:1 core:36 pu:1"];
    let shards = |size: &str| {
        let json = topo(&folder, &[from[0], from[1], "--shard-size", size]);
        assert_eq!(json["cache_shard_size"].to_string(), size);
        json["caches"][0]["shards"].clone()
    };
    assert_eq!(shards("8"), json!([8, 7, 7, 7, 7]));
    assert_eq!(shards("12"), json!([12, 12, 12]));
    assert_eq!(shards("99"), json!([36]));
    assert_eq!(shards("1"), json!(vec![2; 18]));
    let zero = ["topo", "--json", from[0], from[1], "--shard-size", "0"];
    folder.corewise(zero).ok().complains(&["warning", "read as 1"]);
}

#[test]
fn the_text_names_scopes_and_shards_and_fits_the_width() {
    let folder = Folder::new();
    let args = ["topo", "--from", "synthetic:package:2 l3:4 core:8 pu:2"];
    let ran = folder.corewise(args).ok();
    let ran = ran.says(&[
        "128 CPUs, 64 cores, 8 last-level caches, 2 packages",
        "cache_shard",
        "caches 0-7: 8 cores in 1 shard: 8",
        "more",
    ]);
    assert!(ran.stdout.lines().all(|line| line.len() <= 100), "{ran}");
    assert!(!ran.stdout.contains('\x1b'), "colours that nobody can see\n{ran}");
}

#[test]
fn the_picture_of_any_machine_is_well_formed_and_written_in_one_piece() {
    let folder = Folder::new();
    let far = |n: u32| (n % 4 % 2, n % 4 / 2, n % 4 / 2, n % 4 / 2);
    let far = sysfs(&folder, &(0..8).map(far).collect::<Vec<_>>(), "0-6");
    let machines = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../topology/tests/data");
    let export = format!("xml:{}", machines.join("xml/two-nodes-far-siblings.xml").display());
    for (from, cpus) in [
        ("live", None),
        ("synthetic:l3:1 core:512 pu:1", Some(512)),
        (&far, Some(7)),
        (&export, Some(48)),
    ] {
        for scope in ["cpu", "smt", "cache", "cache_shard", "numa", "system"] {
            let args = ["topo", "--from", from, "--svg", "t.svg", "--scope", scope];
            folder.corewise(args).ok().says(&["drew ", scope, "t.svg"]);
            let svg = std::fs::read_to_string(folder.join("t.svg")).unwrap();
            crate::common::well_formed(&svg);
            if let Some(cpus) = cpus {
                assert!(svg.contains(&format!("<desc id=\"desc\">{cpus} CPUs")), "{svg}");
            }
            assert!(svg.contains("</svg>") && !svg.contains("<script"));
        }
    }
    assert!(folder.join("t.svg").metadata().unwrap().len() > 1000);
    assert!(folder.list().iter().all(|name| !name.contains(".corewise-")), "{:?}", folder.list());
}

#[test]
fn a_picture_goes_to_stdout_too_and_what_is_wrong_with_its_place_is_said() {
    let folder = Folder::new();
    let ran = folder.corewise(["topo", "--svg", "-", "--from", "synthetic:core:72 pu:1"]).ok();
    crate::common::well_formed(&ran.stdout);
    assert!(ran.stdout.starts_with("<svg ") && ran.stdout.ends_with("</svg>\n"), "{ran}");
    let ran = folder.corewise(["topo", "--svg", "missing/t.svg"]).code(1);
    ran.complains(&["error: cannot write the picture 'missing/t.svg'"]);
    folder.corewise(["topo", "--scope", "numa"]).code(2).complains(&["--svg"]);
    folder.corewise(["topo", "--svg", "-", "--scope", "l3"]).code(2).complains(&["cache_shard"]);
    assert_eq!(folder.list(), [""; 0]);
}

#[test]
fn what_is_wrong_with_a_source_is_told_with_its_place() {
    let folder = Folder::new();
    folder.write("m.xml", "<topology version=\"2.0\">\n <object type=\"PU\"/>");
    for (from, problem) in [
        ("sysfs:/nowhere", &["/nowhere"][..]),
        ("synthetic:core:two", &["two", "help"]),
        (
            "synthetic:core:2 pu:2(indexes=0,1)",
            &["'0,1' at character 21", "2 numbers for 4 objects"],
        ),
        ("xml:m.xml", &["m.xml, line 2, column 2", "Machine"]),
        ("xml:nowhere.xml", &["nowhere.xml"]),
    ] {
        let ran = folder.corewise(["topo", "--from", from]).code(1);
        ran.complains(&["error: cannot read the topology"]).complains(problem);
    }
}

#[test]
fn a_reader_that_leaves_early_is_no_failure() {
    use std::process::Stdio;
    let folder = Folder::new();
    let mut command = folder.command(crate::common::COREWISE);
    command.args(["topo", "--json", "--from", "synthetic:core:4096 pu:2"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // More than a pipe holds is on its way when the reader goes.
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn help_and_version_are_printed() {
    let folder = Folder::new();
    folder.corewise(["--help"]).ok().says(&["Examples:", "corewise "]);
    folder.corewise(["topo", "--help"]).ok().says(&["Examples:", "corewise topo"]);
    folder.corewise(["--version"]).ok().says(&[env!("CARGO_PKG_VERSION")]);
}

#[test]
fn the_headline_counts_the_cpus_that_are_online_and_names_the_others() {
    let folder = Folder::new();
    let cpus: Vec<At> = (0..8).map(|cpu| (cpu / 2, 0, 0, 0)).collect();
    let source = sysfs(&folder, &cpus, "0-4");
    let text = folder.corewise(["topo", "--from", &source]).ok().stdout;
    assert!(text.contains("\n  5 CPUs, 3 cores, 1 last-level cache"), "{text}");
    assert!(text.contains("\n  offline: CPUs 5-7\n"), "{text}");
    assert!(!text.contains("may use"), "{text}");
    let picture = folder.corewise(["topo", "--from", &source, "--svg", "-"]).ok().stdout;
    assert!(picture.contains("5 CPUs, 3 cores") && picture.contains("3 offline CPUs"), "{picture}");
}

/// Runs the program on the highest CPU of this machine with a made-up list of online CPUs. Some
/// containers are like that: their `/sys` counts CPUs from 0, while masks have the host's numbers.
/// Returns `None` if the machine doesn't allow that.
fn with_a_made_up_list(folder: &Folder, cpu: &str, args: &str) -> Option<crate::common::Ran> {
    let list = folder.write("online", "0\n");
    let script = format!(
        "mount --bind '{}' /sys/devices/system/cpu/online || exit 77\nexec taskset -c {cpu} '{}' {args}",
        list.display(),
        crate::common::COREWISE,
    );
    let mut command = folder.command("unshare");
    command.args(["-m", "sh", "-c", &script]);
    let ran = crate::common::run(command);
    let refused = ran.code == Some(77) || ran.stderr.starts_with("unshare: ");
    (!refused).then_some(ran)
}

#[test]
fn a_cpu_that_the_process_may_use_is_online_whatever_a_made_up_list_says() {
    let folder = Folder::new();
    let cpus = topo(&folder, &[])["cpus"].as_array().unwrap().clone();
    let last = cpus.last().unwrap();
    let cpu = last["cpu"].to_string();
    if cpu == "0" || last["online"] == false {
        return;
    }
    let Some(ran) = with_a_made_up_list(&folder, &cpu, "topo --json") else { return };
    let json = ran.ok().json();
    let found = json["cpus"].as_array().unwrap().last().unwrap();
    assert_eq!(found, last);
    assert_eq!(json["allowed"], cpu);
    let text = with_a_made_up_list(&folder, &cpu, "topo").unwrap().ok().stdout;
    let rows = text.lines().filter_map(|line| line.strip_suffix("  online"));
    let cpus: Vec<_> = rows.map(|row| row.split_whitespace().last().unwrap()).collect();
    assert_eq!(cpus, [cpu.as_str()], "{text}");
    // The server's next check finds the same.
    let ran = with_a_made_up_list(&folder, &cpu, "up --for 1s").unwrap().ok();
    assert!(!ran.stderr.contains("the set is empty"), "{ran}");
    assert!(!ran.stderr.contains("none of them is online"), "{ran}");
}

/// Returns a described machine of the topology crate as a saved tree.
fn described(folder: &Folder, name: &str) -> String {
    let root =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../topology/tests/data/sysfs");
    let lines = std::fs::read_to_string(root.join(format!("{name}.sysfs"))).unwrap();
    for line in lines.lines() {
        let (file, text) = line.split_once(':').unwrap();
        folder.write(&format!("{name}/{file}"), format!("{text}\n"));
    }
    format!("sysfs:{}", folder.join(name).display())
}

#[test]
fn kinds_of_cores_their_clusters_memory_alone_and_divided_caches_are_said() {
    let folder = Folder::new();
    let hybrid = described(&folder, "hybrid-8-and-16");
    for (source, wanted) in [
        (
            hybrid.as_str(),
            &[
                "cpu_core (CPUs 0-15), cpu_atom (CPUs 16-31)",
                "4 clusters of 4 cores with a lower cache in common",
            ][..],
        ),
        (
            "synthetic:package:1 group:2 [numa] [numa] l3:1 core:4 pu:1",
            &["NUMA nodes 1,3 have memory only"],
        ),
        (
            "synthetic:package:2 l3:1 numa:2 core:4 pu:1",
            &["caches 0-1; 2-3: one each in the hardware"],
        ),
    ] {
        let text = folder.corewise(["topo", "--from", source]).ok().stdout;
        let picture = folder.corewise(["topo", "--from", source, "--svg", "-"]).ok().stdout;
        for wanted in wanted {
            assert!(text.contains(wanted), "{wanted}\n{text}");
            assert!(picture.contains(wanted), "{wanted}\n{picture}");
        }
    }
    let json = topo(&folder, &["--from", &hybrid]);
    assert_eq!(json["kinds"][1], json!({ "kind": 1, "name": "cpu_atom", "cpus": "16-31" }));
    let cpus = json["cpus"].as_array().unwrap();
    assert_eq!((&cpus[16]["kind"], &cpus[16]["cluster"]), (&json!(1), &cpus[19]["cluster"]));
    assert_eq!(json["caches"][0]["part_of"], Value::Null);
    let json = topo(&folder, &["--from", "synthetic:package:2 l3:1 numa:2 core:4 pu:1"]);
    let parts = json["caches"].as_array().unwrap().iter();
    assert_eq!(parts.map(|cache| cache["part_of"].clone()).collect::<Vec<_>>(), [0, 0, 2, 2]);
    let none =
        folder.corewise(["topo", "--from", "synthetic:package:1 l3:1 l2:4 core:1 pu:2"]).ok();
    for word in ["kinds", "clusters", "memory", "hardware"] {
        assert!(!none.stdout.contains(word), "{none}");
    }
}
