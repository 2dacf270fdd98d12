//! Device graph, drivers, parallel probe and shutdown ordered by real dependencies.
