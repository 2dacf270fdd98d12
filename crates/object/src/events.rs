//! What an observer of a volume is told.

use std::fmt;
use std::sync::Arc;

/// Something that happened to a volume that is open.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ObjectEvent {
    /// Another server has opened it: this one serves it no more.
    Fenced {
        /// In words.
        why: String,
    },
    /// What this server wrote isn't in the store any more: somebody has deleted it, or brought back an older state. This one serves it no more.
    Lost {
        /// In words.
        why: String,
    },
    /// An object that has data of the volume is missing from the store, or damaged: a read of that
    /// data fails. The first one is told.
    Damaged {
        /// In words.
        why: String,
    },
    /// The [flush file](crate::ObjectOptions::flush_file) isn't what it was: somebody unlinked, renamed,
    /// replaced, truncated or overwrote it, or it can't be written. Flushes wait for the store
    /// meanwhile, and lose nothing by that.
    FlushFileOut {
        /// In words.
        why: String,
    },
    /// Flushes go to the flush file again.
    FlushFileBack,
    /// The folder of the volume isn't at its location any more: it was renamed, or its file system
    /// unmounted. Writes still reach the folder that was opened.
    Moved {
        /// In words.
        why: String,
    },
    /// The store takes no writes: it refuses them, is full, or doesn't answer. Writes that were
    /// taken from clients wait for it.
    Unwritable {
        /// In words.
        why: String,
    },
    /// The store takes writes again.
    Writable,
}

type Told = dyn Fn(&ObjectEvent) + Send + Sync;

/// The function that is told of events.
#[derive(Clone, Default)]
pub(crate) struct Observer(Option<Arc<Told>>);

impl Observer {
    pub(crate) fn new(observer: impl Fn(&ObjectEvent) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(observer)))
    }

    pub(crate) fn tell(&self, event: &ObjectEvent) {
        if let Some(observer) = &self.0 {
            observer(event);
        }
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "an observer" } else { "none" })
    }
}
