-- What the policy of Agentation promises.

local policy = broker.load_policy("agentation")

return {
  test_one_server_for_everyone = function()
    expect.equal(policy.scope, "singleton")
    expect.equal(policy.idle_timeout_seconds, 60)
    expect.equal(policy.queue.limit, 64)
    expect.equal(policy.on_cancel, { action = "keep", grace_seconds = 2 })
    assert(policy.max_concurrency > 1)
  end,

  test_answers_come_soon = function()
    for _, tool in policy.tools do
      local expected = if tool == "agentation_watch_annotations" then 300 else 15
      expect.equal(policy:call({ tool = tool }).deadline_seconds, expected)
    end
  end,

  test_a_watch_ends_before_its_deadline = function()
    local call = policy:call {
      tool = "agentation_watch_annotations",
      arguments = { timeoutSeconds = 300, batchWindowSeconds = 90 },
    }
    expect.allowed(call)
    expect.equal(call.arguments, { timeoutSeconds = 230, batchWindowSeconds = 60 })
    assert(call.arguments.timeoutSeconds + call.arguments.batchWindowSeconds < call.deadline_seconds)
  end,

  test_a_shorter_watch_is_left_alone = function()
    local sent = '{"timeoutSeconds": 10.0}'
    expect.equal(policy:call({ tool = "agentation_watch_annotations", arguments_json = sent }).arguments_json, sent)
    expect.denied(
      policy:call { tool = "agentation_watch_annotations", arguments = { timeoutSeconds = "long" } },
      "number"
    )
  end,

  test_results_arrive_as_they_were_sent = function()
    expect.same_bytes(
      policy:result { tool = "agentation_list_sessions", json = '{"content":[{"type":"text","text":"[]"}]}' }
    )
  end,
}
