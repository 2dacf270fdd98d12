//! A block volume in an object store: a bucket of a cloud, or a folder.
//!
//! [`ObjectDriver`] is a driver of [`corewise_blockmq`]. Data lies in immutable segments; a log of
//! records, each created once, maps blocks to them. An answered flush survives the loss of the
//! machine. Of unflushed writes, a crash leaves an atomic prefix. There is one writer: the next
//! server that opens the volume fences it, and then its clients get errors, and never old data.
//! `src/README.md` has the protocol and argues why that holds, `docs/object.md` what it costs.
//!
//! ```
//! use std::sync::Arc;
//! use corewise_blockmq::{BlockDeviceExt, Queue};
//! use corewise_object::{ObjectDriver, ObjectOptions};
//! # use corewise_topology::Machine;
//! # use corewise_workqueue::{WorkerPools, Workqueue};
//!
//! # let machine = Machine::live()?;
//! # let pools = WorkerPools::new(&machine);
//! # let wq = Workqueue::builder("block").build(&pools)?;
//! let folder = tempfile::tempdir()?;
//! let there = format!("file://{}", folder.path().display());
//! let driver = Arc::new(ObjectDriver::open(ObjectOptions::new(&there).size(1 << 30))?);
//! let disk = Queue::builder(&machine, driver.clone()).build(&wq);
//! disk.write_at(4096, vec![7; 4096])?;
//! disk.flush()?; // it is in the store
//! disk.drain();
//! driver.close()?; // so that the next one needn't wait for the lease
//!
//! let driver = ObjectDriver::open(ObjectOptions::new(&there))?;
//! let disk = Queue::builder(&machine, Arc::new(driver)).build(&wq);
//! assert_eq!(disk.read_at(4096, 4096)?, [7; 4096][..]);
//! # drop(disk);
//! # pools.shutdown();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Each driver has a thread (`cw-object`) with a tokio runtime of its own. Blocks that are in
//! memory are read and written by the threads that submit.

mod driver;
mod error;
mod format;
mod local;
mod log;
mod options;
mod store;
#[cfg(test)]
mod tests;
mod volume;

pub use driver::ObjectDriver;
pub use error::{OpenError, OpenErrorKind};
pub use format::{Compression, ObjectKey, OpeningId, StoreSpace};
pub use options::ObjectOptions;
pub use store::StoreUse;
pub use volume::{CacheUse, ObjectEvent, ObjectSnapshot, StoreRefusal};
