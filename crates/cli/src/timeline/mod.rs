//! `corewise timeline`: probes and shutdowns in a kernel log, and predictions of faster ones.

mod document;
mod report;
mod source;
mod what_if;

use std::io::Write;

use corewise::timeline::{Timeline, html, json, perfetto, svg};
use what_if::{NamedPrediction, WhatIfArgs};

use crate::args::timeline::{Args, TimelineFile, TimelineFormat};
use crate::exit::Failure;
use crate::{screen, whole_file};

/// Reads logs and shows their timelines.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    for file in &args.output {
        check(file)?;
        source::spare(args, file)?;
    }
    let asked = WhatIfArgs::of(args);
    let logs = source::read(args)?;
    let predicted = asked.predict(&logs)?;
    for file in &args.output {
        write_all(file, &logs, &predicted)?;
    }
    let mut out = anstream::stdout().lock();
    if args.json {
        document::write(&mut out, args, &logs, &predicted)?;
    } else {
        let text = report::text(args, &logs, &predicted, screen::all_columns());
        write!(out, "{text}")?;
    }
    Ok(out.flush()?)
}

/// Writes all timelines and their predictions into one file.
fn write_all(
    file: &TimelineFile,
    logs: &[source::Log],
    predicted: &[Vec<NamedPrediction>],
) -> Result<(), Failure> {
    let mut named = Vec::new();
    for (log, predicted) in logs.iter().zip(predicted) {
        let name = |timeline: &corewise::timeline::Timeline| match logs.len() {
            1 => timeline.name().to_owned(),
            _ => format!("{}: {}", log.name, timeline.name()),
        };
        for timeline in &log.timelines {
            named.push(timeline.clone().named(name(timeline)));
        }
        for prediction in predicted {
            let timeline = &prediction.prediction.timeline;
            named.push(timeline.clone().named(format!("{}, {}", name(timeline), prediction.asked)));
        }
    }
    let facts: Vec<(String, String)> = logs.iter().flat_map(report::facts).collect();
    let timelines: Vec<_> = named.iter().collect();
    let short = |log: &source::Log| match log.name.rsplit_once('/') {
        Some((_, name)) => name.to_owned(),
        None => log.name.clone(),
    };
    let names: Vec<String> = logs.iter().map(short).collect();
    write(file, PageInfo { title: &names.join(", "), facts: &facts }, &timelines)
}

/// Title and facts of a page of timelines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageInfo<'a> {
    pub(crate) title: &'a str,
    pub(crate) facts: &'a [(String, String)],
}

/// Fails if the file could not be written later: a server may run for months before it writes.
pub(crate) fn check(file: &TimelineFile) -> Result<(), Failure> {
    whole_file::check(&file.path).map_err(|why| cannot(file, why))
}

/// Writes the timelines that exist so far. The file is complete at any moment.
pub(crate) fn write(
    file: &TimelineFile,
    about: PageInfo<'_>,
    timelines: &[&Timeline],
) -> Result<(), Failure> {
    let text = match file.format {
        TimelineFormat::Html => {
            let PageInfo { title, facts } = about;
            html::render(&html::Page { title, facts, timelines })
        }
        TimelineFormat::Trace => perfetto::render(timelines),
        TimelineFormat::Svg => stack(timelines.iter().map(|t| svg::render(t))),
        TimelineFormat::Json => {
            // The renderer's own text goes in unchanged.
            let parts = timelines.iter().map(|t| json::render(t).trim_end().to_string());
            format!("[{}]\n", parts.collect::<Vec<_>>().join(",\n"))
        }
    };
    whole_file::write(&file.path, &text).map_err(|why| cannot(file, why))
}

fn cannot(file: &TimelineFile, why: impl std::fmt::Display) -> Failure {
    Failure::new(format!("cannot write the timeline '{}': {why}", file.path.display()))
}

/// Stacks pictures into one.
fn stack(pictures: impl Iterator<Item = String>) -> String {
    let (mut width, mut height) = (0.0_f64, 0.0_f64);
    let mut inside = String::new();
    for picture in pictures {
        let size = |name| attribute(&picture, name).unwrap_or(0.0);
        let (its_width, its_height) = (size("width"), size("height"));
        inside.push_str(&picture.replacen("<svg ", &format!("<svg y=\"{height}\" "), 1));
        width = width.max(its_width);
        height += its_height;
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         width=\"{width}\" height=\"{height}\" role=\"img\" \
         aria-label=\"timelines\">\n{inside}</svg>\n"
    )
}

/// Returns a number among the attributes of the outermost element.
fn attribute(picture: &str, name: &str) -> Option<f64> {
    let head = picture.get(..picture.find('>')?)?;
    let start = head.find(&format!(" {name}=\""))? + name.len() + 3;
    head[start..].split('"').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use corewise::timeline::{Span, SpanKind};

    use super::*;

    fn timeline(name: &str) -> Timeline {
        let mut timeline = Timeline::new(name);
        timeline.push(Span::new("disk", SpanKind::Probe, Duration::ZERO, Duration::from_millis(3)));
        timeline
    }

    fn written(name: &str, format: TimelineFormat) -> String {
        let folder = tempfile::tempdir().unwrap();
        let file = TimelineFile::parse(folder.path().join(name).to_str().unwrap()).unwrap();
        assert_eq!(file.format, format);
        check(&file).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the check left a file");
        let (up, down) = (timeline("bring-up"), timeline("shutdown"));
        let about = PageInfo { title: "up", facts: &[] };
        write(&file, about, &[&up]).unwrap();
        write(&file, about, &[&up, &down]).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        std::fs::read_to_string(&file.path).unwrap()
    }

    #[test]
    fn the_second_picture_stands_below_the_first() {
        let text = written("t.svg", TimelineFormat::Svg);
        let height = attribute(&svg::render(&timeline("bring-up")), "height").unwrap();
        assert!(height > 50.0);
        assert!(text.contains("<svg y=\"0\" ") && text.contains(&format!("<svg y=\"{height}\" ")));
        assert_eq!(attribute(&text, "height"), Some(2.0 * height));
        assert_eq!(text.matches("<svg ").count(), text.matches("</svg>").count());
    }

    #[test]
    fn the_json_is_a_list_of_both() {
        let text = written("t.json", TimelineFormat::Json);
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json[0]["name"], "bring-up");
        assert_eq!(json[1]["spans"][0]["name"], "disk");
    }

    #[test]
    fn the_page_and_the_trace_hold_both() {
        let page = written("t.html", TimelineFormat::Html);
        assert!(page.contains("<title>up</title>") && page.matches("role=\"tab\"").count() == 2);
        let trace = written("t.trace.json", TimelineFormat::Trace);
        let trace: serde_json::Value = serde_json::from_str(&trace).unwrap();
        let slices = trace["traceEvents"].as_array().unwrap();
        assert_eq!(slices.iter().filter(|event| event["ph"] == "X").count(), 2);
    }

    #[test]
    fn the_ending_says_the_format() {
        let format = |name| TimelineFile::parse(name).map(|file| file.format);
        assert_eq!(format("a.svg"), Ok(TimelineFormat::Svg));
        assert_eq!(format("a/b.json"), Ok(TimelineFormat::Json));
        assert_eq!(format("b.trace.json"), Ok(TimelineFormat::Trace));
        assert_eq!(format("up.html"), Ok(TimelineFormat::Html));
        assert!(format("a.png").is_err() && format("svg").is_err() && format("").is_err());
        for ending in [".svg", "a/.html", ".json", ".trace.json"] {
            assert!(format(ending).unwrap_err().contains("the part before its ending"), "{ending}");
        }
    }

    #[test]
    fn a_file_that_can_never_be_written_is_told_beforehand() {
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path().join("missing/t.svg"), folder.path().to_path_buf()] {
            let file = TimelineFile { path, format: TimelineFormat::Svg };
            let message = format!("{:?}", check(&file).unwrap_err());
            assert!(message.contains(&format!("'{}': it", file.path.display())), "{message}");
        }
    }
}
