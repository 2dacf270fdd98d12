//! Facts about CPUs, caches and nodes: CPU sets, topologies, affinity scopes, pods, shard layout.
