//! Volumes in the protocols of other clouds: Azure's, by its emulator Azurite, and Google's, by
//! s3s-fs with the condition of Google Cloud Storage. (fake-gcs-server takes no object by the
//! protocol of our client, and ignores conditions.)

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use corewise_sync::time::now;
use tempfile::TempDir;

use crate::disk::{AZURE_ACCOUNT, AZURE_KEY, BUCKET, Place, Protocol, agrees};
use crate::inside::{Creation, Inside};

/// Time that an emulator may take to begin.
const BEGIN: Duration = Duration::from_secs(120);

/// A running Azurite, with its folder. It is killed when it is dropped.
#[derive(Debug)]
struct Azurite {
    address: SocketAddr,
    child: Child,
    #[expect(dead_code, reason = "dropping it removes the folder")]
    folder: TempDir,
}

impl Azurite {
    /// Starts it, and makes a container.
    fn new() -> Self {
        let program = std::env::var_os("COREWISE_AZURITE")
            .expect("COREWISE_AZURITE says where azurite-blob is: see README.md");
        let folder = tempfile::tempdir().expect("a folder");
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let address = free.local_addr().expect("an address");
        drop(free);
        let mut command = Command::new(program);
        command.args(["--silent", "--skipApiVersionCheck", "--disableTelemetry"]);
        command.args(["--blobHost", "127.0.0.1", "--blobPort", &address.port().to_string()]);
        command.arg("--location").arg(folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("Azurite runs");
        let started = Self { address, child, folder };
        let until = now() + BEGIN;
        while TcpStream::connect(address).is_err() {
            assert!(now() < until, "Azurite doesn't begin");
            corewise_sync::Parker::new().park_timeout(Duration::from_millis(50));
        }
        // No client of object_store makes a container.
        let mut node = Command::new("node");
        node.arg("-e").arg(MAKE_CONTAINER);
        node.args([&address.port().to_string(), AZURE_ACCOUNT, AZURE_KEY, BUCKET]);
        let made = node.output().expect("node, by which Azurite runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        started
    }

    fn place(&self, prefix: &str) -> Place {
        Place::new(self.address, prefix).of(Protocol::Azure)
    }
}

impl Drop for Azurite {
    fn drop(&mut self) {
        // An error: it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes a container: `PORT ACCOUNT KEY NAME`, by a request that is signed with the key.
const MAKE_CONTAINER: &str = r#"
const [port, account, key, name] = process.argv.slice(1);
const headers = { "x-ms-date": new Date().toUTCString(), "x-ms-version": "2021-12-02", "content-length": 0 };
const of = (name) => `${name}:${headers[name]}\n`;
const text = `PUT\n${"\n".repeat(11)}${of("x-ms-date")}${of("x-ms-version")}/${account}/${account}/${name}\nrestype:container`;
const signed = require("crypto").createHmac("sha256", Buffer.from(key, "base64")).update(text, "utf8").digest("base64");
headers["authorization"] = `SharedKey ${account}:${signed}`;
const path = `/${account}/${name}?restype=container`;
require("http").request({ host: "127.0.0.1", port, method: "PUT", path, headers }, (answer) => {
    answer.on("data", (what) => console.error(String(what)));
    answer.on("end", () => process.exit(answer.statusCode == 201 ? 0 : 1));
}).end();
"#;

/// A volume keeps what was written over several servers, one after the other.
fn agrees_with_a_model(place: impl Fn(&str) -> Place) {
    for seed in 0..4 {
        let place = place(&format!("agrees-{seed}"));
        agrees(&place, &place, seed, 4, 60);
    }
}

/// The next server of a volume replaces the last one, which answers nothing from then on.
fn the_next_server_fences_the_last(place: &Place) {
    let mut last = place.open(64).expect("it opens");
    for what in 1..6 {
        last.write(0, 1, what).expect("a write");
        last.flush().expect("a flush");
        let next = place.open(64).expect("it opens again");
        assert_eq!(next.read(0, 1).expect("a read"), [what]);
        next.write(1, 1, what).expect("a write");
        next.flush().expect("a flush");
        assert!(last.write(0, 1, 99).and_then(|()| last.flush()).is_err());
        assert!(last.read(1, 1).is_err(), "it answers after it was replaced");
        last = next;
    }
    assert_eq!(last.read(0, 2).expect("a read"), [5, 5]);
}

#[test]
fn a_volume_by_the_protocol_of_google_agrees_with_a_model() {
    let server = Inside::new(Creation::Google);
    agrees_with_a_model(|prefix| Place::new(server.address(), prefix).of(Protocol::Gcs));
}

#[test]
fn a_volume_by_the_protocol_of_google_has_one_writer() {
    let server = Inside::new(Creation::Google);
    the_next_server_fences_the_last(&Place::new(server.address(), "one").of(Protocol::Gcs));
}

#[test]
fn a_volume_in_azurite_agrees_with_a_model() {
    let azurite = Azurite::new();
    agrees_with_a_model(|prefix| azurite.place(prefix));
}

#[test]
fn a_volume_in_azurite_has_one_writer() {
    let azurite = Azurite::new();
    the_next_server_fences_the_last(&azurite.place("one"));
}
