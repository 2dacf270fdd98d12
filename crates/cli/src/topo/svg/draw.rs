//! The elements of the picture, from the top of the card to its bottom.

use std::fmt::{Arguments, Write};

use corewise::timeline::markup::{FONT, escape};
use corewise::topology::{AffinityScope, Cpu, CpuId, Pods, Topology};

use super::layout::{self, CELL, HEADER, NOTE, Notes, Placed, SEAM, text_width};
use super::tree::Core;
use super::{LINE, MARGIN};

/// Fill and outline of the pods' CPUs, used in a cycle. The colours are light enough for dark text,
/// and differ for people who don't see red and green (after Paul Tol's "light" scheme).
const COLOURS: [(&str, &str); 9] = [
    ("#a6c8ea", "#2f6da8"),
    ("#f6c89a", "#b0601a"),
    ("#b8dca6", "#4a8030"),
    ("#f2b3c6", "#b03a66"),
    ("#cfc3ee", "#6b51b5"),
    ("#f0e08f", "#8c7a10"),
    ("#9fdcd6", "#1f7f78"),
    ("#dcc3a8", "#80592f"),
    ("#c9d3dd", "#55677a"),
];

const STYLE: &str = "\
.title{font-size:18px;font-weight:600}\
.quiet{fill:#5b6472}\
.pod{font-weight:600}\
.box{fill:#fff;stroke:#aeb6c2;stroke-width:1}\
.even{fill:#f4f6f9}\
.shown{stroke-width:2}\
.core{fill:none;stroke:#8a93a1;stroke-width:1}\
.n{font-size:11px;text-anchor:middle}\
.s{font-size:9px;text-anchor:middle}\
.off{fill-opacity:.3;stroke-dasharray:3 2}\
.out{fill:#fff;stroke:#8a93a1;stroke-dasharray:1 2}\
.cross{stroke:#5b6472;stroke-width:1}\
.apart{fill:#1f2430;stroke:none}\
.faint{fill:#6b7482}";

/// A picture that grows downwards.
pub(super) struct Canvas<'m> {
    topology: &'m Topology,
    pods: &'m Pods,
    scope: AffinityScope,
    notes: Notes,
    width: u32,
    out: String,
    bottom: u32,
}

/// Appearance of a CPU's cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CpuState {
    offline: bool,
    isolated: bool,
    not_allowed: bool,
}

impl<'m> Canvas<'m> {
    pub(super) fn new(
        width: u32,
        topology: &'m Topology,
        pods: &'m Pods,
        scope: AffinityScope,
        notes: Notes,
    ) -> Canvas<'m> {
        Canvas { topology, pods, scope, notes, width, out: String::new(), bottom: MARGIN }
    }

    fn line(&mut self, text: Arguments<'_>) {
        // Writing to a String can't fail.
        let _ = self.out.write_fmt(text);
        self.out.push('\n');
    }

    /// Returns the height at which there is room.
    pub(super) fn bottom(&self) -> u32 {
        self.bottom
    }

    pub(super) fn title(&mut self, text: &str) {
        self.bottom += 18;
        let y = self.bottom;
        self.line(format_args!(
            "<text class=\"title\" x=\"{MARGIN}\" y=\"{y}\">{}</text>",
            escape(text)
        ));
        self.bottom += 4;
    }

    pub(super) fn text(&mut self, class: &str, text: &str) {
        self.bottom += LINE;
        let y = self.bottom;
        // Blanks at the beginning are an indent.
        let indent = (text.len() - text.trim_start().len()) as u32 * 4;
        let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
        self.line(format_args!(
            "<text{class} x=\"{}\" y=\"{y}\">{}</text>",
            MARGIN + indent,
            escape(text.trim_start())
        ));
    }

    /// Draws the meaning of the marks that occur in this picture.
    pub(super) fn legend(&mut self) {
        let states: Vec<CpuState> =
            self.topology.cpus().iter().map(|cpu| self.state(cpu)).collect();
        let stacks = layout_has_stacks(self.topology);
        let mut entries: Vec<(Vec<CpuState>, &str)> = vec![(
            vec![CpuState::default(); 3],
            match self.scope {
                AffinityScope::Cpu => "each CPU is a pod, by colour and name (p0)",
                AffinityScope::Smt => "CPUs by number, coloured by pod; above a core its pod (p0)",
                _ => "CPUs by number, coloured by pod",
            },
        )];
        let kinds = [
            (CpuState { offline: true, ..CpuState::default() }, "offline"),
            (CpuState { isolated: true, ..CpuState::default() }, "isolated from general work"),
            (CpuState { not_allowed: true, ..CpuState::default() }, "not usable by this process"),
        ];
        for (kind, words) in kinds {
            let any = states.iter().any(|state| {
                state.offline && kind.offline
                    || state.isolated && kind.isolated
                    || state.not_allowed && kind.not_allowed
            });
            if any {
                entries.push((vec![kind], words));
            }
        }
        let mut x = MARGIN;
        self.bottom += 8;
        let mut place = |canvas: &mut Canvas<'_>, room: u32| {
            if x > MARGIN && x + room > canvas.width - MARGIN {
                x = MARGIN;
                canvas.bottom += LINE;
            }
            let at = x;
            x += room + 18;
            at
        };
        for (swatches, words) in entries {
            let all = swatches.len() as u32 * 18;
            let mut at = place(self, all + 4 + text_width(words));
            let y = self.bottom;
            for (index, state) in swatches.into_iter().enumerate() {
                self.swatch(at, y, index, state);
                at += 18;
            }
            self.line(format_args!("<text x=\"{}\" y=\"{}\">{words}</text>", at + 4, y + 11));
        }
        if stacks {
            let words = "SMT siblings of a core";
            let at = place(self, 20 + text_width(words));
            let y = self.bottom;
            self.line(format_args!(
                "<rect class=\"core\" x=\"{at}\" y=\"{}\" width=\"14\" height=\"18\" rx=\"2\"/>",
                y - 3
            ));
            for dy in [0, 7] {
                self.line(format_args!(
                    "<rect class=\"core\" x=\"{}\" y=\"{}\" width=\"10\" height=\"5\"/>",
                    at + 2,
                    y + dy
                ));
            }
            self.line(format_args!("<text x=\"{}\" y=\"{}\">{words}</text>", at + 20, y + 11));
        }
        self.bottom += 12 + 14;
    }

    fn swatch(&mut self, x: u32, y: u32, colour: usize, state: CpuState) {
        let class = class(Some(colour as u32), state);
        self.line(format_args!(
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"14\" height=\"12\" rx=\"2\"/>"
        ));
        self.marks(x, y, 14, 12, state);
    }

    /// Draws marks over a cell.
    fn marks(&mut self, x: u32, y: u32, width: u32, height: u32, state: CpuState) {
        if state.offline {
            self.line(format_args!(
                "<path class=\"cross\" d=\"M{x} {}L{} {y}\"/>",
                y + height,
                x + width
            ));
        }
        if state.isolated {
            self.line(format_args!("<path class=\"apart\" d=\"M{x} {y}h7l-7 7z\"/>"));
        }
    }

    pub(super) fn machine(&mut self, machine: &Placed<'_>) {
        self.area(machine, 0);
        self.bottom = machine.y + machine.size.height + 8;
    }

    fn area(&mut self, placed: &Placed<'_>, depth: usize) {
        let Placed { area, x, y, size, .. } = placed;
        let even = if depth % 2 == 0 { " even" } else { "" };
        let (shown, colour) = match area.pod {
            Some(pod) => (" shown", format!(" style=\"stroke:{}\"", colour(pod).1)),
            None => ("", String::new()),
        };
        let id = area.pod.map_or(String::new(), |pod| format!(" id=\"pod-{pod}\""));
        let words = layout::header(area);
        let what = if words.is_empty() { "machine" } else { &words };
        self.line(format_args!(
            "<g{id}><title>{}</title><rect class=\"box{even}{shown}\" x=\"{x}\" y=\"{y}\" \
             width=\"{}\" height=\"{}\" rx=\"4\"{colour}/>",
            escape(&format!("{what}\n{}", super::cpus(&area.cpus))),
            size.width,
            size.height
        ));
        if !words.is_empty() {
            self.header(placed);
        }
        for area in &placed.areas {
            self.area(area, depth + 1);
        }
        for (x, y, core) in &placed.cores {
            self.core(*x, *y, core);
        }
        self.line(format_args!("</g>"));
    }

    fn header(&mut self, placed: &Placed<'_>) {
        let names = placed.area.names.join(" · ");
        let (x, y) = (placed.x + 8, placed.y + HEADER - 3);
        let pod = placed.area.pod.map_or(String::new(), |pod| {
            let dot = if names.is_empty() { "" } else { " · " };
            format!("<tspan class=\"pod\" style=\"fill:{}\">pod {pod}</tspan>{dot}", colour(pod).1)
        });
        self.line(format_args!("<text x=\"{x}\" y=\"{y}\">{pod}{}</text>", escape(&names)));
    }

    fn core(&mut self, x: u32, y: u32, core: &Core) {
        let cell = self.notes.cell();
        let mut top = y;
        let id = core.pod.map_or(String::new(), |pod| format!(" id=\"pod-{pod}\""));
        self.line(format_args!("<g{id}>"));
        if self.notes.cores {
            if let Some(pod) = core.pod {
                let middle = x + cell.width / 2 + SEAM;
                self.line(format_args!(
                    "<text class=\"s\" x=\"{middle}\" y=\"{}\" style=\"fill:{}\">p{pod}</text>",
                    top + 8,
                    colour(pod).1
                ));
            }
            top += NOTE;
        }
        if core.cpus.len() > 1 {
            self.line(format_args!(
                "<rect class=\"core\" x=\"{x}\" y=\"{top}\" width=\"{}\" height=\"{}\" rx=\"3\"/>",
                cell.width + 2 * SEAM,
                core.cpus.len() as u32 * (cell.height + SEAM) + SEAM
            ));
        }
        for (&cpu, &pod) in core.cpus.iter().zip(&core.cpu_pods) {
            self.cpu(x + SEAM, top + SEAM, cpu, pod);
            top += cell.height + SEAM;
        }
        self.line(format_args!("</g>"));
    }

    /// Draws one CPU. `named` is the pod that consists of this CPU alone.
    fn cpu(&mut self, x: u32, y: u32, number: CpuId, named: Option<u32>) {
        let Some(cpu) = self.topology.cpu(number) else { return };
        let state = self.state(cpu);
        let pod = self.pods.pod_of(self.scope, number);
        let cell = self.notes.cell();
        let id = named.map_or(String::new(), |pod| format!(" id=\"pod-{pod}\""));
        self.line(format_args!(
            "<g{id}><title>{}</title><rect class=\"{}\" x=\"{x}\" y=\"{y}\" width=\"{}\" \
             height=\"{}\" rx=\"2\"/>",
            escape(&tooltip(cpu, state, pod)),
            class(pod, state),
            cell.width,
            cell.height
        ));
        self.marks(x, y, cell.width, cell.height, state);
        let faint = if state.offline || state.not_allowed { " faint" } else { "" };
        let middle = x + cell.width / 2;
        self.line(format_args!(
            "<text class=\"n{faint}\" x=\"{middle}\" y=\"{}\">{number}</text>",
            y + 14
        ));
        if let Some(pod) = named {
            if self.notes.cpus {
                self.line(format_args!(
                    "<text class=\"s\" x=\"{middle}\" y=\"{}\">p{pod}</text>",
                    y + CELL.height + 5
                ));
            }
        }
        self.line(format_args!("</g>"));
    }

    fn state(&self, cpu: &Cpu) -> CpuState {
        CpuState {
            offline: !cpu.online,
            isolated: self.topology.isolated().contains(cpu.cpu),
            not_allowed: !self.topology.allowed().contains(cpu.cpu),
        }
    }

    /// Returns the whole document.
    pub(super) fn finish(self, title: &str, description: &str) -> String {
        let (width, height) = (self.width, self.bottom + MARGIN);
        let pods = COLOURS
            .iter()
            .enumerate()
            .map(|(index, (fill, stroke))| format!(".c{index}{{fill:{fill};stroke:{stroke}}}"));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             width=\"{width}\" height=\"{height}\" role=\"img\" aria-labelledby=\"title desc\">\n\
             <title id=\"title\">{}</title>\n<desc id=\"desc\">{}</desc>\n\
             <style>text{{{FONT};fill:#1f2430}}{}{STYLE}</style>\n\
             <rect width=\"{width}\" height=\"{height}\" rx=\"6\" fill=\"#ffffff\"/>\n{}</svg>\n",
            escape(title),
            escape(description),
            pods.collect::<String>(),
            self.out
        )
    }
}

fn colour(pod: u32) -> (&'static str, &'static str) {
    COLOURS[pod as usize % COLOURS.len()]
}

fn class(pod: Option<u32>, state: CpuState) -> String {
    let colour = match pod {
        Some(pod) if !state.not_allowed => format!("c{}", pod as usize % COLOURS.len()),
        _ => return "out".to_string(),
    };
    if state.offline { format!("{colour} off") } else { colour }
}

/// Returns everything that is known about a CPU.
fn tooltip(cpu: &Cpu, state: CpuState, pod: Option<u32>) -> String {
    let mut words = vec![format!("CPU {}", cpu.cpu)];
    let known = [("core", cpu.core), ("package", cpu.package), ("cache", cpu.llc)];
    for (what, number) in known.into_iter().chain([("node", cpu.node)]) {
        words.extend(number.map(|number| format!("{what} {number}")));
    }
    words.extend(pod.map(|pod| format!("pod {pod}")));
    let states = [
        (state.offline, "offline"),
        (state.isolated, "isolated"),
        (state.not_allowed, "not allowed"),
    ];
    words.extend(states.into_iter().filter(|(is, _)| *is).map(|(_, word)| word.to_string()));
    words.join(", ")
}

fn layout_has_stacks(topology: &Topology) -> bool {
    let known = topology.cpus().iter().filter(|cpu| cpu.core.is_some()).count();
    known > topology.core_count()
}
