//! Runs every stored input, and seeded mutations of each, through its target. `COREWISE_LONG=1`
//! makes many more mutations.
#![cfg(not(loom))]

use std::path::{Path, PathBuf};

use corewise_fuzz::{Mutator, TARGETS, Target, seeds};

fn corpus(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let mut inputs: Vec<_> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("a folder that can be read").path())
        .map(|path| {
            let bytes = std::fs::read(&path).expect("a file that can be read");
            (path, bytes)
        })
        .collect();
    assert!(!inputs.is_empty(), "{} is empty", folder.display());
    inputs.sort();
    inputs
}

/// Runs the target. If it fails, prints the input's name and leaves the input behind to be stored.
fn run(target: &str, function: Target, what: &str, input: &[u8]) {
    if std::panic::catch_unwind(|| function(input)).is_err() {
        let path = std::env::temp_dir().join(format!("corewise-fuzz-{target}-failure"));
        std::fs::write(&path, input).expect("a temporary folder that can be written");
        panic!("{target}: {what} fails as shown above; the input is in {}", path.display());
    }
}

fn replay(target: &str) {
    let (_, function) = TARGETS.into_iter().find(|(name, _)| *name == target).expect("a target");
    for (path, input) in corpus(target) {
        run(target, function, &path.display().to_string(), &input);
    }
}

fn mutations(target: &str, each: usize) {
    let long = std::env::var_os("COREWISE_LONG").is_some_and(|value| value == "1");
    let each = if long { each * 100 } else { each };
    let (_, function) = TARGETS.into_iter().find(|(name, _)| *name == target).expect("a target");
    let inputs = corpus(target);
    for (number, (path, input)) in inputs.iter().enumerate() {
        let mut mutator = Mutator::new(0xc0de_0000 + number as u64);
        for round in 0..each {
            let (_, other) = &inputs[round % inputs.len()];
            let variant = mutator.mutate(input, other);
            run(target, function, &format!("mutation {round} of {}", path.display()), &variant);
        }
    }
}

#[test]
fn stored_inputs_of_the_handshake() {
    replay("handshake");
}

#[test]
fn stored_inputs_of_the_transmission_phase() {
    replay("transmission");
}

#[test]
fn stored_inputs_of_whole_connections() {
    replay("connection");
}

#[test]
fn stored_descriptions_of_machines() {
    replay("topology");
}

#[test]
fn stored_partition_tables() {
    replay("partition_table");
}

#[test]
fn stored_headers_of_luks() {
    replay("luks");
}

#[test]
fn stored_overlays() {
    replay("overlay");
}

#[test]
fn mutated_overlays() {
    mutations("overlay", 15);
}

#[test]
fn stored_kernel_logs() {
    replay("kernel_log");
}

#[test]
fn stored_handshakes_of_servers() {
    replay("remote");
}

#[test]
fn mutated_handshakes_of_servers() {
    mutations("remote", 2000);
}

#[test]
fn stored_answers_of_servers() {
    replay("answers");
}

#[test]
fn mutated_answers_of_servers() {
    mutations("answers", 500);
}

#[test]
fn stored_guests() {
    replay("guest");
}

#[test]
fn mutated_guests() {
    mutations("guest", 60);
}

#[test]
fn mutated_partition_tables() {
    mutations("partition_table", 300);
}

#[test]
fn mutated_headers_of_luks() {
    mutations("luks", 300);
}

#[test]
fn mutated_kernel_logs() {
    mutations("kernel_log", 300);
}

#[test]
fn mutated_descriptions_of_machines() {
    mutations("topology", 500);
}

#[test]
fn mutated_inputs_of_the_handshake() {
    mutations("handshake", 500);
}

#[test]
fn mutated_inputs_of_the_transmission_phase() {
    mutations("transmission", 60);
}

#[test]
fn mutated_inputs_of_whole_connections() {
    mutations("connection", 60);
}

#[test]
fn the_seeds_stand_in_the_corpora_as_the_code_makes_them() {
    for (target, seeds) in seeds::all() {
        let stored = corpus(target);
        for (name, bytes) in seeds {
            let found = stored.iter().find(|(path, _)| path.ends_with(name));
            assert!(
                found.is_some_and(|(_, stored)| *stored == bytes),
                "corpus/{target}/{name} differs: run `cargo run -p corewise-fuzz --bin seeds`"
            );
        }
    }
}

#[test]
fn stored_records_of_checkpoints() {
    replay("checkpoint_record");
}

#[test]
fn mutated_records_of_checkpoints() {
    mutations("checkpoint_record", 300);
}
