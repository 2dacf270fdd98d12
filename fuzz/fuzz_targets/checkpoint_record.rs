//! The fuzz target `checkpoint_record`: under cargo-fuzz, libFuzzer drives it; otherwise it replays
//! the files of its arguments.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| corewise_fuzz::checkpoint_record(data));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    corewise_fuzz::replay_arguments(corewise_fuzz::checkpoint_record)
}
