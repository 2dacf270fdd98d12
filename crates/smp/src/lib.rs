//! Run a function on one CPU, on many, on all; wait without holding the core.
