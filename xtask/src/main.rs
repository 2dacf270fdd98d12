//! The project's own tasks: every test in one command.

fn main() {}
