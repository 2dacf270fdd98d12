//! The way out: the tag is freed, the completion function runs, the request is counted out.

use std::sync::Arc;

use super::{Hctx, Pending};
use crate::error::IoError;
use crate::tags::Freed;

impl Hctx {
    /// Finishes a request that the driver had.
    pub(crate) fn finish(
        this: &Arc<Self>,
        pending: &mut Pending,
        tag: u32,
        result: Result<(), IoError>,
    ) {
        let freed = this.tags.free(tag);
        pending.rq.finish(result);
        if freed == Freed::Restart {
            // The mark was set after `left` was published, and we took it: something is pending.
            this.visit(pending.slot, true);
        }
        this.usage.exit(pending.slot);
    }
}
