//! The server to ask, and how often.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use corewise_server::units;

/// The server to ask.
#[derive(Clone, Debug, Args)]
pub(crate) struct Which {
    /// Ask the server with this control socket
    #[arg(long, value_name = "PATH", conflicts_with = "pid")]
    pub(crate) control: Option<PathBuf>,
    /// Ask the server with this process id
    #[arg(long, value_name = "PID")]
    pub(crate) pid: Option<u32>,
}

/// Between two rounds: no server answers more often than that.
const SHORTEST: Duration = Duration::from_millis(10);

pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    let interval = units::parse_duration(text)?;
    match interval < SHORTEST {
        true => {
            Err("the interval must be at least 10ms: a server answers at most 100 times per second"
                .into())
        }
        false => Ok(interval),
    }
}
