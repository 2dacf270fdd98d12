//! Placement of probes, the whole path: declared, brought up on pools of a synthetic machine, and
//! seen where they ran. `src/placement/` tests the choice itself. Rules are those of
//! `RULES.md`, section 1.2.
#![allow(missing_docs, clippy::unwrap_used)]

use crate::support::{Rig, decl};
use corewise_device::{BringUp, BringUpOptions, ProbeError, ProbeOutcome, ProbeType};
use corewise_sync::context::Placement;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

/// Two shards of eight cores on each of two nodes.
const TWO_NODES: &str = "numa:2 l3:1 core:16 pu:1";

fn up(rig: &Rig, names: &[&str], node: Option<u32>) -> BringUp {
    let decls = names.iter().map(|name| decl(name, &[]).node(node)).collect();
    rig.manager.bring_up(decls, &BringUpOptions::new().keep_going(true)).unwrap()
}

/// Returns how many items the workers of all pools have run. Nothing can be brought up afterwards.
fn queued(rig: &Rig) -> u64 {
    // A worker counts its item after the item is over.
    rig.pools.shutdown();
    rig.pools.report().iter().map(|pool| pool.ran).sum()
}

#[test]
fn rule_6_async_and_sync_probes_are_both_placed_on_their_node() {
    for probe_type in [ProbeType::PreferAsynchronous, ProbeType::ForceSynchronous] {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let see = seen.clone();
        let rig = Rig::new(TWO_NODES).with(|d| {
            d.probe_type(probe_type).probe(move |cx| {
                see.lock().unwrap().push((cx.node(), Placement::current().and_then(|t| t.node)));
                Ok(())
            })
        });
        assert!(up(&rig, &["a", "b", "c"], Some(1)).is_complete());
        assert_eq!(*seen.lock().unwrap(), [(Some(1), Some(1)); 3], "{probe_type:?}");
    }
}

#[test]
fn rule_7_each_probe_is_queued_once_and_never_again_from_inside_the_worker() {
    for probe_type in [ProbeType::PreferAsynchronous, ProbeType::ForceSynchronous] {
        let rig = Rig::new(TWO_NODES).with(|d| d.probe_type(probe_type));
        let names: Vec<String> = (0..20).map(|n| format!("d{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert!(up(&rig, &names, Some(1)).is_complete());
        assert_eq!(queued(&rig), 20, "{probe_type:?}");
    }
}

#[test]
fn rule_8_without_a_node_async_is_still_queued_and_sync_queues_nothing() {
    for (probe_type, expected) in
        [(ProbeType::PreferAsynchronous, 5), (ProbeType::ForceSynchronous, 0)]
    {
        let rig = Rig::new(TWO_NODES).with(|d| d.probe_type(probe_type));
        assert!(up(&rig, &["a", "b", "c"], None).is_complete());
        assert!(up(&rig, &["d", "e"], Some(7)).is_complete(), "there is no node 7");
        assert_eq!(queued(&rig), expected, "{probe_type:?}");
    }
}

#[test]
fn rule_9_the_result_of_a_placed_synchronous_probe_is_not_lost() {
    let rig = Rig::new(TWO_NODES).with(|d| {
        d.probe_type(ProbeType::ForceSynchronous).probe(|cx| match cx.name() {
            "bad" => Err(ProbeError::failed("no answer from the disk")),
            "worse" => panic!("on purpose"),
            _ => Ok(()),
        })
    });
    let up = up(&rig, &["good", "bad", "worse"], Some(0));
    assert_eq!(queued(&rig), 3, "all were placed");
    let outcome = |name: &str| up.device(name).unwrap().outcome.clone();
    assert_eq!(outcome("good"), ProbeOutcome::Bound);
    let ProbeOutcome::Failed(bad) = outcome("bad") else { panic!("{up:?}") };
    assert_eq!(bad.to_string(), "no answer from the disk");
    let ProbeOutcome::Failed(worse) = outcome("worse") else { panic!("{up:?}") };
    assert_eq!(worse.to_string(), "the probe panicked: on purpose");
}

#[test]
fn rule_10_devices_of_one_node_are_spread_over_its_cpus_and_shards() {
    let rig = Rig::new(TWO_NODES).with(|d| d);
    let names: Vec<String> = (0..16).map(|n| format!("d{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let up = up(&rig, &names, Some(1));
    assert!(up.timeline().spans().iter().all(|span| span.node == Some(1)));
    let cpus: BTreeSet<u32> = up.timeline().spans().iter().filter_map(|s| s.cpu).collect();
    assert_eq!(cpus.into_iter().collect::<Vec<_>>(), (16..32).collect::<Vec<u32>>());
}
