//! All of Corewise under one name. This crate only re-exports; each module is a crate of its own.
//!
//! Start with [`topology::Machine`], hand it to [`workqueue::WorkerPools`], and go on from there.
#![doc = include_str!("../../../README.md")]

pub use corewise_blockmq as blockmq;
pub use corewise_device as device;
pub use corewise_nbd as nbd;
pub use corewise_smp as smp;
pub use corewise_sync as sync;
pub use corewise_timeline as timeline;
pub use corewise_topology as topology;
pub use corewise_workqueue as workqueue;
