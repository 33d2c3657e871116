//! Stubs for luau-lsp and luau-analyze, in the form of Luau's definition files.

use std::fmt::Write as _;

use super::table::{CONSTRUCTORS, FUNCTIONS, GLOBALS_OF_TESTS, VIEWS};
use super::{Field, Kind, Member, Presence, Record, View, Yields};

const HEAD: &str = "\
-- The policy language of lazy-mcp, for editors. Made by `lazy-mcp policy types`; do not edit.
--
-- luau-lsp: add this file to `luau-lsp.types.definitionFiles`.

declare extern type Policy with end
declare extern type ArgumentRule with end
declare extern type ResultRule with end
declare extern type Verdict with end
";

/// `broker.d.luau`.
pub fn stubs() -> String {
    let mut out = HEAD.to_owned();
    let mut written = Vec::new();
    for constructor in CONSTRUCTORS {
        record(&mut out, constructor.record, &mut written);
    }
    for view in VIEWS.iter().chain(GLOBALS_OF_TESTS) {
        write_view(&mut out, view);
    }
    out.push_str("\ndeclare broker: {\n");
    for constructor in CONSTRUCTORS {
        comment(&mut out, "    ", constructor.about);
        let yields = match constructor.yields {
            Yields::Backend => "Policy",
            Yields::ArgumentRule => "ArgumentRule",
            Yields::ResultRule => "ResultRule",
        };
        put(&mut out, format_args!("    {}: (fields: {}) -> {yields},\n", constructor.name, constructor.record.name));
    }
    FUNCTIONS.iter().for_each(|function| member(&mut out, function));
    out.push_str("    --- In tests only.\n    load_policy: (name: string) -> TestedPolicy,\n}\n\n");
    out.push_str("--- In tests only.\ndeclare expect: Expect\n");
    out
}

/// The record, and before it those inside it.
fn record(out: &mut String, record_: &'static Record, written: &mut Vec<&'static str>) {
    if written.contains(&record_.name) {
        return;
    }
    written.push(record_.name);
    for field in record_.fields {
        if let Kind::Table(inner) | Kind::ByTool(inner) = field.kind {
            record(out, inner, written);
        }
    }
    put(out, format_args!("\ntype {} = {{\n", record_.name));
    record_.fields.iter().for_each(|field| write_field(out, field));
    out.push_str("}\n");
}

fn write_field(out: &mut String, field: &Field) {
    let mut about = field.about.to_owned();
    match field.kind {
        Kind::Whole(min, u32::MAX) if min > 0 => about += &format!(" A whole number from {min}."),
        Kind::Whole(min, max) if max < u32::MAX => about += &format!(" A whole number from {min} to {max}."),
        Kind::Seconds(min, max) => about += &format!(" From {min} to {max}."),
        _ => {}
    }
    if let Presence::Default(default) = field.presence {
        about += &format!(" Default: {default}.");
    }
    comment(out, "    ", &about);
    let optional = if field.presence == Presence::Required { "" } else { "?" };
    put(out, format_args!("    {}: {}{optional},\n", field.name, type_of(&field.kind)));
}

fn type_of(kind: &Kind) -> String {
    match kind {
        Kind::Text => "string".to_owned(),
        Kind::Flag => "boolean".to_owned(),
        Kind::Number | Kind::Whole(..) | Kind::Seconds(..) => "number".to_owned(),
        Kind::Choice(names) => {
            let names: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
            format!("({})", names.join(" | "))
        }
        Kind::Texts => "{ string }".to_owned(),
        Kind::Table(record) => record.name.to_owned(),
        Kind::ByTool(record) => format!("{{ [string]: {} }}", record.name),
        Kind::ArgumentRules => "{ [string]: ArgumentRule }".to_owned(),
        Kind::ResultRules => "{ ResultRule }".to_owned(),
        Kind::Hook(ty) => format!("({ty})"),
        Kind::Hooks(ty) => format!("{{ [string]: ({ty}) }}"),
    }
}

fn write_view(out: &mut String, view: &View) {
    out.push('\n');
    comment(out, "", view.about);
    put(out, format_args!("type {} = {{\n", view.name));
    view.members.iter().for_each(|of| member(out, of));
    out.push_str("}\n");
}

fn member(out: &mut String, member: &Member) {
    comment(out, "    ", member.about);
    put(out, format_args!("    {}: {},\n", member.name, member.ty));
}

fn comment(out: &mut String, indent: &str, about: &str) {
    if !about.is_empty() {
        put(out, format_args!("{indent}--- {about}\n"));
    }
}

fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("writing to a string does not fail");
}
