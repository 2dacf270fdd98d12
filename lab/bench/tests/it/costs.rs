//! `corewise-bench machine`: the file, the picture, and the tables, also where few CPUs may be used.
#![allow(clippy::unwrap_used)]

use corewise_costs::{Costs, Distance};
use corewise_topology::{CpuSet, Machine, pin_current_thread};
use quick_xml::Reader;
use quick_xml::events::Event;

use crate::Folder;

fn is_well_formed(xml: &str) {
    let mut reader = Reader::from_str(xml);
    while reader.read_event().unwrap() != Event::Eof {}
}

#[test]
fn the_file_is_read_again_and_the_picture_shows_each_pair() {
    let folder = Folder::new();
    let files = ["--out", "costs.toml", "--svg", "costs.svg"];
    let ran = folder.bench(["machine", "--quick"].iter().chain(&files)).ok();
    let ran = ran.says(&["Costs of this machine", "full fence", "Wake-ups", "Allocator"]);
    assert_eq!(ran.stderr, "", "{ran}");
    assert!(!ran.stdout.contains('\x1b'), "colours that nobody can see\n{ran}");
    assert!(ran.stdout.lines().all(|line| line.chars().count() <= 100), "{ran}");
    assert_eq!(folder.list(), ["costs.svg", "costs.toml"], "something was left behind");

    let costs =
        Costs::read(&std::fs::read_to_string(folder.path().join("costs.toml")).unwrap()).unwrap();
    let cpus = Machine::live().unwrap().online().len().min(64);
    assert_eq!(costs.matrix.unwrap().cpus.len(), cpus);
    let picture = std::fs::read_to_string(folder.path().join("costs.svg")).unwrap();
    is_well_formed(&picture);
    let cells = picture.matches("</title><rect").count();
    assert_eq!(cells, 2 * cpus * (cpus - 1), "a cell for each pair, by stores and by swaps");
}

#[test]
fn a_process_that_may_use_one_cpu_measures_that_one_which_has_no_distances_and_all_else() {
    let folder = Folder::new();
    let last = Machine::live().unwrap().online().last().unwrap();
    // A child of this thread inherits that.
    pin_current_thread(&CpuSet::from_iter([last])).unwrap();
    let files = ["--out", "one.toml", "--svg", "one.svg"];
    let ran = folder.bench(["machine", "--quick", "--json"].iter().chain(&files)).ok();
    let json: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(json["machine"]["cpus"], last.to_string());
    assert_eq!(json["matrix"]["cpus"], serde_json::json!([last.number()]));
    assert!(json["call"]["bare_ns"]["p50"].as_f64().unwrap() > 0.0, "{ran}");
    let costs =
        Costs::read(&std::fs::read_to_string(folder.path().join("one.toml")).unwrap()).unwrap();
    assert!(costs.distance.is_empty());
    assert_eq!(costs.contended.iter().map(|one| one.cpus).collect::<Vec<_>>(), [1]);
    assert!(!costs.wake.is_empty());
    assert!(costs.wake.iter().all(|wake| wake.distance == Distance::Same));
    assert!(costs.call.membarrier_one_ns.is_none());
    assert!(costs.allocator.iter().all(|one| one.free_elsewhere_ns.is_none()));
    let picture = std::fs::read_to_string(folder.path().join("one.svg")).unwrap();
    is_well_formed(&picture);
    assert!(picture.contains("The machine has one CPU"), "{picture}");
}

#[test]
fn wrong_usage_is_reported_before_the_measurement() {
    let folder = Folder::new();
    let refused = |code: i32, args: &[&str], says: &[&str]| {
        folder.bench([&["machine"], args].concat()).code(code).complains(says);
    };
    refused(1, &["--out", "no/costs.toml"], &["cannot write 'no/costs.toml'"]);
    refused(1, &["--svg", "no/costs.svg"], &["cannot write 'no/costs.svg'"]);
    refused(1, &["--out", "-", "--json"], &["--out - and --json"]);
    refused(1, &["--cpus", "0,4000"], &["can't use CPUs 4000", "this process may use CPUs"]);
    refused(2, &["--cpus", "3-1"], &["--cpus"]);
    refused(2, &["--cpus", ""], &["0-3,8"]);
    refused(2, &["workqueue"], &["workqueue"]);
    folder.bench(["--quick", "machine"]).code(2).complains(&["machine"]);
    assert_eq!(folder.list(), [""; 0]);
}
