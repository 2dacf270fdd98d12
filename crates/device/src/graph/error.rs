//! Faults in a set of declarations.

use corewise_sync::text;
use std::fmt;

/// One fault in a set of declarations. It names the device by its index in the slice that was
/// handed in, so that the caller can point at a file and a line, and says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GraphError {
    /// A device without a name.
    EmptyName {
        /// Index of the declaration.
        device: usize,
    },
    /// The name is taken.
    DuplicateName {
        /// Index of the later declaration, which is the one at fault.
        device: usize,
        /// The name.
        name: String,
        /// Index of the first declaration; `None` where an earlier bring-up holds the name.
        first: Option<usize>,
    },
    /// The parent is not declared.
    MissingParent {
        /// Index of the declaration.
        device: usize,
        /// Name of the device.
        name: String,
        /// The parent that it names.
        parent: String,
    },
    /// A supplier is not declared.
    MissingSupplier {
        /// Index of the declaration.
        device: usize,
        /// Name of the device.
        name: String,
        /// The supplier that it names.
        supplier: String,
    },
    /// Devices that need one another in a circle.
    Cycle {
        /// Indices and names along the circle: each needs the next, and the last needs the first.
        path: Vec<(usize, String)>,
    },
    /// The named driver is not registered, or doesn't match.
    UnknownDriver {
        /// Index of the declaration.
        device: usize,
        /// Name of the device.
        name: String,
        /// The driver that it names.
        driver: String,
        /// The registered drivers, by name.
        known: Vec<String>,
    },
    /// The registered drivers don't match.
    NoMatchingDriver {
        /// Index of the declaration.
        device: usize,
        /// Name of the device.
        name: String,
        /// The registered drivers, by name.
        known: Vec<String>,
    },
}

impl GraphError {
    /// Returns the index of the (first) declaration at fault.
    pub fn device(&self) -> usize {
        match self {
            GraphError::EmptyName { device }
            | GraphError::DuplicateName { device, .. }
            | GraphError::MissingParent { device, .. }
            | GraphError::MissingSupplier { device, .. }
            | GraphError::UnknownDriver { device, .. }
            | GraphError::NoMatchingDriver { device, .. } => *device,
            GraphError::Cycle { path } => path.first().map_or(0, |(device, _)| *device),
        }
    }

    /// Returns the indices of all declarations at fault: for a cycle every device on it, else one.
    pub fn devices(&self) -> Vec<usize> {
        match self {
            GraphError::Cycle { path } => path.iter().map(|(device, _)| *device).collect(),
            _ => vec![self.device()],
        }
    }
}

impl fmt::Display for GraphError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GraphError::EmptyName { .. } => {
                write!(f, "a device has an empty name; give it one")
            }
            GraphError::DuplicateName { name, first: Some(_), .. } => {
                let name = text::name(name);
                write!(f, "device \"{name}\" is declared twice; rename one of them")
            }
            GraphError::DuplicateName { name, first: None, .. } => {
                let name = text::name(name);
                write!(f, "device \"{name}\" exists already; choose another name")
            }
            GraphError::MissingParent { name, parent, .. } => {
                let (name, parent) = (text::name(name), text::name(parent));
                write!(
                    f,
                    "device \"{name}\" names the parent \"{parent}\", which is not declared; \
                     declare it or correct the name"
                )
            }
            GraphError::MissingSupplier { name, supplier, .. } => {
                let (name, supplier) = (text::name(name), text::name(supplier));
                write!(
                    f,
                    "device \"{name}\" names the supplier \"{supplier}\", which is not declared; \
                     declare it or correct the name"
                )
            }
            GraphError::Cycle { path } => match path.as_slice() {
                [(_, name)] => {
                    write!(f, "device \"{}\" needs itself; remove that link", text::name(name))
                }
                _ => {
                    write!(f, "devices need one another in a circle: ")?;
                    for (_, name) in path {
                        write!(f, "\"{}\" -> ", text::name(name))?;
                    }
                    let back = path.first().map_or("", |(_, name)| name.as_str());
                    let back = text::name(back);
                    write!(f, "\"{back}\"; remove one of these links")
                }
            },
            GraphError::UnknownDriver { name, driver, known, .. } if known.contains(driver) => {
                let (name, driver) = (text::name(name), text::name(driver));
                write!(
                    f,
                    "device \"{name}\" names the driver \"{driver}\", whose match function refuses \
                     it, or panicked (then the log has that); correct either of them"
                )
            }
            GraphError::UnknownDriver { name, driver, known, .. } => {
                let (name, driver) = (text::name(name), text::name(driver));
                write!(f, "device \"{name}\" names the unknown driver \"{driver}\"; ")?;
                write_known(f, known)
            }
            GraphError::NoMatchingDriver { name, known, .. } => {
                let name = text::name(name);
                write!(f, "no driver matches device \"{name}\", which names none; ")?;
                write_known(f, known)
            }
        }
    }
}

fn write_known(f: &mut fmt::Formatter<'_>, known: &[String]) -> fmt::Result {
    match known {
        [] => write!(f, "no driver is registered"),
        known => write!(f, "known drivers: {}", text::message(&known.join(", "))),
    }
}

impl std::error::Error for GraphError {}
