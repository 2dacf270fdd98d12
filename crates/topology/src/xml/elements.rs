//! The elements of an XML text, one after the other, checked, bounded, and with their positions.
//!
//! Document types are ignored, and no entity but the five of XML is known, so a small file cannot
//! grow while it is read.

use std::path::Path;

use quick_xml::events::{BytesStart, Event};
use quick_xml::{Reader, XmlVersion};

use crate::error::TopologyError;

type Result<T> = std::result::Result<T, TopologyError>;

/// Largest depth of nested elements. Real exports stay below 30.
const MAX_DEPTH: usize = 128;

/// Largest number of attributes of one element. Real ones have up to 20.
const MAX_ATTRIBUTES: usize = 64;

/// The next step in the text.
pub(crate) enum Step {
    /// An element begins.
    Open(Element),
    /// The innermost open element ends.
    Close,
}

/// The beginning of an element.
pub(crate) struct Element {
    pub(crate) name: String,
    /// Start of the element, in bytes from the beginning of the text.
    pub(crate) at: usize,
    attributes: Vec<(String, String)>,
}

impl Element {
    /// Returns the value of an attribute, if it is there.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let found = self.attributes.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// Reads a text from its beginning to its end.
pub(crate) struct Elements<'a> {
    text: &'a str,
    name: &'a Path,
    reader: Reader<&'a [u8]>,
    depth: usize,
}

impl<'a> Elements<'a> {
    /// Creates a reader. `name` stands in errors, as that of the file.
    pub(crate) fn new(text: &'a str, name: &'a Path) -> Elements<'a> {
        let mut reader = Reader::from_str(text);
        // `<a/>` is reported as `<a></a>`.
        reader.config_mut().expand_empty_elements = true;
        Elements { text, name, reader, depth: 0 }
    }

    /// Returns the next step, or `None` at the end of the text.
    pub(crate) fn step(&mut self) -> Result<Option<Step>> {
        loop {
            let at = self.reader.buffer_position() as usize;
            let event = match self.reader.read_event() {
                Ok(event) => event,
                Err(error) => {
                    let at = self.reader.error_position() as usize;
                    return Err(self.wrong(at, format!("it is not well-formed XML: {error}")));
                }
            };
            match event {
                Event::Start(start) => {
                    self.depth += 1;
                    if self.depth > MAX_DEPTH {
                        let reason = format!("elements are nested more than {MAX_DEPTH} deep");
                        return Err(self.wrong(at, reason));
                    }
                    return self.element(&start, at).map(|element| Some(Step::Open(element)));
                }
                Event::End(_) => {
                    self.depth -= 1;
                    return Ok(Some(Step::Close));
                }
                Event::Eof if self.depth > 0 => {
                    let reason = "it ends within an element; is the file cut off?";
                    return Err(self.wrong(self.text.len(), reason));
                }
                Event::Eof => return Ok(None),
                Event::DocType(doctype) if doctype.contains(&b'[') => {
                    let reason = "its document type has declarations, which no export has; remove \
                                  them";
                    return Err(self.wrong(at, reason));
                }
                // Text between elements says nothing about the machine.
                _ => {}
            }
        }
    }

    fn element(&self, start: &BytesStart<'_>, at: usize) -> Result<Element> {
        let mut attributes = Vec::new();
        for attribute in start.attributes() {
            if attributes.len() == MAX_ATTRIBUTES {
                let reason = format!("it has more than {MAX_ATTRIBUTES} attributes");
                return Err(self.wrong(at, reason));
            }
            let attribute = attribute
                .map_err(|error| self.wrong(at, format!("it is not well-formed XML: {error}")))?;
            let name = text_of(attribute.key.as_ref());
            let value = attribute.normalized_value(XmlVersion::Implicit1_0);
            let value =
                value.map_err(|error| self.wrong(at, format!("attribute '{name}': {error}")))?;
            attributes.push((name, value.into_owned()));
        }
        Ok(Element { name: text_of(start.name().as_ref()), at, attributes })
    }

    /// Creates an error for the position `at`, in bytes from the beginning of the text.
    pub(crate) fn wrong(&self, at: usize, reason: impl Into<String>) -> TopologyError {
        let mut at = at.min(self.text.len());
        while !self.text.is_char_boundary(at) {
            at -= 1;
        }
        let before = &self.text[..at];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        TopologyError::Xml {
            path: self.name.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            reason: reason.into(),
        }
    }
}

/// Returns a name as text. It is a part of a text, so nothing is lost.
fn text_of(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}
