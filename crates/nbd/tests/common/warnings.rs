//! A subscriber of the whole process that sends a test each warning's target.

use std::sync::mpsc::{Receiver, Sender, channel};

use corewise_sync::Mutex;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

struct Warnings {
    /// L: is the lock; guards the channel.
    tell: Mutex<Sender<&'static str>>,
}

/// Returns the targets of all warnings from now on.
pub(crate) fn warnings() -> Receiver<&'static str> {
    let (tell, told) = channel();
    tracing::subscriber::set_global_default(Warnings { tell: Mutex::new(tell) })
        .expect("there is none yet");
    told
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }
    fn event(&self, event: &Event<'_>) {
        let _ = self.tell.lock().send(event.metadata().target());
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
