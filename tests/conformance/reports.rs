//! What a call tells while it works: progress, if the request has a token for it, and log messages, if they are wanted.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rmcp::model::{LoggingLevel, LoggingMessageNotificationParam, ProgressNotificationParam};
use serde_json::json;

use crate::{Context, is_modern};

/// The least level that a legacy client wants to hear of; all, until it says so.
pub struct Threshold(Mutex<LoggingLevel>);

impl Default for Threshold {
    fn default() -> Self {
        Self(Mutex::new(LoggingLevel::Debug))
    }
}

impl Threshold {
    pub fn set(&self, level: LoggingLevel) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = level;
    }

    fn get(&self) -> LoggingLevel {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A client of 2026-07-28 says with each request what it wants to hear; without that, nothing.
pub async fn log(context: &Context, threshold: &Threshold, level: LoggingLevel, text: &str) {
    let wanted = if is_modern(context) { context.meta.log_level() } else { Some(threshold.get()) };
    if wanted.is_some_and(|wanted| level as u8 >= wanted as u8) {
        let message = LoggingMessageNotificationParam::new(level, json!(text)).with_logger("conformance-mcp");
        // Whoever went away does not want it any more.
        context.peer.notify_logging_message(message).await.ok();
    }
}

pub async fn progress(context: &Context, done: u32, total: u32) {
    if let Some(token) = context.meta.get_progress_token() {
        let step = ProgressNotificationParam::new(token, done.into()).with_total(total.into());
        context.peer.notify_progress(step).await.ok();
    }
}

/// A moment of pretended work, so that what is told before and after it cannot arrive as one.
pub async fn work() {
    tokio::time::sleep(Duration::from_millis(50)).await;
}
