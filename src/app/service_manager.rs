//! What the service manager is told, on the word of sd_notify(3): that the broker serves, that it is ending, and that its
//! event loop turns. Without a service manager nothing is said.

use sd_notify::NotifyState;
use tokio_util::sync::CancellationToken;

/// The broker answers; what is still to be said of its readiness goes with it.
pub(super) fn serving(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The files are being read again. Ends with [`serving`], whatever comes of it.
pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        // systemd 253 wants both in one message.
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "the service manager could not be told of the reload"),
    }
}

/// One line that `systemctl status` shows.
pub(super) fn status(text: &str) {
    notify(&[NotifyState::Status(text)]);
}

pub(super) fn ending(status: &str) {
    notify(&[NotifyState::Stopping, NotifyState::Status(status)]);
}

/// Tells twice as often as is asked that this task gets its turn, until `ended`. A broker whose event loop hangs tells
/// nothing, and is restarted.
pub(super) async fn keep_watchdog(ended: CancellationToken) {
    let Some(limit) = sd_notify::watchdog_enabled() else { return };
    loop {
        notify(&[NotifyState::Watchdog]);
        tokio::select! {
            // Both are cancel safe.
            () = tokio::time::sleep(limit / 2) => {}
            () = ended.cancelled() => return,
        }
    }
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "the service manager could not be told");
    }
}
