//! Writes sample timelines of several sizes into a folder, to look at:
//! `cargo run -p corewise-timeline --example gallery -- FOLDER`.

#[path = "../tests/samples/mod.rs"]
mod samples;

use corewise_timeline::{html, json, perfetto, svg, text};
use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let folder = std::env::args_os().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    std::fs::create_dir_all(&folder)?;
    for devices in [0, 1, 3, 40, 2000] {
        let t = samples::bring_up(devices, 4);
        std::fs::write(folder.join(format!("{devices}.svg")), svg::render(&t))?;
        std::fs::write(folder.join(format!("{devices}.json")), json::render(&t))?;
        let page = html::Page { title: "gallery", facts: &[], timelines: &[&t] };
        std::fs::write(folder.join(format!("{devices}.html")), html::render(&page))?;
        let trace = perfetto::render(&[&t]);
        std::fs::write(folder.join(format!("{devices}.trace.json")), trace)?;
        for width in [60, 100, 160] {
            std::fs::write(folder.join(format!("{devices}-{width}.txt")), text::render(&t, width))?;
        }
    }
    Ok(())
}
