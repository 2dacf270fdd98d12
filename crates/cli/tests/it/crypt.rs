//! Encrypted devices: their keys, and volumes that `cryptsetup` made, opens and changes.
#![cfg(feature = "crypt")]
#![allow(missing_docs, clippy::unwrap_used)]

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::process::Stdio;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};

use crate::common::client::{Client, FUA, pattern};
use crate::common::machine::{Image, is_long, listen};
use crate::common::server::Server;
use crate::common::{COREWISE, Folder, Ran};

/// Bytes of a header of Corewise and cryptsetup.
const HEADER: u64 = 16 << 20;
const SIZE: u64 = 32 << 20;

/// The cheapest key slots of cryptsetup.
const CHEAP: [&str; 4] = ["--pbkdf-memory", "32", "--pbkdf-force-iterations", "4"];

/// Returns a manifest of an encrypted device `disk` over the file `disk.img`.
fn manifest(keys: &str) -> String {
    format!(
        "[[device]]\nname = \"raw\"\ndriver = \"file\"\npath = \"disk.img\"\nsize = {SIZE}\n\
         create = true\n\
         [[device]]\nname = \"disk\"\ndriver = \"crypt\"\nover = [\"raw\"]\n{keys}\n\
         [[export]]\ndevice = \"disk\"\n"
    )
}

fn cryptsetup(folder: &Folder, args: &[&str]) -> Ran {
    folder.client("cryptsetup", [&["--batch-mode"], args].concat())
}

/// Serves the device, checks that it has `text` at byte 8192, or writes it there first.
fn serve(folder: &Folder, text: &[u8], writes: bool) {
    let server = Server::start(folder, &["up.toml"]);
    let mut client = Client::new(&server.socket(), "disk");
    if writes {
        client.write(8192, text, FUA).unwrap();
    }
    assert!(client.read(8192, text.len() as u32).unwrap() == text);
    drop(client);
    server.stop().ok();
}

#[test]
fn cryptsetup_knows_a_new_volume_and_a_changed_passphrase_and_volume_key_open_it() {
    let folder = Folder::new();
    folder.write("key", "a passphrase");
    folder.write("up.toml", manifest("create = true\nkey_file = \"key\""));
    let text = pattern(1, 1 << 20);
    serve(&folder, &text, true);
    let mut raw = Vec::new();
    File::open(folder.join("disk.img")).unwrap().read_to_end(&mut raw).unwrap();
    let has_text = raw.chunks(512).any(|sector| sector == &text[..512]);
    assert!(!has_text, "the file has the plain text");
    let dump = cryptsetup(&folder, &["luksDump", "disk.img"]).ok();
    dump.says(&["aes-xts-plain64", "argon2id", "offset: 16777216", "sector: 512"]);
    let test = ["open", "--test-passphrase", "disk.img", "--key-file"];
    cryptsetup(&folder, &[&test[..], &["key"]].concat()).ok();
    folder.write("new", "another one");
    cryptsetup(&folder, &[&test[..], &["new"]].concat()).fails();
    let change = ["luksChangeKey", "disk.img", "new", "--key-file", "key"];
    cryptsetup(&folder, &[&change[..], &CHEAP].concat()).ok();
    let wrong = folder.corewise(["up", "up.toml"]).fails();
    wrong.complains(&["'raw': wrong key: it opens none of the 1 key slots"]);
    folder.write("third", "a third one");
    let add = ["luksAddKey", "disk.img", "third", "--key-file", "new"];
    cryptsetup(&folder, &[&add[..], &CHEAP].concat()).ok();
    folder.write("up.toml", manifest("key_file = \"third\""));
    serve(&folder, &text, false);
    cryptsetup(&folder, &["luksRemoveKey", "disk.img", "third"]).ok();
    folder.corewise(["up", "up.toml"]).fails().complains(&["wrong key"]);
    folder.write("up.toml", manifest("key_file = \"new\""));
    serve(&folder, &text, false);
    // cryptsetup decrypts all data by the old volume key, and encrypts it by a new one.
    let reencrypt = ["reencrypt", "--force-offline-reencrypt", "disk.img", "--key-file", "new"];
    cryptsetup(&folder, &[&reencrypt[..], &CHEAP].concat()).ok();
    serve(&folder, &text, false);
    let mut now = vec![0; raw.len()];
    File::open(folder.join("disk.img")).unwrap().read_exact(&mut now).unwrap();
    assert!(now[HEADER as usize + 8192..][..512] != raw[HEADER as usize + 8192..][..512]);
}

#[test]
fn a_volume_of_cryptsetup_opens_with_each_derivation_and_sector_size() {
    for (kdf, sector) in [("argon2id", "512"), ("argon2i", "4096"), ("pbkdf2", "2048")] {
        let folder = Folder::new();
        let text = pattern(2, 1 << 20);
        folder.write("key", "a passphrase\n");
        let cost: &[&str] = match kdf {
            "pbkdf2" => &["--pbkdf-force-iterations", "1000", "--hash", "sha512"],
            _ => &CHEAP,
        };
        // It encrypts the data in place, and makes room for the header before it.
        let mut plain = vec![0; SIZE as usize];
        plain[8192..][..text.len()].copy_from_slice(&text);
        std::fs::write(folder.join("disk.img"), &plain).unwrap();
        let encrypt = [
            "reencrypt",
            "--encrypt",
            "--reduce-device-size",
            "32M",
            "--key-file",
            "key",
            "--sector-size",
            sector,
            "--pbkdf",
            kdf,
            "disk.img",
        ];
        let image = File::options().write(true).open(folder.join("disk.img")).unwrap();
        image.set_len(SIZE + (32 << 20)).unwrap();
        cryptsetup(&folder, &[&encrypt[..], cost].concat()).ok();
        let keys =
            manifest("key_file = \"key\"").replace(&format!("size = {SIZE}\ncreate = true\n"), "");
        folder.write("up.toml", keys);
        serve(&folder, &text, false);
    }
}

#[test]
fn a_volume_key_of_cryptsetup_opens_the_data_without_the_header() {
    let folder = Folder::new();
    folder.write("key", "a passphrase");
    folder.write("up.toml", manifest("create = true\nkey_file = \"key\""));
    let text = pattern(4, 65536);
    serve(&folder, &text, true);
    let key = ["luksDump", "--dump-volume-key", "--volume-key-file", "vk", "--key-file", "key"];
    cryptsetup(&folder, &[&key[..], &["disk.img"]].concat()).ok();
    // The data alone, as a device of its own.
    let mut image = File::open(folder.join("disk.img")).unwrap();
    image.seek(SeekFrom::Start(HEADER)).unwrap();
    let mut data = Vec::new();
    image.read_to_end(&mut data).unwrap();
    std::fs::write(folder.join("disk.img"), data).unwrap();
    let plain = manifest("header = \"none\"\nkey_file = \"vk\"");
    folder.write("up.toml", plain.replace(&format!("size = {SIZE}\ncreate = true\n"), ""));
    serve(&folder, &text, false);
}

#[test]
fn a_key_comes_from_a_file_the_environment_or_a_descriptor_and_without_any_the_error_says_so() {
    let folder = Folder::new();
    folder.write("key", "a passphrase");
    std::fs::set_permissions(folder.join("key"), PermissionsExt::from_mode(0o644)).unwrap();
    folder.write("up.toml", manifest("create = true\nkey_file = \"key\""));
    let server = Server::start(&folder, &["up.toml"]);
    let log = server.stop().ok();
    log.complains(&["everybody on this machine may read the key file", "mode 0644"]);

    let opens = |keys: &str, key: &str| {
        folder.write("up.toml", manifest(keys));
        let key_fd = if keys.contains("key_fd") { "3< key" } else { "" };
        let script = format!("{key}; exec {COREWISE} up up.toml --for 0s {key_fd}");
        let mut command = folder.command("setsid");
        command.args(["sh", "-c", &script]).stdin(Stdio::null());
        crate::common::run(command)
    };
    opens("key_env = \"KEY\"", "export KEY='a passphrase'").ok();
    opens("key_env = \"KEY\"", "export KEY=wrong").fails().complains(&["wrong key"]);
    opens("key_env = \"KEY\"", "true").fails().complains(&["the environment has no KEY"]);
    opens("key_fd = 3", "true").ok();
    let closed = opens("key_fd = 9", "true").fails();
    closed.complains(&["device 'disk': cannot read the key from file descriptor 9"]);
    opens("", "true").fails().complains(&["there is no terminal to ask for its key"]);
    opens("key_file = \"none\"", "true").fails().complains(&["key file", "none"]);
    folder.corewise(["up", "--check", "up.toml"]).fails().complains(&["key file"]);
}

/// Runs a server on a terminal of its own. Answers each question by the next of these texts.
fn on_terminal(folder: &Folder, answers: &[&str]) -> (std::process::Output, bool) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let slave = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
    let slave = File::options().read(true).write(true).open(slave).unwrap();
    let mut command = folder.command("setsid");
    command.args(["--ctty", "--wait", COREWISE, "up", "up.toml", "--for", "0s"]);
    command.stdin(slave.try_clone().unwrap()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let mut terminal = File::from(master);
    for answer in answers {
        let mut shown = Vec::new();
        while !shown.ends_with(b": ") {
            let mut byte = [0];
            terminal.read_exact(&mut byte).unwrap();
            shown.extend(byte);
        }
        assert!(!String::from_utf8_lossy(&shown).contains("pass"), "the key is shown");
        terminal.write_all(answer.as_bytes()).unwrap();
    }
    let output = child.wait_with_output().unwrap();
    (output, tcgetattr(&slave).unwrap().local_modes.contains(LocalModes::ECHO))
}

#[test]
fn a_key_is_asked_for_on_the_terminal_which_does_not_show_it() {
    let folder = Folder::new();
    folder.write("up.toml", manifest("create = true"));
    for (answers, is_ok, says) in [
        (&["a pass\n", "another\n"][..], false, "the two keys differ"),
        (&["a pass\x03"], false, "interrupted"),
        (&["\n"], false, "it is empty"),
        (&["x\x15a pasx\x7fs\n", "a pass\r"], true, ""),
        (&["a pass\n", "a pass\n"], true, ""),
        (&["wrong\n", "wrong\n"], false, "wrong key"),
    ] {
        let (output, echoes) = on_terminal(&folder, answers);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() == is_ok && stderr.contains(says), "{answers:?}: {stderr}");
        assert!(echoes, "the terminal is left as it was");
    }
}

#[test]
fn a_device_with_other_data_is_never_made_anew_and_a_damaged_copy_is_shown() {
    let folder = Folder::new();
    folder.write("key", "a passphrase");
    let mut other = vec![0; SIZE as usize];
    other[(SIZE - 5) as usize] = 1;
    std::fs::write(folder.join("disk.img"), &other).unwrap();
    folder.write("up.toml", manifest("create = true\nkey_file = \"key\""));
    folder.corewise(["up", "up.toml"]).fails().complains(&["'raw'", "other data"]);
    assert!(std::fs::read(folder.join("disk.img")).unwrap() == other);
    std::fs::remove_file(folder.join("disk.img")).unwrap();
    let text = pattern(5, 4096);
    serve(&folder, &text, true);
    let cheap = ["luksConvertKey", "disk.img", "--key-file", "key"];
    cryptsetup(&folder, &[&cheap[..], &CHEAP].concat()).ok();
    for (copy, at) in [("first", 5000), ("second", (16 << 10) + 5000)] {
        flip(&folder, at);
        let server = Server::start(&folder, &["up.toml"]);
        let damage = format!("the {copy} copy of the LUKS header is damaged");
        assert!(folder.dump().to_string().contains(&damage));
        let health = folder.corewise(["health"]).code(3);
        health.says(&[&format!("disk: {damage}. Stop the server"), "cryptsetup repair"]);
        let health = folder.corewise(["health", "--json"]).json();
        assert_eq!(health["health"]["reasons"][0]["reason"], "header_damaged");
        let log = server.stop().ok();
        log.says(&["\"what\":\"header_damaged\""]).complains(&[&damage]);
        cryptsetup(&folder, &["repair", "disk.img"]).ok();
        let server = Server::start(&folder, &["up.toml"]);
        folder.corewise(["health"]).ok();
        server.stop().ok();
    }
    serve(&folder, &text, false);
}

/// Flips a bit of the file.
fn flip(folder: &Folder, at: u64) {
    let image = File::options().read(true).write(true).open(folder.join("disk.img")).unwrap();
    let mut byte = [0];
    image.read_exact_at(&mut byte, at).unwrap();
    image.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

/// A volume key, whose use takes no time.
const KEY: &str = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.\n";

/// Starts a server that reads the key of `disk` from a pipe, as a shell makes one for this text.
fn with_pipe(folder: &Folder) -> Server {
    let mut command = folder.command("sh");
    let script = format!("exec {COREWISE} up --json up.toml 3<<END\n{KEY}END");
    command.args(["-c", &script]);
    let mut server = Server::spawn(command);
    server.ready = server.wait_event("ready");
    server
}

#[test]
fn a_reload_restarts_a_device_whose_key_came_by_a_pipe_or_changes_nothing_and_says_why() {
    let folder = Folder::new();
    let plain = |keys: &str| manifest(&format!("header = \"none\"\n{keys}"));
    folder.write("up.toml", plain("key_fd = 3"));
    let server = with_pipe(&folder);
    let text = pattern(8, 4096);
    Client::new(&server.socket(), "disk").write(8192, &text, FUA).unwrap();
    let read = || Client::new(&server.socket(), "disk").read(8192, 4096).unwrap();
    for scheduler in ["deadline", "none"] {
        let raw = format!("name = \"raw\"\nscheduler = \"{scheduler}\"\n");
        folder.write("up.toml", plain("key_fd = 3").replace("name = \"raw\"\n", &raw));
        folder.corewise(["reload"]).ok().says(&["restarted device 'disk'"]);
        assert!(read() == text);
    }
    // A key from a file takes the place of the one from the pipe, which is wiped.
    folder.write("key", KEY);
    folder.write("up.toml", plain("key_file = \"key\""));
    folder.corewise(["reload"]).ok();
    assert!(read() == text);
    folder.write("up.toml", plain("discard = true\nkey_fd = 3"));
    let refused = folder.corewise(["reload"]).code(1);
    refused.complains(&["the change restarts 'disk'", "key comes from file descriptor 3"]);
    assert!(read() == text);
    std::fs::remove_file(folder.join("key")).unwrap();
    folder.write("up.toml", plain("discard = true\nkey_file = \"key\""));
    folder.corewise(["reload"]).code(1).complains(&["would not come up: key file"]);
    assert!(read() == text);
    server.stop().ok();
}

#[test]
fn encrypted_devices_are_legs_of_a_mirror_and_a_new_one_is_resynced() {
    let folder = Folder::new();
    folder.write("key", "a passphrase");
    let leg = |name: &str| {
        manifest("create = true\nkey_file = \"key\"")
            .replace("[[export]]\ndevice = \"disk\"\n", "")
            .replace("\"raw\"", &format!("\"raw-{name}\""))
            .replace("\"disk\"", &format!("\"disk-{name}\""))
            .replace("disk.img", &format!("{name}.img"))
    };
    let mirror = "[[device]]\nname = \"disk\"\ndriver = \"mirror\"\n\
                  over = [\"disk-a\", \"disk-b\"]\ndegraded = \"always\"\n[[export]]\ndevice = \"disk\"\n";
    folder.write("up.toml", leg("a") + &leg("b") + mirror);
    let text = pattern(7, 65536);
    for lost in [None, Some("a.img")] {
        if let Some(lost) = lost {
            std::fs::remove_file(folder.join(lost)).unwrap();
        }
        let mut server = Server::start(&folder, &["up.toml"]);
        if lost.is_none() {
            Client::new(&server.socket(), "disk").write(8192, &text, FUA).unwrap();
        }
        server.wait_mirror("resynced");
        server.stop().ok();
    }
    std::fs::remove_file(folder.join("b.img")).unwrap();
    serve(&folder, &text, false);
}

#[test]
fn an_encrypted_device_grows_with_its_file_and_flushes_reach_it() {
    let folder = Folder::new();
    folder.write("key", "a passphrase");
    folder.write("up.toml", manifest("create = true\nkey_file = \"key\""));
    let server = Server::start(&folder, &["up.toml"]);
    let size = (48 << 20) + HEADER;
    let grown = folder.corewise(["grow", "disk", "48M"]).ok();
    let note = format!("write size = \"{size}\" for 'raw' into the manifest");
    assert!(grown.to_string().contains(&note), "{grown}");
    assert_eq!(std::fs::metadata(folder.join("disk.img")).unwrap().len(), size);
    let mut client = Client::new(&server.socket(), "disk");
    client.write((48 << 20) - 4096, &pattern(6, 4096), 0).unwrap();
    client.flush().unwrap();
    drop(client);
    server.stop().ok();
    folder.write(
        "up.toml",
        manifest("key_file = \"key\"").replace(&SIZE.to_string(), &size.to_string()),
    );
    let server = Server::start(&folder, &["up.toml"]);
    let mut client = Client::new(&server.socket(), "disk");
    assert!(client.read((48 << 20) - 4096, 4096).unwrap() == pattern(6, 4096));
    drop(client);
    server.stop().ok();
}

/// Belongs to the long runs, as `kernel` says.
#[test]
fn the_kernels_dm_crypt_and_a_server_take_turns_with_one_file_system() {
    if !is_long() {
        return;
    }
    let modules =
        "virtio_pci virtio_blk ext4 crc32c_generic dm_crypt xts aesni_intel algif_skcipher";
    let programs = ["cryptsetup", "fio", "e2fsck"].map(AsRef::as_ref);
    let Some(image) = Image::new("crypt", "own", "crypt", modules, &programs) else { return };
    let folder = Folder::new();
    folder.write("key", "a-passphrase");
    folder.write("up.toml", manifest("create = true\nkey_file = \"key\""));
    std::fs::create_dir(folder.join("root")).unwrap();
    folder.write("root/old", "of the server");
    folder.client("mkfs.ext4", ["-q", "-d", "root", "fs.img", "16M"]).ok();
    let server = Server::start(&folder, &["up.toml"]);
    folder.client("nbdcopy", ["fs.img", &server.uri("disk")]).ok();
    server.stop().ok();
    let mut machine = image.machine(400, "tcg,thread=multi", "quiet key=a-passphrase");
    let disk = format!("file={},format=raw,if=none,id=disk", folder.join("disk.img").display());
    machine.args(["-m", "1024", "-drive", &disk]);
    machine.args(["-device", "virtio-blk-pci,drive=disk,romfile="]);
    let (result, said) = listen(machine, |_| {});
    assert_eq!(result.as_deref(), Some("well"), "{said}");
    let server = Server::start(&folder, &["up.toml"]);
    std::fs::remove_file(folder.join("fs.img")).unwrap();
    folder.client("nbdcopy", [&server.uri("disk"), "fs.img"]).ok();
    server.stop().ok();
    folder.client("e2fsck", ["-fn", "fs.img"]).ok();
    folder.client("debugfs", ["-R", "cat new", "fs.img"]).ok().says(&["of the kernel"]);
}
