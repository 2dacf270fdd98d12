//! Extended headers over a volume of every driver, by a client of the tests' own: `extended.py`
//! beside this file.
#![allow(missing_docs)]

use crate::common::Folder;
use crate::common::every::Every;
use crate::common::server::Server;

/// Rules for a volume that can be written.
const RULES: usize = 6;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/extended.py");

fn keeps(folder: &Folder, server: &Server, volumes: &[String]) {
    let socket = server.socket().display().to_string();
    let args = [SCRIPT, &socket].into_iter().chain(volumes.iter().map(String::as_str));
    let ran = folder.client("/usr/bin/python3", args).ok();
    let kept = ran.stdout.split_whitespace().next().and_then(|count| count.parse().ok());
    assert!(kept.is_some_and(|kept: usize| kept >= volumes.len() * RULES), "{ran}");
}

#[test]
fn extended_headers_serve_every_driver_and_a_client_that_forgets_them_is_cut_and_told_of() {
    let every = Every::with(Folder::new(), "extended_headers = true\n");
    let mut volumes: Vec<_> = every.volumes.iter().map(ToString::to_string).collect();
    volumes.extend(["null,null".to_string(), "error,error".to_string()]);
    keeps(&every.folder, &every.server, &volumes);
    let socket = every.server.socket().display().to_string();
    every.folder.client("/usr/bin/python3", [SCRIPT, &socket, "locked,locked"]).ok();
    every
        .server
        .stop()
        .ok()
        .complains(&["a compact request, though the client has chosen extended headers"]);
}

#[test]
fn zeroes_trims_prefetches_and_block_status_go_beyond_4_gib_where_extended_headers_are_on() {
    let folder = Folder::new();
    let part = |name: &str| {
        format!(
            "[[device]]\nname = \"{name}\"\ndriver = \"file\"\npath = \"{name}.img\"\nsize = \"5G\"\n\
             create = true\n"
        )
    };
    let manifest = format!(
        "[server]\nunix = \"s\"\nextended_headers = true\n{}{}{}\
         [[device]]\nname = \"data\"\ndriver = \"stripe\"\nover = [\"a\", \"b\"]\n\
         [[device]]\nname = \"nothing\"\ndriver = \"null\"\nsize = \"1T\"\n\
         [[export]]\ndevice = \"data\"\n[[export]]\ndevice = \"file\"\n[[export]]\ndevice = \"nothing\"\n",
        part("a"),
        part("b"),
        part("file")
    );
    folder.write("up.toml", manifest);
    let server = Server::start(&folder, &["up.toml"]);
    let volumes = ["data", "file", "nothing,null"].map(str::to_string);
    keeps(&folder, &server, &volumes);
    server.stop().ok();
}

#[test]
fn extended_headers_are_off_unless_the_manifest_has_them_on() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let socket = server.socket().display().to_string();
    let export = server.ready["exports"][0]["name"].as_str().expect("it has a name").to_string();
    folder
        .client("/usr/bin/python3", [SCRIPT, &socket, &export])
        .fails()
        .says(&["option 11 was refused by 0x80000001"]);
    server.stop().ok();
}
