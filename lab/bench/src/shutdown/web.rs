//! Devices, their needs, and the work of their callbacks.

use std::hint::black_box;
use std::time::Duration;

use corewise_sync::{hint, thread};

/// Approximate time of ten steps of [`Work::Burn`], for a machine that can't measure it.
const STEP: Duration = Duration::from_nanos(8);

/// The work of a device's callback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// A missing callback.
    None,
    /// Computation of this number of steps.
    Burn(u32),
    /// A sleep.
    Sleep(Duration),
}

impl Work {
    /// Does the work.
    pub fn run(self) {
        match self {
            Work::None => {}
            Work::Burn(steps) => {
                black_box(burn(black_box(steps)));
                hint::computed(STEP * steps / 10);
            }
            Work::Sleep(time) => thread::sleep(time),
        }
    }
}

/// Computes steps that each wait for the one before, so the work is the same on any thread.
fn burn(steps: u32) -> u64 {
    (0..steps).fold(0x9e37_79b9_7f4a_7c15_u64, |x, step| (x ^ u64::from(step)).rotate_left(7))
}

/// A device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its name, different from all others.
    pub name: String,
    /// The device that contains it, shut down after it.
    pub parent: Option<u32>,
    /// Devices that it uses, shut down after it.
    pub suppliers: Vec<u32>,
    /// Its callback.
    pub work: Work,
    /// True if the callback may run beside others.
    pub opted_in: bool,
}

/// Devices that depend on each other. Each comes after all that it needs, so they can be shut down
/// one by one in the reverse order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Web {
    devices: Vec<Device>,
    /// Devices that need a device, by its index.
    dependents: Vec<Vec<u32>>,
    /// True if the devices are registered in the reverse order.
    pub inverted: bool,
}

impl Web {
    /// Creates a web of these devices.
    ///
    /// # Panics
    /// A device doesn't come after one that it needs, or needs one twice.
    pub fn new(devices: Vec<Device>, inverted: bool) -> Web {
        let mut dependents = vec![Vec::new(); devices.len()];
        for (number, device) in (0..).zip(&devices) {
            for need in device.needs() {
                assert!(need < number, "'{}' comes before what it needs", device.name);
                let of: &mut Vec<u32> = &mut dependents[need as usize];
                assert!(of.last() != Some(&number), "'{}' needs one twice", device.name);
                of.push(number);
            }
        }
        Web { devices, dependents, inverted }
    }

    /// Returns all devices, each after those that it needs.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Returns the devices that need this one. All of them are shut down before it.
    pub fn dependents(&self, device: u32) -> &[u32] {
        &self.dependents[device as usize]
    }

    /// Returns the order in which devices are shut down one by one.
    pub fn backwards(&self) -> impl Iterator<Item = u32> {
        (0..u32::try_from(self.devices.len()).unwrap_or(u32::MAX)).rev()
    }

    /// Returns a time below which no shutdown can be, with any number of threads. The time is the
    /// longest chain of dependent callbacks that sleep, or the sum of callbacks that may not run
    /// beside others.
    pub fn bound(&self) -> Duration {
        let mut ends = vec![Duration::ZERO; self.devices.len()];
        let mut one_by_one = Duration::ZERO;
        for device in self.backwards() {
            let after = self.dependents(device).iter().map(|d| ends[*d as usize]).max();
            let Device { work, opted_in, .. } = self.devices[device as usize];
            let own = if let Work::Sleep(time) = work { time } else { Duration::ZERO };
            ends[device as usize] = after.unwrap_or_default() + own;
            one_by_one += if opted_in { Duration::ZERO } else { own };
        }
        ends.into_iter().max().unwrap_or_default().max(one_by_one)
    }
}

impl Device {
    /// Returns all devices that it needs, each once.
    pub fn needs(&self) -> impl Iterator<Item = u32> {
        self.parent.into_iter().chain(self.suppliers.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(needs: &[u32], ms: u64, opted_in: bool) -> Device {
        let work = Work::Sleep(Duration::from_millis(ms));
        Device { name: String::new(), parent: None, suppliers: needs.into(), work, opted_in }
    }

    #[test]
    fn the_bound_is_the_longest_chain_or_all_that_goes_one_by_one() {
        let chain = [device(&[], 5, true), device(&[0], 2, true), device(&[0], 4, true)];
        let web = Web::new(chain.to_vec(), false);
        assert_eq!(web.bound(), Duration::from_millis(9));
        assert_eq!(web.dependents(0), [1, 2]);
        assert_eq!(web.backwards().collect::<Vec<_>>(), [2, 1, 0]);
        let one_by_one = chain.map(|device| Device { opted_in: false, ..device });
        assert_eq!(Web::new(one_by_one.to_vec(), false).bound(), Duration::from_millis(11));
    }
}
