-- Chrome DevTools: a browser for each session.
--
-- Network headers with credentials never reach a client, in whatever shape the server prints them.

local secrets = {
  "authorization",
  "proxy-authorization",
  "cookie",
  "set-cookie",
  "cookies",
  "x-api-key",
  "x-auth-token",
  "x-csrf-token",
  "x-xsrf-token",
}
local network = { "*_network_request", "*_network_requests", "*_console_message", "*_console_messages" }

-- As for Playwright: the web, local servers and pages without an origin, but no files of this machine.
local url = broker.url_rule { schemes = { "http", "https", "about", "data" }, private_hosts = "allow" }

return broker.backend {
  api = 1,
  scope = "session",
  idle_timeout_seconds = 120,
  queue = { limit = 32, wait_seconds = 60 },
  max_concurrency = 1,
  on_cancel = { action = "recycle", grace_seconds = 2 },

  tools = {
    -- Everything in the catalog is shown. An operator may want to exclude evaluate_script (runs code in the page),
    -- upload_file (sends local files to a page), and tools with a file path (take_heapsnapshot, lighthouse_audit).
    exclude = {},
    drift = "refuse",
    settings = {
      ["*"] = { deadline_seconds = 60 },
      -- Traces are recorded in real time and then worked through; snapshots of large heaps take their time too.
      ["performance_*"] = { deadline_seconds = 180 },
      lighthouse_audit = { deadline_seconds = 180 },
      take_heapsnapshot = { deadline_seconds = 180 },
      wait_for = { deadline_seconds = 120 },
      navigate_page = { deadline_seconds = 90, arguments = { url = url } },
      new_page = { deadline_seconds = 90, arguments = { url = url } },
    },
  },

  results = {
    broker.redact_headers_in_text { tools = network, names = secrets },
    broker.redact_keys { tools = network, keys = secrets },
    broker.redact_text {
      tools = network,
      pattern = [[(?i)\b(bearer|basic)\s+[a-z0-9._~+/=-]{8,}]],
      replace_with = "$1 [redacted]",
    },
  },
}
