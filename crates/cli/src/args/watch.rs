//! The flags of `corewise clients`, `disconnect`, `events` and `top`.

use std::time::Duration;

use super::server::{Which, interval};

pub(crate) const EXAMPLES: &str = "\
`clients` lists the clients of a running server with their work: rates and times are those of the last half \
second. `disconnect` ends the connection of one of them; the answers that it waits for are lost, and nothing keeps it from \
connecting again. `events` prints a line for each event from then on: clients that come and go, changes of exports and \
mirrors, the end of the server. `top` shows it all on the terminal, until q. docs/monitoring.md explains the columns. The \
commands find the server as `corewise dump` does.

Examples:
  corewise clients
  corewise clients --json | jq '.clients[] | {client, uid, export}'
  corewise disconnect 7
  corewise events
  corewise events --json | jq 'select(.event == \"mirror\")'
  corewise top

Exit codes: 0 success, 1 failure (no server, no such client, or the server ended), 2 wrong usage.";

/// `corewise clients`.
#[derive(Debug, clap::Args)]
pub(crate) struct Clients {
    #[command(flatten)]
    pub(crate) server: Which,
    /// Print one JSON document, without rates
    #[arg(long)]
    pub(crate) json: bool,
}

/// `corewise disconnect`.
#[derive(Debug, clap::Args)]
pub(crate) struct Disconnect {
    /// The client's number, as `corewise clients` and the log have it
    pub(crate) client: u64,
    #[command(flatten)]
    pub(crate) server: Which,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// `corewise events`.
#[derive(Debug, clap::Args)]
pub(crate) struct Events {
    #[command(flatten)]
    pub(crate) server: Which,
    /// Print each event as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `corewise top`.
#[derive(Debug, clap::Args)]
pub(crate) struct Top {
    #[command(flatten)]
    pub(crate) server: Which,
    /// Look anew every INTERVAL
    #[arg(long, value_name = "INTERVAL", default_value = "1s", value_parser = interval)]
    pub(crate) every: Duration,
}
