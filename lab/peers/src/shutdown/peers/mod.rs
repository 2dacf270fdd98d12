//! The peers, one file each. A function prepares a shutdown, and returns the function that does it.

pub(crate) mod rayon;
pub(crate) mod tokio;

use corewise_bench::shutdown::pass::Pass;

/// Returns for each device the one that must be shut down just before it, because neither may run
/// beside others.
pub(crate) fn previous(pass: &Pass) -> Vec<Option<u32>> {
    let web = pass.web();
    let mut all = vec![None; web.devices().len()];
    let mut last = None;
    for device in web.backwards().filter(|device| !web.devices()[*device as usize].opted_in) {
        all[device as usize] = last.replace(device);
    }
    all
}
