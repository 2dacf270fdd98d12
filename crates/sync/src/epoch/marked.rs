//! In builds with debug assertions: a thread that reads is in an atomic section.
//!
//! Guards of reading sections may be dropped in any order, atomic sections may not: so there is one
//! for all of a thread's, from the first until none is left.

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
        // By name: a closure has no caller.
        let section = AtomicSection::enter("reading section");
        // In the destructors of a thread that ends there may be no place for it: then it isn't
        // marked.
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
