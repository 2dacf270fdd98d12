//! Model of the flushes: each asker is served by a flush that begins after it asked, and no asker
//! is forgotten.

use std::sync::Arc;

use corewise_blockmq::model::Flusher;
use corewise_sync::atomic::{AtomicU32, Ordering};
use corewise_sync::inbox::{Batch, HasLink, Link};

/// An asker, with the earlier writes.
struct Asker(Link, u32);

// SAFETY: always the one field of `self`.
unsafe impl HasLink for Asker {
    fn link(&self) -> &Link {
        &self.0
    }
}

struct Disk {
    flusher: Flusher<Box<Asker>>,
    /// A: bit n is set once write n is done. Relaxed: the flusher has to order it.
    written: AtomicU32,
    /// A: bit n is set if write n was there when a flush began, and the asker got that flush's end.
    durable: AtomicU32,
    /// A: number of flushes in flight.
    under_way: AtomicU32,
}

impl Disk {
    fn write_and_ask(&self, n: u32) {
        self.written.fetch_or(1 << n, Ordering::Relaxed);
        let mut batch = self.flusher.ask(Box::new(Asker(Link::new(), n)));
        while let Some(served) = batch {
            self.flush(served);
            batch = self.flusher.end();
        }
    }

    fn flush(&self, batch: Batch<Box<Asker>>) {
        assert_eq!(self.under_way.fetch_add(1, Ordering::Relaxed), 0, "one at a time");
        let there = self.written.load(Ordering::Relaxed);
        self.under_way.fetch_sub(1, Ordering::Relaxed);
        for asker in batch {
            assert!(there & (1 << asker.1) != 0, "served by a flush that began before it asked");
            self.durable.fetch_or(1 << asker.1, Ordering::Relaxed);
        }
    }
}

#[test]
fn loom_a_flush_request_is_served_by_a_flush_that_begins_later() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let disk = Arc::new(Disk {
            flusher: Flusher::new(),
            written: AtomicU32::new(0),
            durable: AtomicU32::new(0),
            under_way: AtomicU32::new(0),
        });
        let others = [0, 1].map(|n| {
            let disk = Arc::clone(&disk);
            loom::thread::spawn(move || disk.write_and_ask(n))
        });
        disk.write_and_ask(2);
        for other in others {
            other.join().unwrap();
        }
        assert_eq!(disk.durable.load(Ordering::Relaxed), 0b111, "nobody is forgotten");
    });
}
