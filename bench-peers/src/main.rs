//! The workloads of corewise-bench against other runtimes.

fn main() {}
