//! Panics of user code, where they are caught.
//!
//! Corewise calls functions that aren't its own in many places, and a panic in there ends where it is
//! called. What it panicked with is the user's value too: it may panic once more when it is dropped,
//! and that must not get out either.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a panic said: `None` where it isn't text. Any context.
pub fn message(payload: &(dyn Any + Send)) -> Option<&str> {
    match payload.downcast_ref::<&'static str>() {
        Some(text) => Some(text),
        None => payload.downcast_ref::<String>().map(String::as_str),
    }
}

/// Drops what a panic left. A panic of that drop ends here, and what *it* left is leaked: it might go
/// on like that for ever. Runs the user's destructor, on this thread.
pub fn discard(payload: Box<dyn Any + Send>) {
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(another);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_told_and_other_payloads_are_not() {
        let said = |panics: fn()| {
            let payload = catch_unwind(panics).expect_err("it panics");
            message(&*payload).map(str::to_owned)
        };
        assert_eq!(said(|| panic!("as it stands")).as_deref(), Some("as it stands"));
        assert_eq!(said(|| panic!("put {}", "together")).as_deref(), Some("put together"));
        assert_eq!(said(|| std::panic::panic_any(7)), None);
    }

    #[test]
    fn a_payload_that_panics_when_it_is_dropped_is_discarded_quietly() {
        struct Bomb(u32);
        impl Drop for Bomb {
            fn drop(&mut self) {
                if self.0 > 0 {
                    std::panic::panic_any(Bomb(self.0 - 1));
                }
            }
        }
        discard(Box::new(Bomb(3)));
    }
}
