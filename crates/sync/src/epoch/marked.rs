//! Check in builds with debug assertions: a thread that reads is in an atomic section.
//!
//! Guards of reading sections may be dropped in any order, but those of atomic sections may not. So
//! a thread has one atomic section for all of them, from the first until none is left.

use std::cell::RefCell;
use std::marker::PhantomData;

use crate::context::AtomicSection;
use crate::facade::backend::per_thread;

per_thread! {
    static READING: RefCell<Reading> = RefCell::new(Reading { open: 0, section: None });
}

struct Reading {
    open: usize,
    section: Option<AtomicSection>,
}

/// One of the thread's open sections.
pub(super) struct Marked {
    not_send: PhantomData<*const ()>,
}

impl Marked {
    #[track_caller]
    pub(super) fn enter() -> Marked {
        // Named explicitly: a closure has no caller location.
        let section = AtomicSection::enter("reading section");
        // In the destructors of a thread that ends, the thread-local may be gone: then the section
        // isn't marked.
        let _ = READING.try_with(|reading| {
            let mut reading = reading.borrow_mut();
            reading.open += 1;
            if reading.open == 1 {
                reading.section = Some(section);
            }
        });
        Marked { not_send: PhantomData }
    }
}

impl Drop for Marked {
    fn drop(&mut self) {
        let last = READING.try_with(|reading| {
            let mut reading = reading.borrow_mut();
            reading.open = reading.open.saturating_sub(1);
            if reading.open == 0 { reading.section.take() } else { None }
        });
        drop(last);
    }
}
