//! Device graph, drivers, parallel probe and shutdown ordered by real dependencies.
pub mod counters;
mod cancel;
mod decl;
mod driver;
mod graph;
mod policy;

pub use cancel::Cancel;
pub use decl::{AsyncProbe, DeviceDecl, ProbeType};
pub use driver::{Bound, Driver, ProbeContext, ProbeError, ShutdownError};
pub use graph::{DeviceId, Graph, GraphError};
