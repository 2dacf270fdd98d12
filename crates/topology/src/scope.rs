//! The affinity scopes: the groups of CPUs within which work may spread.

use std::fmt;
use std::str::FromStr;

use crate::error::TopologyError;

/// The rule that divides the CPUs of a machine into pods, from the finest to the coarsest.
///
/// The scopes and their names are those of the Linux kernel's unbound workqueues
/// (`Documentation/core-api/workqueue.rst`, "Affinity Scopes").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AffinityScope {
    /// Each CPU alone.
    Cpu,
    /// The hardware threads of one core.
    Smt,
    /// The CPUs that share a last-level cache.
    Cache,
    /// The CPUs that share a last-level cache, divided into shards of a given number of cores,
    /// since one queue for a whole large cache becomes one contended lock. The default.
    #[default]
    CacheShard,
    /// The CPUs of one NUMA node.
    Numa,
    /// All CPUs together.
    System,
}

impl AffinityScope {
    /// All scopes, from the finest to the coarsest.
    pub const ALL: [AffinityScope; 6] = [
        AffinityScope::Cpu,
        AffinityScope::Smt,
        AffinityScope::Cache,
        AffinityScope::CacheShard,
        AffinityScope::Numa,
        AffinityScope::System,
    ];

    /// Returns the scope's name, as in JSON, in manifests and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            AffinityScope::Cpu => "cpu",
            AffinityScope::Smt => "smt",
            AffinityScope::Cache => "cache",
            AffinityScope::CacheShard => "cache_shard",
            AffinityScope::Numa => "numa",
            AffinityScope::System => "system",
        }
    }
}

impl fmt::Display for AffinityScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for AffinityScope {
    type Err = TopologyError;

    /// Parses a scope's name, exactly as [`AffinityScope::name`] writes it.
    ///
    /// # Errors
    /// [`TopologyError::Scope`], which lists the names.
    fn from_str(name: &str) -> Result<AffinityScope, TopologyError> {
        AffinityScope::ALL
            .into_iter()
            .find(|scope| scope.name() == name)
            .ok_or_else(|| TopologyError::Scope { found: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scope_is_read_back_from_its_own_name() {
        for scope in AffinityScope::ALL {
            assert_eq!(scope.to_string().parse::<AffinityScope>().unwrap(), scope);
        }
        assert_eq!(AffinityScope::default(), AffinityScope::CacheShard);
    }

    #[test]
    fn an_unknown_scope_is_refused_with_the_names_there_are() {
        let error = "cache-shard".parse::<AffinityScope>().unwrap_err().to_string();
        assert!(error.contains("'cache-shard'") && error.contains("cache_shard"), "{error}");
    }
}
