//! The sources of timelines: kernel logs, and files that `up` wrote.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use corewise::kernel_log::sysfs::Listing;
use corewise::kernel_log::{DeviceGraph, KernelLog, Prefix, Reader};
use corewise::timeline::{SpanKind, Timeline, json};
use corewise_server::control::matches;
use corewise_server::source;
use corewise_server::units::count;

use crate::args::timeline::{Args, Phase, TimelineFile};
use crate::exit::Failure;

/// Longest device graph and longest written timeline, in bytes. A kernel log may have any length.
pub(super) const LONGEST: u64 = 256 << 20;

/// Contents of one file.
#[derive(Debug)]
pub(super) struct Log {
    /// Name of the log in messages.
    pub(super) name: String,
    /// Timelines with at least one span each, in the order of time.
    pub(super) timelines: Vec<Timeline>,
    /// Further contents of a kernel log; `None` for a file that `up` wrote.
    pub(super) kernel: Option<KernelLog>,
}

/// Reads all logs of the command line.
pub(super) fn read(args: &Args) -> Result<Vec<Log>, Failure> {
    let graphs = graphs(args)?;
    args.logs.iter().map(|path| log(path, args, &graphs)).collect()
}

/// Fails if an output file would replace a log that is read: the log may have no other copy.
pub(super) fn spare(args: &Args, output: &TimelineFile) -> Result<(), Failure> {
    // The file doesn't exist yet.
    let Ok(there) = std::fs::metadata(&output.path) else { return Ok(()) };
    for path in args.logs.iter().chain(&args.deps).chain(&args.sysfs) {
        let read = match path == Path::new("-") {
            true => std::io::stdin()
                .as_fd()
                .try_clone_to_owned()
                .map(File::from)
                .and_then(|stdin| stdin.metadata()),
            false => std::fs::metadata(path),
        };
        let same = |read: std::fs::Metadata| (read.dev(), read.ino()) == (there.dev(), there.ino());
        if read.is_ok_and(same) {
            let (output, path) = (output.path.display(), path.display());
            return Err(Failure::new(format!(
                "cannot write the timeline '{output}': it is the input file '{path}'"
            ))
            .help("give --output another name, so that the input stays as it is"));
        }
    }
    Ok(())
}

fn graphs(args: &Args) -> Result<Vec<DeviceGraph>, Failure> {
    let mut graphs = Vec::new();
    if let Some(dir) = &args.sysfs {
        graphs.push(sysfs(dir)?);
    }
    for path in &args.deps {
        let read = source::read_any(path, LONGEST).map_err(|why| cannot(path, why))?;
        let text =
            String::from_utf8(read).map_err(|_| cannot(path, "the file is not UTF-8 text"))?;
        graphs.push(DeviceGraph::from_text(&text).map_err(|error| {
            Failure::new(format!("cannot read the dependencies '{}': {error}", path.display()))
                .help("docs/timeline.md describes the format")
        })?);
    }
    Ok(graphs)
}

fn cannot(path: &Path, why: impl std::fmt::Display) -> Failure {
    Failure::new(format!("cannot read '{}': {why}", path.display()))
}

fn log(path: &Path, args: &Args, graphs: &[DeviceGraph]) -> Result<Log, Failure> {
    let stdin = path == Path::new("-");
    let name = if stdin { "stdin".to_owned() } else { path.display().to_string() };
    let mut source: Box<dyn Read> = match stdin {
        true => Box::new(std::io::stdin().lock()),
        false => Box::new(File::open(path).map_err(|error| cannot(path, error))?),
    };
    let mut buffer = vec![0; 256 << 10];
    let mut first = next(&mut *source, &mut buffer).map_err(|error| cannot(path, error))?;
    if is_timelines(&buffer[..first]) {
        let mut text = buffer[..first].to_vec();
        let rest = source::read(source, LONGEST).map_err(|why| cannot(path, why))?;
        text.extend_from_slice(&rest);
        let text = String::from_utf8_lossy(&text);
        let timelines = json::read(&text).map_err(|error| cannot(path, error))?;
        return chosen(Log { name, timelines, kernel: None }, args);
    }
    let mut reader = if args.boot.is_some() { Reader::every_boot() } else { Reader::new() };
    while first > 0 {
        reader.feed(&buffer[..first]);
        first = next(&mut *source, &mut buffer).map_err(|error| cannot(path, error))?;
    }
    let mut kernel = boot(reader, args, &name)?;
    for graph in graphs {
        kernel.apply(graph);
    }
    let timelines = vec![std::mem::take(&mut kernel.boot), std::mem::take(&mut kernel.shutdown)];
    chosen(Log { name, timelines, kernel: Some(kernel) }, args)
}

/// Fills the buffer as far as the source gives bytes; returns 0 at the end.
fn next(source: &mut dyn Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    loop {
        match source.read(buffer) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Returns true if a file begins as `--timeline FILE.json` writes it: with a list of objects, or
/// with one of its objects. A kernel log may begin with `[` too, and a journal with `{`.
fn is_timelines(beginning: &[u8]) -> bool {
    let text: Vec<u8> =
        beginning.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).take(16).collect();
    text.starts_with(b"[{\"name\":") || text.starts_with(b"{\"name\":") || text == b"[]"
}

/// Returns the boot that the user asked for.
fn boot(reader: Reader, args: &Args, name: &str) -> Result<KernelLog, Failure> {
    let Some(wanted) = args.boot else { return Ok(reader.finish()) };
    let mut boots = reader.finish_all();
    let there = boots.len();
    match usize::try_from(wanted - 1).ok().filter(|&i| i < there) {
        Some(i) => Ok(boots.swap_remove(i)),
        None => Err(Failure::new(format!(
            "{name} has no boot {wanted}: it holds {}",
            count(there as u64, "boot")
        ))),
    }
}

/// Returns the failure for a log without a timeline, with the way to get one.
fn nothing(log: &Log) -> Failure {
    let Some(kernel) = &log.kernel else {
        return Failure::new(format!("{}: the file holds no spans", log.name));
    };
    if let Some(unread) = kernel.unread {
        return Failure::new(format!(
            "{}: this is {unread}, which this program does not read",
            log.name
        ))
        .help(unread.instead());
    }
    let lines = match kernel.lines {
        0 => "it is empty".to_owned(),
        1 => "its only line reports no probe, init function or shutdown".to_owned(),
        n => format!("none of its {n} lines reports a probe, an init function or a shutdown"),
    };
    let failure = Failure::new(format!("{}: {lines}", log.name));
    // The kernel's own prefix, or a word of it, shows that this is a kernel log.
    let kernels = kernel.kernel.is_some()
        || kernel.prefixes.iter().any(|(prefix, _)| {
            !matches!(prefix, Prefix::CrLf | Prefix::MailQuote | Prefix::Clock | Prefix::Bare)
        });
    failure.help(match kernels {
        true => {
            "boot the kernel with initcall_debug on its command line, then save the output of \
             'dmesg'"
        }
        false => {
            "no line begins like a kernel's: use the output of 'dmesg', 'journalctl -k -o \
             short-monotonic' or a serial console, as text or compressed with gzip"
        }
    })
}

/// Keeps the timelines that the user asked for, and fails if nothing is left.
fn chosen(mut log: Log, args: &Args) -> Result<Log, Failure> {
    if log.timelines.iter().all(Timeline::is_empty) {
        return Err(nothing(&log));
    }
    let is_shutdown = |t: &Timeline| {
        let placed = t.spans().iter().map(|s| s.kind);
        placed.chain(t.unplaced().iter().map(|u| u.kind)).any(|kind| kind == SpanKind::Shutdown)
    };
    log.timelines.retain(|t| {
        !t.is_empty()
            && match args.phase {
                Phase::Boot => !is_shutdown(t),
                Phase::Shutdown => is_shutdown(t),
                Phase::Both => true,
            }
    });
    if log.timelines.is_empty() {
        let phase = if args.phase == Phase::Boot { "boot" } else { "shutdown" };
        return Err(Failure::new(format!("{}: the log holds no {phase}", log.name))
            .help("leave out --phase to see the other phase"));
    }
    if !args.only.is_empty() {
        for t in &mut log.timelines {
            *t = t.filtered(|name, driver| {
                args.only.iter().any(|pattern| names(pattern, name, driver))
            });
        }
        log.timelines.retain(|t| !t.is_empty());
        if log.timelines.is_empty() {
            let only = args.only.join(", ");
            return Err(Failure::new(format!(
                "{}: the log holds no device, init function or driver {only}",
                log.name
            )));
        }
    }
    Ok(log)
}

/// Returns true if a pattern of the command line matches this name or this driver.
pub(super) fn names(pattern: &str, name: &str, driver: Option<&str>) -> bool {
    matches(pattern, name) || driver.is_some_and(|driver| matches(pattern, driver))
}

/// Reads parents, suppliers and drivers from sysfs.
fn sysfs(path: &Path) -> Result<DeviceGraph, Failure> {
    let cannot = |why: &dyn std::fmt::Display| {
        Failure::new(format!("cannot read the sysfs tree '{}': {why}", path.display()))
    };
    let mut listing = Listing::new();
    let found = match fs::metadata(path).map_err(|why| cannot(&why))?.is_dir() {
        true => walk(path, &mut listing).map_err(|why| cannot(&why))?,
        false => {
            let text = source::read_any(path, LONGEST).map_err(|why| cannot(&why))?;
            let text = String::from_utf8_lossy(&text);
            text.lines().filter(|line| listing.line(line)).count()
        }
    };
    if found == 0 {
        return Err(Failure::new(format!("found no sysfs links in '{}'", path.display()))
            .help(
                "use /sys/devices, a copy of it, or the output of find /sys/devices -type l -printf '%p -> %l\\n'",
            ));
    }
    Ok(listing.graph())
}

/// Walks a tree and returns the number of its links. Skips files that can't be read; sysfs has
/// folders of that kind.
fn walk(root: &Path, listing: &mut Listing) -> std::io::Result<usize> {
    let mut found = 0;
    let mut folders: Vec<PathBuf> = vec![root.to_path_buf()];
    fs::read_dir(root)?;
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            let path = entry.path();
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_symlink() {
                let Ok(target) = fs::read_link(&path) else { continue };
                listing.link(&path.to_string_lossy(), &target.to_string_lossy());
                found += 1;
            } else if entry.file_name() == "sync_state_only" {
                let says = fs::read_to_string(&path).unwrap_or_default();
                let link = folder.file_name().unwrap_or_default().to_string_lossy();
                if says.trim() == "1" {
                    listing.sync_state_only(&link);
                }
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timelines_are_told_from_logs_by_their_first_letters() {
        let text = json::render(&Timeline::new("x"));
        assert!(is_timelines(text.as_bytes()) && is_timelines(format!(" [\n{text}]").as_bytes()));
        assert!(is_timelines(b"[]"));
        for log in ["[    0.000000] Linux", "{\"MESSAGE\":\"x\"}", "", "[", "Nov 22 kernel:"] {
            assert!(!is_timelines(log.as_bytes()), "{log}");
        }
    }

    #[test]
    fn a_tree_and_its_listing_say_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("devices");
        let disk = root.join("pci0000:00/0000:00:06.0/0000:01:00.0");
        fs::create_dir_all(&disk).unwrap();
        for device in [&disk, disk.parent().unwrap()] {
            std::os::unix::fs::symlink("../../../bus/pci", device.join("subsystem")).unwrap();
        }
        std::os::unix::fs::symlink("../../../bus/pci/drivers/nvme", disk.join("driver")).unwrap();
        let tree = sysfs(&root).unwrap();
        assert_eq!(tree.drivers.get("0000:01:00.0").map(String::as_str), Some("nvme"));
        assert!(
            tree.edges()
                .iter()
                .any(|e| e.supplier == "0000:00:06.0" && e.consumer == "0000:01:00.0")
        );

        let text = "/sys/devices/pci0000:00/0000:00:06.0/subsystem -> ../../../bus/pci\n\
             /sys/devices/pci0000:00/0000:00:06.0/0000:01:00.0/subsystem -> ../../../../bus/pci\n\
             /sys/devices/pci0000:00/0000:00:06.0/0000:01:00.0/driver -> ../../../../bus/pci/drivers/nvme\n";
        let saved = folder.path().join("links.txt");
        fs::write(&saved, text).unwrap();
        assert_eq!(sysfs(&saved).unwrap(), tree);
    }

    #[test]
    fn a_folder_that_is_not_a_sysfs_tree_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(format!("{:?}", sysfs(folder.path()).unwrap_err()).contains("no sysfs links"));
        assert!(
            format!("{:?}", sysfs(&folder.path().join("x")).unwrap_err()).contains("cannot read")
        );
    }
}
