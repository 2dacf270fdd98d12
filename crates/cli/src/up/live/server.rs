//! `[server]` of a manifest that is read again: a running server follows what it can.

use std::sync::Weak;

use super::Live;
use crate::control::changes::{Changed, Step, What};
use crate::manifest::{MetricsAt, Server};
use crate::up::control::{self, About};
use crate::up::limits;
use crate::up::metrics::{self, Metrics};
use crate::up::settings::{differ, followed};

/// What the server is to go by, and all that it needs for that.
pub(super) struct Prepared {
    server: Server,
    /// Where metrics are answered from now on; `None`: as before.
    metrics: Option<Option<Metrics>>,
}

impl Live {
    /// Tells which keys are followed, and which need a restart. `None`: none is followed.
    pub(super) fn of_server(
        &self,
        old: &Server,
        new: &Server,
        changed: &mut Changed,
    ) -> Option<Server> {
        let (follows, restart) = differ(old, new, self.most_clients);
        for key in &follows {
            changed.steps.push(Step {
                what: What::Set,
                name: (*key).to_string(),
                ..Step::default()
            });
        }
        for key in restart {
            changed
                .notes
                .push(format!("[server] '{key}' needs a restart: until then it stays as it was"));
        }
        (!follows.is_empty()).then(|| followed(old, new, self.most_clients))
    }

    /// Does what may fail.
    pub(super) fn prepare(&self, old: &Server, server: Server) -> Result<Prepared, String> {
        let other = old.metrics != server.metrics;
        let metrics = other
            .then(|| server.metrics.as_ref().map(|at| self.measured_at(&at.value)).transpose());
        let metrics =
            metrics.transpose().map_err(|why| format!("metrics: cannot listen on {why}"))?;
        Ok(Prepared { server, metrics })
    }

    /// Goes by it from now on.
    pub(super) fn follow(&self, Prepared { server, metrics }: Prepared) -> Server {
        self.settings.follow(&server);
        self.server.set_limits(limits::of_clients(&server.clients, server.tls.is_some()));
        if let Some(metrics) = metrics {
            let former = std::mem::replace(&mut *self.metrics.lock(), metrics);
            // Not under the lock: its thread ends first.
            drop(former);
        }
        server
    }

    /// Answers Prometheus there from now on.
    pub(in crate::up) fn measured_at(&self, at: &MetricsAt) -> Result<Metrics, String> {
        let about: Weak<About> = self.about.get().cloned().unwrap_or_default();
        let text =
            move || about.upgrade().map(|about| control::metrics(&about)).unwrap_or_default();
        let bound = metrics::bind(at, &self.cleanup)?;
        Metrics::start(bound, text)
            .map_err(|error| format!("cannot start the thread for metrics: {error}"))
    }
}
