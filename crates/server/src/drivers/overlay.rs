//! Overlays: their files, and reports of their events.

use std::sync::Arc;

use corewise::blockmq::{IoStats, Queue};
use corewise::device::ProbeError;
use corewise::drivers::{FileDriver, OnLoss, Overlay, OverlayOptions};
use corewise::nbd::AllocationDepth;

use super::context::VolumeContext;
use super::file;
use super::volume::Volume;
use crate::manifest::{self, Io, Located};

/// Opens the overlay of `device` over its base, or creates it if its file isn't there. Returns the
/// driver of its file, too.
pub(super) fn open(
    device: &manifest::Device,
    asked: &manifest::Overlay,
    base: Option<&Arc<Volume>>,
    context: &VolumeContext,
) -> Result<(Arc<Overlay>, Arc<FileDriver>), ProbeError> {
    let base = base.map(|base| base.device()).transpose()?;
    let (name, path) = (device.name.as_str(), &asked.path.value);
    let size = asked.size.as_ref().map(|at| at.value);
    file::refuse_emptied(path, "an overlay").map_err(ProbeError::failed)?;
    let is_there = path.exists();
    let new_size =
        match (is_there, &base) {
            (true, _) => None,
            (false, None) => {
                return Err(ProbeError::failed(format!(
                    "there is no overlay at {}, and a new one needs a base: name that in 'over'",
                    path.display()
                )));
            }
            (false, Some(base)) => {
                let size = size.unwrap_or(base.geometry().size);
                let whole = Overlay::file_size(size, asked.block_size);
                Some(whole.ok_or_else(|| {
                    ProbeError::failed(format!("an overlay can't have {size} bytes"))
                })?)
            }
        };
    let file = manifest::FileDriver {
        path: asked.path.clone(),
        create: new_size.is_some(),
        size: new_size.map(|size| Located::new(size, asked.path.place)),
        block_size: 512,
        io: Io::Auto,
        direct: asked.direct,
        write_log: None,
        on_lost: OnLoss::Error,
        read_only: false,
    };
    let file = file::open(device, &file, context)?;
    // The overlay's own queue counts and times the requests.
    let queue = Queue::builder(&context.machine, Arc::clone(&file) as _)
        .name(format!("{name}: {}", path.display()))
        .iostats(IoStats::Counted)
        .build(&context.workqueue);
    let (report, device) = (context.report.clone(), name.to_owned());
    let options = OverlayOptions::new()
        .block_size(asked.block_size)
        .size(size)
        .fetch(asked.fetch, asked.fetch_rate)
        .base_in_use(context.missing.why_no_commit(name))
        .observer(move |event| report.overlay(&device, event));
    let overlay = Overlay::open(queue, base, options, &context.workqueue);
    Ok((Arc::new(overlay.map_err(ProbeError::failed)?), file))
}

/// The layers of an overlay, for clients: its own blocks, and its base.
pub(super) struct Layers(pub(super) Arc<Overlay>);

impl AllocationDepth for Layers {
    fn depths(&self, offset: u64, len: u64, most: usize) -> Option<Vec<(u64, u32)>> {
        self.0.depths(offset, len, most)
    }
}
