//! Linux's lessons for machines of many cores, in user space: workqueues, cross-CPU calls, probing,
//! shutdown and block dispatch.

pub use corewise_blockmq as blockmq;
pub use corewise_device as device;
pub use corewise_nbd as nbd;
pub use corewise_smp as smp;
pub use corewise_sync as sync;
pub use corewise_timeline as timeline;
pub use corewise_topology as topology;
pub use corewise_workqueue as workqueue;
