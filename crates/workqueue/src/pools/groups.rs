//! The groups of pools by their attributes: shared by the queues that have the same, and ended when
//! no queue uses them any more.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::{Arc, Weak};

use crate::attributes::PoolKey;
use crate::error::BuildError;
use crate::pool::group::Group;

/// The pools that there are.
#[derive(Default)]
pub(crate) struct Groups {
    // Hashed alike in each process: a seed then replays a schedule.
    by_key: HashMap<PoolKey, (Arc<Group>, Weak<Lease>), BuildHasherDefault<DefaultHasher>>,
    /// Pools that no queue uses any more, whose workers leave.
    leaving: Vec<Weak<Group>>,
    pub(crate) closed: bool,
}

/// Makes a group of pools stay, for as long as somebody has it.
pub(crate) struct Lease {
    /// I: the pools.
    pub(crate) group: Arc<Group>,
}

impl Groups {
    /// The pools with these attributes, if there are any, for a queue of that name.
    pub(crate) fn lease(
        &mut self,
        queue: &str,
        key: &PoolKey,
    ) -> Result<Option<Arc<Lease>>, BuildError> {
        if self.closed {
            return Err(BuildError::ShutDown { queue: queue.into() });
        }
        let found = self.by_key.get_mut(key).map(|(group, lease)| {
            lease.upgrade().unwrap_or_else(|| {
                let renewed = Arc::new(Lease { group: Arc::clone(group) });
                *lease = Arc::downgrade(&renewed);
                renewed
            })
        });
        Ok(found)
    }

    pub(crate) fn insert(&mut self, key: PoolKey, group: &Arc<Group>) -> Arc<Lease> {
        self.reap();
        let lease = Arc::new(Lease { group: Arc::clone(group) });
        self.by_key.insert(key, (Arc::clone(group), Arc::downgrade(&lease)));
        lease
    }

    /// Ends the pools that no queue uses any more.
    pub(crate) fn reap(&mut self) {
        let mut unused = Vec::new();
        self.by_key.retain(|_, (group, lease)| {
            let is_used = lease.strong_count() > 0;
            if !is_used {
                unused.push(Arc::clone(group));
            }
            is_used
        });
        unused.iter().for_each(|group| self.retire(group));
    }

    /// The workers of these pools leave.
    pub(crate) fn retire(&mut self, group: &Arc<Group>) {
        group.close();
        self.leaving.retain(|group| group.strong_count() > 0);
        self.leaving.push(Arc::downgrade(group));
    }

    /// Those that queues use, or used last.
    pub(crate) fn used(&self) -> impl Iterator<Item = Arc<Group>> {
        self.by_key.values().map(|(group, _)| Arc::clone(group))
    }

    /// Those, and the ones whose workers leave.
    pub(crate) fn all(&self) -> Vec<Arc<Group>> {
        self.used().chain(self.leaving.iter().filter_map(Weak::upgrade)).collect()
    }
}
