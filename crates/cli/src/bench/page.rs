//! `--report` and `--peers`: the run as one HTML file, with what `bench-peers` measured beside it.

use std::path::Path;

use corewise::topology::Machine;
use corewise_bench::record::Record;
use corewise_bench::report::{self, Page};

use super::{Measured, facts};
use crate::exit::Failure;
use crate::whole_file;

/// A report that was asked for. Made before anything is measured: who named a wrong file learns it
/// at once.
#[derive(Debug)]
pub(super) struct Report<'a> {
    path: &'a Path,
    peers: Vec<Record>,
}

impl<'a> Report<'a> {
    /// Into the file `path`, with the records of `peers`.
    pub(super) fn new(path: &'a Path, peers: Option<&Path>) -> Result<Report<'a>, Failure> {
        whole_file::check(path).map_err(|why| cannot_write(path, &why))?;
        let peers = peers.map(read_peers).transpose()?.unwrap_or_default();
        Ok(Report { path, peers })
    }

    /// Writes the page of a run.
    pub(super) fn write(&self, machine: &Machine, measured: &[Measured]) -> Result<(), Failure> {
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
        whole_file::write(self.path, &page).map_err(|why| cannot_write(self.path, &why))
    }
}

fn cannot_write(path: &Path, why: &str) -> Failure {
    Failure::new(format!("cannot write the report '{}': {why}", path.display()))
}

fn read_peers(path: &Path) -> Result<Vec<Record>, Failure> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::new(format!("cannot read the peers' measurements '{name}': {error}"))
    })?;
    records(&text).map_err(|why| {
        Failure::new(format!("'{name}' holds no measurements: {why}"))
            .help("'bench-peers workqueue --out FILE' writes such a file")
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
