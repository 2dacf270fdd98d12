//! The corewise program.

fn main() {}
