//! Looking again: what of a machine's state the system reports now, applied as one change.

use std::path::Path;
use std::sync::Arc;

use super::Machine;
use super::change::Change;
use crate::cpuset::CpuSet;
use crate::error::TopologyError;
use crate::live::{self, Seen};
use crate::sysfs;
use crate::topology::Source;

impl Machine {
    /// Reads again which CPUs are online, isolated and allowed, and how much of their time is, and
    /// applies that as one change. Says what changed for this process, if anything did. Listeners are
    /// told ([`Machine::on_change`]).
    ///
    /// Of the live machine that is: `online` and `isolated` of sysfs (and the isolated partitions of
    /// the cpuset controller, where its root can be seen); the cpuset and the CPU quota of the process's
    /// cgroups; and the CPUs that *some* thread of the process may use. (Not those of one thread: any may have been pinned
    /// for its own reasons. `taskset --all-tasks` narrows all.) Of a saved sysfs tree: its `online`
    /// and `isolated`. A machine that was described in a line never changes by itself.
    ///
    /// What [`Machine::set_online`] and its like have set is set anew. CPUs that the topology doesn't
    /// have, or that weren't allowed when it was made, stay out: they are in no pod.
    ///
    /// Reads files, and waits for readers ([`Machine::read`]); may block for a moment. Any thread may
    /// call it, several at once take turns. [`Watch`](crate::Watch) says when it is worth a call.
    ///
    /// # Errors
    /// If a file can't be read or says something else than such a file does, or no CPU would remain
    /// of those that the machine was made with. Nothing has changed then.
    pub fn refresh(&self) -> Result<Option<Arc<Change>>, TopologyError> {
        let change = {
            let _turn = self.refreshing();
            let seen = self.look()?;
            self.apply_seen(seen)?
        };
        self.tell();
        Ok(change)
    }

    fn look(&self) -> Result<Seen, TopologyError> {
        let saved = |system: &Path| {
            let (running, isolated) = sysfs::state(system)?;
            Ok(Seen { running, isolated, ..Seen::default() })
        };
        match self.topology().source() {
            Source::Live => live::state(self.topology()),
            Source::Sysfs(dir) => saved(&sysfs::system_dir(dir)?),
            _ => Ok(Seen::default()),
        }
    }

    fn apply_seen(&self, seen: Seen) -> Result<Option<Arc<Change>>, TopologyError> {
        let topology = self.topology();
        let all = topology.cpu_set();
        // Debug: compared with what was said before.
        let said = format!("{seen:?}");
        let applied = self.apply(|given| {
            if let Some(running) = seen.running {
                given.running = running.intersection(&all);
            }
            if let Some(allowed) = seen.allowed {
                given.allowed = allowed.intersection(topology.allowed());
            }
            if let Some(isolated) = seen.isolated {
                given.isolated = isolated.intersection(&all);
            }
            if let Some(quota) = seen.quota {
                given.quota = quota;
            }
            CpuSet::new()
        });
        match applied {
            Ok((_, change)) => Ok(change),
            Err(_) => Err(TopologyError::NoCpu {
                reason: format!(
                    "the machine was made with CPUs {}, and none of them is online and allowed now \
                     ({said}); restart a process that was moved to other CPUs",
                    topology.allowed()
                ),
            }),
        }
    }
}
