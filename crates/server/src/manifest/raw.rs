//! The manifest as it is written: every key with its place, without resolving names.

use std::collections::BTreeMap;
use std::path::Path;

use toml::de::DeTable;

use super::drivers::{DRIVERS, Driver, Tuning, driver_names};
use super::export::Export;
use super::keys::{CheckKeys, Keys, devices, keys, text};
use super::problem::{Located, Position, Problem, Subject};
use super::reader::{Fields, LineIndex};
use super::server::Server;

use crate::text;

/// The tables of the text.
#[derive(Debug, Default)]
pub(crate) struct RawManifest {
    pub(crate) server: Server,
    /// Place of the `[server]` table, if there is one.
    pub(crate) has_server: Option<Position>,
    pub(crate) devices: Vec<RawDevice>,
    pub(crate) exports: Vec<RawExport>,
}

/// One `[[device]]` table.
#[derive(Debug)]
pub(crate) struct RawDevice {
    /// Place of its header.
    pub(crate) place: Position,
    /// Number of the table in the file, from 1.
    pub(crate) number: usize,
    /// True if a value could not be read, so the device can't be brought up as it was meant.
    pub(crate) broken: bool,
    pub(crate) name: Option<Located<String>>,
    pub(crate) driver: Option<Located<String>>,
    /// Names in `over`, whatever the driver.
    pub(crate) over: Vec<Located<String>>,
    pub(crate) suppliers: Vec<Located<String>>,
    pub(crate) tuning: Option<Tuning>,
    /// Driver with its keys.
    pub(crate) made: Option<Driver>,
}

keys! {
    /// The keys that name a device, its driver and its suppliers.
    #[derive(Clone, Debug, Default)]
    struct DeviceKeys {
        /// Name of the device, unique: 1 to 64 letters, digits, `-`, `_`, `.`.
        name: Option<Located<String>> = text(), Unset("required");
        /// Name of a driver below.
        driver: Option<Located<String>> = text(), Unset("required");
        /// Devices that come up before this one and go down after it, though it doesn't stand on
        /// them.
        suppliers: Vec<Located<String>> = devices(), Filled("[]", "none");
    }
}

/// One `[[export]]` table.
#[derive(Debug)]
pub(crate) struct RawExport {
    pub(crate) place: Position,
    /// Name of the export, or else of its device.
    pub(crate) subject: Subject,
    /// True if a value could not be read.
    pub(crate) broken: bool,
    /// Place of each key's value.
    pub(crate) places: BTreeMap<String, Position>,
    pub(crate) export: Option<Export>,
}

impl RawExport {
    /// Returns the name, or `None` if it can't be read.
    pub(crate) fn name(&self) -> Option<&str> {
        match &self.subject {
            Subject::Export(Ok(name)) => Some(name),
            _ => None,
        }
    }

    /// Returns the place of a key's value, or of the table if the key is missing.
    pub(crate) fn place_of(&self, key: &str) -> Position {
        self.places.get(key).copied().unwrap_or(self.place)
    }
}

/// The tables of a manifest.
#[derive(Clone, Copy, PartialEq)]
enum TableKind {
    Manifest,
    Server,
    Device,
    Export,
}

impl TableKind {
    /// Tables that a misplaced key may belong to, with the text of their headers.
    const OTHERS: [(TableKind, &'static str); 3] = [
        (TableKind::Server, "[server]"),
        (TableKind::Device, "[[device]]"),
        (TableKind::Export, "[[export]]"),
    ];

    /// Returns the keys of the table.
    fn keys(self) -> Vec<&'static str> {
        match self {
            TableKind::Manifest => ROOT.to_vec(),
            TableKind::Server => Server::NAMES.to_vec(),
            TableKind::Device => device_keys().collect(),
            TableKind::Export => Export::NAMES.to_vec(),
        }
    }

    /// Returns advice for a key in this table that belongs elsewhere.
    fn elsewhere(self, key: &str) -> Option<String> {
        let stands = TableKind::OTHERS.iter().find(|(table, _)| *table == self);
        if let (Some((_, stands)), true) = (stands, ROOT.contains(&key)) {
            let table = if key == "server" { "[server]".to_string() } else { format!("[[{key}]]") };
            return Some(format!(
                "this key belongs to the manifest itself, not to {stands}: move it above \
                 {stands}, or write {table}"
            ));
        }
        let others = TableKind::OTHERS.iter().filter(|(table, _)| *table != self);
        let (_, head) = others.into_iter().find(|(table, _)| table.keys().contains(&key))?;
        Some(format!("this is a key of {head}: move it below {head}"))
    }
}

/// Keys of the manifest itself.
const ROOT: [&str; 3] = ["server", "device", "export"];

/// Reads the text. A syntax error makes the rest unreadable. After any other problem, the rest of
/// the manifest is still returned.
pub(crate) fn parse(text: &str, base: &Path) -> (RawManifest, Vec<Problem>) {
    let lines = LineIndex::new(text);
    let document = match DeTable::parse(text) {
        Ok(document) => document,
        Err(error) => return (RawManifest::default(), vec![syntax(&error, &lines)]),
    };
    let mut manifest = RawManifest::default();
    let mut problems = Vec::new();
    let mut root = Fields::new(document.get_ref(), &lines, base, Subject::Manifest);
    let (nothing, server) = (DeTable::new(), root.table("server"));
    manifest.has_server = server.map(|(_, place)| place);
    let server = server.map_or(&nothing, |(table, _)| table);
    let mut fields = Fields::new(server, &lines, base, Subject::Server);
    manifest.server = Server::read(&mut fields).unwrap_or_default();
    manifest.server.check(&mut fields);
    problems.extend(fields.finish(|key| TableKind::Server.elsewhere(key)));
    for (index, (table, place)) in root.tables("device").into_iter().enumerate() {
        let (device, found) = device(table, &lines, base, place, index + 1);
        manifest.devices.push(device);
        problems.extend(found);
    }
    for (index, (table, place)) in root.tables("export").into_iter().enumerate() {
        let (export, found) = export(table, &lines, base, place, index + 1);
        manifest.exports.push(export);
        problems.extend(found);
    }
    problems.extend(root.finish(|key| TableKind::Manifest.elsewhere(key)));
    (manifest, problems)
}

fn device(
    table: &DeTable<'_>,
    lines: &LineIndex,
    base: &Path,
    place: Position,
    number: usize,
) -> (RawDevice, Vec<Problem>) {
    let subject = Subject::Device(name_of(table).ok_or(number));
    let mut fields = Fields::new(table, lines, base, subject);
    fields.declares("a device".to_string(), place);
    let (named, tuning) = (DeviceKeys::read(&mut fields), Tuning::read(&mut fields));
    let DeviceKeys { name, driver, suppliers } = named.unwrap_or_default();
    if !fields.has("name") {
        fields.refuse("", "a device needs a 'name'", "");
    }
    let made = read_driver(&mut fields, driver.as_ref(), place);
    let over = fields.silent_names("over");
    fields.know(device_keys());
    let problems = fields.finish(|key| TableKind::Device.elsewhere(key));
    let broken = !problems.is_empty();
    (RawDevice { place, number, broken, name, driver, over, suppliers, tuning, made }, problems)
}

/// Reads the keys of the device's driver.
fn read_driver(
    fields: &mut Fields<'_, '_>,
    driver: Option<&Located<String>>,
    place: Position,
) -> Option<Driver> {
    let known = || format!("known drivers: {}", driver_names().collect::<Vec<_>>().join(", "));
    let Some(at) = driver else {
        if !fields.has("driver") {
            fields.refuse("", "the device has no 'driver'", &known());
        }
        return None;
    };
    let name = at.value.as_str();
    let Some(driver) = DRIVERS.iter().find(|driver| driver.name == name) else {
        let help = match text::closest(name, driver_names()) {
            Some(close) => format!("did you mean '{close}'? {}", known()),
            None => known(),
        };
        fields.refuse("driver", format!("unknown driver '{name}'"), &help);
        return None;
    };
    fields.declares(format!("driver '{name}'"), place);
    let made = (driver.read)(fields);
    for key in fields.keys() {
        let word = key.value.as_str();
        if !fields.is_asked(word) && device_keys().any(|key| key == word) {
            let message = format!("driver '{name}' takes no '{word}'");
            let problem = Problem::new(key.place, fields.subject().clone(), message);
            fields.push(problem.help(format!("keys of this driver: {}", driver.names.join(", "))));
        }
    }
    made
}

/// Returns the keys of devices with any driver.
fn device_keys() -> impl Iterator<Item = &'static str> {
    let drivers = DRIVERS.iter().flat_map(|driver| driver.names);
    DeviceKeys::NAMES.iter().chain(Tuning::NAMES).chain(drivers).copied()
}

/// Returns the keys that every device takes.
#[cfg(test)]
pub(super) fn keys_of_all_devices() -> Vec<super::keys::Key> {
    DeviceKeys::keys().into_iter().chain(Tuning::keys()).collect()
}

fn export(
    table: &DeTable<'_>,
    lines: &LineIndex,
    base: &Path,
    place: Position,
    number: usize,
) -> (RawExport, Vec<Problem>) {
    let name =
        name_of(table).or_else(|| Some(table.get("device")?.get_ref().as_str()?.to_string()));
    let subject = Subject::Export(name.ok_or(number));
    let mut fields = Fields::new(table, lines, base, subject.clone());
    fields.declares("an export".to_string(), place);
    let mut export = Export::read(&mut fields);
    if let Some(export) = &mut export {
        export.place = place;
        if !fields.has("name") {
            export.name.clone_from(&export.device);
        }
        export.check(&mut fields);
    }
    let places = fields.places();
    let problems = fields.finish(|key| TableKind::Export.elsewhere(key));
    let broken = !problems.is_empty();
    (RawExport { place, subject, broken, places, export }, problems)
}

fn name_of(table: &DeTable<'_>) -> Option<String> {
    table.get("name")?.get_ref().as_str().map(str::to_string)
}

fn syntax(error: &toml::de::Error, lines: &LineIndex) -> Problem {
    let place = lines.place(error.span().map_or(0, |span| span.start));
    // The parser's message may have several lines ("duplicate key\n in ..."). They become one.
    let message = error.message().lines().map(str::trim).collect::<Vec<_>>().join(", ");
    Problem::new(place, Subject::Manifest, format!("not valid TOML: {message}"))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use corewise::device::HangPolicy;

    use super::*;

    fn messages(text: &str) -> Vec<String> {
        parse(text, Path::new("/"))
            .1
            .iter()
            .map(|problem| problem.display("m.toml").to_string())
            .collect()
    }

    #[test]
    fn every_key_is_read_with_its_place() {
        let (manifest, problems) = parse(
            r#"[server]
unix = "s.sock"
tcp = 10809
drain = "2s"
control = "c.sock"
state = "known"
shutdown_timeout = "1m"
on_hang = "skip"
memory = "1G"
clients = 7
request_timeout = "7s"
reply_timeout = "8s"
idle_timeout = "9s"
extended_headers = true
[[device]]
name = "a"
driver = "file"
size = "64M"
block_size = 4096
path = "a.img"
create = true
io = "threads"
direct = true
node = 1
hw_queues = 2
scheduler = "none"
timeout = "6s"
rq_affinity = "cache"
iostats = "timed"
read_only = false
suppliers = ["b"]
probe_timeout = "3s"
shutdown_timeout = "4s"
[[export]]
name = "e"
device = "a"
description = "text"
shutdown_timeout = "5s"
"#,
            Path::new("/"),
        );
        assert_eq!(problems, []);
        let device = &manifest.devices[0];
        assert_eq!(device.place.line, 15);
        let Some(Driver::File(file)) = &device.made else { panic!("no file") };
        assert_eq!(
            file.size.as_ref().map(|s| (s.value, s.place.line, s.place.column)),
            Some((64 << 20, 18, 8))
        );
        assert_eq!(file.block_size, 4096);
        assert_eq!(device.suppliers[0].value, "b");
        let export = &manifest.exports[0];
        assert_eq!((export.place.line, export.place_of("device").line), (34, 36));
        let tuning = device.tuning.as_ref().unwrap();
        let times = [tuning.probe_timeout, Some(tuning.shutdown_timeout), tuning.timeout];
        assert_eq!(times.map(|time| time.unwrap().as_secs()), [3, 4, 6]);
        let server = manifest.server;
        let seconds = |time: Option<Duration>| time.map(|time| time.as_secs());
        assert_eq!(export.export.as_ref().unwrap().shutdown_timeout.as_secs(), 5);
        assert_eq!(
            (seconds(Some(server.drain)), seconds(server.shutdown_timeout)),
            (Some(2), Some(60))
        );
        let times = [Some(server.request_timeout), Some(server.reply_timeout), server.idle_timeout];
        assert_eq!(times.map(seconds), [Some(7), Some(8), Some(9)]);
        assert_eq!((server.memory, server.clients), (Some(1 << 30), Some(7)));
        assert_eq!(server.tcp.unwrap().value, "127.0.0.1:10809");
        let paths =
            [server.unix.unwrap().value, server.control.unwrap().value, server.state.unwrap()];
        assert_eq!(paths, ["/s.sock", "/c.sock", "/known"].map(PathBuf::from));
        assert!(server.extended_headers && server.on_hang == HangPolicy::Skip);
    }

    #[test]
    fn a_syntax_error_names_its_line() {
        assert_eq!(messages("\n[[device]\nname = 1\n").len(), 1);
        let message = &messages("\n[[device]\n")[0];
        assert!(message.starts_with("m.toml:2:"), "{message}");
        assert!(message.contains("not valid TOML"), "{message}");
    }

    #[test]
    fn an_unknown_key_is_named_with_the_one_that_was_meant() {
        let found = messages(
            "[[device]]\nname = \"a\"\nblok_size = 512\ndriver = \"memory\"\nsize = \"1M\"\n",
        );
        assert_eq!(
            found,
            ["m.toml:3:1: device 'a': unknown key 'blok_size'\n  help: did you mean 'block_size'?"]
        );
        let found = messages("[[device]]\nname = \"a\"\ndriver = \"partition\"\nof = \"b\"\n");
        let help = found.last().and_then(|found| found.split_once("known keys: ")).expect("help");
        let own = [DeviceKeys::NAMES, Tuning::NAMES, &["over", "partition"]].concat();
        assert_eq!(help.1, own.join(", "), "those of this driver");
        let found = messages("[servers]\n");
        assert_eq!(found, ["m.toml:1:2: unknown key 'servers'\n  help: did you mean 'server'?"]);
    }

    #[test]
    fn a_wrong_type_is_named_with_the_right_one() {
        let found = messages(
            "[[device]]\nname = 7\ndriver = \"mirror\"\nretry = true\nover = \"a\"\nnode = -1\n",
        );
        assert_eq!(
            found,
            [
                "m.toml:2:8: device 1 (it has no name): 'name' must be a string, not an integer",
                "m.toml:4:9: device 1 (it has no name): 'retry' must be a duration such as \"5s\", not a \
                 boolean",
                "m.toml:5:8: device 1 (it has no name): 'over' must be a list of device names, \
                 such as [\"a\", \"b\"], not a string",
                "m.toml:6:8: device 1 (it has no name): 'node' must be a whole number from 0 to 4294967295, not -1",
            ]
        );
        let found = messages("device = 3\n[server]\ntcp = [1]\n");
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.iter().any(|m| m.contains("write [[device]]")), "{found:?}");
    }

    #[test]
    fn one_bad_device_leaves_the_others_readable() {
        let (manifest, problems) = parse(
            "[[device]]\nname = \"a\"\nsize = \"x\"\ndriver = \"null\"\n\
             [[device]]\nname = \"b\"\nsize = \"1M\"\ndriver = \"null\"\n",
            Path::new("/"),
        );
        assert_eq!(problems.len(), 1);
        assert_eq!(manifest.devices.iter().map(|d| d.broken).collect::<Vec<_>>(), [true, false]);
    }
}
