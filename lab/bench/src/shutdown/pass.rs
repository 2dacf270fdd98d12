//! One shutdown of a web, and a check of its order.

use std::sync::Arc;

use corewise_sync::atomic::{AtomicU64, Ordering};

use crate::error::BenchError;
use crate::shutdown::web::{Web, Work};

/// The callbacks of one shutdown. They record the order in which they began and ended, at the cost
/// of two atomic additions each.
#[derive(Debug)]
pub struct Pass {
    web: Arc<Web>,
    /// A: counts beginnings and ends.
    ticks: AtomicU64,
    notes: Vec<Note>,
}

/// Ticks of a device's callback. 0 stands for never.
#[derive(Debug, Default)]
struct Note {
    /// A: the tick at which the callback began; Relaxed, read when all is over.
    began: AtomicU64,
    /// A: the tick at which the callback ended; Relaxed, read when all is over.
    ended: AtomicU64,
}

impl Pass {
    /// Creates a pass in which nothing is shut down yet.
    pub fn new(web: &Arc<Web>) -> Pass {
        let notes = web.devices().iter().map(|_| Note::default()).collect();
        Pass { web: Arc::clone(web), ticks: AtomicU64::new(0), notes }
    }

    /// Returns the web.
    pub fn web(&self) -> &Arc<Web> {
        &self.web
    }

    /// Returns true if a device has a callback.
    pub fn has_callback(&self, device: u32) -> bool {
        self.web.devices()[device as usize].work != Work::None
    }

    /// Runs a device's callback.
    pub fn call(&self, device: u32) {
        let (work, note) = (self.web.devices()[device as usize].work, &self.notes[device as usize]);
        // Sequentially consistent, as all of `ticks`: a callback that begins after another one
        // ended has the larger tick.
        note.began.store(self.ticks.fetch_add(1, Ordering::SeqCst) + 1, Ordering::Relaxed);
        work.run();
        note.ended.store(self.ticks.fetch_add(1, Ordering::SeqCst) + 1, Ordering::Relaxed);
    }

    /// Checks that each callback was called once, after the callbacks of all devices that need its
    /// device had ended.
    ///
    /// # Errors
    /// [`BenchError::WrongOrder`] names the first device for which that isn't so.
    pub fn check(&self) -> Result<(), BenchError> {
        let mut ends = vec![0; self.notes.len()];
        let mut calls = 0;
        for device in self.web.backwards() {
            let before = self.web.dependents(device).iter().map(|d| ends[*d as usize]).max();
            let (before, note) = (before.unwrap_or(0), &self.notes[device as usize]);
            let began = note.began.load(Ordering::Relaxed);
            let ended = note.ended.load(Ordering::Relaxed);
            let right = match self.has_callback(device) {
                true => before < began && began < ended,
                false => began == 0,
            };
            if !right {
                let device = self.web.devices()[device as usize].name.clone();
                return Err(BenchError::WrongOrder { device });
            }
            calls += 2 * u64::from(began > 0);
            ends[device as usize] = before.max(ended);
        }
        // A callback that was called twice has counted twice as many ticks.
        match self.ticks.load(Ordering::SeqCst) == calls {
            true => Ok(()),
            false => Err(BenchError::WrongOrder { device: "a device".to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shutdown::web::Device;

    /// Creates a pass of two callbacks with a device between them that has none.
    fn pass() -> Pass {
        let device = |number: u32, work| Device {
            name: format!("d{number}"),
            parent: number.checked_sub(1),
            suppliers: Vec::new(),
            work,
            opted_in: true,
        };
        let works = [Work::Burn(1), Work::None, Work::Burn(1)];
        let devices = (0..).zip(works).map(|(number, work)| device(number, work)).collect();
        Pass::new(&Arc::new(Web::new(devices, false)))
    }

    #[test]
    fn an_order_that_was_kept_is_right_also_through_devices_without_a_callback() {
        let right = pass();
        right.call(2);
        right.call(0);
        right.check().unwrap();
        let wrong = pass();
        wrong.call(0);
        wrong.call(2);
        let error = wrong.check().unwrap_err();
        assert!(matches!(&error, BenchError::WrongOrder { device } if device == "d0"), "{error}");
    }

    #[test]
    fn callbacks_that_were_left_out_or_called_twice_are_found() {
        for calls in [&[2][..], &[2, 0, 0], &[2, 1, 0], &[]] {
            let pass = pass();
            calls.iter().for_each(|&device| pass.call(device));
            assert!(pass.check().is_err(), "{calls:?}");
        }
    }
}
