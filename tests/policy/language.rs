//! The table of the policy language is the truth: readers, stubs and reference agree with it.

use std::fs;

use lazy_mcp_broker::policy::language::{CONSTRUCTORS, Constructor, Field, Kind, Presence, Record, reference, stubs};

use crate::faults;

/// A call of the constructor with this text as its fields.
fn policy(constructor: &Constructor, fields: &str) -> String {
    format!("local x = broker.{} {{ {fields} }}", constructor.name)
}

/// Wraps the text of a field in the tables that lead to it.
fn at(path: &[&str], field: &str) -> String {
    path.iter().rev().fold(field.to_owned(), |inner, key| format!("{key} = {{ {inner} }}"))
}

fn walk(constructor: &Constructor, record: &Record, path: &[&str], checked: &mut usize) {
    let said_of_nothing = faults(&format!("{}\nerror('the end')", policy(constructor, &at(path, ""))));
    for field in record.fields {
        check_refused(constructor, path, field);
        let needs = format!("needs the field '{}'", field.name);
        assert_eq!(
            said_of_nothing.contains(&needs),
            field.presence == Presence::Required,
            "{needs}: {said_of_nothing}"
        );
        *checked += 1;
        let mut deeper: Vec<&str> = path.iter().copied().chain([field.name]).collect();
        match field.kind {
            Kind::Table(inner) => walk(constructor, inner, &deeper, checked),
            Kind::ByTool(inner) => {
                deeper.push("some_tool");
                walk(constructor, inner, &deeper, checked);
            }
            _ => {}
        }
    }
}

/// A function is right nowhere but in a hook.
#[track_caller]
fn check_refused(constructor: &Constructor, path: &[&str], field: &Field) {
    let Some(must_be) = field.kind.must_be() else { return };
    let text = policy(constructor, &at(path, &format!("{} = f", field.name)));
    let said = faults(&format!("local function f() end\n{text}"));
    let name: Vec<&str> = path.iter().copied().chain([field.name]).collect();
    let expected = format!("'{}' must be {must_be}, got function", name.join("."));
    assert!(said.contains(&expected), "{}: expected {expected:?} in {said:?}", constructor.name);
}

#[test]
fn every_field_of_the_table_is_read_as_the_table_says() {
    let mut checked = 0;
    for constructor in CONSTRUCTORS {
        walk(constructor, constructor.record, &[], &mut checked);
    }
    assert!(checked > 40, "{checked}");
}

#[track_caller]
fn check_written(path: &str, expected: &str, command: &str) {
    if std::env::var_os("UPDATE_GENERATED").is_some() {
        fs::write(path, expected).unwrap();
    }
    let found = fs::read_to_string(path).unwrap_or_default();
    assert!(found == expected, "`{path}` is not what the table says: `{command} > {path}`");
}

#[test]
fn stubs_and_reference_are_written_down() {
    check_written("policies/types/broker.d.luau", &stubs(), "lazy-mcp policy types");
    check_written("docs/reference/policy-api.md", &reference(), "lazy-mcp policy types --markdown");
}

/// Definition files have a syntax of their own; without `declare` what is left are types.
#[test]
fn stubs_are_luau() {
    let text: String = stubs()
        .lines()
        .map(|line| match line.strip_prefix("declare extern type ") {
            Some(line) => format!("type {} = {{}}\n", line.trim_end_matches(" with end")),
            None => match line.strip_prefix("declare ").and_then(|line| line.split_once(": ")) {
                Some((name, ty)) => format!("type {name} = {ty}\n"),
                None => format!("{line}\n"),
            },
        })
        .collect();
    let said = faults(&format!("{text}error('the end')"));
    assert!(said.ends_with("the end"), "{said}");
}
