//! `--report` and `--peers`: the run as one HTML file, with what `bench-peers` measured beside it.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use corewise_bench::record::Record;
use corewise_bench::report::{self, Page};
use corewise_topology::Machine;

use crate::{Measured, Outcome, create, facts};

/// A report that was asked for. It is made before anything is measured, so a wrong file is reported at once.
#[derive(Debug)]
pub(crate) struct Report {
    file: File,
    peers: Vec<Record>,
}

impl Report {
    /// Creates the file `path`, for a report with the records of `peers`.
    pub(crate) fn new(path: &Path, peers: Option<&Path>) -> Outcome<Report> {
        let peers = peers.map(read_peers).transpose()?.unwrap_or_default();
        Ok(Report { file: create(path)?, peers })
    }

    /// Writes the page of a run.
    pub(crate) fn write(mut self, machine: &Machine, measured: &[Measured]) -> Outcome {
        let facts = facts::gather(machine.topology());
        let names: Vec<&str> = measured.iter().map(|one| one.which.name).collect();
        let records: Vec<Record> = measured.iter().flat_map(Measured::records).collect();
        let page = report::render(&Page {
            name: &names.join(" and "),
            facts: &facts,
            advice: &measured.iter().flat_map(|one| one.advice.clone()).collect::<Vec<_>>(),
            records: &records,
            peers: &self.peers,
        });
        let written = self.file.write_all(page.as_bytes());
        written.map_err(|error| format!("cannot write the report: {error}").into())
    }
}

fn read_peers(path: &Path) -> Outcome<Vec<Record>> {
    let name = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| format!("cannot read the peers' measurements '{name}': {error}"))?;
    records(&text).map_err(|why| {
        format!(
            "'{name}' holds no measurements: {why}; 'bench-peers workqueue --out FILE' writes such a file"
        )
        .into()
    })
}

fn records(text: &str) -> Result<Vec<Record>, String> {
    let records: Vec<Record> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    match records.is_empty() {
        true => Err("its list is empty".to_owned()),
        false => Ok(records),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_records_is_refused() {
        assert!(records("").is_err() && records("{}").is_err() && records("[{\"a\":1}]").is_err());
        assert_eq!(records("[]"), Err("its list is empty".to_owned()));
        let one = "[{\"bench\":\"workqueue\",\"case\":\"idle\",\"variant\":\"x\",\"metric\":\"m\",\
                   \"unit\":\"s\",\"median\":1.0,\"min\":1.0,\"max\":1.0,\"runs\":1}]";
        assert_eq!(records(one).map(|records| records.len()), Ok(1));
    }
}
