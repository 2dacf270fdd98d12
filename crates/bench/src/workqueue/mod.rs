//! Workloads for workqueues, and the variants that they are run against.
//!
//! 1. [`kernel_test`]: the kernel's own test, for whatever implements
//!    [`Queue`](kernel_test::Queue).
//! 2. [`variants`]: Corewise's queues of each scope, behind that trait.
//! 3. [`before`]: the old design, one locked list per cache.
//! 4. [`suite`]: runs them against each other and makes records of it.

pub mod before;
pub mod kernel_test;
pub mod suite;
pub mod variants;
