//! The reference of the policy language, `docs/reference/policy-api.md`.

use std::fmt::Write as _;

use super::table::{CONSTRUCTORS, FUNCTIONS, GLOBALS_OF_TESTS, VIEWS};
use super::{Constructor, Kind, Member, Presence, Record, View, Yields};

const HEAD: &str = "\
# Policy language

Every constructor and every field, made from the broker's own table of them by `lazy-mcp policy types --markdown`.
[policy.md](policy.md) says how they work together; [write-a-policy.md](../guides/write-a-policy.md) is the way in.

Unknown fields are errors with file, line and the nearest name.
";

/// `policy-api.md`.
pub fn reference() -> String {
    let mut out = HEAD.to_owned();
    for (title, yields) in [
        ("The backend", Yields::Backend),
        ("Rules for arguments", Yields::ArgumentRule),
        ("Rules for results", Yields::ResultRule),
    ] {
        put(&mut out, format_args!("\n## {title}\n"));
        CONSTRUCTORS.iter().filter(|one| one.yields == yields).for_each(|one| constructor(&mut out, one));
    }
    out.push_str("\n## Functions of `broker`\n\n| member | type | does |\n| --- | --- | --- |\n");
    FUNCTIONS.iter().for_each(|function| member(&mut out, &format!("broker.{}", function.name), function));
    if !VIEWS.is_empty() {
        out.push_str("\n## What hooks are given\n");
        VIEWS.iter().for_each(|of| view(&mut out, of));
    }
    out.push_str("\n## Tests\n\nFiles `policies/tests/test_*.lua` see `broker.load_policy`, `broker.null`, `expect`, `pcall` and the pure functions of Lua.\n");
    GLOBALS_OF_TESTS.iter().for_each(|of| view(&mut out, of));
    out
}

fn constructor(out: &mut String, constructor: &Constructor) {
    put(out, format_args!("\n### `broker.{}`\n\n{}\n", constructor.name, constructor.about));
    fields(out, constructor.record);
    inner(out, constructor.record, "");
}

/// The tables inside a table, each with the path that leads there.
fn inner(out: &mut String, record: &Record, path: &str) {
    for field in record.fields {
        let (of, path) = match field.kind {
            Kind::Table(of) => (of, format!("{path}{}", field.name)),
            Kind::ByTool(of) => (of, format!("{path}{}[NAME]", field.name)),
            _ => continue,
        };
        put(out, format_args!("\nFields of `{path}`:\n"));
        fields(out, of);
        inner(out, of, &format!("{path}."));
    }
}

fn fields(out: &mut String, record: &Record) {
    out.push_str("\n| field | is | without it | meaning |\n| --- | --- | --- | --- |\n");
    for field in record.fields {
        let without = match field.presence {
            Presence::Required => "required".to_owned(),
            Presence::Optional => "–".to_owned(),
            Presence::Default(default) => format!("`{default}`"),
        };
        put(out, format_args!("| `{}` | {} | {without} | {} |\n", field.name, field.kind, field.about));
    }
}

fn view(out: &mut String, view: &View) {
    put(
        out,
        format_args!("\n### `{}`\n\n{}\n\n| member | type | meaning |\n| --- | --- | --- |\n", view.name, view.about),
    );
    view.members.iter().for_each(|of| member(out, of.name, of));
}

fn member(out: &mut String, name: &str, member: &Member) {
    put(out, format_args!("| `{name}` | `{}` | {} |\n", member.ty.replace('|', "\\|"), member.about));
}

fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("writing to a string does not fail");
}
