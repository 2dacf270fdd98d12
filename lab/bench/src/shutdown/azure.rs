//! The web of a published machine: an Azure virtual machine with 16 CPUs and two NVMe devices, 492
//! devices in all. It was shut down once one by one and once with the old asynchronous design.
//! Michael Kelley published both logs in the thread on that design ("shut down devices
//! asynchronously", v9, October 2024). They are in `lab/bench/data`.
//!
//! **How long each callback takes** is the gap until the next device's line. In the asynchronous
//! log the two NVMe devices began at nearly the same time. There each takes until the first
//! `hv_pci` line, as the thread measures that part. The network device that began beside them takes
//! as long as in the other log. The last one takes until the line of ACPI.
//!
//! **The needs of devices** aren't in the logs, but the names show them. A PCI device of domain
//! `c2b7` is a child of the `hv_pci` device that has `c2b7` in its identifier. That one is a child
//! of `VMBUS:00`, as all devices of Hyper-V's bus are. The network functions are children of their
//! PCI device, and the disks of the storage device. The keyboard's port is a child of the keyboard,
//! the alarm timer of its clock.
//!
//! **PCI and SCSI devices have opted in**, as in the later versions of the design. The devices
//! without a line have no callback; no device needs them, and they need none.

use std::time::Duration;

use corewise_kernel_log::Reader;
use corewise_timeline::Span;

use crate::shutdown::web::{Device, Web, Work};

const SERIAL: &str = include_str!("../../data/shutdown-azure-16vcpu-serial-6.11.txt");
const ASYNC: &str = include_str!("../../data/shutdown-azure-16vcpu-async-v9.txt");

/// Devices of the machine, with and without a callback.
const DEVICES: usize = 492;
/// The bus that all of Hyper-V's devices are on.
const VMBUS: &str = "VMBUS:00";

/// A device's line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct StartedShutdown {
    at: Duration,
    driver: String,
    device: String,
}

/// Returns the web of a log.
pub(super) fn web(log: &str) -> Web {
    let (one_by_one, end) = read(SERIAL);
    let alone = times(&one_by_one, end);
    let (begun, times) = match log {
        "serial" => (one_by_one, alone),
        _ => {
            let (begun, end) = read(ASYNC);
            let alone =
                |name: &str| Some(alone[one_by_one.iter().position(|line| line.device == name)?]);
            let times = overlapping(&begun, end, alone);
            (begun, times)
        }
    };
    let mut timed: Vec<(StartedShutdown, Duration)> = begun.into_iter().zip(times).collect();
    // Devices are registered in the reverse order of the shutdown. The old design took the two NVMe
    // devices and their neighbour out of order; none of the three depends on another.
    timed.reverse();
    let number = |name: &str| {
        let place = timed.iter().position(|(line, _)| line.device == name)?;
        u32::try_from(place).ok()
    };
    let device = |(line, time): &(StartedShutdown, Duration)| Device {
        name: line.device.clone(),
        parent: parent(line, &timed).and_then(number),
        suppliers: Vec::new(),
        work: Work::Sleep(*time),
        opted_in: has_opted_in(line),
    };
    let mut devices: Vec<Device> = timed.iter().map(device).collect();
    for number in devices.len()..DEVICES {
        devices.push(Device {
            name: format!("without-a-callback-{number}"),
            parent: None,
            suppliers: Vec::new(),
            work: Work::None,
            opted_in: false,
        });
    }
    Web::new(devices, false)
}

/// Returns the devices' lines, and the time at which the last one's shutdown had ended.
fn read(text: &str) -> (Vec<StartedShutdown>, Duration) {
    let mut reader = Reader::new();
    reader.feed(text.as_bytes());
    let log = reader.finish();
    let begun = |span: &Span| StartedShutdown {
        at: span.start,
        driver: span.driver.as_ref().map(|d| d.name().to_owned()).unwrap_or_default(),
        device: span.name.clone(),
    };
    let spans = log.shutdown.spans();
    let end = spans.iter().map(|span| span.end).max().unwrap_or_default();
    (spans.iter().map(begun).collect(), end)
}

/// Returns the time of each callback.
fn times(begun: &[StartedShutdown], end: Duration) -> Vec<Duration> {
    let gap = |n: usize| begun.get(n + 1).map_or(end, |line| line.at) - begun[n].at;
    begun.iter().enumerate().map(|(n, _)| gap(n)).collect()
}

/// Returns the time of each callback of the log in which some began at nearly the same time.
/// `alone` is the time of one that runs alone.
fn overlapping(
    begun: &[StartedShutdown],
    end: Duration,
    alone: impl Fn(&str) -> Option<Duration>,
) -> Vec<Duration> {
    let is_nvme = |line: &StartedShutdown| line.driver == "nvme";
    let first = begun.iter().position(is_nvme).unwrap_or(begun.len());
    let bus = begun.iter().skip(first).position(|line| line.driver == "hv_pci");
    let bus = bus.map_or(begun.len(), |behind| first + behind);
    let together = begun.get(bus).map_or(end, |line| line.at);
    let time = |(n, gap): (usize, Duration)| match &begun[n] {
        line if is_nvme(line) => together - line.at,
        line if (first..bus).contains(&n) => alone(&line.device).unwrap_or(gap),
        _ => gap,
    };
    times(begun, end).into_iter().enumerate().map(time).collect()
}

/// Returns the parent of a device, found by its name.
fn parent<'l>(line: &StartedShutdown, all: &'l [(StartedShutdown, Duration)]) -> Option<&'l str> {
    let find = |fits: &dyn Fn(&StartedShutdown) -> bool| {
        all.iter().find(|(other, _)| fits(other)).map(|(other, _)| other.device.as_str())
    };
    let on_vmbus = line.driver.starts_with("hv_")
        || line.driver.starts_with("hyperv_")
        || line.driver == "hid_hyperv"
        || (line.driver == "vmbus" && line.device != VMBUS);
    match line.driver.as_str() {
        _ if on_vmbus => find(&|other| other.device == VMBUS),
        "nvme" | "mlx5_core" => {
            let domain = format!("-{}-", line.device.split(':').next()?);
            find(&|other| other.driver == "hv_pci" && other.device.contains(&domain))
        }
        _ if line.device.starts_with("mlx5_core.") => find(&|other| other.driver == "mlx5_core"),
        "sd" => find(&|other| other.driver == "hv_storvsc"),
        "atkbd" => find(&|other| other.driver == "hyperv_keyboard"),
        "alarmtimer" => find(&|other| other.driver == "rtc_cmos"),
        _ => None,
    }
}

/// Returns true for PCI and SCSI devices.
fn has_opted_in(line: &StartedShutdown) -> bool {
    ["nvme", "mlx5_core", "sd"].contains(&line.driver.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find<'w>(web: &'w Web, name: &str) -> &'w Device {
        web.devices().iter().find(|device| device.name == name).expect("the log has it")
    }

    fn micros(web: &Web, name: &str) -> u128 {
        match find(web, name).work {
            Work::Sleep(time) => time.as_micros(),
            _ => 0,
        }
    }

    fn sum(web: &Web) -> u128 {
        web.devices().iter().map(|device| micros(web, &device.name)).sum()
    }

    #[test]
    fn callbacks_take_as_long_as_the_logs_say_and_disks_end_when_the_next_bus_begins() {
        for (log, total, times) in [
            // The time is from the first line to that of ACPI. Two lines are one callback, and a
            // name may have blanks.
            ("serial", 320_471, [139_455, 113_231, 5_887, 1_579]),
            // The sum exceeds the machine's 351.5 ms, since two ran at once.
            ("async", 521_928, [164_652, 164_506, 5_887, 22_248]),
        ] {
            let web = web(log);
            assert_eq!((web.devices().len(), sum(&web)), (DEVICES, total));
            let names = ["c2b7:00:00.0", "132e:00:00.0", "1610:00:02.0", "Fixed MDIO bus.0"];
            assert_eq!(names.map(|name| micros(&web, name)), times);
        }
    }

    #[test]
    fn the_graph_is_what_the_names_tell() {
        for web in ["serial", "async"].map(web) {
            let parent = |name: &str| {
                let parent = find(&web, name).parent?;
                Some(web.devices()[parent as usize].name.as_str())
            };
            assert_eq!(parent("c2b7:00:00.0"), Some("2394da4f-c2b7-43bd-b72f-d3482ef6850a"));
            assert_eq!(parent("132e:00:00.0"), Some("0cdfe983-132e-434b-8025-fc9ab43c0fc5"));
            assert_eq!(parent("1610:00:02.0"), Some("ba152dae-1610-4c67-b925-81ac4902e4ce"));
            assert_eq!(parent("mlx5_core.eth.0"), Some("1610:00:02.0"));
            assert_eq!(parent("0022487e-1043-0022-487e-10430022487e"), Some(VMBUS));
            assert!(parent("0:0:0:0").is_some_and(|bus| bus.starts_with("f8b3781")));
            assert_eq!((parent(VMBUS), parent("reg-dummy")), (None, None));
            let opted_in = web.devices().iter().filter(|device| device.opted_in).count();
            assert_eq!(opted_in, 5);
            assert!(web.bound() < Duration::from_micros(sum(&web) as u64) / 2);
        }
    }
}
