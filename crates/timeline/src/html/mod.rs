//! Timelines as one self-contained HTML page to zoom and search.
//!
//! The page is self-contained: style, script and data are inside, nothing is fetched, and a policy
//! in its head has the browser refuse to. It follows the reader's light or dark mode. Only what is
//! in view is drawn, so thousands of spans stay smooth. Without scripts the page still has the
//! numbers, the critical path and the tables.

mod data;
mod tables;

use crate::markup::shown;
use crate::span::Timeline;
use std::fmt::Write as _;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The parts of a page.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a> {
    /// The heading.
    pub title: &'a str,
    /// Facts below the heading, name and value: the machine, the file.
    pub facts: &'a [(String, String)],
    /// The timelines, a tab each.
    pub timelines: &'a [&'a Timeline],
}

/// Renders `page` as one HTML document. Names are escaped wherever they stand; control characters
/// and those that turn the direction of reading are replaced. The document takes about 40 KiB, and
/// 150 bytes a span.
pub fn render(page: &Page<'_>) -> String {
    let title = shown(page.title);
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
         style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
    );
    if !page.facts.is_empty() {
        out.push_str("<dl class=\"facts\">");
        for (name, value) in page.facts {
            let [name, value] = [name, value].map(|text| shown(text));
            let _ = write!(out, "<div><dt>{name}</dt><dd>{value}</dd></div>");
        }
        out.push_str("</dl>\n");
    }
    if page.timelines.len() > 1 {
        out.push_str("<nav role=\"tablist\">");
        for t in page.timelines {
            let name = shown(t.name());
            let _ = write!(out, "<button role=\"tab\">{name}</button>");
        }
        out.push_str("</nav>\n");
    }
    for t in page.timelines {
        tables::head(&mut out, t);
    }
    out.push_str(CHART);
    for t in page.timelines {
        tables::section(&mut out, t);
    }
    let _ = write!(
        out,
        "<script type=\"application/json\" id=\"data\">{}</script>\n<script>\n{SCRIPT}</script>\n\
         </body>\n</html>\n",
        data::json(page.timelines)
    );
    out
}

/// The chart's element and its controls.
const CHART: &str = "\
<div id=\"chart\">
<div class=\"bar\">
<input id=\"search\" type=\"search\" placeholder=\"search device, driver, outcome …\" aria-label=\"search\">
<span id=\"found\" class=\"quiet\"></span>
<label>rows <select id=\"group\">
<option value=\"device\">a device each</option>
<option value=\"cost\">a device each, worst first</option>
<option value=\"lane\">by worker</option>
<option value=\"driver\">by driver</option>
</select></label>
<button id=\"in\" title=\"zoom in\">+</button>
<button id=\"out\" title=\"zoom out\">−</button>
<button id=\"all\">all</button>
<span class=\"quiet\"><kbd>w</kbd> <kbd>s</kbd> or Ctrl and the wheel zoom, <kbd>a</kbd> <kbd>d</kbd> \
or dragging move, a double click fits a span, <kbd>/</kbd> searches, <kbd>n</kbd> goes on</span>
</div>
<canvas id=\"overview\" aria-label=\"how many ran at once\"></canvas>
<div id=\"scroll\"><canvas id=\"main\" role=\"img\" aria-label=\"a bar for each span\"></canvas>\
<div id=\"spacer\"></div></div>
<div id=\"details\"></div>
</div>
<div id=\"tip\" role=\"tooltip\"></div>
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::span::{EdgeKind, Outcome, Span, SpanKind};
    use std::time::Duration;

    fn page(timelines: &[&Timeline]) -> String {
        let facts = [("log".to_owned(), "a<b>.txt".to_owned())];
        render(&Page { title: "x & y", facts: &facts, timelines })
    }

    fn hostile() -> Timeline {
        let ms = Duration::from_millis;
        let mut t = Timeline::new("</title><script>alert(1)</script>");
        let name = "</script><script>alert(2)</script>\u{1b}[2J\u{2028}<!--";
        let mut a = Span::new(name, SpanKind::Probe, ms(1), ms(3)).on("<img src=x>", Some(1));
        a.driver = Some("\"onload=\"alert(3)".into());
        a.outcome = Outcome::Failed("<b>&amp;".into());
        a.released_by = Some("]]>".into());
        let a = t.push(a);
        let b = t.push(Span::new("b", SpanKind::Probe, ms(3), ms(4)));
        t.push_edge(a, b, EdgeKind::Parent);
        t
    }

    #[test]
    fn hostile_names_open_no_tag_and_end_no_script() {
        let t = hostile();
        let page = page(&[&t, &t]);
        let body = page.split("</style>").nth(1).expect("there is a body");
        assert_eq!(body.matches("<script").count(), 2);
        assert_eq!(body.matches("</script>").count(), 2);
        for tag in ["<img", "<b>&amp;", "<!--", "\u{2028}", "\u{1b}"] {
            assert!(
                !body.split("<script>\n").next().expect("the first part").contains(tag),
                "{tag}"
            );
        }
        assert!(!page.contains("onload=\"alert"));
    }

    #[test]
    fn nothing_is_fetched() {
        let page = page(&[&hostile()]);
        for word in ["src=\"", "href", "url(", "import", "fetch(", "http:", "https:", "XMLHttp"] {
            assert!(!page.contains(word), "{word}");
        }
        assert!(page.contains("default-src 'none'"));
    }

    #[test]
    fn the_data_is_json_with_every_span_and_edge() {
        let t = hostile();
        let page = page(&[&t, &Timeline::new("empty")]);
        let data =
            page.split("id=\"data\">").nth(1).and_then(|rest| rest.split("</script>").next());
        let data: serde_json::Value = serde_json::from_str(data.expect("data")).expect("JSON");
        assert_eq!(data[0]["spans"].as_array().map(Vec::len), Some(2));
        assert_eq!(data[0]["edges"], serde_json::json!([[0, 1]]));
        assert_eq!(data[0]["path"], serde_json::json!([0, 1]));
        assert_eq!(data[0]["spans"][0]["d"], "\"onload=\"alert(3)");
        assert_eq!(data[1]["spans"], serde_json::json!([]));
    }

    #[test]
    fn one_timeline_needs_no_tabs_and_none_is_a_page_too() {
        assert!(!page(&[&hostile()]).contains("<nav"));
        assert_eq!(page(&[&hostile(), &hostile()]).matches("role=\"tab\"").count(), 2);
        assert!(page(&[]).contains("id=\"data\">[]</script>"));
    }
}
