//! `corewise attach --list`: the attached devices and the disks of ublk.

use std::path::Path;

use corewise::ublk;
use corewise_server::text::Columns;
use corewise_server::{DiskRecord, units};

use super::connections::ConnectionState;
use super::devices::{self, Device};
use crate::exit::Failure;
use crate::screen;

/// A disk of ublk.
struct UblkDisk {
    device: String,
    size: u64,
    /// Process that serves it. `None`: it waits for the next server.
    process: Option<u32>,
    record: Option<DiskRecord>,
}

/// Returns the disks of ublk.
fn disks() -> Result<Vec<UblkDisk>, ublk::Error> {
    let disk = |disk: ublk::FoundDisk| {
        let ublk::FoundDisk { number, server, mark, .. } = disk;
        let name = format!("ublkb{number}");
        let size = devices::size(Path::new("/sys/block"), &name).unwrap_or_default();
        let record = DiskRecord::of(number, mark);
        UblkDisk { device: format!("/dev/{name}"), size, process: server, record }
    };
    Ok(ublk::list(|_| true)?.into_iter().map(disk).collect())
}

/// Returns a sentence with the names of what can be detached.
pub(super) fn present() -> String {
    let mut names: Vec<_> = Device::all().iter().map(|device| device.row()[0].clone()).collect();
    let disks = disks();
    let of_disk = |disk: &UblkDisk| match &disk.record {
        Some(record) => format!("{} ({})", disk.device, record.export),
        None => disk.device.clone(),
    };
    names.extend(disks.iter().flatten().map(of_disk));
    let names = match names.is_empty() {
        true => "no device is attached".to_string(),
        false => format!("there is {}", names.join(", ")),
    };
    match disks {
        Ok(_) => names,
        Err(error) => format!("{names}; the disks of ublk can't be listed: {error}"),
    }
}

/// Returns what the user has to know about the connections of a device, if there is something.
fn note(device: &Device) -> Option<String> {
    let (path, export) = (devices::path(device.index), device.export.as_ref()?);
    match devices::owner(device.index) {
        Some(owner) => {
            let losses = ConnectionState::of(device.index, owner)?.losses()?;
            Some(format!("{path}: {losses}"))
        }
        None => Some(format!(
            "{path}: no process replaces connections that die; 'corewise attach {export} {path}' \
             takes it over"
        )),
    }
}

pub(super) fn list(json: bool) -> Result<(), Failure> {
    // A process without the rights for ublk sees the other devices.
    let (devices, disks) = (Device::all(), disks().unwrap_or_default());
    let of_disk = |disk: &UblkDisk| {
        let UblkDisk { device, size, process, record } = disk;
        let export = record.as_ref().map(|record| &record.export);
        let manifest = record.as_ref().map(|record| &record.manifest);
        serde_json::json!({
            "device": device, "size": size, "process": process,
            "export": export, "manifest": manifest,
        })
    };
    if json {
        let of_device = |device: &Device| {
            let mut document = serde_json::to_value(device)?;
            let owner = devices::owner(device.index);
            let state = owner.and_then(|owner| ConnectionState::of(device.index, owner));
            document["connections"] = serde_json::to_value(state)?;
            Ok::<_, serde_json::Error>(document)
        };
        let devices = devices.iter().map(of_device).collect::<Result<Vec<_>, _>>()?;
        let disks: Vec<_> = disks.iter().map(of_disk).collect();
        let all = serde_json::json!({ "devices": devices, "disks": disks });
        println!("{}", serde_json::to_string_pretty(&all)?);
    } else if devices.is_empty() && disks.is_empty() {
        println!("no device is attached");
    } else {
        let head = ["device", "size", "process", "export"];
        let row = |disk: &UblkDisk| {
            let process = disk.process.map_or("(waits)".to_string(), |server| server.to_string());
            let export = disk.record.as_ref().map_or("-".to_string(), |record| {
                let DiskRecord { export, manifest, .. } = record;
                match export.is_empty() {
                    true => format!("the empty name, of {manifest}"),
                    false => format!("{export}, of {manifest}"),
                }
            });
            vec![disk.device.clone(), units::size(disk.size), process, export]
        };
        let rows = devices.iter().map(|device| device.row().to_vec());
        let rows = rows.chain(disks.iter().map(row)).collect();
        let table = Columns { head: &head, keys: &[0], words: &[0, 3], rows };
        println!("{}", table.lines(screen::whole_width()).join("\n"));
        for note in devices.iter().filter_map(note) {
            println!("{note}");
        }
    }
    Ok(())
}
