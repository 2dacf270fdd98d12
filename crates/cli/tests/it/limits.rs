//! Clients that take as much as a process's limits allow: the operator can still watch and change
//! the server.
#![allow(missing_docs, clippy::unwrap_used)]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use crate::common::client::{Client, READ, connect, pattern};
use crate::common::server::Server;
use crate::common::{COREWISE, Folder, file};

/// Starts a server below a limit that a shell sets.
fn start(folder: &Folder, limit: &str) -> Server {
    let mut command = folder.command("sh");
    command.args(["-c", &format!("ulimit {limit}; exec \"$0\" \"$@\""), COREWISE]);
    command.args(["up", "--json", "up.toml"]);
    let mut server = Server::spawn(command);
    server.ready = server.wait_event("ready");
    server
}

#[test]
fn clients_that_take_all_descriptors_that_they_can_get_leave_those_of_the_operator() {
    let folder = Folder::new();
    let manifest = "[server]\nunix = \"s\"\nmetrics = \"./m\"\n[[device]]\nname = \"m\"\ndriver = \"memory\"\n\
                    size = \"1M\"\n[[export]]\ndevice = \"m\"\n";
    folder.write("up.toml", manifest);
    let server = start(&folder, "-n 200");
    let places = server.ready["clients"].as_u64().unwrap() as usize;
    assert!((30..200).contains(&places), "{places}");
    let cut = server.ready["clients_cut"].as_str().unwrap();
    let says = format!(
        "{places} clients at most, instead of 1024: the hard limit of open files is 200, of which"
    );
    assert!(cut.starts_with(&says) && cut.contains("LimitNOFILE"), "{cut}");

    let attach = || Client::over(connect(&server.socket()), "m");
    let mut clients: Vec<Client> = (0..places / 2).map(|_| attach().unwrap()).collect();
    // Silent clients fill the places again and again: the oldest of them makes room.
    let mut silent: Vec<UnixStream> = (0..3 * places).map(|_| connect(&server.socket())).collect();
    let more = folder.write("more.toml", file("more", "1M"));
    let added = folder.corewise(["add", more.to_str().unwrap()]).ok();
    let added = added.says(&["added device 'more'"]);
    added.complains(&["the volumes take descriptors from clients"]);
    folder.write("up.toml", format!("{manifest}{}{}", file("more", "1M"), file("and", "1M")));
    folder.corewise(["reload"]).ok().says(&["added device 'and'"]);

    let refused = loop {
        match attach() {
            Ok(client) => clients.push(client),
            Err(error) => break error.to_string(),
        }
    };
    // NBD_REP_ERR_POLICY: all places are taken.
    assert!(refused.contains("0x80000002"), "{refused}");
    assert!((places / 2..places).contains(&clients.len()), "{} of {places}", clients.len());
    silent.extend((0..3 * places).map(|_| connect(&server.socket())));
    folder.corewise(["dump"]).ok().says(&["Disks", "more", "and"]);
    let mut scraper = connect(&folder.join("m"));
    scraper.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut metrics = String::new();
    scraper.read_to_string(&mut metrics).unwrap();
    assert!(metrics.contains(&format!("corewise_clients {}\n", clients.len())), "{metrics}");
    folder.corewise(["reload"]).ok();

    // Volumes that would take the places of clients that are there are refused, and nothing
    // changes.
    let many: String = (0..places).map(|n| file(&format!("f{n}"), "1M")).collect();
    let many = folder.write("many.toml", many);
    for dry in [&["--dry-run"][..], &[]] {
        let add = [&["add", many.to_str().unwrap()], dry].concat();
        let ran = folder.corewise(add).code(1);
        ran.complains(&["the hard limit of open files is 200", "clients are connected"]);
    }
    for (n, client) in clients.iter_mut().enumerate() {
        client.write(0, &pattern(n as u64, 4096), 0).unwrap();
        assert_eq!(client.read(0, 4096).unwrap(), pattern(n as u64, 4096));
    }
    drop((clients, silent));
    // Once the volumes are gone, clients have their places again.
    folder.write("up.toml", manifest);
    folder.corewise(["reload"]).ok().says(&["removed device 'more'", "removed device 'and'"]);
    let clients: Vec<Client> = (0..places).map(|_| attach().unwrap()).collect();
    assert!(attach().is_err());
    drop(clients);
    let ran = server.stop().ok();
    assert_eq!(ran.stderr.matches("clients at most, instead of 1024").count(), 1, "{ran}");
    assert!(!ran.stderr.contains("clients wait, since"), "{ran}");
}

#[test]
fn a_limit_that_leaves_no_place_for_a_client_is_refused_with_what_to_raise() {
    let folder = Folder::new();
    folder.write("up.toml", format!("{}[[export]]\ndevice = \"f\"\n", file("f", "1M")));
    let mut command = folder.command("sh");
    command.args(["-c", "ulimit -n 64; exec \"$0\" up up.toml", COREWISE]);
    let ran = Server::spawn(command).wait().code(1);
    ran.complains(&["the hard limit of open files is 64, too low", "Raise LimitNOFILE"]);
    assert!(!folder.join("f.img").exists(), "nothing was touched");
}

#[test]
fn a_limit_of_memory_that_leaves_no_place_for_a_client_is_refused_with_its_name() {
    let folder = Folder::new();
    folder.write(
        "up.toml",
        "[server]\nunix = \"s\"\n[[device]]\nname = \"n\"\ndriver = \"null\"\nsize = \"1M\"\n[[export]]\ndevice = \"n\"\n",
    );
    for (limit, name) in [("-d 60000", "RLIMIT_DATA"), ("-v 150000", "RLIMIT_AS")] {
        let mut command = folder.command("sh");
        command.args(["-c", &format!("ulimit {limit}; exec \"$0\" up up.toml"), COREWISE]);
        let ran = Server::spawn(command).wait().code(1);
        ran.complains(&[name, "too little for any client", "Raise Limit", &limit[..2]]);
    }
    let ran = start(&folder, "-d 700000").stop().ok();
    assert!(!ran.stderr.contains("RLIMIT_DATA"), "{ran}");
}

#[test]
fn a_herd_of_clients_below_a_limit_of_the_address_space_does_not_end_the_server() {
    const HERD: u64 = 300;
    let folder = Folder::new();
    // The volume is mapped after the check of the available memory, and takes its size from
    // clients.
    let manifest = "[server]\nunix = \"s\"\n[[device]]\nname = \"m\"\ndriver = \"memory\"\nsize = \"64M\"\n\
                    [[export]]\ndevice = \"m\"\n";
    folder.write("up.toml", manifest);
    let server = start(&folder, "-v 340000");
    let places = server.ready["clients"].as_u64().unwrap();
    assert!((1..HERD / 4).contains(&places), "{places}");
    let cut = server.ready["clients_cut"].as_str().unwrap();
    assert!(cut.contains("RLIMIT_AS is 332.0 MiB") && cut.contains("`ulimit -v`"), "{cut}");
    let mut healthy = Client::new(&server.socket(), "m");
    let herd: Vec<UnixStream> = (0..HERD).map(|_| connect(&server.socket())).collect();
    let mut greedy: Vec<Client> =
        herd.into_iter().filter_map(|stream| Client::over(stream, "m").ok()).collect();
    assert!((1..places).contains(&(greedy.len() as u64)), "{} of {places}", greedy.len());
    for client in &mut greedy {
        for n in 0..64 {
            let length = 4096 << (n % 10);
            client.send(READ, 0, 0, length, &[]).unwrap();
        }
    }
    let attach = || Client::over(connect(&server.socket()), "m");
    for _ in 0..HERD {
        healthy.write(0, &pattern(7, 4096), 0).unwrap();
        assert_eq!(healthy.read(0, 4096).unwrap(), pattern(7, 4096));
        greedy.extend(attach());
    }
    drop(greedy);
    server.stop().ok();
}

#[test]
fn clients_that_do_their_worst_below_a_limit_of_the_address_space_do_not_end_the_server() {
    let folder = Folder::new();
    folder.write(
        "up.toml",
        "[server]\nunix = \"s\"\n[[device]]\nname = \"n\"\ndriver = \"null\"\nsize = \"4G\"\n[[export]]\ndevice = \"n\"\n",
    );
    // The limits are in KiB. Of the second one only private writable memory counts.
    for limit in ["-v 900000", "-d 500000"] {
        let server = start(&folder, limit);
        let places = server.ready["clients"].as_u64().unwrap();
        assert!((20..300).contains(&places), "{places} clients below {limit}");
        let mut clients: Vec<Client> =
            (0..places).map(|_| Client::new(&server.socket(), "n")).collect();
        let (last, greedy) = clients.split_last_mut().unwrap();
        for client in greedy {
            for n in 0..4 {
                client.send(READ, 0, n << 25, 32 << 20, &[]).unwrap();
            }
        }
        let control = server.control();
        let control = control.to_str().unwrap();
        loop {
            let dump = folder.corewise(["dump", "--json", "--control", control]).ok().json();
            // All clients but the first wait for memory.
            if dump["memory"]["waiting"].as_u64().unwrap() + 8 > places {
                break;
            }
        }
        assert_eq!(last.read(0, 4096).unwrap(), [0; 4096]);
        drop(clients);
        server.stop().ok();
    }
}

#[test]
fn clients_that_got_no_export_are_counted_in_the_dump_in_metrics_and_in_few_lines_of_the_log() {
    const HERD: u64 = 300;
    let folder = Folder::new();
    let manifest = "[server]\nunix = \"s\"\nmetrics = \"./m\"\nclients = 1\n[[device]]\nname = \"n\"\n\
                    driver = \"null\"\nsize = \"1M\"\n[[export]]\ndevice = \"n\"\n";
    folder.write("up.toml", manifest);
    let server = Server::start(&folder, &["up.toml"]);
    let _served = Client::new(&server.socket(), "n");
    for _ in 0..HERD {
        assert!(Client::over(connect(&server.socket()), "n").is_err());
    }
    loop {
        let mut scraper = connect(&folder.join("m"));
        scraper.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut metrics = String::new();
        scraper.read_to_string(&mut metrics).unwrap();
        assert!(metrics.contains("corewise_handshakes_ended_total{result=\"attached\"} 1\n"));
        let all = format!("corewise_handshakes_ended_total{{result=\"no_place\"}} {HERD}\n");
        if metrics.contains(&all) {
            break;
        }
    }
    let dump = folder.dump();
    let expected = serde_json::json!({ "attached": 1, "no_place": HERD, "evicted": 0,
        "timed_out": 0, "tls_failed": 0, "failed": 0, "left": 0 });
    assert_eq!(dump["handshakes"], expected);
    let ran = server.stop().ok();
    let told = ran.stderr.lines().filter_map(|line| {
        let (_, counts) = line.split_once("clients got no export: ")?;
        let (count, _) = counts.split_once(" were refused, since all places are taken")?;
        count.parse::<u64>().ok()
    });
    let told: Vec<u64> = told.collect();
    assert_eq!(told.iter().sum::<u64>(), HERD, "{ran}");
    assert!(told.len() < HERD as usize / 10, "{ran}");
}
