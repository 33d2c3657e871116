-- What the policy of Chrome DevTools promises.

local policy = broker.load_policy("chrome-devtools")

local network = {
  "get_network_request",
  "list_network_requests",
  "get_console_message",
  "list_console_messages",
}

return {
  test_a_browser_for_each_session = function()
    expect.equal(policy.scope, "session")
    expect.equal(policy.idle_timeout_seconds, 120)
    expect.equal(policy.queue, { limit = 32, wait_seconds = 60 })
    expect.equal(policy.on_cancel.action, "recycle")
  end,

  test_every_tool_is_shown_and_has_a_deadline = function()
    expect.equal(#policy.tools, 29)
    for _, tool in policy.tools do
      local call = policy:call { tool = tool }
      expect.allowed(call)
      assert(call.deadline_seconds <= 180, tool)
    end
  end,

  test_traces_and_snapshots_have_more_time = function()
    for _, tool in { "performance_start_trace", "performance_stop_trace", "lighthouse_audit", "take_heapsnapshot" } do
      expect.equal(policy:call({ tool = tool }).deadline_seconds, 180)
    end
    expect.equal(policy:call({ tool = "click" }).deadline_seconds, 60)
  end,

  test_pages_open_and_files_do_not = function()
    for _, tool in { "navigate_page", "new_page" } do
      for _, url in { "https://example.com/", "http://localhost:3000/", "about:blank" } do
        expect.allowed(policy:call { tool = tool, arguments = { url = url } })
      end
      for _, url in { "file:///etc/passwd", "chrome://settings", "javascript:alert(1)", "example.com" } do
        expect.denied(policy:call { tool = tool, arguments = { url = url } }, "`url`")
      end
    end
    expect.allowed(policy:call { tool = "navigate_page", arguments = { type = "back" } })
  end,

  test_credentials_do_not_leave_the_network_tools = function()
    for _, tool in network do
      local result = policy:result { tool = tool, fixture = "fixtures/devtools_network_request.json" }
      expect.redacted(result, "s3cret")
      expect.contains(result, "- accept:application/json")
      expect.equal(result.value.structuredContent.networkRequest.responseHeaders["x-frame-options"], "DENY")
    end
  end,

  test_nor_in_errors_of_the_server = function()
    -- Rules for tools hold for errors of their calls too.
    local result = policy:result {
      tool = "get_network_request",
      json = { code = -32603, message = "failed: Bearer abc.s3cret-123" },
      is_error = true,
    }
    expect.redacted(result, "s3cret")
  end,

  test_other_results_arrive_as_they_were_sent = function()
    expect.same_bytes(
      policy:result { tool = "take_snapshot", json = '{"content":[{"type":"text","text":"cookie: a"}]}' }
    )
  end,
}
