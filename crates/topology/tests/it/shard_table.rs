//! Test of the shard layout for size 8, line by line against the published table.

use corewise_topology::{AffinityScope, Pods, Topology, shard_layout};

/// Cores and the shards that the table gives them.
fn table() -> Vec<(u32, Vec<u32>)> {
    let lines = include_str!("../data/shard-layout-size8.csv").lines().skip(1);
    let rows = lines.map(|line| {
        let [cores, count, layout] = line.split(',').collect::<Vec<_>>()[..] else {
            panic!("three columns: {line}");
        };
        let shards: Vec<u32> = layout.split('+').map(|cores| cores.parse().unwrap()).collect();
        assert_eq!(count.parse(), Ok(shards.len()), "{line}");
        (cores.parse().unwrap(), shards)
    });
    rows.collect()
}

#[test]
fn every_line_of_the_table_holds() {
    let table = table();
    assert_eq!(table.len(), 131, "the whole table was read");
    for (cores, shards) in table {
        assert_eq!(shard_layout(cores, 8).shards(), shards, "{cores} cores");
    }
}

#[test]
fn pods_of_a_machine_with_one_cache_follow_the_table() {
    for (cores, shards) in table() {
        for threads in [1, 2] {
            let machine = format!("l3:1 core:{cores} pu:{threads}");
            let pods = Pods::new(&Topology::synthetic(&machine).unwrap(), 8);
            let sizes = pods.scope(AffinityScope::CacheShard).iter();
            let sizes: Vec<u32> = sizes.map(|pod| pod.cpus.len() as u32 / threads).collect();
            assert_eq!(sizes, shards, "{machine}");
        }
    }
}
