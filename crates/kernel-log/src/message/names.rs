//! The names of devices: their parents, and the words that are buses or drivers.

/// Returns true for the name of a bus or class, which stands in a driver's place if no driver is
/// bound. (`usb` and `serio` are buses that have a driver of the same name. Nothing is lost by
/// them.)
pub(crate) fn is_bus(word: &str) -> bool {
    const BUSES: [&str; 34] = [
        "acpi",
        "amba",
        "ata",
        "auxiliary",
        "block",
        "bus",
        "cpu",
        "event_source",
        "faux",
        "gpio",
        "hid",
        "i2c",
        "isa",
        "machinecheck",
        "mdio_bus",
        "mei",
        "memory",
        "mmc",
        "net",
        "node",
        "nvmem",
        "pci",
        "pci_express",
        "platform",
        "pnp",
        "rpmsg",
        "scsi",
        "sdio",
        "serial-base",
        "serio",
        "soundwire",
        "spi",
        "spmi",
        "workqueue",
    ];
    BUSES.contains(&word)
}

/// Returns true if `long` begins with `short`, where `-` and `_` are one character, as for
/// modprobe.
pub(crate) fn starts_with(long: &str, short: &str) -> bool {
    let fold = |b: u8| if b == b'-' { b'_' } else { b.to_ascii_lowercase() };
    long.len() >= short.len() && long.bytes().zip(short.bytes()).all(|(a, b)| fold(a) == fold(b))
}

/// Returns the segment and bus of a PCI device's name, `0000:01:00.0`.
pub(crate) fn pci(name: &str) -> Option<(&str, u8)> {
    let (segment, rest) = name.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (device, function) = rest.split_once('.')?;
    let hex =
        |text: &str, len: usize| text.len() == len && text.bytes().all(|b| b.is_ascii_hexdigit());
    let fits = segment.len() >= 4
        && segment.bytes().all(|b| b.is_ascii_hexdigit())
        && hex(bus, 2)
        && hex(device, 2)
        && hex(function, 1);
    if !fits {
        return None;
    }
    Some((segment, u8::from_str_radix(bus, 16).ok()?))
}

/// Returns the parents that a device's name may mean. The log tells which of them exists.
///
/// * `0000:00:06.0:pcie001` is a service of the port `0000:00:06.0`;
/// * `1-0:1.0` is an interface of the USB device `1-0`, which for a root hub is called `usb1`, and
///   `usb1-port4` and `1-1-port2` are ports of their hubs; `1-1.2` hangs on `1-1`;
/// * `00:03:0.0`, `serial8250:0` and `firmware:scm` are children of what stands before their last
///   colon.
pub(crate) fn parent(name: &str) -> Option<String> {
    if pci(name).is_some() {
        return None;
    }
    if let Some((hub, port)) = name.rsplit_once("-port") {
        if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) {
            return Some(hub.to_owned());
        }
    }
    if let Some(parent) = usb(name) {
        return Some(parent);
    }
    let (parent, rest) = name.rsplit_once([':', '.'])?;
    // An address on a bus (`sd 0:0:0:0`, `1c00000.pcie`) is no path.
    let scsi = name.split(':').count() == 4 && name.split(':').all(|n| n.parse::<u32>().is_ok());
    (!parent.is_empty() && !rest.is_empty() && !scsi).then(|| parent.to_owned())
}

/// Returns the parent of `1-1.2:1.0`, `1-1.2`, `1-1` and `1-0:1.0`.
fn usb(name: &str) -> Option<String> {
    let (bus, ports) = name.split_once('-')?;
    if bus.is_empty() || !bus.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    if !ports.bytes().all(|b| b.is_ascii_digit() || b == b'.' || b == b':') {
        return None;
    }
    // Ports count from 1; `4-0010` is an address on an I2C bus.
    if ports.starts_with('0') && !ports.starts_with("0:") {
        return None;
    }
    let root = || format!("usb{bus}");
    Some(match (ports.split_once(':'), ports.rsplit_once('.')) {
        (Some(("0", _)), _) => root(),
        (Some((device, _)), _) => format!("{bus}-{device}"),
        (None, Some((hub, _))) => format!("{bus}-{hub}"),
        (None, None) => root(),
    })
}

/// Returns the name that a device gets from the node of a device tree: `clock-controller@af00000`
/// becomes `af00000.clock-controller`. Other names are returned unchanged.
pub(crate) fn of_node(name: &str) -> String {
    let node = name.rsplit('/').next().unwrap_or(name);
    match node.split_once('@') {
        Some((node, address)) if !address.is_empty() => format!("{address}.{node}"),
        _ => node.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_a_path_tells_the_parent() {
        for (name, expected) in [
            ("0000:00:06.0:pcie001", Some("0000:00:06.0")),
            ("0000:00:06.0", None),
            ("usb1-port4", Some("usb1")),
            ("1-1-port2", Some("1-1")),
            ("1-0:1.0", Some("usb1")),
            ("1-1", Some("usb1")),
            ("1-1.2", Some("1-1")),
            ("1-1.2:1.1", Some("1-1.2")),
            ("00:03:0", Some("00:03")),
            ("00:03:0.0", Some("00:03:0")),
            ("serial8250:0.1", Some("serial8250:0")),
            ("c440000.spmi:pmic@0:pon@1300", Some("c440000.spmi:pmic@0")),
            ("6:0:0:0", None),
            ("serio0", None),
            ("i2c-0", None),
            ("4-0010", None),
        ] {
            assert_eq!(parent(name).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn a_pci_address_is_told_from_what_looks_like_one() {
        assert_eq!(pci("0000:01:00.0"), Some(("0000", 1)));
        assert_eq!(pci("10000:e1:00.0"), Some(("10000", 0xe1)));
        assert_eq!(pci("c2b7:00:00.0"), Some(("c2b7", 0)));
        assert_eq!(pci("0000:00:06.0:pcie001"), None);
        assert_eq!(pci("6:0:0:0"), None);
    }

    #[test]
    fn names_of_drivers_and_modules_are_compared_as_modprobe_does() {
        assert!(starts_with("intel_lpss_pci", "intel-lpss"));
        assert!(!starts_with("nvme", "nvme_core"));
        assert!(!starts_with("nvme", "ahci"));
    }

    #[test]
    fn a_node_of_a_device_tree_becomes_a_device() {
        assert_eq!(of_node("/soc@0/clock-controller@af00000"), "af00000.clock-controller");
        assert_eq!(of_node("regulator-5"), "regulator-5");
    }
}
