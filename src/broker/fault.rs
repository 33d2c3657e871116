//! Why a call has no answer of its server: what the model can act on, in a plain sentence with a code.

use std::time::Duration;

use serde_json::{Value, json};

use crate::core::lifecycle::Refusal;
use crate::link::Loss;
use crate::protocol::error::{INTERNAL_ERROR, RpcError};
use crate::protocol::version::Era;
use crate::supervisor::{NoSlot, Occupancy, Refused};

/// A tool result that says what happened and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// One of the codes of `docs/reference/errors.md`; stable.
    pub code: &'static str,
    pub text: String,
    pub retry_after: Option<Duration>,
}

impl Fault {
    pub fn new(code: &'static str, text: impl Into<String>) -> Self {
        Self { code, text: text.into(), retry_after: None }
    }

    /// Why there was no lease. `waited` is how long the call had waited in the queue.
    pub fn refused(backend: &str, refused: &Refused, waited: Duration) -> Self {
        let (refusal, failure) = match refused {
            Refused::Cancelled => return Self::cancelled(),
            Refused::StillStarting => {
                let waited = seconds(waited);
                return Self::new(
                    "start_timeout",
                    format!(
                        "'{backend}' is still starting after {waited}; the call was not sent. The start goes on: call again."
                    ),
                );
            }
            Refused::NoPlace(occupancy) => return Self::no_place(backend, *occupancy, waited),
            Refused::By(refusal, failure) => (*refusal, failure),
        };
        let waited = seconds(waited);
        let because = failure.as_ref().map(|failure| format!(": {failure}")).unwrap_or_default();
        match refusal {
            Refusal::QueueFull => Self::new(
                "queue_full",
                format!("The queue of '{backend}' is full. Call again when earlier calls are done."),
            ),
            Refusal::QueueTimeout => Self::new(
                "queue_timeout",
                format!(
                    "'{backend}' was busy with earlier calls for {waited}; the call was not sent. Call again later."
                ),
            ),
            Refusal::StartFailed => Self::new("start_failed", format!("'{backend}' could not be started{because}")),
            Refusal::StartTimeout => Self::new(
                "start_timeout",
                format!("'{backend}' did not start in time and was stopped; the call was not sent{because}"),
            ),
            Refusal::CoolingDown { retry_after } => Self {
                retry_after: Some(retry_after),
                ..Self::new(
                    "cooling_down",
                    format!("'{backend}' failed and is not started again for {}{because}", seconds(retry_after)),
                )
            },
            Refusal::CleanupFailed => Self::new(
                "cleanup_failed",
                format!(
                    "Processes of an earlier run of '{backend}' could not be proved gone, so it is not started again. An operator can see which and why with `lazy-mcp status`, and have it looked at again with `lazy-mcp recover {backend}`."
                ),
            ),
            Refusal::NothingRuns => {
                Self::new("unavailable", format!("'{backend}' does not run, and this request does not start it."))
            }
            Refusal::Retired => Self::new(
                "retired",
                format!("'{backend}' was removed, disabled or is shutting down; the call was not sent."),
            ),
        }
    }

    fn no_place(backend: &str, occupancy: Occupancy, waited: Duration) -> Self {
        let waited = seconds(waited);
        let Occupancy { limits, live, .. } = occupancy;
        let why = if live >= limits.live_max {
            format!(
                "{live} instances run already, which is the broker's limit (`max_live_instances`), and none was idle"
            )
        } else {
            format!("others were started first, {} at a time (`max_concurrent_starts`)", limits.starts_max)
        };
        Self::new(
            "queue_timeout",
            format!(
                "'{backend}' waited {waited} for a place to start: {why}. The call was not sent. Call again later."
            ),
        )
    }

    pub fn lost(backend: &str, loss: Loss) -> Self {
        let may = "Whether the call took effect is unknown; it was not sent again.";
        match loss {
            Loss::Exited => {
                Self::new("backend_exited", format!("The server '{backend}' exited while the call was running. {may}"))
            }
            Loss::OverLimit(limit) => Self::new(
                "backend_exited",
                format!("The server '{backend}' went over its limit of {limit} and was ended. {may}"),
            ),
            Loss::Recycled => Self::new(
                "outcome_unknown",
                format!("The server '{backend}' was stopped while the call was running. {may}"),
            ),
            Loss::Drained => Self::new(
                "retired",
                format!("'{backend}' was stopped for a shutdown or a change before the call had ended. {may}"),
            ),
        }
    }

    pub fn call_timeout(backend: &str, deadline: Duration) -> Self {
        Self::new(
            "call_timeout",
            format!(
                "'{backend}' did not answer within {}; the call was cancelled. It may have taken effect.",
                seconds(deadline)
            ),
        )
    }

    pub fn cancelled() -> Self {
        Self::new("cancelled", "The call was cancelled.")
    }

    pub fn result_too_large(backend: &str, len: u64, max: usize) -> Self {
        Self::new(
            "result_too_large",
            format!("The answer of '{backend}' is {len} bytes long, over the limit of {max}. Ask for less at once."),
        )
    }

    pub fn denied(backend: &str, reason: &str) -> Self {
        Self::new("denied", format!("Denied by the policy of '{backend}': {reason}"))
    }

    /// A hook or a rule came to no verdict about a call.
    pub fn policy_failed_on_call(backend: &str) -> Self {
        Self::new("policy_failed", format!("The policy of '{backend}' failed on this call; it was not sent."))
    }

    /// The policy does not let the result out, and says why.
    pub fn withheld(backend: &str, reason: &str) -> Self {
        Self::new("denied", format!("The tool ran, but its result was withheld by the policy of '{backend}': {reason}"))
    }

    pub fn policy_failed(backend: &str) -> Self {
        Self::new(
            "policy_failed",
            format!("The tool ran, but its result was withheld because the policy of '{backend}' failed on it."),
        )
    }

    /// The same of a request that is no call of a tool.
    pub fn policy_failed_on_answer(backend: &str) -> Self {
        Self::new(
            "policy_failed",
            format!("The server answered, but its answer was withheld because the policy of '{backend}' failed on it."),
        )
    }

    pub fn drifted(backend: &str, tool: &str) -> Self {
        Self::new(
            "unavailable",
            format!(
                "The server now defines the tool '{tool}' differently from what was reviewed, so it is refused. An operator can review it with `lazy-mcp catalog capture {backend}`."
            ),
        )
    }

    /// The generation that the call was for ended before it was written, again and again.
    pub fn not_sent(backend: &str) -> Self {
        Self::new("unavailable", format!("The server '{backend}' ended before the call was sent. Call again."))
    }

    pub fn no_slot(backend: &str, none: NoSlot) -> Self {
        match none {
            NoSlot::Full { max } => Self::new(
                "unavailable",
                format!(
                    "The broker has {max} instances in use, which is its limit, so '{backend}' gets no other. Call again later."
                ),
            ),
            NoSlot::ShuttingDown | NoSlot::NotServed => {
                Self::refused(backend, &Refused::By(Refusal::Retired, None), Duration::ZERO)
            }
            NoSlot::Leftovers => Self {
                retry_after: Some(Duration::from_secs(1)),
                ..Self::new(
                    "cleanup_failed",
                    format!(
                        "Processes that an earlier broker left could not be proved gone yet, so '{backend}' is not started. An operator can look with `lazy-mcp status`."
                    ),
                )
            },
        }
    }

    /// Code, backend and when to try again, for programs.
    fn facts(&self, backend: &str) -> Value {
        let mut facts = json!({"code": self.code, "backend": backend});
        if let Some(after) = self.retry_after {
            facts["retry_after_ms"] = u64::try_from(after.as_millis()).unwrap_or(u64::MAX).into();
        }
        facts
    }

    /// The same for a request that is no call of a tool: only those have results that can be an error.
    pub fn as_error(&self, backend: &str) -> RpcError {
        RpcError::new(INTERNAL_ERROR, self.text.as_str()).with_data(json!({"lazy-mcp/error": self.facts(backend)}))
    }

    /// The whole JSON-RPC response to a `tools/call`; `id` is raw.
    pub fn response(&self, id: &str, backend: &str, era: Era) -> String {
        let meta = self.facts(backend);
        let mut result = json!({
            "content": [{"type": "text", "text": self.text}],
            "isError": true,
            "_meta": {"lazy-mcp/error": meta},
        });
        if era == Era::Modern {
            result["resultType"] = "complete".into();
        }
        format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#)
    }
}

/// `0.4 s`, `2 s`, `90 s`: as a sentence says it.
fn seconds(duration: Duration) -> String {
    let tenths = duration.as_millis().div_ceil(100);
    if tenths.is_multiple_of(10) || tenths > 100 {
        format!("{} s", tenths.div_ceil(10))
    } else {
        format!("{}.{} s", tenths / 10, tenths % 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limits::TreeLimit;

    #[test]
    fn durations_read_as_a_person_says_them() {
        for (ms, text) in [(1, "0.1 s"), (400, "0.4 s"), (2000, "2 s"), (59_950, "60 s"), (60_000, "60 s"), (0, "0 s")]
        {
            assert_eq!(seconds(Duration::from_millis(ms)), text);
        }
    }

    #[test]
    fn a_limit_is_named_with_its_key() {
        let fault = Fault::lost("x", Loss::OverLimit(TreeLimit::Memory { max_mb: 2048 }));
        assert_eq!(fault.code, "backend_exited");
        assert_eq!(
            fault.text,
            "The server 'x' went over its limit of 2048 MiB of memory (`memory_max_mb`) and was ended. Whether the call took effect is unknown; it was not sent again."
        );
    }

    #[test]
    fn a_fault_is_a_tool_result_with_a_code() {
        let fault = Fault::refused(
            "x",
            &Refused::By(Refusal::CoolingDown { retry_after: Duration::from_millis(1500) }, None),
            Duration::ZERO,
        );
        let response: Value = serde_json::from_str(&fault.response("\"a\"", "x", Era::Modern)).unwrap();
        assert_eq!(response["id"], "a");
        assert_eq!(response["result"]["isError"], true);
        assert_eq!(response["result"]["resultType"], "complete");
        assert_eq!(
            response["result"]["_meta"]["lazy-mcp/error"],
            json!({"code": "cooling_down", "backend": "x", "retry_after_ms": 1500})
        );
    }
}
