//! A thread pool on a `crossbeam-channel`, as in many programs.
//!
//! In its best mode it has one unbounded channel for all workers. Its messages are of the one kind
//! that the workload needs. That is sixteen bytes or a token, which allocate nothing but the
//! channel's blocks, or a boxed closure. A worker that finds nothing spins and yields shortly
//! before it parks, as the channel's `recv` does. The pool has no hint for a closure that blocks.

use std::sync::Arc;
use std::thread;

use corewise_bench::workqueue::runtime::{Reuse, Spawn};
use corewise_bench::workqueue::tiny::Tiny;
use corewise_bench::{BenchError, Job};
use corewise_sync::Unparker;
use crossbeam_channel::Sender;

use crate::workqueue::peers::Pin;

/// A message of a channel.
trait Message: Send + 'static {
    fn run(self);
}

impl Message for Tiny {
    fn run(self) {
        Tiny::run(self);
    }
}

impl Message for Unparker {
    fn run(self) {
        self.unpark();
    }
}

type Closure = Box<dyn FnOnce() + Send>;

impl Message for Closure {
    fn run(self) {
        self();
    }
}

/// The pool. Its workers serve the one channel that the case needs; they end with the last handle.
#[derive(Clone)]
pub(crate) struct Crossbeam(Arc<Channels>);

#[derive(Default)]
struct Channels {
    tiny: Option<Sender<Tiny>>,
    token: Option<Sender<Unparker>>,
    closure: Option<Sender<Closure>>,
}

impl Crossbeam {
    pub(crate) fn new(job: &Job) -> Result<Crossbeam, BenchError> {
        let mut channels = Channels::default();
        match job.parts()[..] {
            ["kernel_test" | "pingpong", ..] => channels.token = Some(start(job)?),
            [_, "reused", ..] => channels.tiny = Some(start(job)?),
            _ => channels.closure = Some(start(job)?),
        }
        Ok(Crossbeam(Arc::new(channels)))
    }
}

/// Starts the workers that receive from a channel, and returns its sender.
fn start<M: Message>(job: &Job) -> Result<Sender<M>, BenchError> {
    let (sender, receiver) = crossbeam_channel::unbounded::<M>();
    for _ in 0..job.workers {
        let (receiver, pin) = (receiver.clone(), Pin::of(job));
        let builder = thread::Builder::new().name("crossbeam".to_owned());
        let body = move || {
            pin.pin();
            receiver.iter().for_each(Message::run);
        };
        builder.spawn(body).map_err(BenchError::Thread)?;
    }
    Ok(sender)
}

#[inline]
fn send<M>(channel: Option<&Sender<M>>, message: M) {
    let channel = channel.expect("the pool was made for this case");
    let sent = channel.send(message);
    assert!(sent.is_ok(), "the workers receive for as long as there is a handle");
}

impl Spawn for Crossbeam {
    fn spawn<F: FnOnce() + Send + 'static>(&self, closure: F) {
        send::<Closure>(self.0.closure.as_ref(), Box::new(closure));
    }

    fn signal(&self, done: Unparker) -> impl Fn() {
        move || send(self.0.token.as_ref(), done.clone())
    }
}

/// Its messages are copied, so nothing is reused: it needs no items that are made before.
impl Reuse for Crossbeam {
    type Item = Tiny;

    fn reusable(&self, tiny: Tiny) -> Tiny {
        tiny
    }

    fn requeue(&self, item: &Tiny) -> bool {
        send(self.0.tiny.as_ref(), *item);
        true
    }
}
