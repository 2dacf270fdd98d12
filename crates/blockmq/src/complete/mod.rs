//! Completion: from the driver's "done" to the request's end, perhaps on another CPU.
//!
//! `README.md` beside this file has the steps.

use std::ptr::NonNull;
use std::sync::Arc;
use std::{iter, mem};

use corewise_sync::hint;
use corewise_sync::panics::caught;
use corewise_sync::time::Stamp;

use crate::request::error::{IoError, IoErrorKind};
use crate::state::pending::{Pending, Verdict};
use crate::tags::FreeResult;
use crate::{nest, shape};

// The way out of the driver: the thread and the CPU that end the request, and the steps of its end.

impl Pending {
    /// Takes back a request that the driver has completed. Any context.
    pub(crate) fn returned(mut self: Box<Self>, verdict: Verdict) {
        self.verdict = Some(verdict);
        if self.core.timeouts.is_none() {
            return self.settle();
        }
        let slot = NonNull::from(&self.core.hctx(self.hctx).slots[self.tag as usize]);
        // SAFETY: the slot lies in the core, which the box keeps alive until `finish` gives it to
        // the handler; nothing of the slot is touched behind that.
        let ours = unsafe { slot.as_ref() }.state.finish(self);
        if let Some(pending) = ours {
            pending.settle();
        }
        // Else the timeout handler holds it, and continues with `settle`.
    }

    /// Continues once the driver and the timeout handler, or the device below, have let go of the
    /// request.
    pub(crate) fn settle(self: Box<Self>) {
        if let Some(Verdict::Requeue) = self.verdict {
            return self.go_back();
        }
        // This is cloned before the request is sent: after that the request may be gone, with
        // everything that it kept alive.
        let list = self.core.placement.as_ref().and_then(|placement| {
            let submitter = self.core.layout.map.cpus()[self.slot];
            placement.list_for(submitter).map(Arc::clone)
        });
        match list {
            Some(list) => list.send(self),
            None => self.complete(),
        }
    }

    /// Finishes a request that the driver or the device below had, on the CPU where it is to end:
    /// its tag is free before its completion function runs.
    pub(crate) fn complete(self: Box<Self>) {
        nest::end(move || self.complete_now());
    }

    fn complete_now(mut self: Box<Self>) {
        let result = match self.verdict.take() {
            Some(Verdict::Ended(result)) => result,
            Some(Verdict::Requeue) | None => Err(IoError::new(IoErrorKind::Gone)),
        };
        let freed = match mem::take(&mut self.is_below) {
            true => FreeResult::Quiet,
            false => self.core.hctx(self.hctx).tags.free(self.slot, self.tag),
        };
        let now = self.count_in_driver();
        if self.post_flush || self.rq().is_merged() {
            return self.complete_each(freed, result);
        }
        self.answer_at(result, now);
        if freed == FreeResult::Restart {
            // The mark was set after the rest was published, and this thread took the mark:
            // something is pending.
            self.core.hctx(self.hctx).visit(&self.core, self.slot, true);
        }
        self.leave();
    }

    /// Finishes a request that needs more steps, or stands for several.
    fn complete_each(mut self: Box<Self>, freed: FreeResult, result: Result<(), IoError>) {
        let (core, slot) = (Arc::clone(&self.core), self.slot);
        let mut run = (freed == FreeResult::Restart).then_some(self.hctx);
        let merged = self.rq().is_merged();
        let others = self.rq_mut().unmerge();
        for mut pending in iter::once(self).chain(others) {
            match &result {
                Err(error) if merged && error.may_be_of_others() => {
                    // Each is tried alone to find out which of them failed.
                    pending.rq_mut().stay_alone();
                    pending.rq_mut().start_over();
                    // They needn't have come by the same hardware queue: one that lost its CPUs may
                    // have passed some on.
                    let Some(theirs) = core.push(pending) else { continue };
                    if let Some(hctx) = run.replace(theirs) {
                        if hctx != theirs {
                            core.hctx(hctx).visit(&core, slot, true);
                        }
                    }
                }
                result => pending.end(result.clone()),
            }
        }
        if let Some(hctx) = run {
            core.hctx(hctx).visit(&core, slot, true);
        }
    }

    /// Puts the request to the front of its hardware queue, which a worker then runs once more: the
    /// driver wants it back later. (Linux: `blk_mq_requeue_request` and the kick of the requeue
    /// list.)
    fn go_back(mut self: Box<Self>) {
        self.verdict = None;
        let core = Arc::clone(&self.core);
        let hctx = core.hctx(self.hctx);
        hctx.count_requeue();
        // The run below serves a waiter for the tag, as every other.
        let (FreeResult::Quiet | FreeResult::Restart) = hctx.tags.free(self.slot, self.tag);
        hctx.requeued.push(self); // Publish
        if core.is_dead() {
            hctx.run_to_the_end(&core);
        } else {
            hctx.run_async(&core);
        }
    }

    /// Counts the time in the driver, if the request is timed; then returns the clock.
    #[inline]
    fn count_in_driver(&self) -> Option<Stamp> {
        if self.weight == 0 {
            return None;
        }
        let now = Stamp::precise();
        self.core.disk.in_driver(self.core.here(), now.since(self.started), self.weight);
        Some(now)
    }

    /// Counts what has ended, before its end is reported; requests that the queue has made for
    /// itself don't count.
    #[inline]
    pub(crate) fn count(&self, ok: bool, now: Option<Stamp>) {
        if self.is_internal() {
            return;
        }
        let (op, len) = (self.rq().op(), self.rq().len());
        let latency = (self.weight != 0)
            .then(|| (now.unwrap_or_else(Stamp::precise).since(self.begun), self.weight));
        self.core.disk.ended(self.core.here(), op, ok.then_some(len), latency);
    }

    /// Ends a request that is inside and has no tag: at once, or when it is durable.
    pub(crate) fn end(self: Box<Self>, result: Result<(), IoError>) {
        if self.post_flush && result.is_ok() {
            let (core, slot) = (Arc::clone(&self.core), self.slot);
            if let Some(hctx) = shape::wait_for_flush(self) {
                core.hctx(hctx).visit(&core, slot, true);
            }
        } else {
            self.end_now(result);
        }
    }

    /// Ends a request that is inside, has no tag and needs no flush any more.
    pub(crate) fn end_now(mut self: Box<Self>, result: Result<(), IoError>) {
        nest::end(move || {
            self.answer(result);
            self.leave();
        });
    }

    /// Finishes a request that is inside and that no driver has: its queue is gone.
    pub(crate) fn abandon(mut self: Box<Self>) {
        let others = self.rq_mut().unmerge();
        for pending in iter::once(self).chain(others) {
            let gone = pending.core.gone();
            // For a queue that is dropped that is no news.
            let gone = if pending.core.is_dropped() { gone.logged() } else { gone };
            pending.end_now(Err(gone));
        }
    }

    /// Counts the request, and then reports its result to the waiter.
    fn answer(&mut self, result: Result<(), IoError>) {
        self.answer_at(result, None);
    }

    /// Does the same with a clock that has just been read.
    pub(crate) fn answer_at(&mut self, result: Result<(), IoError>, now: Option<Stamp>) {
        self.count(result.is_ok(), now);
        hint::writes(&self.rq);
        let result = result.map_err(|error| {
            // If the queue flushes behind it, that flush counts.
            if self.rq().flags().fua {
                self.core.note_loss(self.rq().op(), &error);
            }
            self.log(error)
        });
        self.rq_mut().finish(result);
        // All that the request still owns goes now, not when the box is used again.
        self.rq = None;
    }

    /// Logs the failure, unless the submitter or the device below does, or there were too many.
    #[cold]
    fn log(&self, error: IoError) -> IoError {
        if error.is_logged() {
            return error;
        }
        if self.rq().is_quiet() {
            return error.of(&self.core.name);
        }
        let line = || {
            let (device, rq, error) = (self.core.name.clone(), self.rq(), error.clone());
            let (request, offset, len) = (rq.op(), rq.offset(), rq.len());
            move |left_out: Option<u64>| {
                let below = error.device_below(&device);
                tracing::warn!(%device, %request, offset, len, errno = error.errno(), %error, below, left_out, "a request failed");
            }
        };
        // The subscriber is user code: a panic in there keeps no request from its end.
        caught(|| self.core.errors.tell(line));
        error.logged()
    }

    /// Counts the request out, and puts the box back. Counting out ends the request's hold on the
    /// queue, so the box's own keeps the core alive behind it.
    pub(crate) fn leave(self: Box<Self>) {
        if self.counted {
            self.core.usage.exit(self.slot, self.generation);
        }
        if !self.cached {
            return;
        }
        let home = self.core.cache.home(self.slot);
        // SAFETY: `home` lies in the core, which the box keeps alive until the push publishes the
        // box; behind that the push touches nothing of it.
        drop(unsafe { home.as_ref() }.push(self));
    }
}
