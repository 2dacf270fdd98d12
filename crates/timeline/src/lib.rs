//! Spans on lanes, critical path and renderers for bring-up and shutdown.
