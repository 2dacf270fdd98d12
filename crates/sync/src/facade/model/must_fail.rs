//! The proof that a model can see what it is there to see, where what it sees ends the process.

use std::path::Path;
use std::process::Command;

const CHILD: &str = "COREWISE_MODEL_THAT_FAILS";

/// Runs `model`, which has to fail, in a process of its own (a deadlock that is found can end in
/// an abort, since the model's objects are dropped outside of it), and returns what that process
/// printed.
///
/// Call it as the whole body of a test; `test` is that function's name.
///
/// # Panics
/// Where the model passes: then the fence, or whatever was taken out, isn't needed, or the model
/// doesn't look where it would be.
pub fn must_fail(test: &str, model: impl FnOnce()) -> String {
    if std::env::var_os(CHILD).is_some() {
        model();
        return String::new();
    }
    let own = std::env::current_exe().expect("a test knows its own binary");
    let output = Command::new(&own)
        .args([full_name(&own, test).as_str(), "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .env("RUST_BACKTRACE", "0")
        .output()
        .expect("a test can run its own binary");
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(said.contains("running 1 test"), "{test} ran no test:\n{said}");
    assert!(!output.status.success(), "the model {test} had to fail, and passed:\n{said}");
    said
}

/// The test of that function, as the runner names it: behind its modules.
fn full_name(own: &Path, function: &str) -> String {
    let listed = Command::new(own).arg("--list").output().expect("a test can list its binary");
    let listed = String::from_utf8_lossy(&listed.stdout);
    let names = listed.lines().filter_map(|line| line.strip_suffix(": test"));
    let found: Vec<&str> =
        names.filter(|name| name.rsplit("::").next() == Some(function)).collect();
    match found[..] {
        [name] => name.to_owned(),
        _ => panic!("one test is to be called {function}; there are {found:?}"),
    }
}
