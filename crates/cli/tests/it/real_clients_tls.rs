//! nbdinfo, nbdcopy, qemu-img and qemu-io in TLS: with a certificate, without one, and with one
//! that an export isn't for.
#![allow(missing_docs, clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::Duration;

use crate::common::client::pattern;
use crate::common::pki::Pki;
use crate::common::server::Server;
use crate::common::{Folder, Ran};

const SIZE: usize = 16 << 20;

/// A server in TLS, and the folders of its clients.
struct Fixture {
    folder: Folder,
    server: Server,
    /// Folder of a client that may use every export.
    vm1: String,
    /// Folder of a client with another certificate of the same authority.
    vm2: String,
    /// Folder of a client without a certificate.
    nobody: String,
}

impl Fixture {
    fn start(policy: &str) -> Fixture {
        let (folder, pki) = (Folder::new(), Pki::new());
        pki.server(&folder);
        let vm1 = pki.client(&folder, Some("vm 1"));
        let vm2 = pki.client(&folder, Some("vm 2"));
        let nobody = pki.client(&folder, None);
        let manifest = format!(
            r#"
[server]
unix = "s"
tcp = 0
tls = "{policy}"
tls_certificate = "server/cert.pem"
tls_key = "server/key.pem"
tls_client_ca = "server/ca.pem"
[[device]]
name = "disk"
driver = "memory"
size = "16M"
[[export]]
device = "disk"
[[export]]
name = "vm1"
device = "disk"
allow_certificates = ["vm 1"]
default = true
"#
        );
        folder.write("up.toml", manifest);
        let server = Server::start(&folder, &["up.toml"]);
        Fixture { folder, server, vm1, vm2, nobody }
    }

    fn tcp(&self, export: &str, identity: &str) -> String {
        let port = self.server.tcp().rsplit_once(':').unwrap().1.to_string();
        format!("nbds://localhost:{port}/{export}?tls-certificates={identity}")
    }

    fn unix(&self, export: &str, identity: &str) -> String {
        let socket = self.server.socket();
        format!("nbds+unix:///{export}?socket={}&tls-certificates={identity}", socket.display())
    }

    /// Runs qemu-img over TCP, as its manual says.
    fn qemu(&self, command: &[&str], export: &str, identity: &str, more: &[&str]) -> Ran {
        let port = self.server.tcp().rsplit_once(':').unwrap().1.to_string();
        let tls = format!("tls-creds-x509,id=tls,endpoint=client,dir={identity}");
        let image = format!("driver=nbd,host=localhost,port={port},export={export},tls-creds=tls");
        let mut args = command.to_vec();
        args.extend(["--object", &tls, "--image-opts", &image]);
        args.extend(more);
        self.folder.client(if command.is_empty() { "qemu-io" } else { "qemu-img" }, args)
    }
}

#[test]
fn nbdinfo_and_nbdcopy_use_an_export_in_tls_over_both_sockets() {
    let fixture = Fixture::start("require");
    let data = pattern(7, SIZE);
    fixture.folder.write("in.img", &data);
    for uri in [fixture.tcp("vm1", &fixture.vm1), fixture.unix("vm1", &fixture.vm1)] {
        fixture.folder.client("nbdinfo", [&uri]).ok().says(&["with TLS", "structured"]);
        fixture.folder.client("nbdcopy", ["in.img", &uri]).ok();
        fixture.folder.client("nbdcopy", [&uri, "out.img"]).ok();
        assert!(std::fs::read(fixture.folder.join("out.img")).unwrap() == data);
    }
    let uris = &fixture.server.ready["exports"][0]["uris"];
    assert!(uris.as_array().unwrap().iter().all(|uri| uri.as_str().unwrap().starts_with("nbds")));
    fixture.server.stop().ok();
}

#[test]
fn a_client_sees_the_exports_that_its_certificate_is_for_and_is_told_why_of_others() {
    let fixture = Fixture::start("require");
    let list = |identity: &str| {
        let ran = fixture.folder.client("nbdinfo", ["--list", &fixture.tcp("", identity)]).ok();
        ran.stdout.lines().filter(|line| line.starts_with("export=")).count()
    };
    assert_eq!((list(&fixture.vm1), list(&fixture.vm2)), (2, 1));
    fixture.folder.client("nbdinfo", [&fixture.tcp("vm1", &fixture.vm2)]).fails();
    // The default export is vm1's.
    fixture.folder.client("nbdinfo", [&fixture.tcp("", &fixture.vm1)]).ok().says(&["vm1"]);
    fixture.folder.client("nbdinfo", [&fixture.tcp("", &fixture.vm2)]).fails();
    fixture.folder.client("nbdinfo", ["--size", &fixture.tcp("disk", &fixture.vm2)]).ok();
    let ran = fixture.server.stop().ok();
    ran.complains(&["may not use this export", "vm 2"]);
}

#[test]
fn a_client_without_a_certificate_or_without_tls_is_refused() {
    let fixture = Fixture::start("require");
    for uri in [fixture.tcp("disk", &fixture.nobody), fixture.unix("disk", &fixture.nobody)] {
        fixture.folder.client("nbdinfo", [&uri]).fails();
    }
    fixture.qemu(&["info"], "disk", &fixture.nobody, &[]).fails();
    for uri in [fixture.server.uri("disk"), fixture.server.tcp_uri("disk")] {
        fixture.folder.client("nbdinfo", [&uri]).fails();
        fixture.folder.client("qemu-img", ["info", &uri]).fails().complains(&["TLS"]);
    }
    fixture.server.stop().ok().complains(&["TLS failed"]);
}

#[test]
fn qemu_reads_writes_and_maps_in_tls() {
    let fixture = Fixture::start("require");
    let qemu =
        |command: &[&str], more: &[&str]| fixture.qemu(command, "vm1", &fixture.vm1, more).ok();
    qemu(&["info"], &[]).says(&["16 MiB"]);
    let writes = ["-c", "write -P 7 1M 3M", "-c", "flush", "-c", "read -P 7 1M 3M"];
    let ran = qemu(&[], &writes);
    assert!(!ran.stdout.contains("failed"), "{ran}");
    qemu(&["map", "--output=json"], &[]).says(&["3145728"]);
    fixture.qemu(&["info"], "vm1", &fixture.vm2, &[]).fails().complains(&["may not use"]);
    fixture.server.stop().ok();
}

#[test]
fn a_certificate_that_has_expired_is_refused_at_the_start_and_says_so() {
    let (folder, pki) = (Folder::new(), Pki::new());
    pki.server_until(&folder, 2025);
    folder.write(
        "up.toml",
        "[server]\ntls_certificate = \"server/cert.pem\"\ntls_key = \"server/key.pem\"\n\
         [[device]]\nname = \"a\"\ndriver = \"memory\"\nsize = \"1M\"\n",
    );
    folder.corewise(["up", "up.toml"]).code(1).complains(&[
        "error: up.toml:2:19: [server]: ",
        "the certificate cannot be used for TLS: it expired ",
        " days ago, so clients would refuse it: renew the certificate",
    ]);
}

#[test]
fn a_reload_shows_newcomers_a_renewed_certificate_and_clients_that_are_there_stay() {
    let fixture = Fixture::start("require");
    let control = fixture.server.control().display().to_string();
    let corewise =
        |args: &[&str]| fixture.folder.corewise(args.iter().chain(&["--control", &control]));
    assert_eq!(corewise(&["reload"]).ok().stdout, "nothing to change\n");
    let script = format!(
        "import nbd\nh = nbd.NBD()\nh.set_uri_allow_local_file(True)\nh.connect_uri({:?})\nh.pwrite(b'x' * 512, 0)\nprint('there', flush=True)\ninput()\n\
         assert h.pread(512, 0) == b'x' * 512",
        fixture.tcp("disk", &fixture.vm1)
    );
    let mut stays = fixture.folder.command("/usr/bin/python3");
    stays.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut stays = stays.spawn().unwrap();
    let mut told = BufReader::new(stays.stdout.take().unwrap());
    let mut line = String::new();
    told.read_line(&mut line).unwrap();
    assert_eq!(line, "there\n");
    // Another authority made the new certificate, and clients of the old authority are refused.
    let pki = Pki::new();
    pki.server(&fixture.folder);
    let newcomer = pki.client(&fixture.folder, Some("vm 9"));
    let would = corewise(&["reload", "--dry-run"]).ok();
    assert_eq!(would.stdout, "would renew the certificates of TLS\n");
    fixture.folder.client("nbdinfo", ["--size", &fixture.tcp("disk", &newcomer)]).fails();
    let done = corewise(&["reload"]).ok();
    assert_eq!(done.stdout, "renewed the certificates of TLS\n");
    fixture.folder.client("nbdinfo", ["--size", &fixture.tcp("disk", &newcomer)]).ok();
    fixture.folder.client("nbdinfo", ["--size", &fixture.tcp("disk", &fixture.vm1)]).fails();
    // An unusable certificate changes nothing.
    fixture.folder.write("server/cert.pem", "");
    corewise(&["reload"]).fails().complains(&["server/cert.pem", "no certificate"]);
    fixture.folder.client("nbdinfo", ["--size", &fixture.tcp("disk", &newcomer)]).ok();
    stays.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(stays.wait().unwrap().success());
    fixture.server.stop().ok();
}

#[test]
fn where_tls_is_only_allowed_a_client_may_do_without() {
    let fixture = Fixture::start("allow");
    for uri in [fixture.server.uri("disk"), fixture.server.tcp_uri("disk")] {
        fixture.folder.client("nbdinfo", ["--size", &uri]).ok();
    }
    fixture.folder.client("nbdinfo", [&fixture.server.uri("vm1")]).fails();
    fixture.folder.client("nbdinfo", ["--size", &fixture.unix("vm1", &fixture.vm1)]).ok();
    fixture.server.stop().ok();
}

#[test]
fn certificates_that_cannot_be_used_are_said_with_their_line() {
    let (folder, pki) = (Folder::new(), Pki::new());
    pki.server(&folder);
    folder.write("empty.pem", "");
    let up = |certificate: &str, key: &str| {
        let text = format!(
            "[server]\ntls_certificate = \"{certificate}\"\ntls_key = \"{key}\"\n\
             [[device]]\nname = \"a\"\ndriver = \"memory\"\nsize = \"1M\"\n"
        );
        folder.write("up.toml", text);
        folder.corewise(["up", "up.toml", "--for", "0s"])
    };
    up("server/cert.pem", "server/key.pem").ok();
    let missing = up("server/cert.pem", "nowhere.pem").code(1);
    missing.complains(&["up.toml:3:11: [server]", "nowhere.pem", "No such file"]);
    let empty = up("empty.pem", "server/key.pem").code(1);
    empty.complains(&["up.toml:2:19: [server]", "empty.pem", "no certificate"]);
    let mixed = up("server/cert.pem", "server/cert.pem").code(1);
    mixed.complains(&["up.toml:3:11: [server]", "the key cannot be used"]);
}

#[test]
fn a_certificate_that_is_about_to_expire_is_told_of_until_a_reload_renews_it() {
    let (folder, pki) = (Folder::new(), Pki::new());
    let day = Duration::from_secs(86_400);
    pki.server_for(&folder, 80 * day, 10 * day);
    folder.write(
        "up.toml",
        "[server]\nunix = \"s\"\ntls_certificate = \"server/cert.pem\"\ntls_key = \"server/key.pem\"\n\
         [[device]]\nname = \"disk\"\ndriver = \"memory\"\nsize = \"1M\"\n[[export]]\ndevice = \"disk\"\n",
    );
    let server = Server::start(&folder, &["up.toml"]);
    let ran = folder.corewise(["health"]).code(3);
    ran.says(&[
        "degraded\n  server: the server's certificate expires in 9d23h. Renew",
        "corewise reload",
    ]);
    pki.server_for(&folder, day, 89 * day);
    folder.corewise(["reload"]).ok();
    folder.corewise(["health"]).ok();
    server.stop().ok();
}
