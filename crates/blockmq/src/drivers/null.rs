//! `null`: reads zeroes, forgets writes, and does so on the spot. For measuring the queue itself.

use crate::device::Geometry;
use crate::driver::{Dispatch, Driver, Started};
use crate::request::Op;

/// A device that has nothing. Every request completes before its dispatch ends.
#[derive(Debug)]
pub struct Null {
    geometry: Geometry,
}

impl Null {
    /// A null device of `size` bytes, rounded down to whole blocks of 512.
    pub fn new(size: u64) -> Self {
        Self { geometry: Geometry { can_flush: false, ..Geometry::new(size & !511) } }
    }
}

impl Driver for Null {
    fn kind(&self) -> &'static str {
        "null"
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn hw_queues(&self) -> usize {
        usize::MAX
    }

    fn queue_request(&self, _hctx: usize, mut rq: Started) -> Dispatch {
        if rq.op() == Op::Read {
            let len = rq.len();
            rq.put_zeroes(len);
        }
        rq.complete(Ok(()));
        Dispatch::Started
    }
}
