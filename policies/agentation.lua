-- Agentation: one annotation server for everyone, so that annotations made in one place are seen in all.

return broker.backend {
  api = 1,
  scope = "singleton",
  idle_timeout_seconds = 60,
  queue = { limit = 64, wait_seconds = 60 },
  -- The server works on calls side by side, and a watching call sits there for minutes: it must not keep others out.
  max_concurrency = 16,
  -- Shared by all sessions: a call that one of them gave up is no reason to stop it for the others.
  on_cancel = { action = "keep" },

  tools = {
    drift = "refuse",
    settings = {
      ["*"] = { deadline_seconds = 15 },
      -- Waits for the user: up to timeoutSeconds for a first annotation, then batchWindowSeconds for more.
      -- Together they end before the deadline does, so that the server answers and not the clock.
      agentation_watch_annotations = {
        deadline_seconds = 300,
        arguments = {
          timeoutSeconds = broker.number_rule { min = 1, max = 230 },
          batchWindowSeconds = broker.number_rule { min = 1, max = 60 },
        },
      },
    },
  },
}
