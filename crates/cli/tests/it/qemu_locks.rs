//! An image is a server's or QEMU's, and never both's for writing.
#![allow(missing_docs, clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};

use crate::common::Folder;
use crate::common::server::Server;

/// A `qemu-io` that has an image open until it is dropped.
struct QemuIo(Child);

impl QemuIo {
    fn open(folder: &Folder, args: &[&str]) -> QemuIo {
        let mut command = folder.command("qemu-io");
        command.args(["-f", "raw"]).args(args).arg("disk.img");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // A command is answered only once the image is open.
        child.stdin.as_mut().unwrap().write_all(b"length\n").unwrap();
        let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("1 MiB")), "it has no image");
        QemuIo(child)
    }
}

impl Drop for QemuIo {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn manifest(keys: &str) -> String {
    format!(
        "[[device]]\nname = \"disk\"\ndriver = \"file\"\npath = \"disk.img\"\n{keys}\n\
         [[export]]\ndevice = \"disk\"\n[server]\nunix = \"s\"\n"
    )
}

#[test]
fn an_image_that_qemu_writes_to_is_not_served_and_one_that_it_reads_is() {
    let folder = Folder::new();
    folder.write("disk.img", vec![7; 1 << 20]);
    let up = || folder.corewise(["up", "up.toml", "--for", "1ms"]);
    for keys in ["", "read_only = true"] {
        folder.write("up.toml", manifest(keys));
        let writer = QemuIo::open(&folder, &[]);
        up().code(1).complains(&["disk.img", "has it open for writing"]);
        drop(writer);
        let reader = QemuIo::open(&folder, &["-r"]);
        up().ok();
        drop(reader);
    }
}

#[test]
fn qemu_does_not_write_to_an_image_that_is_served_and_reads_it() {
    let folder = Folder::new();
    folder.write("disk.img", vec![7; 1 << 20]);
    for keys in ["", "read_only = true"] {
        folder.write("up.toml", manifest(keys));
        let server = Server::start(&folder, &["up.toml"]);
        let qemu = |program: &str, args: &[&str]| folder.client(program, args);
        let write = ["-f", "raw", "-c", "write -P 1 0 512", "disk.img"];
        qemu("qemu-io", &write).fails().complains(&["Failed to get \"write\" lock"]);
        qemu("qemu-img", &["resize", "-f", "raw", "disk.img", "2M"]).fails();
        let read = "read -P 7 0 1M";
        qemu("qemu-io", &["-r", "-f", "raw", "-c", read, "disk.img"]).ok();
        qemu("qemu-io", &["-r", "-U", "-f", "raw", "-c", read, "disk.img"]).ok();
        qemu("qemu-img", &["info", "-f", "raw", "disk.img"]).ok();
        qemu("qemu-img", &["info", "-U", "-f", "raw", "disk.img"]).ok();
        let convert = ["-f", "raw", "-O", "raw", "disk.img", "copy.img"];
        let strict = qemu("qemu-img", &[&["convert"][..], &convert].concat());
        match keys {
            "" => strict.fails().complains(&["Failed to get shared \"write\" lock"]),
            _ => strict.ok(),
        };
        qemu("qemu-img", &[&["convert", "-U"][..], &convert].concat()).ok();
        // QEMU takes no locks if an option says so.
        let off = "driver=raw,file.driver=file,file.filename=disk.img,file.locking=off";
        qemu("qemu-io", &["--image-opts", "-c", "read 0 512", off]).ok();
        server.stop().ok();
        let len = folder.join("disk.img").metadata().unwrap().len();
        assert_eq!(len, 1 << 20, "nobody resized it");
        qemu("qemu-io", &["-f", "raw", "-c", "write -P 7 0 512", "disk.img"]).ok();
    }
}

#[test]
fn a_file_grows_unless_a_program_of_qemu_counts_on_its_size() {
    let folder = Folder::new();
    folder.write("disk.img", vec![7; 1 << 20]);
    folder.write("up.toml", manifest(""));
    let server = Server::start(&folder, &["up.toml"]);
    // The image is a read-only export of `qemu-nbd`.
    let mut command = folder.command("qemu-nbd");
    command.args(["-r", "-t", "-f", "raw", "-k"]).arg(folder.join("q")).arg("disk.img");
    let mut nbd = QemuIo(command.spawn().unwrap());
    let uri = format!("nbd+unix:///?socket={}", folder.join("q").display());
    while folder.client("nbdinfo", ["--size", &uri]).code != Some(0) {
        assert!(nbd.0.try_wait().unwrap().is_none(), "it has ended");
    }
    folder.corewise(["grow", "disk", "2M"]).fails().complains(&["relies on its size"]);
    drop(nbd);
    folder.corewise(["grow", "disk", "2M"]).ok();
    server.stop().ok();
}
