//! The driver of a device, and how sure its name is.

use std::fmt;

/// A driver's name, and whether anything proves that this driver is the one. Its text has a `?`
/// behind a name that is only the likeliest.
///
/// ```
/// use corewise_timeline::Driver;
///
/// assert_eq!(Driver::from("nvme").to_string(), "nvme");
/// assert_eq!(Driver::inferred("nvme").to_string(), "nvme?");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Driver {
    name: String,
    inferred: bool,
}

impl Driver {
    /// A driver that no line names: the likeliest one.
    pub fn inferred(name: impl Into<String>) -> Driver {
        Driver { name: name.into(), inferred: true }
    }

    /// Its name without the mark: to search and to group by. People read the
    /// [text](ToString::to_string).
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True when no line names it: it is the likeliest one by what a probe seems to have run
    /// inside of.
    pub fn is_inferred(&self) -> bool {
        self.inferred
    }
}

/// A driver that a line of a log names, or the recorder of the span.
impl<T: Into<String>> From<T> for Driver {
    fn from(name: T) -> Driver {
        Driver { name: name.into(), inferred: false }
    }
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        f.write_str(if self.inferred { "?" } else { "" })
    }
}
