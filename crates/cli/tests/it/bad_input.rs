//! Manifests that can't be served: one clear message that names device and line, exit code 1, and
//! nothing left behind.
#![allow(missing_docs, clippy::unwrap_used)]

use std::os::unix::net::UnixListener;
use std::path::Path;

use crate::common::server::Server;
use crate::common::{Folder, Ran, file};

fn memory(name: &str) -> String {
    format!("[[device]]\nname = \"{name}\"\ndriver = \"memory\"\nsize = \"1M\"\n")
}

/// Runs `up` with a manifest that can't be served, and checks all that holds for each of them.
#[track_caller]
fn refused(manifest: &str) -> Ran {
    let folder = Folder::new();
    folder.write("up.toml", manifest);
    let ran = folder.corewise(["up", "up.toml"]).code(1);
    assert_eq!(folder.list(), ["up.toml"], "something was left behind\n{ran}");
    assert!(!ran.stderr.contains("panicked"), "{ran}");
    assert_eq!(ran.stdout, "", "{ran}");
    ran
}

#[test]
fn each_problem_is_told_with_its_line_and_nothing_is_made() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let tcp = format!("[server]\ntcp = {}\n", taken.local_addr().unwrap().port());
    let other =
        |path: &str| format!("[[device]]\nname = \"b\"\ndriver = \"file\"\npath = \"{path}\"\n");
    for (more, problem) in [
        (
            "[[device]]\nname = \"b\"\ndriver = \"mirorr\"\n",
            &[
                "error: up.toml:9:10: device 'b': unknown driver 'mirorr'",
                "help: did you mean 'mirror'?",
            ][..],
        ),
        (
            &other("missing/b.img"),
            &["error: up.toml:10:8: device 'b': cannot open", "missing/b.img"],
        ),
        (&other("."), &["error: up.toml:10:8: device 'b':"]),
        (&tcp, &["error: up.toml:8:7: [server]:", "another program listens"]),
    ] {
        refused(&(file("a", "1M") + more)).complains(problem);
    }
}

#[test]
fn a_file_whose_own_size_is_not_a_multiple_of_the_block_size() {
    let folder = Folder::new();
    folder.write("odd.img", [0; 1000]);
    folder.write("up.toml", "[[device]]\nname = \"a\"\ndriver = \"file\"\npath = \"odd.img\"\n");
    let ran = folder.corewise(["up", "up.toml"]).code(1);
    let ran = ran.complains(&["error: up.toml:4:8: device 'a':", "1000", "512"]);
    assert_eq!(folder.list(), ["odd.img", "up.toml"], "{ran}");
}

#[test]
fn a_file_of_another_size_than_the_manifest_says_is_left_as_it_is() {
    let folder = Folder::new();
    folder.write("a.img", [7; 4096]);
    folder.write("up.toml", file("a", "1M"));
    let ran = folder.corewise(["up", "up.toml"]).code(1);
    ran.complains(&["device 'a':", "4096", "1048576"]);
    assert_eq!(std::fs::read(folder.join("a.img")).unwrap(), [7; 4096]);
}

#[test]
fn a_socket_that_is_taken() {
    let folder = Folder::new();
    let _theirs = UnixListener::bind(folder.join("s")).unwrap();
    let text = file("a", "1M") + "[server]\nunix = \"s\"\n";
    folder.write("up.toml", text);
    let ran = folder.corewise(["up", "up.toml"]).code(1);
    let ran = ran.complains(&["error: up.toml:8:8: [server]:", "another server listens"]);
    // Our volume wasn't made, and the other server's socket is still there.
    assert_eq!(folder.list(), ["s", "up.toml"], "{ran}");
}

#[test]
fn a_symbolic_link_that_leads_nowhere() {
    for create in ["", "size = \"1M\"\ncreate = true\n"] {
        let folder = Folder::new();
        std::os::unix::fs::symlink("gone/disk.img", folder.join("link")).unwrap();
        let text = "[[device]]\nname = \"a\"\ndriver = \"file\"\npath = \"link\"\n";
        folder.write("up.toml", format!("{text}{create}"));
        for more in [&[][..], &["--check"]] {
            let ran = folder.corewise([&["up", "up.toml"], more].concat()).code(1);
            ran.complains(&[
                "up.toml:4:8: device 'a':",
                "a symbolic link to 'gone/disk.img', and no file is there",
            ]);
        }
        assert_eq!(folder.list(), ["link", "up.toml"]);
    }
}

#[test]
fn a_manifest_that_is_not_there() {
    let folder = Folder::new();
    let ran = folder.corewise(["up", "nowhere.toml"]).code(1);
    ran.complains(&["error: cannot read the manifest 'nowhere.toml'"]);
    assert_eq!(folder.list(), [""; 0]);
}

#[test]
fn wrong_usage_has_an_exit_code_of_its_own() {
    let folder = Folder::new();
    for args in [
        vec!["up", "--for", "5"],
        vec!["up", "--timeline", "x.png"],
        vec!["up", "--tcp", "::1"],
        vec!["topo", "--from", "nowhere"],
        vec!["down"],
        vec![],
    ] {
        folder.corewise(args).code(2);
    }
}

#[test]
fn a_device_to_detach_that_is_not_there_is_named_beside_those_that_are() {
    let folder = Folder::new();
    for name in ["data", "/dev/nbd4000", "/dev/ublkb4000"] {
        let ran = folder.corewise(["detach", name]).code(1);
        let asked = format!("error: '{name}': neither an NBD device nor a ublk disk");
        let ran = ran.complains(&[&asked]);
        // A machine with devices shows them.
        assert!(
            ["no device is attached", "there is /dev/"]
                .iter()
                .any(|words| ran.stderr.contains(words))
        );
    }
}

#[test]
fn keep_going_serves_the_rest_and_names_the_devices_left_out() {
    let folder = Folder::new();
    let text = file("good", "1M")
        + &file("late", "1M").replace("late.img", "missing/late.img")
        + &memory("odd").replace("\"1M\"", "1000")
        + "[[device]]\nname = \"m\"\ndriver = \"mirror\"\nover = [\"good\", \"late\"]\n"
        + "[[export]]\ndevice = \"m\"\n[[export]]\ndevice = \"good\"\nread_only = true\n"
        + "[server]\nunix = \"s\"\n";
    folder.write("up.toml", text);
    let server = Server::start(&folder, &["up.toml", "--keep-going"]);
    let list = folder.client("nbdinfo", ["--list", "--json", &server.uri("")]).ok();
    let list = list.json();
    let names: Vec<_> =
        list["exports"].as_array().unwrap().iter().map(|e| &e["export-name"]).collect();
    assert_eq!(names, ["good"]);

    let ran = server.stop().code(1).complains(&[
        "error: up.toml:16:8: device 'odd': size 1000",
        "error: up.toml:10:8: device 'late': cannot open",
    ]);
    let left_out: Vec<serde_json::Value> = ran
        .stdout
        .lines()
        .filter(|line| line.contains("\"left_out\""))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let subjects: Vec<_> =
        left_out.iter().map(|event| event["subject"].as_str().unwrap()).collect();
    for subject in ["device 'odd'", "device 'late'", "device 'm'", "export 'm'"] {
        assert!(subjects.contains(&subject), "{subject} in {subjects:?}\n{ran}");
    }
    // A volume that came up is the user's; one that did not leaves nothing.
    assert_eq!(folder.list(), ["good.img", "up.toml"], "{ran}");
}

#[test]
fn keep_going_needs_something_to_go_on_with() {
    let folder = Folder::new();
    folder.write("up.toml", memory("a").replace("\"1M\"", "1000"));
    folder
        .corewise(["up", "up.toml", "--keep-going", "--for", "1ms"])
        .code(1)
        .complains(&["device 'a'", "no device is left to bring up"]);
}

#[test]
fn keep_going_uses_the_socket_that_is_free() {
    let folder = Folder::new();
    let _theirs = UnixListener::bind(folder.join("s")).unwrap();
    folder.write(
        "up.toml",
        memory("a") + "[[export]]\ndevice=\"a\"\n[server]\nunix = \"s\"\ntcp = 0\n",
    );
    let server = Server::start(&folder, &["up.toml", "--keep-going"]);
    assert!(server.ready["unix"].is_null(), "{}", server.ready);
    folder.client("nbdinfo", ["--size", &server.tcp_uri("a")]).ok().says(&["1048576"]);
    server.stop().code(1).complains(&["up.toml:8:8: [server]:"]);
}

#[test]
fn two_names_of_one_file_are_one_file() {
    let folder = Folder::new();
    folder.write("a.img", vec![0; 1 << 20]);
    std::os::unix::fs::symlink("a.img", folder.join("b.img")).unwrap();
    folder.write("up.toml", file("a", "1M") + &file("b", "1M"));
    folder.corewise(["up", "up.toml"]).code(1).complains(&["the file is in use", "another device"]);
}

#[test]
fn a_pipe_is_no_volume_and_is_not_waited_for() {
    let folder = Folder::new();
    let mut mkfifo = folder.command("mkfifo");
    mkfifo.arg("pipe");
    crate::common::run(mkfifo).ok();
    let text = "[[device]]\nname = \"a\"\ndriver = \"file\"\npath = \"pipe\"\nread_only = true\n";
    folder.write("up.toml", text);
    folder
        .corewise(["up", "up.toml"])
        .code(1)
        .complains(&["up.toml:4:8: device 'a'", "a pipe, a socket or a character device"]);
}

#[test]
fn a_volume_in_use_by_another_server_is_refused() {
    let folder = Folder::new();
    folder.write("up.toml", file("a", "1M") + "[[export]]\ndevice=\"a\"\n[server]\nunix = \"s\"\n");
    let server = Server::start(&folder, &["up.toml"]);
    let second = folder.corewise(["up", "up.toml", "--socket", "t"]).code(1);
    let second = second.complains(&["error: up.toml:4:8: device 'a':", "in use"]);
    assert!(!folder.join("t").exists(), "{second}");
    folder.client("nbdinfo", ["--size", &server.uri("a")]).ok();
    server.stop().ok();
    assert_eq!(folder.list(), ["a.img", "up.toml"]);
}

#[test]
fn a_file_that_is_only_read_is_shared_by_devices_and_by_servers() {
    let folder = Folder::new();
    folder.write("x.img", vec![7; 1 << 20]);
    let reader = |name: &str| {
        format!(
            "[[device]]\nname = \"{name}\"\ndriver = \"file\"\npath = \"x.img\"\n\
             read_only = true\n[[export]]\ndevice = \"{name}\"\n"
        )
    };
    folder.write("up.toml", reader("a") + &reader("b") + "[server]\nunix = \"s\"\n");
    let first = Server::start(&folder, &["up.toml"]);
    let second = Server::start(&folder, &["up.toml", "--socket", "t"]);
    for (server, copy) in [(&first, "1.img"), (&second, "2.img")] {
        folder.client("nbdinfo", ["--size", &server.uri("a")]).ok();
        folder.client("nbdcopy", [server.uri("b").as_str(), copy]).ok();
        assert_eq!(std::fs::read(folder.join(copy)).unwrap(), vec![7; 1 << 20]);
    }
    first.stop().ok();
    second.stop().ok();
}

#[test]
fn a_check_finds_what_a_look_at_the_files_tells_and_makes_nothing() {
    let folder = Folder::new();
    folder.write("odd.img", [0; 1000]);
    let device = |name: &str, rest: &str| {
        format!("[[device]]\nname = \"{name}\"\ndriver = \"file\"\npath = \"{name}.img\"\n{rest}")
    };
    let good = device("new", "size = \"1M\"\ncreate = true\n") + "[[export]]\ndevice = \"new\"\n";
    folder.write("good.toml", &good);
    let ran = folder.corewise(["up", "--check", "good.toml"]).ok();
    ran.says(&[
        "good.toml: 1 device, 1 export, no problem found",
        "front ends here: nbd: yes; ublk: ",
    ]);
    assert_eq!(folder.list(), ["good.toml", "odd.img"]);
    folder.write(
        "bad.toml",
        good + &device("odd", "") + &device("none", "") + &device("tmp/no/x", ""),
    );
    let ran = folder.corewise(["up", "--check", "bad.toml"]).code(1);
    ran.complains(&["a device's name may contain letters"]);
    let bad =
        device("odd", "") + &device("none", "") + &device("far", "size = \"1M\"\ncreate = true\n");
    folder.write("bad.toml", bad.replace("far.img", "no/far.img"));
    let ran = folder.corewise(["up", "--check", "bad.toml"]).code(1);
    ran.complains(&[
        "bad.toml:4:8: device 'odd': ",
        "its size 1000 is not a multiple of the block size 512",
        "device 'none': ",
        "No such file or directory",
        "device 'far': ",
        "cannot be created: its folder: ",
    ]);
}

#[test]
fn an_export_that_this_kernel_cannot_make_a_disk_fails_with_what_is_missing() {
    if Path::new("/dev/ublk-control").exists() {
        return;
    }
    let folder = Folder::new();
    let text = "[[device]]\nname = \"ram\"\ndriver = \"memory\"\nsize = \"1M\"\n[[export]]\ndevice = \"ram\"\nublk = true\n";
    folder.write("a.toml", text);
    let expected = ["a.toml:5:", "export 'ram': ublk: ", "modprobe ublk_drv"];
    folder.corewise(["up", "--check", "a.toml"]).code(1).complains(&expected);
    folder.corewise(["up", "a.toml"]).code(1).complains(&expected);
}
