//! Made-up webs.

use std::time::Duration;

use fastrand::Rng;

use crate::job::Job;
use crate::shutdown::web::{Device, Web, Work};

/// Chains of a deep web.
const CHAINS: usize = 4;
/// Layers of a stacked one.
const LAYERS: usize = 5;
/// Devices for one with a callback. Of the 492 devices of a published machine 39 have one.
const CALLBACK_EACH: usize = 10;

/// Returns the web of a shape.
pub(super) fn web(job: &Job, shape: &str, devices: usize, slow: usize) -> Web {
    let mut rng = Rng::with_seed(job.seed);
    let mut order: Vec<usize> = (0..devices).collect();
    rng.shuffle(&mut order);
    let mut works: Vec<Work> = (0..devices)
        .map(|number| match number % CALLBACK_EACH {
            0 => Work::Burn(job.quick_steps),
            _ => Work::None,
        })
        .collect();
    for (nth, device) in order.into_iter().take(slow).enumerate() {
        works[device] = Work::Sleep(slow_time(job, nth, slow));
    }
    let needs = |number: usize| match shape {
        "flat" => (None, vec![]),
        "deep" => (number.checked_sub(CHAINS), vec![]),
        "wide" => ((number > 0).then_some(0), vec![]),
        _ => (None, below(number, devices)),
    };
    let device = |(number, work)| {
        let (parent, suppliers): (Option<usize>, Vec<usize>) = needs(number);
        let small = |number: usize| u32::try_from(number).expect("a web has so few devices");
        Device {
            name: format!("device{number}"),
            parent: parent.map(small),
            suppliers: suppliers.into_iter().map(small).collect(),
            work,
            opted_in: true,
        }
    };
    let devices = works.into_iter().enumerate().map(device).collect();
    Web::new(devices, shape == "inverted")
}

/// Returns the two devices of the layer below that a device of a stacked web needs.
fn below(number: usize, devices: usize) -> Vec<usize> {
    let width = devices.div_ceil(LAYERS);
    let (layer, place) = (number / width, number % width);
    let Some(below) = layer.checked_sub(1) else { return Vec::new() };
    let mut needs = vec![below * width + place, below * width + (place + 1) % width];
    needs.dedup();
    needs
}

/// Returns the time of the `nth` of the slow callbacks, which go from the shortest to the longest
/// in equal ratios. A single one has the longest.
fn slow_time(job: &Job, nth: usize, of: usize) -> Duration {
    let (shortest, longest) = (f64::from(job.shortest_ms), f64::from(job.longest_ms));
    let part = if of > 1 { nth as f64 / (of - 1) as f64 } else { 1.0 };
    Duration::from_secs_f64(shortest * (longest / shortest).powf(part) / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shutdown::{BENCH, SHAPES};

    fn made(shape: &str, devices: usize, slow: usize) -> Web {
        let job = Job { quick_steps: 1, ..Job::plain(&BENCH, "flat/1/0", "serial") };
        web(&job, shape, devices, slow)
    }

    fn sleeps(web: &Web) -> Vec<Duration> {
        let sleep = |device: &Device| match device.work {
            Work::Sleep(time) => Some(time),
            _ => None,
        };
        let mut times: Vec<Duration> = web.devices().iter().filter_map(sleep).collect();
        times.sort();
        times
    }

    #[test]
    fn slow_callbacks_take_from_a_tenth_of_a_second_to_five_seconds_and_a_seed_repeats_them() {
        for slow in [2, 24] {
            let times = sleeps(&made("wide", 500, slow));
            assert_eq!((times.len(), times[0]), (slow, Duration::from_millis(100)));
            assert!((times[slow - 1].as_secs_f64() - 5.0).abs() < 1e-6);
        }
        assert_eq!(made("stacked", 500, 24), made("stacked", 500, 24));
    }

    #[test]
    fn each_shape_has_its_edges_and_its_bound() {
        for shape in SHAPES {
            for devices in [1, 7, 500] {
                let web = made(shape, devices, 0);
                let edges: usize = web.backwards().map(|d| web.dependents(d).len()).sum();
                assert_eq!(web.devices().len(), devices);
                assert_eq!(web.bound(), Duration::ZERO);
                match (shape, devices) {
                    ("flat", _) | (_, 1) => assert_eq!(edges, 0),
                    ("deep", n) => assert_eq!(edges, n.saturating_sub(CHAINS)),
                    ("wide", n) => assert_eq!(edges, n - 1),
                    (_, 500) => assert_eq!(edges, 2 * 400),
                    _ => assert!(edges > 0),
                }
            }
        }
        let (flat, deep) = (made("flat", 500, 24).bound(), made("deep", 500, 24).bound());
        assert!(flat < deep && deep < sleeps(&made("deep", 500, 24)).iter().sum());
        assert!(made("inverted", 500, 0).inverted && !made("stacked", 500, 0).inverted);
    }
}
