//! Pure functions for hooks: what is error-prone to do with patterns.

use mlua::{Lua, Table, Value};
use url::Url;

use crate::policy::fields::{kind, text};
use crate::policy::sandbox::error_at_caller;

pub(super) fn install(lua: &Lua, broker: &Table) -> mlua::Result<()> {
    broker.raw_set("null", Value::NULL)?;
    broker.raw_set("parse_url", lua.create_function(parse_url)?)?;
    let inside = lua.create_function(|lua, (path, directory): (Value, Value)| {
        let (path, directory) = (string(lua, "path_is_inside", &path)?, string(lua, "path_is_inside", &directory)?);
        Ok(is_inside(&path, &directory))
    })?;
    broker.raw_set("path_is_inside", inside)
}

fn string(lua: &Lua, function: &str, value: &Value) -> mlua::Result<String> {
    text(value).ok_or_else(|| error_at_caller(lua, format_args!("broker.{function} takes text, got {}", kind(value))))
}

/// The parts of a URL by the WHATWG standard, `port` with the default of the scheme; nil for what is no URL.
fn parse_url(lua: &Lua, url: Value) -> mlua::Result<Option<Table>> {
    let Ok(url) = Url::parse(&string(lua, "parse_url", &url)?) else { return Ok(None) };
    let parts = lua.create_table()?;
    parts.raw_set("scheme", url.scheme())?;
    parts.raw_set("host", url.host_str().filter(|host| !host.is_empty()))?;
    parts.raw_set("port", url.port_or_known_default())?;
    parts.raw_set("path", url.path())?;
    parts.raw_set("query", url.query())?;
    Ok(Some(parts))
}

/// Whether a path is `directory` or below it, by its text alone: `.` and `..` are worked out, links are not seen. A
/// backslash separates too, because some servers take it so.
fn is_inside(path: &str, directory: &str) -> bool {
    match (parts(path), parts(directory)) {
        (Some(path), Some(directory)) => path.starts_with(&directory),
        _ => false,
    }
}

/// `None` if it climbs out of where it starts, or is no path. An absolute path begins with an empty part.
fn parts(path: &str) -> Option<Vec<&str>> {
    if path.is_empty() || path.contains('\0') {
        return None;
    }
    let is_absolute = path.starts_with(['/', '\\']);
    let mut parts: Vec<&str> = is_absolute.then_some("").into_iter().collect();
    for part in path.split(['/', '\\']) {
        match part {
            "" | "." => {}
            ".." if parts.len() > usize::from(is_absolute) => {
                parts.pop();
            }
            ".." => return None,
            part => parts.push(part),
        }
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, directory: &str, inside: bool) {
        assert_eq!(is_inside(path, directory), inside, "{path} in {directory}");
    }

    #[test]
    fn paths_are_judged_by_their_text() {
        check("/srv/a/b", "/srv/a", true);
        check("/srv/a", "/srv/a/", true);
        check("/srv/a/./x//y/../z", "/srv/a", true);
        check("/srv/ab", "/srv/a", false);
        check("/srv/a/../b", "/srv/a", false);
        check("/srv/a/../../..", "/", false);
        check("/anything", "/", true);
        check("work/a", "/srv", false);
        check("/srv/a", "srv", false);
        check("work/a", "work", true);
        check("../srv", "srv", false);
        check("/srv\\..\\etc", "/srv", false);
        check("C:\\srv\\x", "C:/srv", true);
        check("/srv/\0", "/srv", false);
        check("", "/srv", false);
        check("/srv", "", false);
    }
}
