//! Linux's lessons for machines of many cores, in user space: workqueues, cross-CPU calls, probing, shutdown and block dispatch.
