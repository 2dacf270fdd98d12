//! The flags of `corewise attach` and `corewise detach`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use corewise::nbd;
use corewise_server::units;

pub(crate) const ATTACH: &str = "\
attach makes an NBD export a disk of this machine, by Linux's own client (the module nbd). It needs
root. The export may be of any server. It stays in the foreground and replaces each connection that
dies, for as long as it takes: a server that is killed, upgraded or moved is a pause for the users of
the disk, and no error. SIGINT and SIGTERM detach the disk; if it is in use, it stays attached, and
the same command takes over its connections.

Examples:
  modprobe nbd
  corewise attach nbd+unix:///data?socket=/run/corewise.sock
  corewise attach nbd://storage.example/data /dev/nbd0 --daemon
  corewise attach nbds://storage.example/data /dev/nbd1 --ca ca.pem
  corewise attach --list
  corewise detach /dev/nbd0

Exit codes: 0 success, 1 failure (no module, no rights, a device in use, no such export), 2 wrong
usage.";

pub(crate) const DETACH: &str = "\
detach ends a device that `corewise attach` has made, and a disk of ublk that waits without a server.
A device in use stays, unless --force is given: unmount its file systems first. It needs root.

Examples:
  corewise attach --list
  umount /mnt; corewise detach /dev/nbd0
  corewise detach /dev/corewise/data
  corewise detach --force /dev/ublkb0

Exit codes: 0 success, 1 failure (no rights, a device in use, no such device, a disk that a server
serves), 2 wrong usage.";

/// The files of a client that uses TLS.
#[derive(Debug, Args)]
pub(crate) struct TlsArgs {
    /// PEM file with the authorities that vouch for the server, for nbds
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// PEM file with a certificate to show to the server
    #[arg(long, value_name = "FILE", requires = "key")]
    pub(crate) certificate: Option<PathBuf>,
    /// PEM file with the key of that certificate
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub(crate) key: Option<PathBuf>,
}

/// `corewise attach`.
#[derive(Debug, Args)]
pub(crate) struct Attach {
    /// The export: nbd://HOST[:PORT]/EXPORT, nbd+unix:///EXPORT?socket=PATH, or nbds for TLS
    #[arg(required_unless_present = "list")]
    pub(crate) uri: Option<nbd::Uri>,
    /// The device, such as /dev/nbd0 [default: one that is free]
    #[arg(value_parser = device)]
    pub(crate) device: Option<u32>,
    /// Show the devices that are attached
    #[arg(long, conflicts_with_all = ["uri", "device", "connections", "timeout", "wait", "daemon"])]
    pub(crate) list: bool,
    /// With --list: print one JSON document
    #[arg(long, requires = "list")]
    pub(crate) json: bool,
    /// Number of connections; one if the server doesn't say that it allows several
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub(crate) connections: u16,
    /// Time after which a connection without an answer counts as dead
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = timeout)]
    pub(crate) timeout: Duration,
    /// Time that requests wait for a new connection before they fail [default: without limit]
    #[arg(long, value_name = "DURATION", value_parser = seconds)]
    pub(crate) wait: Option<Duration>,
    /// Refuse changes, even if the export accepts them
    #[arg(long)]
    pub(crate) read_only: bool,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
    /// Go on in the background once the device is attached
    #[arg(long)]
    pub(crate) daemon: bool,
    /// Run as the process that --daemon starts
    #[arg(long, hide = true)]
    pub(crate) in_background: bool,
}

/// `corewise detach`.
#[derive(Debug, Args)]
pub(crate) struct Detach {
    /// The device, such as /dev/nbd0, or a disk that a server left, such as /dev/ublkb0
    pub(crate) device: String,
    /// Detach it even if it is in use: its users get I/O errors
    #[arg(long)]
    pub(crate) force: bool,
}

/// A device that can be detached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DetachedDevice {
    /// A device of Linux's NBD client, by number.
    Nbd(u32),
    /// A disk of ublk, by number.
    Ublk(u32),
}

impl DetachedDevice {
    /// Returns the device of this name: as [`device`] has it, or `/dev/ublkb7`, or a link to one of
    /// them.
    pub(crate) fn named(text: &str) -> Option<DetachedDevice> {
        let target = std::fs::canonicalize(text).ok();
        let text = target.as_deref().and_then(|target| target.to_str()).unwrap_or(text);
        let disk = text.strip_prefix("/dev/").unwrap_or(text).strip_prefix("ublkb");
        match disk.and_then(|number| number.parse().ok()) {
            Some(number) => Some(DetachedDevice::Ublk(number)),
            None => device(text).ok().map(DetachedDevice::Nbd),
        }
    }
}

/// Longest timeout of a connection. Linux keeps it in 32 bits, in ticks of up to 1000 a second.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(30 * 86_400);

/// Parses a time that Linux counts in whole seconds.
fn seconds(text: &str) -> Result<Duration, String> {
    let time = units::parse_duration(text)?;
    match time.subsec_nanos() == 0 && !time.is_zero() {
        true => Ok(time),
        false => {
            Err(format!("'{text}' is not in whole seconds, which Linux counts: 1s is the least"))
        }
    }
}

/// Parses the timeout of a connection.
fn timeout(text: &str) -> Result<Duration, String> {
    match seconds(text)? {
        time if time > LONGEST_TIMEOUT => {
            Err(format!("'{text}' is longer than Linux can wait for an answer: 30d is the limit"))
        }
        time => Ok(time),
    }
}

/// Parses a device of Linux's client: `/dev/nbd7`, `nbd7` or `7`.
fn device(text: &str) -> Result<u32, String> {
    let number = text.strip_prefix("/dev/").unwrap_or(text);
    let number = number.strip_prefix("nbd").unwrap_or(number);
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    match number.parse() {
        // Linux has 20 bits for the minor numbers, and up to 32 partitions a device.
        Ok(index @ 0..=32767) if is_number => Ok(index),
        _ => Err("write a device of Linux's NBD client, such as /dev/nbd0".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{DetachedDevice, device, seconds, timeout};

    #[test]
    fn times_are_whole_seconds_that_the_kernel_can_count() {
        assert_eq!(timeout("1000ms"), Ok(Duration::from_secs(1)));
        assert_eq!(timeout("30d"), Ok(Duration::from_secs(2_592_000)));
        assert_eq!(seconds("31d"), Ok(Duration::from_secs(2_678_400)));
        for (text, says) in [("0s", "1s"), ("1.5s", "1s"), ("500ms", "1s"), ("31d", "30d")] {
            let why = timeout(text).unwrap_err();
            assert!(why.contains(says), "{text}: {why}");
        }
        assert!(seconds("0s").is_err());
    }

    #[test]
    fn a_device_is_named_by_its_path_its_name_or_its_number() {
        for text in ["/dev/nbd7", "nbd7", "7"] {
            assert_eq!(device(text), Ok(7));
        }
        assert_eq!(DetachedDevice::named("/dev/ublkb3"), Some(DetachedDevice::Ublk(3)));
        assert_eq!(DetachedDevice::named("nbd3"), Some(DetachedDevice::Nbd(3)));
        assert_eq!(DetachedDevice::named("data"), None);
        for text in ["", "/dev/sda", "nbd", "nbd-1", "nbd+1", "/dev/nbd0p1", "99999999999"] {
            assert!(device(text).is_err(), "{text}");
        }
    }
}
