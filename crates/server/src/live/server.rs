//! Changes of `[server]` in a manifest that is read again. A running server follows as many as it
//! can.

use corewise::nbd::Options;

use super::Live;
use crate::control::changes::{ChangeReport, Step, StepKind};
use crate::error::Error;
use crate::manifest::{Changes, Export, Manifest, MetricsAt, Server};
use crate::metrics_http::{self, MetricsListener};
use crate::process_limits;
use crate::settings::{differ, followed};
use crate::threads::no_thread;

/// The new keys of `[server]`, with all that they need.
pub(super) struct PreparedSettings {
    server: Server,
    /// New listener for metrics, if it changes.
    metrics: Option<Option<MetricsListener>>,
}

impl Live {
    /// Reports which keys are followed, and which need a restart. Returns `None` if none is
    /// followed.
    pub(super) fn followed_keys(
        &self,
        old: &Server,
        new: &Server,
        changed: &mut ChangeReport,
    ) -> Option<Server> {
        let (follows, restart) = differ(old, new, self.most_clients);
        for key in &follows {
            changed.steps.push(Step {
                what: StepKind::Set,
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

    /// Does the steps that may fail.
    pub(super) fn prepare(&self, old: &Server, server: Server) -> Result<PreparedSettings, Error> {
        let other = old.metrics != server.metrics;
        let metrics = other
            .then(|| server.metrics.as_ref().map(|at| self.measured_at(&at.value)).transpose());
        let metrics =
            metrics.transpose().map_err(|why| format!("metrics: cannot listen on {why}"))?;
        Ok(PreparedSettings { server, metrics })
    }

    /// Applies the keys.
    pub(super) fn follow(&self, PreparedSettings { server, metrics }: PreparedSettings) -> Server {
        self.settings.follow(&server);
        if let Some(metrics) = metrics {
            let former = std::mem::replace(&mut *self.metrics.lock(), metrics);
            // It is dropped outside the lock, since its thread ends first.
            drop(former);
        }
        server
    }

    /// Reserves the descriptors that these changes need. Clients have fewer places from now on, and
    /// the report says so. If too many clients are attached for that, the change is refused.
    pub(super) fn make_room(
        &self,
        changes: &Changes,
        old: &Manifest,
        changed: &mut ChangeReport,
    ) -> Result<(), Error> {
        let had = |export: &&Export| {
            old.exports.iter().any(|old| old.name == export.name && old.vhost_user.is_some())
        };
        let replaced = changes.replace_exports.iter().filter(|export| !had(export));
        let added = process_limits::guests(changes.add_exports.iter().chain(replaced));
        if changes.add_devices.is_empty() && added == 0 {
            return Ok(());
        }
        // Disks of virtual machines that go count until they are gone, as devices do.
        let guests = process_limits::guests(&old.exports) + added;
        // Devices that go may hang, and keep their descriptors.
        let again = |name: &str| changes.add_devices.iter().any(|device| device.name == name);
        let stay = old.devices.iter().filter(|device| !again(&device.name));
        let devices = || stay.clone().chain(&changes.add_devices);
        let attached = || self.server.exports().iter().map(|export| export.clients as u64).sum();
        let asked = self.options_of(&old.server);
        let refused =
            || Err(Error::refused(self.limits.refusal(asked, devices(), guests, attached())));
        let Ok((options, shortfall)) = self.limits.share(asked, devices(), guests) else {
            return refused();
        };
        let most = options.max_connections as u64;
        if most < self.places(old) {
            let (what, raise) =
                shortfall.map_or(("room", "the limits"), |shortfall| shortfall.taken());
            changed.notes.push(format!(
                "the volumes take {what} from clients: {most} clients at most from now on; raise {raise} for more"
            ));
        }
        if !changed.dry_run {
            self.server.set_limits(options);
        }
        // The check follows the new limit, since no more clients come from then on.
        if attached() > most { refused() } else { Ok(()) }
    }

    /// Gives clients the room that a server with this manifest leaves.
    pub(super) fn give_room(&self, has: &Manifest) {
        let options = self.options_of(&has.server);
        // The limit was enough for the server's present devices.
        if let Ok((options, _)) =
            self.limits.share(options, has.devices.iter(), process_limits::guests(&has.exports))
        {
            self.server.set_limits(options);
        }
    }

    fn places(&self, has: &Manifest) -> u64 {
        let (options, guests) =
            (self.options_of(&has.server), process_limits::guests(&has.exports));
        let share = self.limits.share(options, has.devices.iter(), guests);
        share.map_or(0, |(options, _)| options.max_connections as u64)
    }

    /// Returns the options that the manifest allows clients, within the number that memory was
    /// reserved for.
    fn options_of(&self, server: &Server) -> Options {
        let options = process_limits::client_options(server, self.usual_memory);
        options.max_connections(options.max_connections.min(self.most_clients))
    }

    /// Starts to answer Prometheus at this address.
    pub(crate) fn measured_at(&self, at: &MetricsAt) -> Result<MetricsListener, String> {
        let text = self.metrics_text.get().cloned();
        let text = move || text.as_ref().map(|text| text()).unwrap_or_default();
        let bound = metrics_http::bind(at, &self.cleanup, &self.report)?;
        MetricsListener::start(bound, text)
            .map_err(|error| format!("the address of metrics: {}", no_thread(&error)))
    }
}
