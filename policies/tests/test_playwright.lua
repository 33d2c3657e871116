-- What the policy of Playwright promises.

local policy = broker.load_policy("playwright")

local network = { "browser_network_request", "browser_network_requests", "browser_console_messages" }

return {
  test_a_browser_for_each_session = function()
    expect.equal(policy.scope, "session")
    expect.equal(policy.idle_timeout_seconds, 120)
    expect.equal(policy.queue, { limit = 32, wait_seconds = 60 })
    expect.equal(policy.max_concurrency, 1)
    expect.equal(policy.on_cancel, { action = "recycle", grace_seconds = 2 })
  end,

  test_every_tool_is_shown_and_has_a_deadline = function()
    expect.equal(#policy.tools, 24)
    for _, tool in policy.tools do
      local call = policy:call { tool = tool }
      expect.allowed(call)
      assert(call.deadline_seconds <= 120, tool)
    end
  end,

  test_slow_tools_have_more_time = function()
    expect.equal(policy:call({ tool = "browser_click" }).deadline_seconds, 60)
    expect.equal(policy:call({ tool = "browser_navigate" }).deadline_seconds, 90)
    expect.equal(policy:call({ tool = "browser_wait_for" }).deadline_seconds, 120)
  end,

  test_pages_of_the_web_and_of_this_machine_open = function()
    local pages = {
      "https://example.com/",
      "http://localhost:3000/",
      "http://127.0.0.1:8080/x",
      "http://[::1]/",
      "about:blank",
      "data:text/html,<h1>x</h1>",
      "example.com",
    }
    for _, tool in { "browser_navigate", "browser_tabs" } do
      for _, url in pages do
        local call = policy:call { tool = tool, arguments = { url = url } }
        expect.allowed(call)
        expect.equal(call.arguments.url, url)
      end
    end
  end,

  test_files_and_pages_of_the_browser_do_not = function()
    local pages = {
      "file:///etc/passwd",
      "FILE:/etc/passwd",
      " file:///etc/passwd",
      "view-source:file:///etc/passwd",
      "chrome://settings",
      "javascript:alert(1)",
    }
    for _, tool in { "browser_navigate", "browser_tabs" } do
      for _, url in pages do
        expect.denied(policy:call { tool = tool, arguments = { url = url } }, "`url`")
      end
    end
  end,

  test_a_key_that_stands_there_twice_hides_nothing = function()
    local both = '{"url":"https://example.com/","url":"file:///etc/passwd"}'
    expect.denied(policy:call { tool = "browser_navigate", arguments_json = both }, "`url`")
    local escaped = '{"u\\u0072l":"file:///etc/passwd"}'
    expect.denied(policy:call { tool = "browser_navigate", arguments_json = escaped }, "`url`")
  end,

  test_credentials_do_not_leave_the_network_tools = function()
    for _, tool in network do
      local result = policy:result { tool = tool, fixture = "fixtures/playwright_network_request.json" }
      expect.redacted(result, "s3cret")
      expect.contains(result, "accept: application/json")
      expect.contains(result, "date: Mon, 01 Jan 2024")
      expect.contains(result, "[redacted]")
    end
  end,

  test_nor_in_what_a_page_logs = function()
    local result = policy:result {
      tool = "browser_console_messages",
      json = { content = { { type = "text", text = "[LOG] sent with Bearer abc.s3cret-123" } } },
    }
    expect.redacted(result, "s3cret")
    expect.equal(result.text, "[LOG] sent with Bearer [redacted]")
  end,

  test_other_results_arrive_as_they_were_sent = function()
    local snapshot = '{"content":[{"type":"text","text":"- textbox \\"cookie: a\\" [ref=e1]"}],"x":1.0}'
    expect.same_bytes(policy:result { tool = "browser_snapshot", json = snapshot })
  end,

  test_what_is_no_json_is_withheld = function()
    expect.withheld(policy:result { tool = "browser_network_requests", json = '{"content":[' }, "not JSON")
  end,
}
