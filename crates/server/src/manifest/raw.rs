//! The manifest as it is written: every key with its place, nothing looked up, nothing decided.

use std::time::Duration;

use toml::de::DeTable;

use super::model::Limit;
use super::problem::{At, Place, Problem, Subject};
use super::reader::{Fields, Lines};

/// What a list of devices has to be.
const DEVICES: &str = "a list of device names, such as [\"a\", \"b\"]";

/// What the text says.
#[derive(Debug, Default)]
pub(crate) struct RawManifest {
    pub(crate) server: RawServer,
    /// Where the `[server]` table is, if there is one.
    pub(crate) has_server: Option<Place>,
    pub(crate) devices: Vec<RawDevice>,
    pub(crate) exports: Vec<RawExport>,
}

/// The `[server]` table.
#[derive(Debug, Default)]
pub(crate) struct RawServer {
    pub(crate) unix: Option<At<String>>,
    pub(crate) tcp: Option<At<String>>,
    pub(crate) drain: Option<At<Duration>>,
    pub(crate) control: Option<At<String>>,
    pub(crate) metrics: Option<At<String>>,
    pub(crate) state: Option<At<String>>,
    pub(crate) shutdown_timeout: Option<At<Duration>>,
    pub(crate) on_hang: Option<At<String>>,
    pub(crate) memory: Option<At<u64>>,
    pub(crate) clients: Option<At<u32>>,
    pub(crate) clients_per_peer: Option<At<u32>>,
    pub(crate) evict_idle: Option<At<Duration>>,
    pub(crate) request_timeout: Option<At<Duration>>,
    pub(crate) reply_timeout: Option<At<Duration>>,
    pub(crate) idle_timeout: Option<At<Duration>>,
    pub(crate) extended_headers: Option<At<bool>>,
    pub(crate) tls: Option<At<String>>,
    pub(crate) tls_certificate: Option<At<String>>,
    pub(crate) tls_key: Option<At<String>>,
    pub(crate) tls_client_ca: Option<At<String>>,
}

/// One `[[device]]` table.
#[derive(Debug)]
pub(crate) struct RawDevice {
    /// Where its header is.
    pub(crate) place: Place,
    /// Its number in the file, from 1.
    pub(crate) number: usize,
    /// A value in it could not be read, so it can't be brought up as it was meant.
    pub(crate) broken: bool,
    pub(crate) keys: Vec<At<String>>,
    pub(crate) name: Option<At<String>>,
    pub(crate) driver: Option<At<String>>,
    pub(crate) size: Option<At<u64>>,
    pub(crate) block_size: Option<At<u64>>,
    pub(crate) path: Option<At<String>>,
    pub(crate) create: Option<At<bool>>,
    pub(crate) io: Option<At<String>>,
    pub(crate) direct: Option<At<bool>>,
    pub(crate) on_lost: Option<At<String>>,
    pub(crate) write_log: Option<At<String>>,
    pub(crate) over: Option<Vec<At<String>>>,
    pub(crate) chunk: Option<At<u64>>,
    pub(crate) suppliers: Option<Vec<At<String>>>,
    pub(crate) node: Option<At<u32>>,
    pub(crate) probe_timeout: Option<At<Duration>>,
    pub(crate) shutdown_timeout: Option<At<Duration>>,
    pub(crate) hw_queues: Option<At<String>>,
    pub(crate) scheduler: Option<At<String>>,
    pub(crate) timeout: Option<At<Duration>>,
    pub(crate) rq_affinity: Option<At<String>>,
    pub(crate) iostats: Option<At<String>>,
    pub(crate) read_only: Option<At<bool>>,
    pub(crate) bitmap: Option<At<bool>>,
    pub(crate) retry: Option<At<Duration>>,
    pub(crate) check_every: Option<At<Duration>>,
    pub(crate) degraded: Option<At<String>>,
    pub(crate) resync_least: Option<At<u64>>,
    pub(crate) resync_most: Option<At<u64>>,
    pub(crate) partition: Option<At<String>>,
    pub(crate) read_delay: Option<At<Duration>>,
    pub(crate) write_delay: Option<At<Duration>>,
    pub(crate) flush_delay: Option<At<Duration>>,
    pub(crate) jitter: Option<At<Duration>>,
    pub(crate) seed: Option<At<u32>>,
    pub(crate) fails: Option<Vec<At<String>>>,
    pub(crate) from: Option<At<u64>>,
    pub(crate) to: Option<At<u64>>,
    pub(crate) after: Option<At<u32>>,
    pub(crate) every: Option<At<u32>>,
    pub(crate) times: Option<At<u32>>,
    pub(crate) rate: Option<At<f64>>,
    pub(crate) errno: Option<At<String>>,
    pub(crate) uri: Option<At<String>>,
    pub(crate) connections: Option<At<u32>>,
    pub(crate) connect_timeout: Option<At<Duration>>,
    pub(crate) request_timeout: Option<At<Duration>>,
    pub(crate) location: Option<At<String>>,
    pub(crate) clone_of: Option<At<String>>,
    pub(crate) snapshot: Option<At<String>>,
    pub(crate) lease: Option<At<Duration>>,
    pub(crate) flush: Option<At<String>>,
    pub(crate) flush_file: Option<At<String>>,
    pub(crate) accept_lost_flushes: Option<At<String>>,
    pub(crate) endpoint: Option<At<String>>,
    pub(crate) region: Option<At<String>>,
    pub(crate) compression: Option<At<String>>,
    pub(crate) key_file: Option<At<String>>,
    pub(crate) key_env: Option<At<String>>,
    pub(crate) read_cache: Option<At<u64>>,
    pub(crate) tls_ca: Option<At<String>>,
    pub(crate) tls_certificate: Option<At<String>>,
    pub(crate) tls_key: Option<At<String>>,
}

/// One `[[export]]` table.
#[derive(Debug)]
pub(crate) struct RawExport {
    pub(crate) place: Place,
    pub(crate) number: usize,
    pub(crate) broken: bool,
    pub(crate) name: Option<At<String>>,
    pub(crate) device: Option<At<String>>,
    pub(crate) read_only: Option<At<bool>>,
    pub(crate) description: Option<At<String>>,
    pub(crate) clients: Option<At<u32>>,
    pub(crate) allow_uids: Option<Vec<u32>>,
    pub(crate) allow_certificates: Option<Vec<At<String>>>,
    pub(crate) limit: Option<Limit>,
    pub(crate) client_limit: Option<Limit>,
    pub(crate) default: Option<At<bool>>,
    pub(crate) shutdown_timeout: Option<At<Duration>>,
}

/// The tables of a manifest.
#[derive(Clone, Copy, PartialEq)]
enum Table {
    Manifest,
    Server,
    Device,
    Export,
}

impl Table {
    /// Those that a key may have been meant for, with what stands above their keys.
    const OTHERS: [(Table, &'static str); 3] =
        [(Table::Server, "[server]"), (Table::Device, "[[device]]"), (Table::Export, "[[export]]")];

    /// The keys that it takes.
    fn keys(self) -> Vec<&'static str> {
        let (nothing, lines) = (DeTable::new(), Lines::new(""));
        let mut fields = Fields::new(&nothing, &lines, Subject::Manifest);
        match self {
            Table::Manifest => return ROOT.to_vec(),
            Table::Server => drop(server(&mut fields)),
            Table::Device => drop(read_device(&mut fields, Place::default(), 0)),
            Table::Export => drop(read_export(&mut fields, Place::default(), 0)),
        }
        fields.asked()
    }

    /// What to do about a key that stands in this table, and belongs elsewhere.
    fn elsewhere(self, key: &str) -> Option<String> {
        let stands = Table::OTHERS.iter().find(|(table, _)| *table == self);
        if let (Some((_, stands)), true) = (stands, ROOT.contains(&key)) {
            let table = if key == "server" { "[server]".to_string() } else { format!("[[{key}]]") };
            return Some(format!(
                "it belongs to the manifest itself, and what stands below {stands} belongs to that: put it before {stands}, or \
                 write {table}"
            ));
        }
        let others = Table::OTHERS.iter().filter(|(table, _)| *table != self);
        let (_, head) = others.into_iter().find(|(table, _)| table.keys().contains(&key))?;
        Some(format!("it is a key of {head}: put it below that"))
    }
}

/// The keys of the manifest itself.
const ROOT: [&str; 3] = ["server", "device", "export"];

/// Reads the text. A syntax error leaves nothing to go on with; after any other problem the rest
/// of the manifest is there all the same.
pub(crate) fn parse(text: &str) -> (RawManifest, Vec<Problem>) {
    let lines = Lines::new(text);
    let document = match DeTable::parse(text) {
        Ok(document) => document,
        Err(error) => return (RawManifest::default(), vec![syntax(&error, &lines)]),
    };
    let mut manifest = RawManifest::default();
    let mut problems = Vec::new();
    let mut root = Fields::new(document.get_ref(), &lines, Subject::Manifest);
    if let Some((table, place)) = root.table("server") {
        manifest.has_server = Some(place);
        let mut fields = Fields::new(table, &lines, Subject::Server);
        manifest.server = server(&mut fields);
        problems.extend(fields.finish(|key| Table::Server.elsewhere(key)));
    }
    for (index, (table, place)) in root.tables("device").into_iter().enumerate() {
        let (device, found) = device(table, &lines, place, index + 1);
        manifest.devices.push(device);
        problems.extend(found);
    }
    for (index, (table, place)) in root.tables("export").into_iter().enumerate() {
        let (export, found) = export(table, &lines, place, index + 1);
        manifest.exports.push(export);
        problems.extend(found);
    }
    problems.extend(root.finish(|key| Table::Manifest.elsewhere(key)));
    (manifest, problems)
}

fn server(fields: &mut Fields<'_, '_>) -> RawServer {
    RawServer {
        unix: fields.string("unix"),
        tcp: fields.string_or_number("tcp"),
        drain: fields.duration("drain"),
        control: fields.string("control"),
        metrics: fields.string_or_number("metrics"),
        state: fields.string("state"),
        shutdown_timeout: fields.duration("shutdown_timeout"),
        on_hang: fields.string("on_hang"),
        memory: fields.size("memory"),
        clients: fields.number("clients"),
        clients_per_peer: fields.number("clients_per_peer"),
        evict_idle: fields.duration("evict_idle"),
        request_timeout: fields.duration("request_timeout"),
        reply_timeout: fields.duration("reply_timeout"),
        idle_timeout: fields.duration("idle_timeout"),
        extended_headers: fields.boolean("extended_headers"),
        tls: fields.string("tls"),
        tls_certificate: fields.string("tls_certificate"),
        tls_key: fields.string("tls_key"),
        tls_client_ca: fields.string("tls_client_ca"),
    }
}

fn device(
    table: &DeTable<'_>,
    lines: &Lines,
    place: Place,
    number: usize,
) -> (RawDevice, Vec<Problem>) {
    let subject = Subject::Device(name_of(table).ok_or(number));
    let mut fields = Fields::new(table, lines, subject);
    let mut device = read_device(&mut fields, place, number);
    let problems = fields.finish(|key| Table::Device.elsewhere(key));
    device.broken = !problems.is_empty();
    (device, problems)
}

fn read_device(fields: &mut Fields<'_, '_>, place: Place, number: usize) -> RawDevice {
    RawDevice {
        place,
        number,
        broken: false,
        keys: fields.keys(),
        name: fields.string("name"),
        driver: fields.string("driver"),
        size: fields.size("size"),
        block_size: fields.size("block_size"),
        path: fields.string("path"),
        create: fields.boolean("create"),
        io: fields.string("io"),
        direct: fields.boolean("direct"),
        on_lost: fields.string("on_lost"),
        write_log: fields.string("write_log"),
        over: fields.names("over", DEVICES),
        chunk: fields.size("chunk"),
        suppliers: fields.names("suppliers", DEVICES),
        node: fields.number("node"),
        probe_timeout: fields.duration("probe_timeout"),
        shutdown_timeout: fields.duration("shutdown_timeout"),
        hw_queues: fields.string_or_number("hw_queues"),
        scheduler: fields.string("scheduler"),
        timeout: fields.duration("timeout"),
        rq_affinity: fields.string("rq_affinity"),
        iostats: fields.string("iostats"),
        read_only: fields.boolean("read_only"),
        bitmap: fields.boolean("bitmap"),
        retry: fields.duration("retry"),
        check_every: fields.duration("check_every"),
        degraded: fields.string("degraded"),
        resync_least: fields.size("resync_least"),
        resync_most: fields.size("resync_most"),
        partition: fields.string_or_number("partition"),
        read_delay: fields.duration("read_delay"),
        write_delay: fields.duration("write_delay"),
        flush_delay: fields.duration("flush_delay"),
        jitter: fields.duration("jitter"),
        seed: fields.number("seed"),
        fails: fields.names("fails", "a list of operations, such as [\"read\", \"write\"]"),
        from: fields.size("from"),
        to: fields.size("to"),
        after: fields.number("after"),
        every: fields.number("every"),
        times: fields.number("times"),
        rate: fields.share("rate"),
        errno: fields.string_or_number("errno"),
        uri: fields.string("uri"),
        connections: fields.number("connections"),
        connect_timeout: fields.duration("connect_timeout"),
        request_timeout: fields.duration("request_timeout"),
        location: fields.string("location"),
        clone_of: fields.string("clone_of"),
        snapshot: fields.string("snapshot"),
        lease: fields.duration("lease"),
        flush: fields.string("flush"),
        flush_file: fields.string("flush_file"),
        accept_lost_flushes: fields.string("accept_lost_flushes"),
        endpoint: fields.string("endpoint"),
        region: fields.string("region"),
        compression: fields.string("compression"),
        key_file: fields.string("key_file"),
        key_env: fields.string("key_env"),
        read_cache: fields.size("read_cache"),
        tls_ca: fields.string("tls_ca"),
        tls_certificate: fields.string("tls_certificate"),
        tls_key: fields.string("tls_key"),
    }
}

fn export(
    table: &DeTable<'_>,
    lines: &Lines,
    place: Place,
    number: usize,
) -> (RawExport, Vec<Problem>) {
    let subject = Subject::Export(name_of(table).ok_or(number));
    let mut fields = Fields::new(table, lines, subject);
    let mut export = read_export(&mut fields, place, number);
    let problems = fields.finish(|key| Table::Export.elsewhere(key));
    export.broken = !problems.is_empty();
    (export, problems)
}

fn read_export(fields: &mut Fields<'_, '_>, place: Place, number: usize) -> RawExport {
    let export = RawExport {
        place,
        number,
        broken: false,
        name: fields.string("name"),
        device: fields.string("device"),
        read_only: fields.boolean("read_only"),
        description: fields.string("description"),
        clients: fields.number("clients"),
        allow_uids: fields.numbers("allow_uids", "a list of numbers of users, such as [0, 1000]"),
        allow_certificates: fields.names(
            "allow_certificates",
            "a list of names in certificates, such as [\"vm1\", \"vm2.example\"]",
        ),
        limit: fields.limit("limit"),
        client_limit: fields.limit("client_limit"),
        default: fields.boolean("default"),
        shutdown_timeout: fields.duration("shutdown_timeout"),
    };
    fields.refuse_empty("allow_uids");
    fields.refuse_empty("allow_certificates");
    export
}

fn name_of(table: &DeTable<'_>) -> Option<String> {
    table.get("name")?.get_ref().as_str().map(str::to_string)
}

fn syntax(error: &toml::de::Error, lines: &Lines) -> Problem {
    let place = lines.place(error.span().map_or(0, |span| span.start));
    // The parser's message may have several lines ("duplicate key\n in ..."): one is enough here.
    let message = error.message().lines().map(str::trim).collect::<Vec<_>>().join(", ");
    Problem::new(place, Subject::Manifest, format!("not valid TOML: {message}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(text: &str) -> Vec<String> {
        parse(text).1.iter().map(|problem| problem.display("m.toml").to_string()).collect()
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
        );
        assert_eq!(problems, []);
        assert_eq!(manifest.server.tcp.unwrap().value, "10809");
        assert_eq!(manifest.server.control.unwrap().value, "c.sock");
        assert_eq!(manifest.server.drain.unwrap().value, Duration::from_secs(2));
        let device = &manifest.devices[0];
        assert_eq!(device.place.line, 15);
        assert_eq!(
            device.size.as_ref().map(|s| (s.value, s.place.line, s.place.column)),
            Some((64 << 20, 18, 8))
        );
        assert_eq!(device.block_size.as_ref().unwrap().value, 4096);
        assert_eq!(device.suppliers.as_ref().unwrap()[0].value, "b");
        assert_eq!(device.keys.len(), 18);
        assert_eq!(manifest.exports[0].device.as_ref().unwrap().place.line, 36);
        let seconds = |at: &Option<At<Duration>>| at.as_ref().map(|at| at.value.as_secs());
        assert_eq!(seconds(&device.probe_timeout), Some(3));
        assert_eq!(seconds(&device.timeout), Some(6));
        assert_eq!(seconds(&device.shutdown_timeout), Some(4));
        assert_eq!(seconds(&manifest.exports[0].shutdown_timeout), Some(5));
        assert_eq!(seconds(&manifest.server.shutdown_timeout), Some(60));
        assert_eq!(seconds(&manifest.server.request_timeout), Some(7));
        assert_eq!(seconds(&manifest.server.reply_timeout), Some(8));
        assert_eq!(seconds(&manifest.server.idle_timeout), Some(9));
        assert_eq!(manifest.server.memory.unwrap().value, 1 << 30);
        assert_eq!(manifest.server.clients.unwrap().value, 7);
        assert!(manifest.server.extended_headers.unwrap().value);
        assert_eq!(manifest.server.state.unwrap().value, "known");
        assert_eq!(manifest.server.on_hang.unwrap().value, "skip");
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
        let found = messages("[[device]]\nname = \"a\"\nblok_size = 512\n");
        assert_eq!(
            found,
            ["m.toml:3:1: device 'a': unknown key 'blok_size'\n  help: did you mean 'block_size'?"]
        );
        let found = messages("[servers]\n");
        assert_eq!(found, ["m.toml:1:2: unknown key 'servers'\n  help: did you mean 'server'?"]);
    }

    #[test]
    fn a_wrong_type_is_named_with_the_right_one() {
        let found = messages("[[device]]\nname = 7\nsize = true\nover = \"a\"\nnode = -1\n");
        assert_eq!(
            found,
            [
                "m.toml:2:8: device 1 (it has no name): 'name' must be a string, not an integer",
                "m.toml:3:8: device 1 (it has no name): 'size' must be a size such as \"64M\" or a \
                 number of bytes, not a boolean",
                "m.toml:4:8: device 1 (it has no name): 'over' must be a list of device names, \
                 such as [\"a\", \"b\"], not a string",
                "m.toml:5:8: device 1 (it has no name): 'node': it must not be negative, nor more than 4294967295",
            ]
        );
        let found = messages("device = 3\n[server]\ntcp = [1]\n");
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.iter().any(|m| m.contains("write [[device]]")), "{found:?}");
    }

    #[test]
    fn one_bad_device_leaves_the_others_readable() {
        let (manifest, problems) = parse(
            "[[device]]\nname = \"a\"\nsize = \"x\"\n[[device]]\nname = \"b\"\nsize = \"1M\"\n",
        );
        assert_eq!(problems.len(), 1);
        assert_eq!(manifest.devices.iter().map(|d| d.broken).collect::<Vec<_>>(), [true, false]);
    }
}
