//! Device graph, drivers, parallel probe and shutdown ordered by real dependencies.
mod cancel;
pub mod counters;
mod decl;
mod driver;
mod error;
mod event;
mod graph;
#[cfg(not(loom))]
mod placement;
mod policy;
mod probe;
mod record;

pub use cancel::Cancel;
pub use decl::{AsyncProbe, DeviceDecl, ProbeType};
pub use driver::{Bound, Driver, ProbeContext, ProbeError, ShutdownError};
pub use error::Error;
pub use event::{Event, Observer};
pub use graph::{DeviceId, Graph, GraphError};
pub use probe::{BringUp, BringUpOptions, DeviceReport, ProbeOutcome};
#[cfg(not(loom))]
mod manager;
mod shutdown;
#[cfg(not(loom))]
pub use manager::DeviceManager;
pub use shutdown::{Remaining, RemainingState, ShutdownMode, ShutdownOptions, ShutdownReport};
