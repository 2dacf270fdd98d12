//! The places of the boxes, in whole pixels: the same machine gives the same picture everywhere.

use corewise::timeline::markup::CHAR_WIDTH;

use super::tree::{Area, Core, Inside};

/// A CPU with its number.
pub(super) const CELL: Size = Size { width: 32, height: 20 };
/// Room for a pod's name above a core, or below a CPU's number.
pub(super) const NOTE: u32 = 11;
/// Gap between siblings, and around them.
pub(super) const SEAM: u32 = 2;
/// Room for the names of a box.
pub(super) const HEADER: u32 = 20;
const PADDING: u32 = 8;
const GAP: u32 = 8;
const CORE_GAP: u32 = 4;

/// A size in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Size {
    pub(super) width: u32,
    pub(super) height: u32,
}

/// A box with its place and the boxes in it. Places count from the picture's corner.
#[derive(Debug)]
pub(super) struct Placed<'t> {
    pub(super) area: &'t Area,
    pub(super) x: u32,
    pub(super) y: u32,
    pub(super) size: Size,
    pub(super) areas: Vec<Placed<'t>>,
    pub(super) cores: Vec<(u32, u32, &'t Core)>,
}

/// Pod names that take room in this picture.
#[derive(Clone, Copy, Debug)]
pub(super) struct Notes {
    /// True if cores have their pod's name above them.
    pub(super) cores: bool,
    /// True if CPUs have their pod's name below their number.
    pub(super) cpus: bool,
}

impl Notes {
    pub(super) fn cell(self) -> Size {
        Size { height: CELL.height + if self.cpus { NOTE } else { 0 }, ..CELL }
    }

    fn core(self, core: &Core) -> Size {
        let n = core.cpus.len() as u32;
        let note = if self.cores { NOTE } else { 0 };
        Size { width: CELL.width + 2 * SEAM, height: note + n * (self.cell().height + SEAM) + SEAM }
    }
}

/// Returns the words in a box's corner.
pub(super) fn header(area: &Area) -> String {
    let pod = area.pod.map(|pod| format!("pod {pod}"));
    pod.into_iter().chain(area.names.iter().cloned()).collect::<Vec<_>>().join(" · ")
}

/// Returns the largest width of a text, in pixels.
pub(super) fn text_width(text: &str) -> u32 {
    (text.chars().count() as f64 * CHAR_WIDTH).ceil() as u32
}

/// Returns the number of characters that fit into a width.
pub(super) fn chars(width: u32) -> usize {
    (f64::from(width) / CHAR_WIDTH) as usize
}

/// Puts a box and everything in it with its corner at 0, 0. The box is wider than `width` only if
/// one core, or its own name, is wider.
pub(super) fn place(area: &Area, width: u32, notes: Notes) -> Placed<'_> {
    let words = header(area);
    let top = PADDING + if words.is_empty() { 0 } else { HEADER };
    let mut placed =
        Placed { area, x: 0, y: 0, size: Size::default(), areas: Vec::new(), cores: Vec::new() };
    let room = width.saturating_sub(2 * PADDING);
    let inside = match &area.inside {
        Inside::Areas(areas) => {
            placed.areas = areas.iter().map(|area| place(area, room, notes)).collect();
            rows(&mut placed.areas, room, top)
        }
        Inside::Cores(cores) => {
            let sizes: Vec<Size> = cores.iter().map(|core| notes.core(core)).collect();
            let (at, size) = grid(&sizes, room);
            placed.cores =
                cores.iter().zip(at).map(|(core, (x, y))| (x + PADDING, y + top, core)).collect();
            size
        }
    };
    let words = if words.is_empty() { 0 } else { text_width(&words) };
    placed.size = Size {
        width: inside.width.max(words) + 2 * PADDING,
        height: top + inside.height + PADDING,
    };
    placed
}

impl Placed<'_> {
    /// Moves a box and everything in it.
    pub(super) fn shift(&mut self, x: u32, y: u32) {
        self.x += x;
        self.y += y;
        self.areas.iter_mut().for_each(|area| area.shift(x, y));
        for core in &mut self.cores {
            core.0 += x;
            core.1 += y;
        }
    }
}

/// Puts boxes side by side into rows of equal numbers, as even as possible. The boxes of a row have
/// one height, those of a column one width.
fn rows(areas: &mut [Placed<'_>], room: u32, top: u32) -> Size {
    let n = areas.len() as u32;
    let widest = areas.iter().map(|area| area.size.width).max().unwrap_or(0);
    let fit = ((room + GAP) / (widest + GAP)).clamp(1, n.max(1));
    let columns = n.div_ceil(n.div_ceil(fit).max(1)).max(1);
    let mut widths = vec![0; columns as usize];
    for (index, area) in areas.iter().enumerate() {
        let width = &mut widths[index % columns as usize];
        *width = area.size.width.max(*width);
    }
    let (mut y, mut width) = (0, 0);
    for row in areas.chunks_mut(columns as usize) {
        let height = row.iter().map(|area| area.size.height).max().unwrap_or(0);
        let mut x = 0;
        for (area, width) in row.iter_mut().zip(&widths) {
            area.size = Size { width: *width, height };
            area.shift(x + PADDING, y + top);
            x += width + GAP;
        }
        width = width.max(x - GAP);
        y += height + GAP;
    }
    Size { width, height: y.saturating_sub(GAP) }
}

/// Puts cores into rows, about twice as wide as high, with few empty places.
fn grid(sizes: &[Size], room: u32) -> (Vec<(u32, u32)>, Size) {
    let n = sizes.len() as u32;
    let cell = Size {
        width: sizes.iter().map(|size| size.width).max().unwrap_or(0) + CORE_GAP,
        height: sizes.iter().map(|size| size.height).max().unwrap_or(0) + CORE_GAP,
    };
    let fit = ((room + CORE_GAP) / cell.width.max(1)).clamp(1, n.max(1));
    let area = f64::from(n) * 2.0 * f64::from(cell.height) / f64::from(cell.width.max(1));
    let best = (area.sqrt().round() as u32).clamp(1, fit);
    let candidates = best.saturating_sub(2).max(1)..=(best + 2).min(fit);
    let empty = |columns: u32| n.div_ceil(columns) * columns - n;
    let columns =
        // The wider one wins between two equally good ones.
        candidates.rev().min_by_key(|&columns| (empty(columns), columns.abs_diff(best)));
    let columns = columns.unwrap_or(1);
    let at = (0..n).map(|i| (i % columns * cell.width, i / columns * cell.height)).collect();
    let rows = n.div_ceil(columns);
    let size = Size {
        width: (columns.min(n) * cell.width).saturating_sub(CORE_GAP),
        height: (rows * cell.height).saturating_sub(CORE_GAP),
    };
    (at, size)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(cores: usize, room: u32) -> usize {
        let (at, size) = grid(&vec![Size { width: 36, height: 24 }; cores], room);
        assert!(size.width <= room.max(36), "{cores} in {room}: {size:?}");
        at.iter().filter(|(_, y)| *y == 0).count()
    }

    #[test]
    fn shards_of_the_usual_sizes_leave_no_place_empty() {
        for (cores, wanted) in [(1, 1), (2, 2), (6, 3), (8, 4), (9, 3), (10, 5), (36, 6)] {
            assert_eq!(columns(cores, 1000), wanted, "{cores} cores");
        }
    }

    #[test]
    fn no_row_is_wider_than_its_room() {
        for cores in [1, 7, 64, 512] {
            for room in [0, 36, 100, 1000] {
                columns(cores, room);
            }
        }
    }
}
