//! `/events`: the history of what happened, and what happens, as server-sent events.
//!
//! `Last-Event-ID` goes on where a stream broke off. `?follow=0` ends after the history.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Response};
use bytes::Bytes;
use futures_util::stream::unfold;
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::places::Place;
use super::respond::{self, Refusal};
use super::serve::Front;
use super::stream::{KEEP_ALIVE, comment};
use crate::events::{Batch, EventLog};

/// A reader of the log.
struct Follower {
    log: Arc<EventLog>,
    /// The last event that was sent.
    number: u64,
    /// `None` when the stream ends after what there is.
    news: Option<watch::Receiver<u64>>,
    is_first: bool,
    shutdown: CancellationToken,
    _place: Place,
}

pub(super) fn answer(front: &Arc<Front>, request: &Parts) -> Result<Response<Body>, Refusal> {
    let place = front.listeners.take().ok_or(Refusal::TooManyStreams)?;
    let log = front.broker.events.clone();
    let follows = request.uri.query() != Some("follow=0");
    let news = follows.then(|| log.follow());
    let number = resumed(&log, &request.headers);
    let shutdown = front.shutdown.clone();
    let follower = Follower { log, number, news, is_first: true, shutdown, _place: place };
    let body = Body::from_stream(unfold(follower, |mut follower| async move {
        let chunk = follower.next().await?;
        Some((Ok::<_, Infallible>(chunk), follower))
    }));
    Ok(respond::events(body))
}

fn resumed(log: &EventLog, headers: &HeaderMap) -> u64 {
    let id = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    id.map_or(0, |id| log.resumed(id))
}

impl Follower {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let batch = self.log.after(self.number);
            if let Some(last) = batch.events.last() {
                self.number = last.number;
                self.is_first = false;
                return Some(self.written(&batch));
            }
            let is_first = std::mem::replace(&mut self.is_first, false);
            let Some(news) = &mut self.news else { return is_first.then(comment) };
            if is_first {
                // So that a client sees at once that it is connected.
                return Some(comment());
            }
            tokio::select! {
                // Each arm is cancel safe: a watch keeps what was not seen, the token stays cancelled, the timer is ours.
                changed = news.changed() => changed.ok()?,
                () = self.shutdown.cancelled() => self.news = None,
                () = tokio::time::sleep(KEEP_ALIVE) => return Some(comment()),
            }
        }
    }

    fn written(&self, batch: &Batch) -> Bytes {
        let mut text = String::new();
        if batch.missed > 0 {
            let _ = write!(text, "data: {}\n\n", json!({"event": "missed", "count": batch.missed}));
        }
        for event in &batch.events {
            // Plain data of ours: it can always be written, and holds no line end.
            let data = serde_json::to_string(event).unwrap_or_default();
            let _ = write!(text, "id: {}\ndata: {data}\n\n", self.log.id(event.number));
        }
        text.into()
    }
}
