//! Devices as JSON and as text. The names in the JSON are a promise; `docs/control.md` explains
//! each.

use corewise::device::{DeviceInfo, DeviceManager, Pending, Remaining, RemainingState};
use corewise::timeline::{duration, markup};
use corewise::topology::CpuId;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

use crate::text::Columns;

/// A device. Times are seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Device {
    pub(crate) name: String,
    pub(crate) driver: Option<String>,
    pub(crate) state: String,
    pub(crate) node: Option<u32>,
    pub(crate) needs: Vec<Need>,
    pub(crate) attempts: u32,
    pub(crate) deferrals: u32,
    pub(crate) probe_seconds: f64,
    pub(crate) deferred_seconds: f64,
    pub(crate) cpu: Option<u32>,
    pub(crate) worker: String,
    pub(crate) released_by: Option<String>,
    /// Reason in words why the device isn't up, or isn't shut down.
    pub(crate) waits: Option<String>,
}

/// A device that another one needs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Need {
    pub(crate) device: String,
    pub(crate) edge: String,
    pub(crate) optional: bool,
    pub(crate) state: Option<String>,
}

/// Returns all devices in the order in which they were registered.
pub(crate) fn all(manager: &DeviceManager) -> Vec<Device> {
    // The three snapshots are from different moments.
    let (devices, pending, remaining) = (manager.devices(), manager.pending(), manager.remaining());
    let with_reason = |info: &DeviceInfo| {
        let mut device = Device::from(info);
        if let Some(Pending { state, .. }) = pending.iter().find(|one| one.device == info.name) {
            device.waits = Some(state.to_string());
        }
        if let Some(left) = remaining.iter().find(|one| one.device == info.name) {
            device.state = shutdown_state(left).to_string();
            let words = left.to_string();
            let words = words.strip_prefix(&info.name).map(|rest| rest.trim_start().to_string());
            device.waits = words.or(device.waits);
        }
        device
    };
    devices.iter().map(with_reason).collect()
}

/// Returns the state of a device that a shutdown has not finished.
fn shutdown_state(left: &Remaining) -> &'static str {
    match left.state {
        RemainingState::Running { .. } if left.skipped => "skipped",
        RemainingState::Running { .. } => "stopping",
        _ => "bound",
    }
}

impl From<&DeviceInfo> for Device {
    fn from(info: &DeviceInfo) -> Device {
        let cost = &info.cost;
        let need = |need: &corewise::device::Need| Need {
            device: need.device.clone(),
            edge: need.edge.as_str().to_string(),
            optional: need.optional,
            state: need.state.as_ref().map(ToString::to_string),
        };
        Device {
            name: info.name.clone(),
            driver: info.driver.clone(),
            state: info.state.to_string(),
            node: info.node,
            needs: info.needs.iter().map(need).collect(),
            attempts: cost.attempts,
            deferrals: cost.deferrals,
            probe_seconds: cost.total.as_secs_f64(),
            deferred_seconds: cost.deferring.as_secs_f64(),
            cpu: cost.cpu.map(CpuId::number),
            worker: cost.worker.clone(),
            released_by: cost.released_by.clone(),
            waits: None,
        }
    }
}

/// Returns a table of devices, in lines of at most `width` columns as far as names allow.
pub(crate) fn text(devices: &[Device], width: usize) -> String {
    let number = |number: Option<u32>| number.map_or("-".to_string(), |n| n.to_string());
    let seconds = |s: f64| duration(std::time::Duration::try_from_secs_f64(s).unwrap_or_default());
    let head = ["device", "driver", "state", "node", "CPU", "probe", "waited last for"];
    let row = |device: &Device| {
        let mut probe = seconds(device.probe_seconds);
        if device.deferrals > 0 {
            let _ = write!(
                probe,
                " ({} deferred, {})",
                device.deferrals,
                seconds(device.deferred_seconds)
            );
        }
        let driver = device.driver.clone().unwrap_or_else(|| "-".to_string());
        let (node, cpu) = (number(device.node), number(device.cpu));
        let last = device.released_by.clone().unwrap_or_else(|| "-".to_string());
        [device.name.clone(), driver, device.state.clone(), node, cpu, probe, last]
    };
    let rows = devices.iter().map(|device| row(device).to_vec()).collect();
    let table = Columns { head: &head, keys: &[0], words: &[0, 1, 2, 3, 4, 5, 6], rows };
    let mut out = String::from("\nDevices\n");
    for line in table.lines(width) {
        let _ = writeln!(out, "{line}");
    }
    for device in devices {
        let Some(why) = &device.waits else { continue };
        indented(&mut out, &format!("{}: {why}", device.name), width);
    }
    out
}

/// Writes a sentence below a table, wrapped at `width` columns.
pub(super) fn indented(out: &mut String, text: &str, width: usize) {
    for line in markup::wrap(text, width.saturating_sub(2), 2) {
        let _ = writeln!(out, "  {}", line.trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_a_row_for_each_device_and_its_blocker() {
        let device = |name: &str, state: &str| Device {
            name: name.to_string(),
            state: state.to_string(),
            driver: Some("memory".to_string()),
            probe_seconds: 0.002,
            ..Device::default()
        };
        let waits = Some("waits for its supplier \"a\"".to_string());
        let b = Device { waits, node: Some(1), deferrals: 2, ..device("b", "waiting") };
        let text = text(&[device("a", "probing"), b], 120);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "Devices");
        assert!(lines[3].starts_with("  a ") && lines[3].contains("probing"), "{text}");
        assert!(lines[4].contains(" 1 ") && lines[4].contains("2 deferred"), "{text}");
        assert_eq!(lines[5], "  b: waits for its supplier \"a\"");
        assert_eq!(lines.len(), 6);
    }
}
