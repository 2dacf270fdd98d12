//! Workqueues whose worker pools follow the affinity scope.
