//! The fuzz target `partition_table`: under cargo-fuzz it is driven by libFuzzer; otherwise it
//! replays the files that it is given.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| corewise_fuzz::partition_table(data));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    corewise_fuzz::replay_arguments(corewise_fuzz::partition_table)
}
