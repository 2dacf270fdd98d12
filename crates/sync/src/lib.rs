//! std/loom facade, padding, and the execution context of a thread.
