//! The flags of `corewise health`.

use super::server::Which;

pub(crate) const EXAMPLES: &str = "\
ok: no fault is known. degraded: all data is there and can be reached, but less protects it than was asked for, or a \
part of the server doesn't work. lost: data that clients were promised may be gone, or can't be reached through this \
server now. Below the word is a line for each reason, with the command that mends it, where there is one. \
docs/monitoring.md lists the reasons. The command finds the server as `corewise dump` does.

Examples:
  corewise health
  corewise health --json | jq -r '.health.reasons[] | .todo'
  corewise health > /dev/null || alert \"corewise: exit code $?\"

Exit codes: 0 ok, 1 failure (no server, several servers, or no answer), 2 wrong usage, 3 degraded, 4 lost.";

/// `corewise health`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) server: Which,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}
