//! The table itself. Order is the order in stubs and reference.

use super::{Constructor, Field, Kind, Member, Presence, Record, View, Yields};

const fn field(name: &'static str, kind: Kind, presence: Presence, about: &'static str) -> Field {
    Field { name, kind, presence, about }
}

use Presence::{Default, Optional, Required};

const REDACTED: Presence = Default("\"[redacted]\"");
const DAY_SECONDS: f64 = 86_400.0;

/// On every result rule.
const TOOLS: Field = field(
    "tools",
    Kind::Texts,
    Optional,
    "Names or globs of the tools whose results the rule is for. Without it the rule is for every payload of the server: \
     results, errors, progress.",
);
/// On every rule of arguments that may be left out.
const REQUIRED: Field =
    field("required", Kind::Flag, Default("false"), "Whether a call without the argument is denied.");

pub const CONSTRUCTORS: &[Constructor] = &[
    Constructor {
        name: "backend",
        yields: Yields::Backend,
        about: "The answer of a policy file: it ends with `return broker.backend { … }`.",
        record: &BACKEND,
    },
    Constructor {
        name: "url_rule",
        yields: Yields::ArgumentRule,
        about: "Judges an argument that is a URL, in all its spellings. It sees the text alone: not what a name resolves \
                to, where a page redirects, or what is followed inside it.",
        record: &URL_RULE,
    },
    Constructor {
        name: "number_rule",
        yields: Yields::ArgumentRule,
        about: "Moves a number into its bounds; what is no number is denied.",
        record: &NUMBER_RULE,
    },
    Constructor {
        name: "string_rule",
        yields: Yields::ArgumentRule,
        about: "Bounds a string; what is too long or does not match is denied.",
        record: &STRING_RULE,
    },
    Constructor {
        name: "redact_keys",
        yields: Yields::ResultRule,
        about: "Replaces the values of these keys at any depth of the JSON, and of pairs like `{\"name\": \"cookie\", \
                \"value\": …}`.",
        record: &REDACT_KEYS,
    },
    Constructor {
        name: "redact_headers_in_text",
        yields: Yields::ResultRule,
        about: "Replaces the values of header lines in text, with their continuation lines.",
        record: &REDACT_HEADERS,
    },
    Constructor {
        name: "redact_text",
        yields: Yields::ResultRule,
        about: "Replaces what a regular expression matches in text. Its time is linear in the length of the text.",
        record: &REDACT_TEXT,
    },
    Constructor {
        name: "limit_text",
        yields: Yields::ResultRule,
        about: "Cuts texts that are too long, at a character.",
        record: &LIMIT_TEXT,
    },
    Constructor {
        name: "rewrite_uri",
        yields: Yields::ResultRule,
        about: "Rewrites URIs of resource links and embedded resources. A rest that climbs out of the prefix by `..` \
                does not fit it.",
        record: &REWRITE_URI,
    },
    Constructor {
        name: "image_to_link",
        yields: Yields::ResultRule,
        about: "Takes large images and sounds out of results: the instance keeps them as files, and a link stands in their \
                place, which `resources/read` answers for the same session while the instance lives.",
        record: &IMAGE_TO_LINK,
    },
];

static BACKEND: Record = Record {
    name: "BackendFields",
    fields: &[
        field("api", Kind::Whole(0, u32::MAX), Required, "The version of this language: 1."),
        field(
            "scope",
            Kind::Choice(&["session", "singleton"]),
            Required,
            "An instance for each session of a client, or one for everyone.",
        ),
        field(
            "idle_timeout_seconds",
            Kind::Seconds(0.0, DAY_SECONDS),
            Default("120"),
            "How long an instance may stay without a call. Zero stops it right after the last one.",
        ),
        field("queue", Kind::Table(&QUEUE), Optional, "Calls that wait for one instance."),
        field(
            "max_concurrency",
            Kind::Whole(1, 1_024),
            Default("1"),
            "Calls that one instance works on at the same time.",
        ),
        field(
            "on_cancel",
            Kind::Table(&ON_CANCEL),
            Default("{ action = \"recycle\", grace_seconds = 2 }"),
            "What becomes of an instance whose call was cancelled or ran out of time, but which goes on working.",
        ),
        field("tools", Kind::Table(&TOOL_RULES), Optional, "Which tools clients see, and what holds for their calls."),
        field(
            "results",
            Kind::ResultRules,
            Default("{}"),
            "What the results of the server may contain, in this order.",
        ),
        field(
            "on_call",
            Kind::Hooks("(call: Call) -> Verdict?"),
            Default("{}"),
            "By name or glob of a tool; the most specific one is asked, after the rules for arguments. It allows, changes \
             or denies a call; an error denies it.",
        ),
        field(
            "on_result",
            Kind::Hooks("(call: Call, result: Result) -> ()"),
            Default("{}"),
            "By name or glob of a tool; asked before the rules for results, so that it cannot undo a redaction. It \
             changes the result by its methods; an error withholds it.",
        ),
        field(
            "scope_key",
            Kind::Hook("(request: Request) -> string?"),
            Optional,
            "For requests without a session: what their instance is shared by, 1 to 64 letters, digits, `.`, `_`, `~` or \
             `-`. With it `scope` may be left out. Clients may name the same keys themselves, so it is no boundary between \
             users.",
        ),
        field(
            "isolate",
            Kind::Flag,
            Default("false"),
            "Whether each call of a hook gets a machine of its own, so that nothing is kept between calls.",
        ),
    ],
};

static QUEUE: Record = Record {
    name: "Queue",
    fields: &[
        field("limit", Kind::Whole(1, 10_000), Default("32"), "Calls that may wait; a call more is `queue_full`."),
        field(
            "wait_seconds",
            Kind::Seconds(1.0, 3_600.0),
            Default("60"),
            "How long one may wait; then `queue_timeout`.",
        ),
    ],
};

static ON_CANCEL: Record = Record {
    name: "OnCancel",
    fields: &[
        field(
            "action",
            Kind::Choice(&["recycle", "keep"]),
            Required,
            "`recycle` stops the instance after the grace, and the next call gets a fresh one; `keep` lets it go on, and the call does not count any more after the grace: a server that heeds a cancellation does not answer.",
        ),
        field(
            "grace_seconds",
            Kind::Seconds(0.0, 60.0),
            Default("2"),
            "How long the server has to answer. With `recycle` nobody new is let in meanwhile.",
        ),
    ],
};

static TOOL_RULES: Record = Record {
    name: "ToolRules",
    fields: &[
        field(
            "allow",
            Kind::Texts,
            Optional,
            "Names or globs of the tools that clients see; without it all of the catalog.",
        ),
        field(
            "exclude",
            Kind::Texts,
            Default("{}"),
            "Names or globs of tools that clients do not see. It wins over `allow`.",
        ),
        field(
            "drift",
            Kind::Choice(&["refuse", "warn"]),
            Default("\"refuse\""),
            "What becomes of a call to a tool whose definition is not the reviewed one.",
        ),
        field(
            "settings",
            Kind::ByTool(&TOOL_SETTINGS),
            Default("{}"),
            "By name or glob; the more specific one wins, argument by argument.",
        ),
    ],
};

static TOOL_SETTINGS: Record = Record {
    name: "ToolSettings",
    fields: &[
        field(
            "deadline_seconds",
            Kind::Seconds(0.1, DAY_SECONDS),
            Optional,
            "From the arrival of a call to its answer, time in the queue and of a start included. Without it, and at \
             most, `call_seconds` of the backend in broker.toml.",
        ),
        field(
            "progress_extends_to_seconds",
            Kind::Seconds(0.1, DAY_SECONDS),
            Optional,
            "A call that reports progress may take this long in all: each report gives it `deadline_seconds` anew. At \
             most `call_seconds` of the backend. Without it progress extends nothing.",
        ),
        field("arguments", Kind::ArgumentRules, Default("{}"), "What an argument may be."),
    ],
};

static URL_RULE: Record = Record {
    name: "UrlRule",
    fields: &[
        field("schemes", Kind::Texts, Required, "Schemes that are allowed, such as `\"https\"`."),
        field(
            "scheme_optional",
            Kind::Flag,
            Default("false"),
            "Whether `example.com` is a URL too, as some servers read it. It is judged as one of `https`.",
        ),
        field(
            "private_hosts",
            Kind::Choice(&["allow", "deny"]),
            Default("\"allow\""),
            "Whether this machine and private networks are allowed, as far as the URL tells.",
        ),
        field("hosts", Kind::Texts, Optional, "Names or globs of allowed hosts, no scheme or port; without it all."),
        field("max_bytes", Kind::Whole(1, u32::MAX), Optional, "The longest URL that is allowed."),
        REQUIRED,
    ],
};

static NUMBER_RULE: Record = Record {
    name: "NumberRule",
    fields: &[
        field("min", Kind::Number, Optional, "A smaller number becomes this one."),
        field("max", Kind::Number, Optional, "A greater number becomes this one."),
        field("default", Kind::Number, Optional, "Stands in for an absent argument."),
        REQUIRED,
    ],
};

static STRING_RULE: Record = Record {
    name: "StringRule",
    fields: &[
        field("max_bytes", Kind::Whole(0, u32::MAX), Optional, "The longest string that is allowed, as UTF-8."),
        field("pattern", Kind::Text, Optional, "A regular expression that must match somewhere; `^…$` for the whole."),
        field("default", Kind::Text, Optional, "Stands in for an absent argument."),
        REQUIRED,
    ],
};

static REDACT_KEYS: Record = Record {
    name: "RedactKeys",
    fields: &[
        field("keys", Kind::Texts, Required, "Names of keys; upper and lower case are the same."),
        field("replace_with", Kind::Text, REDACTED, "What stands there instead."),
        field("parse_json_text", Kind::Flag, Default("true"), "Whether JSON inside of text is looked into as well."),
        TOOLS,
    ],
};

static REDACT_HEADERS: Record = Record {
    name: "RedactHeaders",
    fields: &[
        field("names", Kind::Texts, Required, "Names of headers; upper and lower case are the same."),
        field("replace_with", Kind::Text, REDACTED, "What stands there instead."),
        TOOLS,
    ],
};

static REDACT_TEXT: Record = Record {
    name: "RedactText",
    fields: &[
        field("pattern", Kind::Text, Required, "A regular expression that does not match the empty text."),
        field(
            "replace_with",
            Kind::Text,
            REDACTED,
            "What stands there instead; `$1` and `${name}` are groups of the pattern, `$$` is a dollar.",
        ),
        TOOLS,
    ],
};

static LIMIT_TEXT: Record = Record {
    name: "LimitText",
    fields: &[
        field("max_bytes", Kind::Whole(1, u32::MAX), Required, "The longest text, as UTF-8, the note not counted."),
        field("note", Kind::Text, Default("\"output cut by policy\""), "Is put behind a text that was cut."),
        TOOLS,
    ],
};

static REWRITE_URI: Record = Record {
    name: "RewriteUri",
    fields: &[
        field("from_prefix", Kind::Text, Required, "URIs that start so are rewritten."),
        field("to_prefix", Kind::Text, Required, "What stands in place of the prefix."),
        field(
            "otherwise",
            Kind::Choice(&["keep", "drop"]),
            Default("\"keep\""),
            "What becomes of items whose URI no rule's prefix fits.",
        ),
        field(
            "content_types",
            Kind::Texts,
            Default("{ \"resource_link\", \"resource\" }"),
            "Which kinds of items the rule is for.",
        ),
        TOOLS,
    ],
};

static IMAGE_TO_LINK: Record = Record {
    name: "ImageToLink",
    fields: &[
        field(
            "when_bytes_over",
            Kind::Whole(0, u32::MAX),
            Default("262144"),
            "Smaller ones stay as they are; in bytes, decoded.",
        ),
        field(
            "content_types",
            Kind::Texts,
            Default("{ \"image\", \"audio\" }"),
            "Which kinds of items the rule is for: \"image\", \"audio\".",
        ),
        TOOLS,
    ],
};

/// Functions of `broker` that take no table of fields.
pub const FUNCTIONS: &[Member] = &[
    Member {
        name: "default",
        ty: "(value: string | number | boolean) -> ArgumentRule",
        about: "A rule of arguments: the value stands in for an absent argument.",
    },
    Member {
        name: "import",
        ty: "(name: string) -> any",
        about: "Runs `NAME.lua` below the directory of the policy, once, and yields what it returns. The digest of a \
                policy covers its imports.",
    },
    Member {
        name: "allow",
        ty: "(changes: { arguments: { [string]: any }?, deadline_seconds: number? }?) -> Verdict",
        about: "For `on_call`: the call is sent. `arguments` is a merge patch: names in it replace or add, `broker.null` \
                removes. The rules for arguments and the schema of the tool judge the outcome.",
    },
    Member { name: "deny", ty: "(reason: string) -> Verdict", about: "For `on_call`: the client gets the reason." },
    Member { name: "null", ty: "any", about: "The `null` of JSON." },
    Member {
        name: "parse_url",
        ty: "(url: string) -> { scheme: string, host: string?, port: number?, path: string, query: string? }?",
        about: "The parts of an absolute URL as browsers read it; nil for what is none.",
    },
    Member {
        name: "path_is_inside",
        ty: "(path: string, directory: string) -> boolean",
        about: "By the text alone: `..` is worked out, links are not seen.",
    },
];

/// What hooks are given.
pub const VIEWS: &[View] = &[
    View {
        name: "Call",
        about: "A call, for `on_call` and `on_result`. A field that is not there is an error.",
        members: &[
            Member { name: "tool", ty: "string", about: "" },
            Member {
                name: "arguments",
                ty: "{ [string]: any }",
                about: "As the rules left them; they cannot be changed in place. `null` is `broker.null`.",
            },
            Member {
                name: "session",
                ty: "string?",
                about: "The same word for all calls of a session; none where there is no session.",
            },
            Member {
                name: "client",
                ty: "{ name: string, version: string }?",
                about: "What the client says it is, where the broker knows.",
            },
        ],
    },
    View {
        name: "Request",
        about: "A request without a session, for `scope_key`.",
        members: &[
            Member { name: "method", ty: "string", about: "" },
            Member { name: "tool", ty: "string?", about: "Of a `tools/call`." },
            Member {
                name: "meta",
                ty: "{ [string]: any }",
                about: "Its `_meta` without what the protocol puts there.",
            },
            Member {
                name: "headers",
                ty: "{ [string]: string }",
                about: "Those meant to be looked at, in lower case.",
            },
        ],
    },
    View {
        name: "Result",
        about: "A result of a tool, for `on_result`. What is not changed leaves byte for byte as it came.",
        members: &[
            Member { name: "is_error", ty: "boolean", about: "Whether the tool says that it failed." },
            Member { name: "content", ty: "{ Item }", about: "Its content items." },
            Member {
                name: "get_structured",
                ty: "(self: Result, path: string | { string }) -> (string | number | boolean)?",
                about: "A value of `structuredContent`: names with dots between, items of lists from 1. Tables are not shown.",
            },
            Member {
                name: "set_structured",
                ty: "(self: Result, path: string | { string }, value: string | number | boolean) -> boolean",
                about: "Replaces what is there; whether something was.",
            },
            Member { name: "drop_structured", ty: "(self: Result) -> ()", about: "Leaves `structuredContent` out." },
            Member {
                name: "withhold",
                ty: "(self: Result, reason: string) -> ()",
                about: "The client gets the reason instead of the result.",
            },
        ],
    },
    View {
        name: "Item",
        about: "A content item, with what an embedded resource in it says.",
        members: &[
            Member { name: "type", ty: "string?", about: "" },
            Member { name: "text", ty: "string?", about: "" },
            Member { name: "uri", ty: "string?", about: "" },
            Member { name: "mime_type", ty: "string?", about: "" },
            Member { name: "name", ty: "string?", about: "" },
            Member {
                name: "bytes",
                ty: "number?",
                about: "How much an image or other data is; the data itself is never shown.",
            },
            Member { name: "set_text", ty: "(self: Item, text: string) -> ()", about: "" },
            Member { name: "set_uri", ty: "(self: Item, uri: string) -> ()", about: "" },
            Member { name: "remove", ty: "(self: Item) -> ()", about: "" },
            Member {
                name: "matches",
                ty: "(self: Item, pattern: string) -> boolean",
                about: "Whether the regular expression matches its text.",
            },
        ],
    },
];

/// What test files see besides: `policies/tests/test_*.lua`.
pub const GLOBALS_OF_TESTS: &[View] = &[
    View {
        name: "TestedPolicy",
        about: "What `broker.load_policy(\"NAME\")` yields in a test: the backend of that name, as the configuration has it.",
        members: &[
            Member { name: "name", ty: "string", about: "Of the backend." },
            Member { name: "scope", ty: "string", about: "`\"session\"` or `\"singleton\"`." },
            Member { name: "idle_timeout_seconds", ty: "number", about: "" },
            Member { name: "queue", ty: "{ limit: number, wait_seconds: number }", about: "" },
            Member { name: "max_concurrency", ty: "number", about: "" },
            Member { name: "on_cancel", ty: "{ action: string, grace_seconds: number? }", about: "" },
            Member { name: "drift", ty: "string", about: "`\"refuse\"` or `\"warn\"`." },
            Member { name: "tools", ty: "{ string }", about: "Names of the tools that clients see, sorted." },
            Member {
                name: "call",
                ty: "(self: TestedPolicy, call: { tool: string, arguments: { [string]: any }?, arguments_json: string?, session: string?, client: { name: string, version: string? }? }) -> TestedCall",
                about: "Judges a call as a real one is judged. `arguments_json` gives the arguments byte for byte.",
            },
            Member {
                name: "result",
                ty: "(self: TestedPolicy, result: { tool: string, arguments: { [string]: any }?, json: any?, fixture: string?, is_error: boolean? }) -> TestedResult",
                about: "Judges a result of the server: `json` is its text or a table, `fixture` a file with it, relative \
                        to the test file. With `is_error` it is the `error` of a JSON-RPC response.",
            },
        ],
    },
    View {
        name: "TestedCall",
        about: "What becomes of a call.",
        members: &[
            Member { name: "allowed", ty: "boolean", about: "Whether it is sent." },
            Member { name: "reason", ty: "string?", about: "Why not." },
            Member { name: "arguments", ty: "any", about: "As they are sent." },
            Member { name: "arguments_json", ty: "string?", about: "The same, byte for byte." },
            Member { name: "deadline_seconds", ty: "number?", about: "Until its answer." },
            Member { name: "rule", ty: "string?", about: "What denied or rewrote it." },
        ],
    },
    View {
        name: "TestedResult",
        about: "What becomes of a result.",
        members: &[
            Member {
                name: "json",
                ty: "string",
                about: "What the client gets, byte for byte; empty when it is withheld.",
            },
            Member { name: "text", ty: "string", about: "The texts of its content, decoded, one a line." },
            Member { name: "value", ty: "any", about: "What the client gets, as a table." },
            Member { name: "withheld", ty: "boolean", about: "Whether the client gets nothing of it." },
            Member { name: "reason", ty: "string?", about: "Why it is withheld." },
            Member { name: "changed", ty: "boolean", about: "Whether anything of it was changed." },
            Member { name: "rule", ty: "string?", about: "What withheld or rewrote it." },
        ],
    },
    View {
        name: "Expect",
        about: "`expect` in tests: each fails the test with the line that called it.",
        members: &[
            Member {
                name: "equal",
                ty: "(actual: any, expected: any) -> ()",
                about: "Tables are compared by what they hold.",
            },
            Member {
                name: "contains",
                ty: "(actual: string | TestedResult, part: string) -> ()",
                about: "The text, or the JSON or text of a result, has this part.",
            },
            Member { name: "allowed", ty: "(call: TestedCall) -> ()", about: "" },
            Member {
                name: "denied",
                ty: "(call: TestedCall, part: string?) -> ()",
                about: "The reason has this part. A policy that failed has decided nothing: that passes only with a \
                        part of the failure.",
            },
            Member {
                name: "hidden",
                ty: "(policy: TestedPolicy, tool: string) -> ()",
                about: "Clients do not see the tool.",
            },
            Member {
                name: "visible",
                ty: "(policy: TestedPolicy, tool: string) -> ()",
                about: "Clients see the tool.",
            },
            Member {
                name: "withheld",
                ty: "(result: TestedResult, part: string?) -> ()",
                about: "The reason has this part. A policy that failed has decided nothing: that passes only with a \
                        part of the failure.",
            },
            Member {
                name: "redacted",
                ty: "(result: TestedResult, secret: string) -> ()",
                about: "The server sent the secret, and the client does not get it in any spelling of JSON.",
            },
            Member {
                name: "same_bytes",
                ty: "(result: TestedResult) -> ()",
                about: "The client gets what the server sent, byte for byte.",
            },
        ],
    },
];
