//! Volumes in object stores: served, mirrored, stacked, fenced and reported.
#![allow(missing_docs, clippy::unwrap_used)]

use crate::common::Folder;
use crate::common::client::{Client, FUA, pattern};
use crate::common::server::Server;
use crate::watching::{metrics_of, scrape};

const MIB: u64 = 1 << 20;
/// Error number of NBD for a device that is gone.
const ESHUTDOWN: u32 = 108;

/// Returns a volume in the folder `store`. Its lease is an hour, so a server that has to wait for
/// the lease never changes anything in a test.
fn device(folder: &Folder, name: &str, keys: &str) -> String {
    let store = folder.join("store").join(name);
    let lease = if keys.contains("lease") { "" } else { "lease = \"1h\"\n" };
    format!(
        "[[device]]\nname = \"{name}\"\ndriver = \"object\"\nlocation = \"file://{}\"\n{lease}{keys}\n",
        store.display()
    )
}

fn export(device: &str) -> String {
    format!("[[export]]\ndevice = \"{device}\"\n")
}

fn wait_fenced(server: &mut Server) {
    let event = server.wait_event("object");
    assert_eq!((&event["device"], &event["what"]), (&"v".into(), &"fenced".into()), "{event}");
}

#[test]
fn a_volume_in_a_store_is_there_again_and_what_it_costs_is_told() {
    let folder = Folder::new();
    let sized = device(&folder, "v", "size = \"64M\"") + &export("v");
    folder.write("up.toml", format!("[server]\nmetrics = 0\n{sized}"));
    let server = Server::start(&folder, &["up.toml"]);
    let mut client = Client::new(&server.socket(), "v");
    assert_eq!(client.size, 64 * MIB);
    client.write(4096, &pattern(1, 100_000), 0).unwrap();
    client.write(MIB + 3, &pattern(2, 5), FUA).unwrap();
    assert!(client.read(4096, 100_000).unwrap() == pattern(1, 100_000));
    let said = ["v: ", " requests to the store, ", " a byte written)", " in use, 0 B garbage; "];
    folder.corewise(["dump"]).ok().says(&said);
    let dump = folder.dump();
    let store = &dump["disks"][0]["store"];
    let (puts, sent) = (store["puts"].as_u64().unwrap(), store["sent"].as_u64().unwrap());
    assert!(puts >= 4 && (100_000..200_000).contains(&sent), "{store}");
    let space = &store["space"];
    assert!(space["segments"] == 1 && space["stored"].as_u64() > Some(100_000), "{store}");
    assert_eq!((&space["used"], &space["garbage"]), (&space["stored"], &0.into()));
    assert!(store["cache"]["misses"].is_u64(), "{store}");
    let metrics = scrape(&metrics_of(&server));
    for name in [
        "corewise_store_requests_total{volume=\"v\",op=\"put\"}",
        "corewise_store_bytes_total{volume=\"v\",direction=\"sent\"}",
        "corewise_store_served{volume=\"v\"} 1",
        "corewise_store_space_bytes{volume=\"v\",kind=\"garbage\"} 0",
        "corewise_store_cache_reads_total{volume=\"v\",result=\"miss\"}",
    ] {
        assert!(metrics.contains(name), "{name}: {metrics}");
    }
    server.stop().ok();
    // The volume's size comes from the store, and no server waits for the lease of one that has
    // ended.
    folder.write("up.toml", device(&folder, "v", "") + &export("v"));
    let server = Server::start(&folder, &["up.toml"]);
    let mut client = Client::new(&server.socket(), "v");
    assert_eq!(client.size, 64 * MIB);
    assert!(client.read(4096, 100_000).unwrap() == pattern(1, 100_000));
    assert!(client.read(MIB + 3, 5).unwrap() == pattern(2, 5));
    client.write(0, &pattern(3, 4096), FUA).unwrap();
    server.stop().ok();
}

#[test]
fn a_new_volume_is_announced_and_one_that_is_there_is_not() {
    let folder = Folder::new();
    let file = "[[device]]\nname = \"f\"\ndriver = \"file\"\npath = \"f.img\"\nsize = \"1M\"\ncreate = true\n";
    let manifest = device(&folder, "v", "size = \"16M\"") + file + &export("v");
    folder.write("up.toml", &manifest);
    let notes = [
        "note: device 'v': the server found nothing at file:///",
        "note: device 'f': the server found nothing at /",
        "and made a new volume of 1 MiB there",
    ];
    let ran = Server::start(&folder, &["up.toml"]).stop().ok();
    let [event, made] = [r#"{"event":"object","at":"file:///"#, r#""what":"made""#];
    ran.complains(&notes).says(&[event, r#"{"event":"file","at":"/"#, r#""size":16777216"#, made]);
    let again = Server::start(&folder, &["up.toml"]).stop().ok();
    assert!(!again.stdout.contains(made) && again.stderr.is_empty(), "{again}");
    // Without `--json`, people get the notice. A file without a byte is new, too.
    folder.write("f.img", "");
    std::fs::remove_dir_all(folder.join("store")).unwrap();
    let ran = folder.corewise(["up", "up.toml", "--for", "50ms"]).ok();
    ran.complains(&notes).says(&["New: v, 16 MiB, at file:///", "New: f, 1 MiB, at /"]);
}

#[test]
fn a_folder_that_is_renamed_under_a_server_is_told_of_and_gets_what_is_written() {
    let folder = Folder::new();
    folder.write("up.toml", device(&folder, "v", "size = \"16M\"") + &export("v"));
    let mut server = Server::start(&folder, &["up.toml"]);
    let mut client = Client::new(&server.socket(), "v");
    let [own, old] = ["v", "old"].map(|name| folder.join("store").join(name));
    std::fs::rename(&own, &old).unwrap();
    client.write(0, &pattern(1, 4096), FUA).unwrap();
    let event = server.wait_event("object");
    assert_eq!((&event["device"], &event["what"]), (&"v".into(), &"moved".into()), "{event}");
    let control = server.control().display().to_string();
    folder.corewise(["dump", "--control", &control]).ok().says(&["store/v: the folder is gone"]);
    server.stop().code(1).complains(&["shutdown of v: ", "store/v: the folder is gone"]);
    assert!(!own.exists(), "it was made again");
    std::fs::rename(&old, &own).unwrap();
    let server = Server::start(&folder, &["up.toml"]);
    let mut client = Client::new(&server.socket(), "v");
    assert!(client.read(0, 4096).unwrap() == pattern(1, 4096));
    server.stop().ok();
}

#[test]
fn a_volume_that_lacks_an_object_is_lost_until_it_is_opened_again() {
    let folder = Folder::new();
    let manifest = device(&folder, "v", "size = \"16M\"") + &export("v");
    folder.write("up.toml", format!("[server]\nmetrics = 0\n{manifest}"));
    let server = Server::start(&folder, &["up.toml"]);
    let mut client = Client::new(&server.socket(), "v");
    client.write(0, &pattern(1, MIB as usize), FUA).unwrap();
    server.stop().ok();
    let [segments, away] = ["v/seg", "away"].map(|name| folder.join("store").join(name));
    std::fs::rename(&segments, &away).unwrap();
    let mut server = Server::start(&folder, &["up.toml"]);
    let control = server.control().display().to_string();
    folder.corewise(["health", "--control", &control]).ok().says(&["ok"]);
    let mut client = Client::new(&server.socket(), "v");
    assert_eq!(client.read(0, 4096), Err(5));
    let event = server.wait_event("object");
    assert_eq!((&event["device"], &event["what"]), (&"v".into(), &"damaged".into()), "{event}");
    std::fs::rename(&away, &segments).unwrap();
    assert!(client.read(0, 4096).unwrap() == pattern(1, 4096));
    let health = folder.corewise(["health", "--control", &control]);
    health.code(4).says(&["lost", "v: data is missing or damaged: seg/", "Restore the object"]);
    folder.corewise(["dump", "--control", &control]).ok().says(&["data is missing or damaged"]);
    assert!(scrape(&metrics_of(&server)).contains("corewise_store_damaged{volume=\"v\"} 1"));
    let ran = server.stop().ok();
    let lines = ran.stderr.lines().filter(|line| line.contains("data of the volume is missing"));
    let lines: Vec<&str> = lines.collect();
    assert!(lines.len() == 1 && lines[0].contains("device=v"), "{ran}");
    let server = Server::start(&folder, &["up.toml"]);
    let control = server.control().display().to_string();
    folder.corewise(["health", "--control", &control]).ok().says(&["ok"]);
    server.stop().ok();
}

#[test]
fn a_volume_whose_folder_is_deleted_is_not_to_be_started_with_a_size() {
    let folder = Folder::new();
    folder.write("up.toml", device(&folder, "v", "size = \"16M\"") + &export("v"));
    let mut server = Server::start(&folder, &["up.toml"]);
    let mut client = Client::new(&server.socket(), "v");
    client.write(0, &pattern(1, 4096), FUA).unwrap();
    // The server may write an object meanwhile: then the folder isn't empty at its end.
    while let Err(error) = std::fs::remove_dir_all(folder.join("store")) {
        assert_eq!(error.kind(), std::io::ErrorKind::DirectoryNotEmpty, "{error}");
    }
    // The write may fail: only its effect on the store matters.
    let _ = client.write(0, &pattern(2, 4096), FUA);
    assert_eq!(server.wait_event("object")["what"], "lost");
    let control = server.control().display().to_string();
    folder
        .corewise(["health", "--control", &control])
        .code(4)
        .says(&["was deleted", "start the server, without 'size'"]);
    server.stop().code(1);
}

#[test]
fn a_server_whose_volume_another_one_has_opened_gives_errors_and_says_so() {
    let folder = Folder::new();
    folder
        .write("up.toml", device(&folder, "v", "size = \"16M\"\nlease = \"200ms\"") + &export("v"));
    let mut first = Server::start(&folder, &["up.toml"]);
    let mut old = Client::new(&first.socket(), "v");
    old.write(0, &pattern(1, 4096), FUA).unwrap();
    let second = Server::start(&folder, &["up.toml"]);
    let mut new = Client::new(&second.socket(), "v");
    new.write(0, &pattern(2, 4096), FUA).unwrap();
    assert_eq!(old.read(0, 4096), Err(ESHUTDOWN), "nobody is given what was replaced");
    assert_eq!(old.write(0, &pattern(3, 4096), 0), Err(ESHUTDOWN));
    assert_eq!(old.flush(), Err(ESHUTDOWN));
    wait_fenced(&mut first);
    let control = first.control().display().to_string();
    folder
        .corewise(["dump", "--control", &control])
        .ok()
        .says(&["v: another server has opened the volume"]);
    first.stop().code(1).complains(&["another server has opened the volume"]);
    assert!(new.read(0, 4096).unwrap() == pattern(2, 4096));
    second.stop().ok();
}

#[test]
fn a_mirror_goes_on_without_a_leg_that_another_server_has_opened() {
    let folder = Folder::new();
    let far = device(&folder, "v", "size = \"16M\"\nlease = \"200ms\"");
    let file = "[[device]]\nname = \"file\"\ndriver = \"file\"\npath = \"near.img\"\nsize = \"16M\"\ncreate = true\n";
    let mirror = "[[device]]\nname = \"m\"\ndriver = \"mirror\"\nover = [\"file\", \"v\"]\n";
    folder.write("mirror.toml", format!("{file}{far}{mirror}{}", export("m")));
    let mut server = Server::start(&folder, &["mirror.toml"]);
    server.wait_mirror("resynced");
    let mut client = Client::new(&server.socket(), "m");
    client.write(3 * MIB, &pattern(3, 65536), 0).unwrap();
    client.flush().unwrap();
    folder.write("other.toml", far + &export("v"));
    let other = Server::start(&folder, &["other.toml"]);
    let mut theirs = Client::new(&other.socket(), "v");
    assert!(theirs.read(3 * MIB, 65536).unwrap() == pattern(3, 65536));
    client.write(5 * MIB, &pattern(5, 65536), 0).unwrap();
    client.flush().unwrap();
    let dropped = server.wait_mirror("dropped");
    assert_eq!(dropped["legs"], serde_json::json!(["v"]), "{dropped}");
    for n in [3, 5] {
        assert!(client.read(n * MIB, 65536).unwrap() == pattern(n, 65536));
    }
    other.stop().ok();
    server.stop().code(1);
}

#[test]
fn stripes_and_partitions_stand_on_volumes_in_stores() {
    let folder = Folder::new();
    folder.partitioned(8 << 20, "size=1MiB\nsize=2MiB\n");
    let devices = device(&folder, "a", "size = \"4M\"") + &device(&folder, "b", "size = \"4M\"");
    let stripe = "[[device]]\nname = \"s\"\ndriver = \"stripe\"\nover = [\"a\", \"b\"]\n";
    folder.write("up.toml", format!("{devices}{stripe}{}", export("s")));
    let server = Server::start(&folder, &["up.toml"]);
    folder.client("nbdcopy", ["--flush", "disk.img", &server.uri("s")]).ok();
    server.stop().ok();
    let part = "[[device]]\nname = \"p\"\ndriver = \"partition\"\nover = [\"s\"]\npartition = 2\n";
    folder.write("up.toml", format!("{devices}{stripe}{part}{}", export("p")));
    let server = Server::start(&folder, &["up.toml"]);
    let mut client = Client::new(&server.socket(), "p");
    assert_eq!(client.size, 2 * MIB);
    client.write(MIB - 5, &pattern(1, 100_000), FUA).unwrap();
    assert!(client.read(MIB - 5, 100_000).unwrap() == pattern(1, 100_000));
    server.stop().ok();
}

#[test]
fn a_check_finds_locations_and_keys_that_will_not_do_and_makes_nothing() {
    let folder = Folder::new();
    folder.write("file", "");
    folder.write("file2", "");
    folder.write("key", "0f".repeat(32));
    let device = |name: &str, at: &str, keys: &str| {
        let at = folder.join(at).display().to_string();
        format!(
            "[[device]]\nname = \"{name}\"\ndriver = \"object\"\nlocation = \"file://{at}\"\n{keys}\n"
        )
    };
    let good = device("a", "new/folder", "size = \"1M\"\nkey_file = \"key\"") + &export("a");
    folder.write("good.toml", &good);
    let ran = folder.corewise(["up", "--check", "good.toml"]).ok();
    // Every user may read it.
    ran.complains(&["the key file: chmod 600"]);
    assert_eq!(folder.list(), ["file", "file2", "good.toml", "key"]);
    let bad = [
        device("a", "file", "size = \"1M\""),
        device("b", "file2/below", "size = \"1M\""),
        device("c", "none", ""),
        device("d", "d", "size = \"1M\"\nkey_file = \"no-key\""),
        device("e", "e", "size = \"1M\"\nkey_env = \"COREWISE_NO_SUCH_KEY\""),
    ];
    folder.write("bad.toml", bad.concat() + &export("a"));
    let ran = folder.corewise(["up", "--check", "bad.toml"]).code(1);
    ran.complains(&[
        "device 'a': ",
        "file is no folder",
        "device 'b': ",
        "device 'c': ",
        "there is no volume; give a size",
        "device 'd': key file ",
        "device 'e': the environment has no COREWISE_NO_SUCH_KEY with the key",
    ]);
}

/// Makes a file that blocks its reader forever.
fn hang(folder: &Folder, name: &str) {
    let path = folder.join("store/v/log").join(format!("{name:0>20}"));
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
}

#[test]
fn a_store_that_hangs_fails_the_start_and_the_end_in_bounded_time() {
    let folder = Folder::new();
    let keys = "size = \"16M\"\nrequest_timeout = \"300ms\"";
    folder.write("up.toml", device(&folder, "v", keys) + &export("v"));
    hang(&folder, "1");
    folder.corewise(["up", "up.toml"]).code(1).complains(&["device 'v': ", "no answer in "]);
    std::fs::remove_dir_all(folder.join("store")).unwrap();
    let server = Server::start(&folder, &["up.toml"]);
    let mut client = Client::new(&server.socket(), "v");
    client.write(0, &pattern(1, 4096), 0).unwrap();
    hang(&folder, "2");
    server.stop().code(1).complains(&["shutdown of v: ", "the object store: "]);
}

#[test]
fn a_volume_grows_while_clients_go_on_and_stays_so_long() {
    let folder = Folder::new();
    let manifest = |size: &str| device(&folder, "v", &format!("size = \"{size}\"")) + &export("v");
    folder.write("up.toml", manifest("16M"));
    let server = Server::start(&folder, &["up.toml"]);
    let mut client = Client::new(&server.socket(), "v");
    client.write(16 * MIB - 4096, &pattern(1, 4096), 0).unwrap();
    folder.corewise(["grow", "v"]).fails().complains(&["give the new size"]);
    folder.corewise(["grow", "v", "24M"]).ok();
    folder.write("up.toml", manifest("32M"));
    folder.corewise(["reload"]).ok();
    let mut longer = Client::new(&server.socket(), "v");
    assert_eq!(longer.size, 32 * MIB);
    longer.write(32 * MIB - 4096, &pattern(2, 4096), FUA).unwrap();
    assert!(client.read(16 * MIB - 4096, 4096).unwrap() == pattern(1, 4096));
    server.kill();
    folder.write("up.toml", device(&folder, "v", "") + &export("v"));
    let server = Server::start(&folder, &["up.toml"]);
    let mut client = Client::new(&server.socket(), "v");
    assert_eq!(client.size, 32 * MIB);
    assert!(client.read(32 * MIB - 4096, 4096).unwrap() == pattern(2, 4096));
    server.stop().ok();
}

#[test]
fn a_volume_that_is_not_there_is_made_only_with_a_size() {
    let folder = Folder::new();
    folder.write("up.toml", device(&folder, "v", "") + &export("v"));
    folder.corewise(["up", "up.toml"]).code(1).complains(&["there is no volume; give a size"]);
    folder.write("up.toml", device(&folder, "v", "size = \"16M\"") + &export("v"));
    Server::start(&folder, &["up.toml"]).stop().ok();
    folder.write("up.toml", device(&folder, "v", "size = \"8M\"") + &export("v"));
    folder.corewise(["up", "up.toml"]).code(1).complains(&["can't shrink to"]);
}

#[test]
fn a_volume_is_encrypted_by_the_key_of_a_file_and_opens_by_no_other() {
    let folder = Folder::new();
    folder.write("key", format!("{}\n", "0f".repeat(32)));
    folder.write("wrong", "1f".repeat(32));
    let keys = "size = \"16M\"\ncompression = \"lz4\"\nread_cache = 0\n";
    let manifest = |key: &str| device(&folder, "v", &format!("{keys}{key}")) + &export("v");
    folder.write("up.toml", manifest("key_file = \"key\""));
    let text = b"a text that repeats itself, ".repeat(1000);
    for life in 0..2 {
        let server = Server::start(&folder, &["up.toml"]);
        let mut client = Client::new(&server.socket(), "v");
        if life == 0 {
            client.write(4096, &text, FUA).unwrap();
        }
        assert!(client.read(4096, text.len() as u32).unwrap() == text);
        server.stop().ok();
    }
    for (key, says) in [
        ("", "the volume is encrypted, but no key was given"),
        ("key_file = \"wrong\"", "the volume was made with another key"),
        ("key_file = \"up.toml\"", "a key has 64 hexadecimal digits"),
        ("key_env = \"COREWISE_NO_SUCH_KEY\"", "COREWISE_NO_SUCH_KEY"),
    ] {
        folder.write("up.toml", manifest(key));
        folder.corewise(["up", "up.toml"]).fails().complains(&[says]);
    }
    // The mark lies in the volume's record.
    let records = std::fs::read_dir(folder.join("store/v/log")).unwrap();
    for record in records {
        let bytes = std::fs::read(record.unwrap().path()).unwrap();
        assert!(!bytes.windows(9).any(|found| found == b"a text th") && bytes.len() < 8192);
    }
}
