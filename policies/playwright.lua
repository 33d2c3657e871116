-- Playwright: a browser for each session.
--
-- What a developer expects of Playwright works: local pages, data: pages, scripts in the page.
-- What never leaves the broker: cookies and credentials in what the network and console tools print.

-- Headers that carry credentials. `cookies` is the list in a HAR.
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
local network = { "browser_network_requests", "browser_network_request", "browser_console_messages" }

-- Pages come from the web (local servers too: developers test their own) or are written by the client itself:
-- a data: page has no origin, so it reads nothing that the client did not put there.
-- Not file:, which would read any file of the user who runs the broker, and nothing that belongs to the browser.
local url = broker.url_rule {
  schemes = { "http", "https", "about", "data" },
  scheme_optional = true, -- "example.com" is one to Playwright too
  private_hosts = "allow", -- "deny" keeps the browser away from this machine and its network, as far as a URL tells
}

return broker.backend {
  api = 1,
  scope = "session",
  idle_timeout_seconds = 120,
  queue = { limit = 32, wait_seconds = 60 },
  max_concurrency = 1, -- one page, one hand
  -- A browser that does not give up a cancelled call would keep the session waiting until the deadline.
  on_cancel = { action = "recycle", grace_seconds = 2 },

  tools = {
    -- Everything in the catalog is shown. Where clients are not trusted as much as the user who runs the broker,
    -- exclude browser_run_code_unsafe (runs code in the server, not in the page: it can do what that user can do),
    -- browser_evaluate (runs code in the page), browser_file_upload and browser_drop (send local files to a page).
    exclude = {},
    drift = "refuse",
    settings = {
      ["*"] = { deadline_seconds = 60 },
      -- Playwright itself gives up a navigation after 60 s, and then says why; that answer is worth waiting for.
      browser_navigate = { deadline_seconds = 90, arguments = { url = url } },
      browser_tabs = { deadline_seconds = 90, arguments = { url = url } },
      browser_wait_for = { deadline_seconds = 120 },
      browser_run_code_unsafe = { deadline_seconds = 120 },
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
