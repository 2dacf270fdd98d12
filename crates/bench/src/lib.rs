//! Workloads, the before variants, and paired statistics.
